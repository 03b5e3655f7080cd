//! One shard taking batches: each becomes a durable group that carries its hooks and the offset.
//!
//! Invariants:
//! * batches are encoded in the order of their turns, also after a fence, which takes the turn back
//!   to the first batch it undid: an offset is never written in front of a record below it;
//! * what is looked up is looked up while the group is built, in one slice: nothing comes between
//!   the look and the write;
//! * the offset never falls, but under a hold, and never passes one.
//!
//! Nothing is allocated per record but what the group keeps. Runs on a shard core and offline.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ankusa_intake::Replayed;
use ankusa_wal::format::envelope::ENVELOPE_SEQ_OFFSET;
use ankusa_wal::format::record::{hook_len, record_len};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::state::SeqSet;
use ankusa_wal::{
    DedupeRow, Delivery, DeliveryState, Disk, GroupBuilder, HookExtra, HookId, Incarnation,
    IntakeIdentity, IntakeOffset, LogOffset, Outcome, Record, Resequenced, Seq, ShardId, SinkNo,
    State, Store, Watermark, mutations,
};

use super::lookup::{self, Read, count, place};
use super::routes::{Route, Routes, Today};
use super::{Applied, Batch, Place, Readable, Row, decide, lower};
use crate::port::{PortError, ShardEnd, ShardMark};

/// Room that is kept for the records that follow a hook.
const AFTER_BYTES: usize = 256;

/// Most incarnations that are learned from a log in one run.
const LEARNED_MAX: usize = 256;

/// Rejected records that are named one by one in the log of a run.
const NAMED_MAX: u64 = 20;

/// Encodes into a group that was begun for it.
pub type Encode<D> = Box<dyn FnOnce(&mut GroupBuilder<D>)>;

/// Groups of the caller's own through the shard's one writer.
pub trait Groups<D: Disk> {
    /// The store.
    fn store(&self) -> &Store<D>;

    /// Begins a group with room for about `bytes`, the first record of `first` among them, encodes
    /// and submits it, and completes with its fate. Called again after a fence, which it then
    /// waits out. Several may wait; they are begun in the order of the calls.
    fn write(
        &self,
        bytes: usize,
        first: usize,
        encode: Encode<D>,
    ) -> LocalFuture<Result<Outcome, PortError>>;
}

/// What a shard's run is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which shard.
    pub shard: ShardId,
    /// The name of the sink that stands for a source that is not configured.
    pub unroutable_sink: &'static [u8],
    /// Why its deliveries are dead.
    pub unroutable_reason: u8,
    /// Where the content came from: a store that is not an existing one learns incarnations.
    pub origin: StoreOrigin,
    /// Live hooks whose record cannot be read: written again when the log has them.
    pub damaged: Vec<Seq>,
    /// Ranges of seqs that were lost, first and one past the last: what comes back is noted.
    pub lost: Vec<(Seq, Seq)>,
    /// What only a newer version can read is given up: nothing holds the offset.
    pub give_up: bool,
    /// Most bytes of a group.
    pub group_bytes: usize,
}

/// One shard's side of a run. A clone is the same.
pub struct ShardApply<D: Disk>(Rc<Inner<D>>);

impl<D: Disk> Clone for ShardApply<D> {
    fn clone(&self) -> Self {
        ShardApply(Rc::clone(&self.0))
    }
}

struct Inner<D: Disk> {
    groups: Rc<dyn Groups<D>>,
    today: Rc<dyn Today>,
    settings: Settings,
    cells: RefCell<Cells>,
}

struct Cells {
    turn: u64,
    waiting: Vec<Waker>,
    hold: Option<u64>,
    seen: SeqSet,
    came_back: SeqSet,
    routes: Routes,
    /// Incarnations learned in this run, and their first seqs.
    learned: BTreeMap<u32, Seq>,
    /// What this group has at a seq.
    in_group: HashMap<Seq, HookId, foldhash::fast::RandomState>,
    marks_in_group: Vec<Resequenced>,
    scratch: Vec<u8>,
    seq_max: Seq,
    /// What the store had handed out when the run began.
    seq_end: Seq,
    /// Restored bytes of damaged hooks are written once.
    restored: SeqSet,
    named: u64,
}

