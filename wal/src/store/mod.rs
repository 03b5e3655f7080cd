//! The store of one shard as the engine uses it.
//!
//! Runs on the shard core, single-threaded; every handle is a clone of one `Rc`.

pub(crate) mod inner;

mod submit;

mod settle;

mod fence;

pub(crate) mod keeper;

mod claim;

mod relocate;

pub(crate) mod checkpoint;

pub mod backup;

mod read;

mod spans;

mod close;

#[cfg(test)]
mod tests;

use std::cell::{Ref, RefMut};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::config::StoreConfig;
use crate::disk::Disk;
use crate::error::{OpenError, Refusal};
use crate::host::Host;
use crate::ids::{Lsn, Seq};
use crate::record::Record;
use crate::state::State;
use crate::writer::GroupBuilder;

pub use checkpoint::Pin;
pub use read::StoredHook;

pub(crate) use inner::Inner;

/// What became of a submitted group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// On the medium: its hooks may be acked.
    Durable,
    /// A write or sync failed at or before it: its hooks are undone, its other records wait in
    /// the store's queue again (offsets and watermarks are put back instead).
    Fenced,
}

/// The fate of one submitted group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The group's LSN, as [`Store::submit`] returned it.
    pub lsn: Lsn,
    /// Its fate.
    pub outcome: Outcome,
}

/// What an open found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// True when the directory held no store.
    pub fresh: bool,
    /// The highest LSN that anything intact claimed durable.
    pub durable_claimed: Lsn,
    /// The last LSN kept.
    pub last_lsn: Lsn,
    /// Frames above the claim that were kept and written again.
    pub frames_rewritten: u64,
    /// Frames above the claim that were dropped with a torn one.
    pub frames_dropped: u64,
    /// Frames read.
    pub frames_scanned: u64,
    /// Segments read.
    pub segments_scanned: usize,
    /// The checkpoint that the open started from.
    pub checkpoint: Option<u64>,
    /// Checkpoints that were damaged and passed over.
    pub checkpoints_bad: u32,
    /// Bytes read.
    pub bytes_scanned: u64,
    /// Live hooks.
    pub live_hooks: u64,
    /// The first seq this open may hand out.
    pub next_seq: Seq,
}

/// An open that had to read more segments than this takes a checkpoint before it serves.
const SEGMENTS_SCANNED_MAX: usize = 8;

/// What a checkpoint wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointReport {
    /// Everything up to here is in it.
    pub lsn: Lsn,
    /// Its size.
    pub bytes: u64,
    /// Slots that became free.
    pub slots_freed: u32,
}

/// Gauges and counters of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    /// Groups written.
    pub groups: u64,
    /// Records written.
    pub records: u64,
    /// Bytes appended, padding included.
    pub bytes: u64,
    /// Writes and syncs that failed.
    pub io_failures: u64,
    /// Live hooks that could not be read when they were to be moved; each again once a minute.
    pub read_failures: u64,
    /// Fences so far.
    pub fences: u64,
    /// Groups in flight.
    pub inflight: usize,
    /// Longest time a group in flight has waited, milliseconds.
    pub stalled_ms: u64,
    /// Last write and sync of a group, microseconds.
    pub last_group_us: u64,
    /// Slots in all.
    pub slots: u32,
    /// Slots ready for use.
    pub slots_spare: u32,
    /// Free bytes of the file system, as last asked.
    pub free_bytes: u64,
    /// Bytes held for reads right after an ack.
    pub cache_bytes: usize,
    /// Reads served from there.
    pub cache_hits: u64,
    /// Reads that went to the disk.
    pub cache_misses: u64,
}

/// The store of one shard. A clone is the same store.
pub struct Store<D: Disk> {
    pub(crate) inner: Rc<Inner<D>>,
}

impl<D: Disk> Clone for Store<D> {
    fn clone(&self) -> Self {
        Store {
            inner: Rc::clone(&self.inner),
        }
    }
}

impl<D: Disk> Store<D> {
    /// Opens the store in `disk`'s directory, or creates it in an empty one. Everything that the
    /// returned store holds is durable. An error means that nothing acked was changed.
    ///
    /// # Cancel safety
    /// May be dropped at any point, as a crash may happen at any point.
    pub async fn open(
        disk: D,
        host: Rc<dyn Host>,
        config: StoreConfig,
    ) -> Result<(Store<D>, OpenReport), OpenError> {
        let (inner, report) = crate::open::open(disk, host, config).await?;
        let inner = Rc::new(inner);
        keeper::start(&inner);
        inner.arm_claim();
        let store = Store { inner };
        if report.segments_scanned > SEGMENTS_SCANNED_MAX
            && let Err(error) = store.checkpoint().await
        {
            tracing::warn!(shard = %store.inner.config.shard, %error, "no checkpoint after a long open");
        }
        Ok((store, report))
    }

    /// Whether a request may be taken at all. Cheap: asked per request.
    pub fn admit(&self) -> Result<(), Refusal> {
        self.inner.admit()
    }

