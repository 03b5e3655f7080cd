//! What the handles of one store share, and the small moves on it.
//!
//! Every borrow of a cell ends within the function that takes it; none is held across an await.
//! Runs on the shard core.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use crate::config::StoreConfig;
use crate::disk::Disk;
use crate::format::segment::{SEGMENT_DATA_OFFSET, store_tag};
use crate::host::Host;
use crate::ids::{Lsn, SegmentId, Seq};
use crate::record::Record;
use crate::slots::{SlotNo, Slots};
use crate::state::State;
use crate::store::StoreStats;
use crate::store::checkpoint::Upkeep;
use crate::store::spans::Spans;
use crate::writer::cache::Cache;
use crate::writer::group::Entry;
use crate::writer::notify::{Notify, Progress};
use crate::writer::pipeline::Pipeline;

/// Where the durable part of the log ends: what the next header's cut names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogEnd {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u64,
    pub(crate) lsn: Lsn,
}

/// The segment that groups go to.
pub(crate) struct Current<D: Disk> {
    pub(crate) slot: SlotNo,
    pub(crate) file: D::File,
    pub(crate) segment: SegmentId,
    pub(crate) salt: u64,
    /// Where the next frame goes.
    pub(crate) pos: u64,
    pub(crate) capacity: u64,
    /// The header goes out with the first group.
    pub(crate) is_header_due: bool,
}

impl<D: Disk> Current<D> {
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.capacity - self.pos).unwrap_or(usize::MAX)
    }
}

/// A group in flight, or settled a moment ago.
pub(crate) struct Applied {
    pub(crate) lsn: Lsn,
    pub(crate) end: LogEnd,
    /// The LSN that its frame claims durable.
    pub(crate) claims: Lsn,
    /// Its records other than hooks, in order: back into the queue at a fence.
    pub(crate) others: Vec<Record>,
    /// What a fence puts back instead (offset, watermark as they were before).
    pub(crate) before: Vec<Record>,
    /// Its hooks; kept only for the mutation that undoes them wrongly.
    pub(crate) hooks: Vec<Seq>,
}

/// What the writer of one shard holds.
pub(crate) struct Writer<D: Disk> {
    pub(crate) pipeline: Pipeline,
    pub(crate) current: Current<D>,
    pub(crate) durable_end: LogEnd,
    pub(crate) next_segment: SegmentId,
    pub(crate) applied: VecDeque<Applied>,
    pub(crate) last_durable: Option<Applied>,
    pub(crate) cache: Cache<D>,
    pub(crate) queue: VecDeque<Record>,
    pub(crate) is_building: bool,
    /// Records put at the queue's front since the group that is being built was begun: those of
    /// fenced groups, older than its own, and names.
    pub(crate) put_in_front: usize,
    /// Bytes that the last refused `try_begin` wanted.
    pub(crate) wanted_bytes: usize,
    /// The highest LSN that some frame or header written claims durable.
    pub(crate) claimed: Lsn,
    /// The last frame that holds a record: an empty one asks for no claim.
    pub(crate) last_with_records: Lsn,
    pub(crate) is_claim_armed: bool,
    pub(crate) settled_waker: Option<Waker>,
    pub(crate) ready_waker: Option<Waker>,
    pub(crate) spare_entries: Vec<Vec<Entry>>,
    pub(crate) stats: StoreStats,
    /// Bytes appended and segments started since the last checkpoint.
    pub(crate) since_checkpoint: (u64, u32),
}

/// The one thing behind every handle of a store.
pub(crate) struct Inner<D: Disk> {
    pub(crate) disk: D,
    pub(crate) host: Rc<dyn Host>,
    pub(crate) config: StoreConfig,
    pub(crate) store_tag: u32,
    pub(crate) state: RefCell<State>,
    pub(crate) writer: RefCell<Writer<D>>,
    pub(crate) slots: RefCell<Slots<D>>,
    pub(crate) spans: Spans<D>,
    /// Wakes the housekeeping task, which must not keep the store alive.
    pub(crate) keeper: Rc<Notify>,
    /// Signalled when a group's I/O ended or a fence was left.
    pub(crate) progress: Progress,
    pub(crate) is_fencing: Cell<bool>,
    pub(crate) is_closed: Cell<bool>,
    pub(crate) is_short_of_space: Cell<bool>,
    /// The last attempt to make a slot ready failed.
    pub(crate) is_slotless: Cell<bool>,
    pub(crate) is_preparing: Cell<bool>,
    pub(crate) upkeep: RefCell<Upkeep<D>>,
    next_seq: Cell<Seq>,
}

impl<D: Disk> Drop for Inner<D> {
    fn drop(&mut self) {
        self.keeper.signal();
    }
}