/// What one group took of a batch.
#[derive(Default)]
struct Part {
    in_turn: bool,
    end: usize,
    is_whole: bool,
    counts: Applied,
    rows: Vec<DedupeRow>,
    /// Records that must follow a hook of this group and have no room in it.
    follow: Vec<Record>,
    error: Option<PortError>,
}

/// Why a record is not in this group.
enum Stop {
    Full,
    Error(PortError),
}

impl<D: Disk> ShardApply<D> {
    /// Over a shard that is open and takes no requests yet.
    pub fn new(groups: Rc<dyn Groups<D>>, today: Rc<dyn Today>, settings: Settings) -> Self {
        let seq_end = groups.store().state().next_seq();
        ShardApply(Rc::new(Inner {
            groups,
            today,
            settings,
            cells: RefCell::new(Cells {
                turn: 0,
                waiting: Vec::new(),
                hold: None,
                seen: SeqSet::new(),
                came_back: SeqSet::new(),
                routes: Routes::default(),
                learned: BTreeMap::new(),
                in_group: HashMap::default(),
                marks_in_group: Vec::new(),
                scratch: Vec::new(),
                seq_max: Seq(0),
                seq_end,
                restored: SeqSet::new(),
                named: 0,
            }),
        }))
    }

    /// Applies a batch; completes when all of it is durable.
    ///
    /// # Cancel safety
    /// Dropping it leaves a prefix of the batch applied; the batches behind it then wait for ever.
    pub async fn apply(&self, batch: Batch) -> Result<Applied, PortError> {
        let inner = &self.0;
        let batch = Rc::new(batch);
        let (mut done, mut sum) = (0, Applied::default());
        // What follows hooks of a durable group; undone with nobody.
        let mut follow: Vec<Record> = Vec::new();
        loop {
            self.turn(batch.turn).await;
            let left = &batch.records[done..];
            let first = left.first().map_or(AFTER_BYTES, room_of);
            let bytes: usize = left.iter().map(room_of).sum::<usize>() + AFTER_BYTES;
            let bytes = bytes.min(inner.settings.group_bytes).max(first);
            let part = Rc::new(RefCell::new(Part::default()));
            let encode: Encode<D> = {
                let (inner, batch, part) = (Rc::clone(inner), Rc::clone(&batch), Rc::clone(&part));
                let follow = follow.clone();
                Box::new(move |group| {
                    *part.borrow_mut() = inner.encode(&batch, done, follow, group)
                })
            };
            let outcome = inner.groups.write(bytes, first, encode).await?;
            let part = part.take();
            if outcome == Outcome::Fenced {
                inner.rewind(batch.turn);
                continue;
            }
            if !part.in_turn {
                continue;
            }
            mutations::point("recover.applied");
            inner.today.remember(&part.rows);
            sum += part.counts;
            done = part.end;
            follow = part.follow;
            if let Some(error) = part.error {
                return Err(error);
            }
            if part.is_whole {
                return Ok(sum);
            }
        }
    }

    /// The end of a replay: the offset, the leap of seqs, the incarnation's first seq, the
    /// identity. One durable group; once more changes nothing but the leap.
    pub async fn end(&self, end: ShardEnd) -> Result<(), PortError> {
        let records = {
            let cells = self.0.cells.borrow();
            let store = self.0.groups.store();
            let next = if cells.seq_max >= cells.seq_end {
                store.next_seq().max(cells.seq_max.next().leap())
            } else {
                store.next_seq()
            };
            let state = store.state();
            let mut records = vec![Record::NextSeq(next)];
            if let Some(incarnation) = end.incarnation
                && !state
                    .meta()
                    .incarnations()
                    .any(|row| row.incarnation == incarnation)
            {
                let is_first = state.meta().incarnations().next().is_none() && cells.seq_max.0 == 0;
                let first_seq = if is_first { Seq(0) } else { next };
                records.push(Record::Incarnation(Incarnation {
                    incarnation,
                    first_seq,
                }));
            }
            if let Some((node, partition, log)) = end.identity {
                let identity = IntakeIdentity {
                    node: node.into_bytes().into(),
                    partition,
                    log: log.into_bytes().into(),
                };
                if state.meta().intake.as_ref() != Some(&identity) {
                    records.push(Record::IntakeIdentity(identity));
                }
            }
            if let Some(offset) = end.offset {
                let hold = lower(end.hold, cells.hold);
                records.push(Record::Offset(next_offset(
                    &state,
                    Some(offset),
                    hold,
                    true,
                )));
            }
            records
        };
        self.write(records).await
    }

