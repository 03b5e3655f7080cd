//! A hook on its way through the commit, as its request and the log's side know it, and the words
//! for what became of it.
//!
//! Plain data and one trait. Runs on the shard core.

use ankusa_wal::hook::HookDraft;
use ankusa_wal::{LogOffset, Seq};

/// What a hook's request is told, and so what becomes of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Durable in every place the mode promises.
    Committed,
    /// Nothing was written: it waited too long, or the queue is full.
    Overload,
    /// The local half failed; in a dual mode the record is carried.
    StoreUnavailable,
    /// The local half is durable, the log half is not known to be: the record is carried.
    IntakeUnavailable,
}

/// What is left of a record when its request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// It is complete.
    Complete,
    /// It is nowhere: the claim is released and a retry stores it.
    Nothing,
    /// Its group was fenced: it is undone, but until the cut is durable a start would find it again
    /// if it had landed. The claim is held until [`Item::cut`].
    Undone,
    /// At least one half was issued and one is missing: to be carried to completion.
    Carried {
        /// The local half is durable.
        local: bool,
        /// The log has confirmed it.
        log: bool,
    },
}

/// A hook on its way through the commit. One allocation per request, shared with its request.
pub trait Item {
    /// Calls `f` with the draft to encode.
    fn draft(&self, f: &mut dyn FnMut(&HookDraft<'_>));

    /// Upper bound of the bytes its record takes in a group.
    fn record_bytes(&self) -> usize;

    /// Whether it is published to the log where there is one (a hook that nobody waits for is
    /// not).
    fn wants_log(&self) -> bool {
        true
    }

    /// Told once. Wakes the request; never blocks.
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains);

    /// Told once after it was settled as [`Remains::Undone`]: now it is nowhere, and cannot come
    /// back.
    fn cut(&self);

    /// The request's deadline passed while its commit goes on: the request is answered so, the
    /// claim stays, [`Item::settle`] still comes.
    fn abandon(&self, verdict: Verdict);
}

/// A record with one half missing, as it is handed on, before its item is settled.
pub struct Carried<'a> {
    /// The hook: its draft gives both halves' bytes again.
    pub item: &'a dyn Item,
    /// Its seq.
    pub seq: Seq,
    /// The local half is durable.
    pub local: bool,
    /// The log has confirmed it.
    pub log: bool,
    /// When its request was whole.
    pub since_us: u64,
    /// The head of the log as known when it was handed over.
    pub floor: LogOffset,
    /// [`Item::record_bytes`], as it was admitted.
    pub bytes: usize,
}

/// Told of each record that is carried.
pub type Carry<'a> = &'a mut dyn FnMut(&Carried<'_>);

/// The log's answer for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOutcome {
    /// It has it.
    Confirmed,
    /// Failed or timed out: nobody knows. `is_own`: for a reason of the record's own.
    Failed {
        /// Too large or invalid, it or one that travelled with it.
        is_own: bool,
    },
}

/// An answer that a group in flight was waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When the group was started.
    pub started_us: u64,
    /// The first failure of its group that is not a record's own.
    pub is_first_failure: bool,
}

/// What of the groups in flight is not settled, as far as the marks are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// The lowest seq that the log has not confirmed.
    pub unconfirmed: Option<Seq>,
    /// The head that was known when the oldest of what is not durable here was handed over.
    pub floor: Option<LogOffset>,
}