impl<D: Disk> Inner<D> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        disk: D,
        host: Rc<dyn Host>,
        config: StoreConfig,
        state: State,
        next_seq: Seq,
        slots: Slots<D>,
        writer: Writer<D>,
        upkeep: Upkeep<D>,
    ) -> Inner<D> {
        Inner {
            store_tag: store_tag(&config.store_uuid, config.shard),
            disk,
            host,
            config,
            state: RefCell::new(state),
            writer: RefCell::new(writer),
            slots: RefCell::new(slots),
            spans: Spans::default(),
            keeper: Rc::default(),
            progress: Progress::default(),
            is_fencing: Cell::new(false),
            is_closed: Cell::new(false),
            is_short_of_space: Cell::new(false),
            is_slotless: Cell::new(false),
            is_preparing: Cell::new(false),
            upkeep: RefCell::new(upkeep),
            next_seq: Cell::new(next_seq),
        }
    }

    pub(crate) fn next_seq(&self) -> Seq {
        self.next_seq.get()
    }

    pub(crate) fn take_seq(&self) -> Seq {
        let seq = self.next_seq.get();
        self.next_seq.set(seq.next());
        seq
    }

    pub(crate) fn raise_seq(&self, at_least: Seq) {
        self.next_seq.set(self.next_seq.get().max(at_least));
    }

    pub(crate) fn is_live(&self, seq: Seq) -> bool {
        self.state.borrow().location(seq).is_some()
    }

    /// The group under construction was dropped or submitted.
    pub(crate) fn end_building(&self, mut entries: Vec<Entry>, queued: Vec<Record>) {
        let mut writer = self.writer.borrow_mut();
        let put_in_front = std::mem::take(&mut writer.put_in_front);
        let is_name = |record: &Record| matches!(record, Record::SinkName(_));
        let (names, others): (Vec<_>, Vec<_>) = queued.into_iter().partition(is_name);
        // In front of what came later, behind what a fence gave back, which is older; names in
        // front of all.
        let at = put_in_front + names.len();
        for record in names.into_iter().rev() {
            writer.queue.push_front(record);
        }
        let at = at.max(writer.names_queued());
        for record in others.into_iter().rev() {
            writer.queue.insert(at, record);
        }
        writer.is_building = false;
        if entries.capacity() > 0 && writer.spare_entries.len() < 4 {
            entries.clear();
            writer.spare_entries.push(entries);
        }
        let waker = writer.ready_waker.take();
        drop(writer);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes whoever waits to begin a group.
    pub(crate) fn wake_ready(&self) {
        let waker = self.writer.borrow_mut().ready_waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes whoever waits for a group to settle.
    pub(crate) fn wake_settled(&self) {
        let waker = self.writer.borrow_mut().settled_waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<D: Disk> Writer<D> {
    /// The writer after an open: `current`'s header is on the medium, and so is everything up to
    /// the first LSN; those up to the second were given out.
    pub(crate) fn new(
        config: &StoreConfig,
        current: Current<D>,
        end: LogEnd,
        (last_lsn, given): (Lsn, Lsn),
        claimed: Lsn,
    ) -> Writer<D> {
        let next_segment = current.segment.next();
        Writer {
            pipeline: Pipeline::new(last_lsn, given, config.groups_inflight),
            current,
            durable_end: end,
            next_segment,
            applied: VecDeque::new(),
            last_durable: None,
            cache: Cache::new(config.cache_bytes_max),
            queue: VecDeque::new(),
            is_building: false,
            put_in_front: 0,
            wanted_bytes: 0,
            claimed,
            last_with_records: last_lsn,
            is_claim_armed: false,
            settled_waker: None,
            ready_waker: None,
            spare_entries: Vec::new(),
            stats: StoreStats::default(),
            since_checkpoint: (0, 0),
        }
    }

    /// Puts a record in the queue. Names go in front: no hook may be written before the name of
    /// its sink.
    pub(crate) fn queue(&mut self, record: Record) {
        if matches!(record, Record::SinkName(_)) {
            self.put_in_front += 1;
            self.queue.push_front(record);
        } else {
            self.queue.push_back(record);
        }
    }

    /// Names that wait; they are in front.
    pub(crate) fn names_queued(&self) -> usize {
        let names = self.queue.iter();
        let is_name = |record: &&Record| matches!(record, Record::SinkName(_));
        names.take_while(is_name).count()
    }

    /// Bytes of the names that wait: they all ride in the next group.
    pub(crate) fn names_bytes(&self) -> usize {
        let names = self.queue.iter();
        let names = names.take_while(|record| matches!(record, Record::SinkName(_)));
        names.map(crate::format::record::record_len).sum()
    }

    /// Bytes that a group with `planned` bytes of records needs in the segment.
    pub(crate) fn need(&self, planned: usize) -> usize {
        let planned = planned.saturating_add(self.names_bytes());
        const LEAST: usize = 64 << 10;
        let most =
            usize::try_from(self.current.capacity - SEGMENT_DATA_OFFSET).unwrap_or(usize::MAX);
        crate::format::padded(planned.saturating_add(crate::format::frame::FRAME_HEADER_BYTES))
            .max(LEAST.min(most / 16))
            .min(most)
    }
}
