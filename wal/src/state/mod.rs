//! The state of one shard: the fold of its records, in memory.
//!
//! Owns the table of live hooks and their delivery rows, the finished seqs, the dead letters and
//! the small tables beside them. Invariants:
//! - Applying a record twice changes nothing; so does applying an old record again when a newer
//!   one follows. Every count equals a count over the table.
//! - A hook is live while a delivery row is unfinished or something holds it. When the last of
//!   these ends it leaves the table and its seq is *finished*, for good; a hook that is undone
//!   leaves no trace.
//! - `durable ≤ applied`. What is above `durable` can be undone, and only that: the store calls
//!   [`State::settle`] whenever its durable mark rises and [`State::undo_above`] at a fence.
//!   At boot it calls `settle` with a group's LSN before it applies the group.
//! - At most 92 bytes per hook with one sink and 12 more per further one, at the worst load of
//!   the look-ups, so that 4 more per row are left for an array kept in parallel.
//! - A call holds the core for as long as what it is given (a hook, a group), not for as long as
//!   the table is large: nothing is rehashed, copied or looked through whole. Exceptions say so.
//!
//! It does not do I/O, know a clock, or decide when a delivery is due. Runs on a shard core (one
//! owner, never borrowed across an await), at boot and offline.

mod apply;
mod dead;
mod finished;
mod hooks;
mod in_flight;
mod index;
mod load;
mod meta;
#[cfg(test)]
pub(crate) mod model;
mod names;
mod rows;
mod segments;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod weight;

pub use dead::DeadCursor;
pub use finished::SeqSet;
pub use hooks::{HOOKS_MAX, HookSlot};
pub(crate) use load::LoadBatch;
pub use meta::{Meta, RESEQUENCED_MAX, RecordCursor, TRAIL_ROWS_MAX};
pub use names::{NamesFull, SinkNames};
pub use rows::{ATTEMPTS_MAX, RowId, SINKS_PER_HOOK_MAX};
pub use segments::SegmentLive;

use std::collections::BTreeSet;

use foldhash::quality::FixedState;

use crate::ids::{HookId, Lsn, SegmentId, Seq, SinkNo};
use crate::record::{DedupeRow, Location, Record};

use dead::DeadLog;
use hooks::HookSlab;
use in_flight::InFlight;
use index::Index;
use rows::RowSlab;
use segments::LiveBytes;

/// What keeps a hook live besides its deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds(u8);

impl Holds {
    /// Nothing.
    pub const NONE: Holds = Holds(0);
    /// It is not in a confirmed archive object yet.
    pub const ARCHIVE: Holds = Holds(1);
    /// The intake log has not confirmed it yet.
    pub const LOG: Holds = Holds(2);

    /// Both together.
    pub fn and(self, other: Holds) -> Holds {
        Holds(self.0 | other.0)
    }

    /// What is left without `other`.
    pub fn without(self, other: Holds) -> Holds {
        Holds(self.0 & !other.0)
    }

    /// Whether all of `other` is in here.
    pub fn has(self, other: Holds) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing holds.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// As stored.
    pub fn to_bits(self) -> u8 {
        self.0
    }

    /// From what was stored; unknown bits are dropped.
    pub fn from_bits(bits: u8) -> Holds {
        Holds(bits & 3)
    }
}

/// What became of a hook record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is new and now live, its rows due at once.
    New(HookSlot),
    /// It was live; its location follows the record once that is durable, its rows stay.
    Again(HookSlot),
    /// Its seq is finished: nothing to do.
    Finished,
    /// No sink and nothing that holds it: its seq is finished once the group is durable.
    Passed,
    /// Another id is live at this seq; nothing was changed.
    Collision(HookSlot),
}

/// A live hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its place in the shard.
    pub seq: Seq,
    /// Its id.
    pub id: HookId,
    /// Where its record is; its `lsn` is 0 once the group is durable.
    pub location: Location,
    /// What holds it besides its rows.
    pub holds: Holds,
    /// Its rows, finished ones included.
    pub rows: u16,
    /// Rows not finished (dead ones included).
    pub rows_open: u16,
    /// Whether its group is durable.
    pub is_durable: bool,
}

/// How a delivery row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// To be delivered, not before `due_ms` (wall clock, milliseconds since 1970; 0: at once).
    /// Kept exactly from 2026 to 2060; outside it means at once.
    Due {
        /// Not before.
        due_ms: u64,
    },
    /// A dead letter.
    Dead {
        /// When it died, seconds since 1970.
        at_s: u32,
        /// Why; the meaning is the caller's.
        reason: u8,
    },
    /// Delivered, purged, or given up for good.
    Finished,
}

/// A delivery row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its hook.
    pub slot: HookSlot,
    /// Its sink.
    pub sink: SinkNo,
    /// Attempts made, counted up to [`ATTEMPTS_MAX`].
    pub attempts: u16,
    /// How it stands.
    pub state: RowState,
}

/// Whether a hook is still in the table after one of its rows or holds ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEnd {
    /// Something is unfinished or holds it, or its group is not durable yet (then
    /// [`State::settle`] ends it).
    Lives,
    /// It left the table; slot and rows are no longer valid. Carries its seq.
    Gone(Seq),
}