    /// Begins a group: `None` while as many as `groups_inflight` are in flight, while another is
    /// being built, while fenced, or while a segment switch is waiting. [`Store::poll_ready`]
    /// tells when to ask again.
    pub fn try_begin(&self) -> Option<GroupBuilder<D>> {
        self.inner.begin(0, 0, submit::Purpose::Caller)
    }

    /// The same with the bytes of records ([`crate::HookDraft::record_bytes`]) that the caller
    /// means to put in, so that the buffer has its size from the start.
    pub fn try_begin_sized(&self, planned_bytes: usize) -> Option<GroupBuilder<D>> {
        self.inner.begin(planned_bytes, 0, submit::Purpose::Caller)
    }

    /// The same; of what waits in the store's queue only so much goes ahead as leaves room for a
    /// first record of `first_bytes`. One large queued record may still go ahead of it: ask
    /// [`GroupBuilder::fits`].
    pub fn try_begin_with(
        &self,
        planned_bytes: usize,
        first_bytes: usize,
    ) -> Option<GroupBuilder<D>> {
        let purpose = submit::Purpose::Caller;
        self.inner.begin(planned_bytes, first_bytes, purpose)
    }

    /// The same as [`Store::try_begin_with`] while as many groups as may be are in flight: this
    /// one is built meanwhile and submitted once [`Store::poll_submit`] says so.
    pub fn try_begin_ahead(
        &self,
        planned_bytes: usize,
        first_bytes: usize,
    ) -> Option<GroupBuilder<D>> {
        let purpose = submit::Purpose::Ahead;
        self.inner.begin(planned_bytes, first_bytes, purpose)
    }

    /// Ready when the group may be submitted, needed for one that was held over an await or begun
    /// ahead. False: a fence or the end of the store overtook it, and it must be dropped; nothing
    /// of it was applied or written. One caller, the same as of [`Store::poll_ready`].
    pub fn poll_submit(&self, group: &GroupBuilder<D>, cx: &mut Context<'_>) -> Poll<bool> {
        match self.inner.can_submit(group) {
            None => Poll::Ready(false),
            Some(true) => Poll::Ready(true),
            Some(false) => {
                self.inner.writer.borrow_mut().ready_waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Applies the group and starts its write. It is durable only once it settles so.
    pub fn submit(&self, group: GroupBuilder<D>) -> Lsn {
        self.inner.submit(group, false)
    }

    /// The next settled group, in LSN order, each exactly once. One caller; woken once for all
    /// that settled together, so ask until it is pending.
    pub fn poll_settled(&self, cx: &mut Context<'_>) -> Poll<Settled> {
        let mut writer = self.inner.writer.borrow_mut();
        match writer.pipeline.take_settled() {
            Some(settled) => Poll::Ready(settled),
            None => {
                writer.settled_waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Ready when what was last asked of [`Store::try_begin`] would be given. One caller.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.inner.can_begin() {
            return Poll::Ready(());
        }
        self.inner.writer.borrow_mut().ready_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Every group at or below it is durable or was fenced.
    pub fn durable_lsn(&self) -> Lsn {
        self.inner.writer.borrow().pipeline.durable()
    }

    /// The last group that the state holds; the durable mark when none is in flight (LSNs that a
    /// fence skipped are nobody's to wait for).
    pub fn applied_lsn(&self) -> Lsn {
        self.inner.writer.borrow().pipeline.visible()
    }

    /// True from a failed write or sync until a new segment has been started.
    pub fn is_fenced(&self) -> bool {
        self.inner.writer.borrow().pipeline.is_frozen()
    }

    /// The largest record (see [`crate::HookDraft::record_bytes`]) that a segment takes.
    pub fn record_bytes_max(&self) -> usize {
        let data = self.inner.config.segment_bytes - 2 * crate::disk::BLOCK_BYTES as u64;
        usize::try_from(data).unwrap_or(usize::MAX)
    }

    /// Puts a record in the store's queue: it is applied and written with the next group, and
    /// again with a later one when that is fenced. Nothing is promised until then. False, and
    /// not taken, when `queued_records_max` wait already.
    pub fn enqueue(&self, record: Record) -> bool {
        let mut writer = self.inner.writer.borrow_mut();
        let has_room = writer.queue.len() < self.inner.config.queued_records_max;
        if has_room {
            writer.queue(record);
        }
        has_room
    }

    /// Whether the name of a sink waits in the queue: a group that was begun before does not have
    /// it, so that no hook of that sink may come into it.
    pub fn has_names_queued(&self) -> bool {
        let writer = self.inner.writer.borrow();
        matches!(writer.queue.front(), Some(Record::SinkName(_)))
    }

    /// Records waiting in the queue.
    pub fn queued(&self) -> usize {
        self.inner.writer.borrow().queue.len()
    }

    /// The state. Never hold it across an await.
    pub fn state(&self) -> Ref<'_, State> {
        self.inner.state.borrow()
    }

    /// The state, for what only the engine changes. Never hold it across an await.
    pub fn state_mut(&self) -> RefMut<'_, State> {
        self.inner.state.borrow_mut()
    }

    /// The next seq that a new hook would take.
    pub fn next_seq(&self) -> Seq {
        self.inner.next_seq()
    }

    /// Gauges and counters.
    pub fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}