    /// What the shard says about itself.
    pub fn mark(&self) -> ShardMark {
        let store = self.0.groups.store();
        let state = store.state();
        ShardMark {
            shard: self.0.settings.shard,
            offset: state.meta().offset,
            next_seq: store.next_seq(),
            is_blank: state.next_seq() == Seq(1) && state.meta().offset.offset.is_none(),
        }
    }

    /// Gives a shard without a row of incarnations its first one. What a restored store held was
    /// handed out before the restore.
    pub async fn number_incarnation(&self, incarnation: u32) -> Result<(), PortError> {
        let has_none = {
            let state = self.0.groups.store().state();
            state.meta().incarnations().next().is_none()
        };
        if has_none && self.0.settings.origin != StoreOrigin::Fresh {
            let before = match self.0.settings.origin {
                StoreOrigin::Restored => incarnation.saturating_sub(1).max(1),
                _ => incarnation,
            };
            let row = Incarnation {
                incarnation: before,
                first_seq: Seq(0),
            };
            self.write(vec![Record::Incarnation(row)]).await?;
        }
        Ok(())
    }

    /// The log lost what it held: offset none, watermark 0.
    pub async fn forget_log(&self) -> Result<(), PortError> {
        let records = vec![
            Record::Offset(IntakeOffset::default()),
            Record::Watermark(Watermark::default()),
        ];
        self.write(records).await
    }

    /// Writes records in one group, again after each fence, and completes when it is durable.
    pub async fn write(&self, records: Vec<Record>) -> Result<(), PortError> {
        let bytes: usize = records.iter().map(record_len).sum();
        loop {
            let records = records.clone();
            let encode: Encode<D> = Box::new(move |group| {
                for record in records {
                    group.record(record);
                }
            });
            if self.0.groups.write(bytes, bytes, encode).await? == Outcome::Durable {
                return Ok(());
            }
        }
    }

    /// Seqs of this shard whose record the log was seen to hold.
    pub fn seen(&self) -> SeqSet {
        self.0.cells.borrow().seen.clone()
    }

    /// Of the lost seqs, those that came back.
    pub fn came_back(&self) -> SeqSet {
        self.0.cells.borrow().came_back.clone()
    }

    /// The store.
    pub fn store(&self) -> &Store<D> {
        self.0.groups.store()
    }

    #[cfg(test)]
    pub(crate) fn groups_for_tests(&self) -> &dyn Groups<D> {
        &*self.0.groups
    }