/// Counts over the table; they equal a fold over it at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live hooks.
    pub hooks: u64,
    /// Rows due that were never attempted.
    pub rows_pending: u64,
    /// Rows due again after an attempt.
    pub rows_scheduled: u64,
    /// Dead letters.
    pub rows_dead: u64,
    /// Hooks that the archive holds.
    pub held_by_archive: u64,
    /// Hooks that the intake log holds.
    pub held_by_log: u64,
}

/// A hook that a failed group had brought and that is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// Its place, never to be handed out again.
    pub seq: Seq,
    /// Its id.
    pub id: HookId,
}

/// The state of one shard.
pub struct State {
    hooks: HookSlab,
    rows: RowSlab,
    by_seq: Index,
    by_id: Index,
    hasher: FixedState,
    finished: SeqSet,
    dead: DeadLog,
    live_bytes: LiveBytes,
    in_flight: InFlight,
    durable: Lsn,
    applied: Lsn,
    counts: Counts,
    dedupe_ready: Vec<DedupeRow>,
    /// Live hooks that wait for the watermark; at most as many as the pending set may hold.
    log_held: BTreeSet<Seq>,
    meta: Meta,
    names: SinkNames,
    watch: Option<Watch>,
    fences: u64,
}

/// What a checkpoint under way must learn.
#[derive(Debug, Default)]
struct Watch {
    /// Slots below it were written.
    cursor: u32,
    /// Hooks written before they finished; as many as finish while a checkpoint is taken.
    gone: Vec<Seq>,
}

impl State {
    /// An empty state. `seed` is random: it keys the look-ups.
    pub fn new(seed: u64) -> State {
        State::with_expected(seed, 0)
    }

    /// An empty state made for `hooks` live hooks, so that loading them is quick.
    pub fn with_expected(seed: u64, hooks: usize) -> State {
        State {
            hooks: HookSlab::default(),
            rows: RowSlab::default(),
            by_seq: Index::with_expected(hooks),
            by_id: Index::with_expected(hooks),
            hasher: FixedState::with_seed(seed),
            finished: SeqSet::new(),
            dead: DeadLog::default(),
            live_bytes: LiveBytes::default(),
            in_flight: InFlight::default(),
            durable: Lsn(0),
            applied: Lsn(0),
            counts: Counts::default(),
            dedupe_ready: Vec::new(),
            log_held: BTreeSet::new(),
            meta: Meta::default(),
            names: SinkNames::default(),
            watch: None,
            fences: 0,
        }
    }

    /// The counts over the table.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The newest group applied.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// The newest group known to be durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The small tables: marks, offsets, incarnations, trails, counters.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What the sink numbers stand for.
    pub fn names(&self) -> &SinkNames {
        &self.names
    }

    /// The number of a sink, given out if it is new: then the caller writes the record that
    /// comes with it in front of the first hook that uses the number.
    pub fn sink_no(
        &mut self,
        tenant: &[u8],
        source: &[u8],
        name: &[u8],
    ) -> Result<(SinkNo, Option<Record>), NamesFull> {
        let (sink, new) = self.names.assign(tenant, source, name)?;
        Ok((sink, new.map(Record::SinkName)))
    }

    /// The next seq to hand out.
    pub fn next_seq(&self) -> Seq {
        self.meta.next_seq
    }

    /// Live hooks.
    pub fn live_hooks(&self) -> u64 {
        self.counts.hooks
    }

    /// The finished seqs.
    pub fn finished(&self) -> &SeqSet {
        &self.finished
    }

    /// What lives in `segment`.
    pub fn live_in(&self, segment: SegmentId) -> SegmentLive {
        self.live_bytes.of(segment)
    }

    /// Every segment with a live hook, rising.
    pub fn segments_live(&self) -> impl Iterator<Item = (SegmentId, SegmentLive)> + '_ {
        self.live_bytes.iter()
    }

    /// Bytes of the records of all live hooks.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.bytes()
    }

    /// The oldest live seq; after many finished at once it may be a lower bound for a while.
    pub fn oldest_live(&mut self) -> Option<Seq> {
        self.hooks.oldest()
    }

    /// How often something in flight was undone.
    pub fn fences(&self) -> u64 {
        self.fences
    }

    /// A checkpoint begins: from now on hooks that finish below [`State::watch_at`] are noted.
    pub(crate) fn watch_begin(&mut self) {
        self.watch = Some(Watch::default());
    }

    pub(crate) fn watch_at(&mut self, cursor: u32) {
        if let Some(watch) = &mut self.watch {
            watch.cursor = cursor;
        }
    }

    /// Ends the watch.
    pub(crate) fn watch_take(&mut self) -> Vec<Seq> {
        self.watch.take().unwrap_or_default().gone
    }

    /// The next of the records that give names, re-sequenced marks and trails; with
    /// [`Meta::marks`] they give everything but hooks and finished seqs.
    pub fn next_record(&self, cursor: &mut RecordCursor) -> Option<Record> {
        cursor.next(&self.names, &self.meta)
    }

    /// Bytes this state holds on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.hooks.memory_bytes()
            + self.rows.memory_bytes()
            + self.by_seq.memory_bytes()
            + self.by_id.memory_bytes()
            + self.dead.memory_bytes()
            + self.finished.memory_bytes()
            + self.in_flight.memory_bytes()
            + self.meta.memory_bytes()
            + self.names.memory_bytes()
            + self.log_held.len() * 16
            + self.dedupe_ready.capacity() * size_of::<DedupeRow>()
    }
}
