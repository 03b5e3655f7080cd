//! What a frame may hold besides hooks: absolute records, never deltas, so that applying one
//! twice changes nothing.
//!
//! Plain data; the byte layout is in [`crate::format::record`]. Runs anywhere.

use crate::ids::{HookId, LogOffset, Lsn, SegmentId, Seq, SinkNo};

/// Where a hook record lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The segment that holds it.
    pub segment: SegmentId,
    /// Byte offset of the record's header in the segment.
    pub offset: u64,
    /// Length of the record in bytes, header included.
    pub len: u32,
    /// The frame that holds it: what is compared with the durable mark.
    pub lsn: Lsn,
}

/// What became of one delivery of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DeliveryState {
    /// To be delivered at `due_ms`.
    Due = 0,
    /// The sink confirmed it: the row is finished.
    Delivered = 1,
    /// Given up on; kept until it is replayed or purged.
    Dead = 2,
    /// Purged or no longer wanted: the row is finished.
    Discarded = 3,
}

impl DeliveryState {
    /// The state with this number.
    pub fn from_u8(value: u8) -> Option<DeliveryState> {
        Some(match value {
            0 => DeliveryState::Due,
            1 => DeliveryState::Delivered,
            2 => DeliveryState::Dead,
            3 => DeliveryState::Discarded,
            _ => return None,
        })
    }

    /// True when nothing is left to do for the row.
    pub fn is_finished(self) -> bool {
        matches!(self, DeliveryState::Delivered | DeliveryState::Discarded)
    }
}

/// The state of the delivery of `seq` to `sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The hook.
    pub seq: Seq,
    /// The sink.
    pub sink: SinkNo,
    /// Attempts made so far.
    pub attempts: u16,
    /// Wall clock of the next attempt, milliseconds; of the last one when finished or dead.
    pub due_ms: u64,
    /// The state itself.
    pub state: DeliveryState,
    /// Why it is dead; the meaning is the engine's. 0 otherwise.
    pub reason: u8,
}

/// A key seen: a retry within its time is answered with `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupeRow {
    /// The keyed hash of (tenant, source, key).
    pub hash: [u8; 16],
    /// The hook that holds it.
    pub id: HookId,
    /// The hook's seq.
    pub seq: Seq,
    /// Wall clock at which the row ends, seconds.
    pub expires_at_s: u64,
}

/// A number the engine counts with, by the number it gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The engine's number of the counter.
    pub counter: u16,
    /// Its absolute value.
    pub value: u64,
}

/// What a [`SinkNo`] stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkName {
    /// The number, shard-local, never given to another name.
    pub sink: SinkNo,
    /// Tenant.
    pub tenant: Box<[u8]>,
    /// Source.
    pub source: Box<[u8]>,
    /// The sink's name.
    pub name: Box<[u8]>,
}

/// Every admitted seq at or below `seq`, the exceptions apart, is confirmed in the intake log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The mark.
    pub seq: Seq,
    /// Stuck seqs below it, ascending, at most 1,024.
    pub exceptions: Vec<Seq>,
}

/// Most exceptions a [`Watermark`] may carry.
pub const WATERMARK_EXCEPTIONS_MAX: usize = 1024;

/// How far the intake log is known to be in this store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntakeOffset {
    /// Every record of this shard at or below it is in the store. `None`: from the start.
    pub offset: Option<LogOffset>,
    /// The lowest position that a replay had to skip; the offset stays below it.
    pub hold: Option<LogOffset>,
}

/// The incarnation that handed out seqs from `first_seq` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Its number.
    pub incarnation: u32,
    /// Its first seq.
    pub first_seq: Seq,
}

/// Which node, partition and log this shard belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeIdentity {
    /// The node id.
    pub node: Box<[u8]>,
    /// The partition its records go to.
    pub partition: u32,
    /// The log's own identity (for Kafka: the topic id).
    pub log: Box<[u8]>,
}

/// A replayed hook whose seq was taken got a fresh one; the next replay counts it as present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resequenced {
    /// The seq that its record carries.
    pub old: Seq,
    /// The hook.
    pub id: HookId,
    /// The seq it has here.
    pub new: Seq,
}

/// A row of the audit or lifecycle trail; its body is the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailRow {
    /// Ascending number within its trail; a row with the same number replaces it.
    pub no: u64,
    /// Wall clock, milliseconds.
    pub at_ms: u64,
    /// The row.
    pub body: Box<[u8]>,
}

/// One absolute record. Hooks are not among them: they are encoded straight from the request
/// ([`crate::GroupBuilder::hook`]) and read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// State of one delivery.
    Delivery(Delivery),
    /// Seqs `first..=last` are finished. Never written of seqs that were undone or skipped: a
    /// recovery would take their hooks, which the intake log still has, for delivered ones.
    Finished {
        /// First seq of the range.
        first: Seq,
        /// Last seq of the range.
        last: Seq,
    },
    /// A dedupe key.
    Dedupe(DedupeRow),
    /// A dedupe key no longer stands (its hook was given up, its claim released).
    DedupeGone {
        /// The key's hash.
        hash: [u8; 16],
        /// Only when it still belongs to this hook.
        id: HookId,
    },
    /// Counters.
    Counters(Vec<Counter>),
    /// A sink's number.
    SinkName(SinkName),
    /// Watermark.
    Watermark(Watermark),
    /// Intake offset.
    Offset(IntakeOffset),
    /// The next seq to hand out is at least this.
    NextSeq(Seq),
    /// Incarnation row.
    Incarnation(Incarnation),
    /// Intake identity.
    IntakeIdentity(IntakeIdentity),
    /// A re-sequenced hook.
    Resequenced(Resequenced),
    /// The archive holds the hook.
    Archived(Seq),
    /// Audit row.
    Audit(TrailRow),
    /// Lifecycle row.
    Lifecycle(TrailRow),
    /// Audit rows up to and including this number are no longer kept.
    AuditTrim(u64),
    /// A repair gave this hook up, because it cannot be read: it is not live any more, and its seq
    /// is not finished, so that a recovery may still bring it back from the intake log.
    GivenUp(Seq),
}