    async fn turn(&self, turn: u64) {
        poll_fn(|cx| {
            let mut cells = self.0.cells.borrow_mut();
            if cells.turn == turn {
                return Poll::Ready(());
            }
            cells.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The offset after a batch. It falls only under a hold; `is_end` takes an old hold away.
fn next_offset(state: &State, below: Option<u64>, hold: Option<u64>, is_end: bool) -> IntakeOffset {
    let now = state.meta().offset;
    let read = below.and_then(|below| below.checked_sub(1)).map(LogOffset);
    let mut offset = now.offset.max(read);
    if let Some(hold) = hold {
        offset = offset.min(hold.checked_sub(1).map(LogOffset));
    }
    let hold = hold.map(LogOffset);
    IntakeOffset {
        offset,
        hold: if is_end { hold } else { hold.or(now.hold) },
    }
}

/// Bytes that a record may take in a group, about.
fn room_of(record: &Replayed) -> usize {
    record.value.len() + AFTER_BYTES
}

impl<D: Disk> Inner<D> {
    /// A group was undone: the turn goes back.
    fn rewind(&self, turn: u64) {
        let mut cells = self.cells.borrow_mut();
        cells.restored = SeqSet::new();
        if turn < cells.turn {
            cells.turn = turn;
            cells.wake();
        }
    }

    /// Builds one group: `follow` first, then as much of the batch, from `from` on, as it takes.
    fn encode(
        &self,
        batch: &Batch,
        from: usize,
        follow: Vec<Record>,
        group: &mut GroupBuilder<D>,
    ) -> Part {
        let mut cells = self.cells.borrow_mut();
        let cells = &mut *cells;
        let mut part = Part {
            end: from,
            follow,
            ..Part::default()
        };
        if cells.turn != batch.turn {
            return part;
        }
        part.in_turn = true;
        if !self.settings.give_up {
            cells.hold = lower(cells.hold, batch.hold);
        }
        cells.in_group.clear();
        cells.marks_in_group.clear();
        let mut is_empty = !put(&mut part.follow, group);
        while let (Some(record), true) = (batch.records.get(part.end), part.follow.is_empty()) {
            match self.one(cells, group, record, is_empty, &mut part) {
                Ok(wrote) => {
                    is_empty &= !wrote;
                    part.end += 1;
                }
                Err(Stop::Full) => break,
                Err(Stop::Error(error)) => {
                    part.error = Some(error);
                    break;
                }
            }
        }
        let is_read = part.end == batch.records.len() && part.follow.is_empty();
        let has_offset = self.put_offset(cells, batch, &part, is_read, group);
        part.is_whole = is_read && has_offset;
        if part.is_whole {
            cells.turn += 1;
            cells.wake();
        }
        part
    }

    /// Writes how far the log is in the shard once this group is durable. False: it is still due.
    fn put_offset(
        &self,
        cells: &Cells,
        batch: &Batch,
        part: &Part,
        is_read: bool,
        group: &mut GroupBuilder<D>,
    ) -> bool {
        if batch.below.is_none() {
            return true;
        }
        let below = match is_read {
            true => batch.below,
            // Up to the last record that is in.
            false => batch.records[..part.end].last().map(|r| r.position + 1),
        };
        if below.is_none() || !part.follow.is_empty() {
            return false;
        }
        let offset = next_offset(&self.groups.store().state(), below, cells.hold, false);
        let record = Record::Offset(offset);
        let has_room = group.fits(record_len(&record));
        if has_room {
            group.record(record);
        }
        has_room
    }

    /// One record. True when something was written.
    fn one(
        &self,
        cells: &mut Cells,
        group: &mut GroupBuilder<D>,
        record: &Replayed,
        is_empty: bool,
        part: &mut Part,
    ) -> Result<bool, Stop> {
        let read = match lookup::read(record) {
            Ok(read) => read,
            Err((readable, what)) => {
                self.name_rejected(cells, record, what);
                let (row, _) = decide(readable, Place::Nothing, false, true);
                if row == Row::Hold && !self.settings.give_up {
                    cells.hold = lower(cells.hold, Some(record.position));
                }
                part.counts.records += 1;
                count(&mut part.counts, row, record.position);
                return Ok(false);
            }
        };
        let (place, mark) = self.place(cells, &read, record.incarnation);
        let route = match place {
            Place::SameHook | Place::FinishedHere => None,
            _ => Some(self.route(cells, &read).map_err(Stop::Error)?),
        };
        let known = route.as_ref().is_none_or(|route| route.is_known);
        let (row, _) = decide(Readable::Whole, place, mark.is_some(), known);
        let wrote = match route {
            Some(route) if row != Row::Present => {
                self.write_hook(cells, group, record, &read, row, &route, is_empty, part)?;
                true
            }
            _ => {
                // What the log has of a re-sequenced hook is its record under the old seq.
                cells.seen.insert(mark.unwrap_or(read.seq));
                false
            }
        };
        cells.seq_max = cells.seq_max.max(read.seq);
        cells.note_back(&self.settings.lost, read.seq);
        part.counts.records += 1;
        part.counts.incarnation = part.counts.incarnation.max(record.incarnation);
        count(&mut part.counts, row, record.position);
        Ok(wrote)
    }

    /// What the shard, and this group, have at the record's seq; and where it was re-sequenced to.
    fn place(&self, cells: &Cells, read: &Read<'_>, incarnation: u32) -> (Place, Option<Seq>) {
        let state = self.groups.store().state();
        let is_it = |mark: &&Resequenced| mark.old == read.seq && mark.id == read.id;
        let mark = cells.marks_in_group.iter().find(is_it).map(|mark| mark.new);
        let mark = mark.or_else(|| state.meta().resequenced(read.seq, read.id));
        let place = match cells.in_group.get(&read.seq) {
            Some(id) if *id == read.id => Place::SameHook,
            Some(_) => Place::OtherHook,
            None => {
                let is_damaged = !self.settings.damaged.is_empty()
                    && self.settings.damaged.binary_search(&read.seq).is_ok()
                    && !cells.restored.contains(read.seq);
                place(&state, read.seq, read.id, incarnation, is_damaged)
            }
        };
        (place, mark)
    }

    fn route(&self, cells: &mut Cells, read: &Read<'_>) -> Result<Rc<Route>, PortError> {
        let of = (read.envelope.tenant, read.envelope.source);
        if let Some(route) = cells.routes.known(of.0, of.1) {
            return Ok(route);
        }
        let mut state = self.groups.store().state_mut();
        let sink = self.settings.unroutable_sink;
        let route = cells.routes.add(&mut state, &*self.today, of, sink);
        route.map_err(|_| PortError::NamesFull(self.settings.shard))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one record, looked up, on its way into one group"
    )]
    fn write_hook(
        &self,
        cells: &mut Cells,
        group: &mut GroupBuilder<D>,
        record: &Replayed,
        read: &Read<'_>,
        row: Row,
        route: &Route,
        is_empty: bool,
        part: &mut Part,
    ) -> Result<(), Stop> {
        let hash = self.live_key(read);
        let extra = HookExtra {
            sinks: &route.sinks,
            dedupe_hash: hash,
            archive: route.archive,
            // The log has it: nothing waits for the watermark.
            log: false,
        };
        let len = hook_len(&extra, record.value.len());
        let max = self.groups.store().record_bytes_max();
        if len > max {
            return Err(Stop::Error(PortError::TooLarge {
                shard: self.settings.shard,
                position: record.position,
                bytes: len,
                max,
            }));
        }
        let has_names = !cells.routes.names_due.is_empty();
        if has_names {
            put(&mut cells.routes.names_due, group);
        }
        // A large hook has its group to itself.
        let fits = match is_empty && !has_names {
            true => group.fits(len),
            false => group.fits(len + AFTER_BYTES),
        };
        if !fits || !cells.routes.names_due.is_empty() {
            return Err(Stop::Full);
        }
        let is_collision = matches!(row, Row::Resequence | Row::ResequenceUnroutable);
        let seq = if is_collision {
            let new = self.groups.store().next_seq();
            cells.scratch.clear();
            cells.scratch.extend_from_slice(&record.value);
            let at = ENVELOPE_SEQ_OFFSET;
            cells.scratch[at..at + 8].copy_from_slice(&new.0.to_le_bytes());
            group.hook_again(new, &cells.scratch, &extra);
            let mark = Resequenced {
                old: read.seq,
                id: read.id,
                new,
            };
            tracing::error!(
                shard = %self.settings.shard, seq = %read.seq, hook = %read.id, new = %new,
                "two hooks under one seq: two live copies of this node wrote to the log; \
                 kept under a fresh seq"
            );
            cells.marks_in_group.push(mark);
            part.follow.push(Record::Resequenced(mark));
            new
        } else {
            group.hook_again(read.seq, &record.value, &extra);
            read.seq
        };
        if !route.is_known {
            part.follow.extend(self.dead_rows(seq, &route.sinks));
        }
        if row == Row::Restore {
            cells.restored.insert(seq);
        } else if let Some(hash) = hash {
            part.rows.push(DedupeRow {
                hash,
                id: read.id,
                seq,
                expires_at_s: ends_at_s(read),
            });
        }
        cells.in_group.insert(read.seq, read.id);
        cells.in_group.insert(seq, read.id);
        cells.seen.insert(seq);
        part.follow.extend(self.learn(cells, record));
        put(&mut part.follow, group);
        Ok(())
    }

    /// The key's hash, while the key still stands.
    fn live_key(&self, read: &Read<'_>) -> Option<[u8; 16]> {
        let envelope = &read.envelope;
        let key = envelope.dedupe_key?;
        let lives = ends_at_s(read) > self.today.now_ms() / 1000;
        lives.then(|| {
            self.today
                .dedupe_hash(envelope.tenant, envelope.source, key)
        })
    }

    fn dead_rows<'a>(&'a self, seq: Seq, sinks: &'a [SinkNo]) -> impl Iterator<Item = Record> + 'a {
        let (now_ms, reason) = (self.today.now_ms(), self.settings.unroutable_reason);
        sinks.iter().map(move |&sink| {
            Record::Delivery(Delivery {
                seq,
                sink,
                attempts: 0,
                due_ms: now_ms,
                state: DeliveryState::Dead,
                reason,
            })
        })
    }

    /// A store that is not an existing one learns who handed out the seqs it takes over, so that
    /// the next replay can tell what it finished from what it never had.
    fn learn(&self, cells: &mut Cells, record: &Replayed) -> Option<Record> {
        let (incarnation, seq) = (record.incarnation, Seq(record.seq));
        let learned = cells.learned.get(&incarnation);
        if self.settings.origin == StoreOrigin::Existing
            || incarnation == 0
            || learned.is_some_and(|first| *first <= seq)
            || cells.learned.len() >= LEARNED_MAX
        {
            return None;
        }
        let state = self.groups.store().state();
        let meta = state.meta();
        if meta.incarnation_of(seq) == Some(incarnation) {
            return None;
        }
        // First seqs rise with the number.
        let rows = || meta.incarnations();
        let fits_in = rows().all(|row| match row.incarnation.cmp(&incarnation) {
            Ordering::Less => row.first_seq < seq,
            Ordering::Equal => learned.is_some(),
            Ordering::Greater => seq < row.first_seq,
        });
        fits_in.then(|| {
            cells.learned.insert(incarnation, seq);
            Record::Incarnation(Incarnation {
                incarnation,
                first_seq: seq,
            })
        })
    }

    fn name_rejected(&self, cells: &mut Cells, record: &Replayed, what: &str) {
        cells.named += 1;
        if cells.named <= NAMED_MAX {
            tracing::error!(
                shard = %self.settings.shard, position = record.position, seq = record.seq,
                hook = %HookId(record.id), "a record of the log is not applied: {what}"
            );
        }
    }
}

fn ends_at_s(read: &Read<'_>) -> u64 {
    read.envelope.received_at_ms / 1000 + u64::from(read.envelope.dedupe_ttl_s)
}

/// Writes the records that have room, in order, and keeps the rest. True when it wrote any.
fn put<D: Disk>(records: &mut Vec<Record>, group: &mut GroupBuilder<D>) -> bool {
    let mut wrote = 0;
    for record in records.iter() {
        if !group.fits(record_len(record)) {
            break;
        }
        group.record(record.clone());
        wrote += 1;
    }
    records.drain(..wrote);
    wrote > 0
}

impl Cells {
    fn wake(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }

    fn note_back(&mut self, lost: &[(Seq, Seq)], seq: Seq) {
        if lost
            .iter()
            .any(|(first, end)| (*first..*end).contains(&seq))
        {
            self.came_back.insert(seq);
        }
    }
}
