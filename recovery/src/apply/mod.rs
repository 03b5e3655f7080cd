//! What becomes of a record that is read back: a table, keyed by seq and hook id.
//!
//! [`decide`] is the table; [`shard`] looks a record up, obeys, and writes one durable group per
//! batch with the offset in it. Pure; runs on a shard core and offline.

mod lookup;
mod routes;
mod shard;
#[cfg(test)]
mod tests;

pub use lookup::DryShard;
pub use routes::{SourceToday, Today};
pub use shard::{Encode, Groups, Settings, ShardApply};

use ankusa_intake::Replayed;

/// What of a record can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// The envelope is whole and says what the headers say.
    Whole,
    /// An envelope of a version above ours.
    Newer,
    /// Not an envelope, or one that contradicts its headers.
    Broken,
}

/// What the shard has at the record's seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing: never seen, undone, or lost.
    Nothing,
    /// The same hook, live.
    SameHook,
    /// The same hook, live, and its record here cannot be read.
    SameDamaged,
    /// Another hook, live.
    OtherHook,
    /// A finished seq that the record's incarnation handed out.
    FinishedHere,
    /// A finished seq that another incarnation handed out.
    FinishedElsewhere,
}

/// What is done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Written with its original seq, due at the source's sinks of today.
    Apply,
    /// Kept under its original seq as a dead letter: its source is not configured.
    Unroutable,
    /// Skipped: the common case, every duplicate, every record out of order.
    Present,
    /// Its bytes are written again under its seq; its deliveries stay as they are.
    Restore,
    /// Written under a fresh seq, with a mark that makes the next replay count it as present.
    Resequence,
    /// The same, as a dead letter.
    ResequenceUnroutable,
    /// Skipped; the offset stays below it until a newer version applies it.
    Hold,
    /// Skipped for good: no version can make a hook of it.
    Reject,
}

/// The table. `marked`: the record was re-sequenced before. `known`: its source is configured.
pub fn decide(readable: Readable, place: Place, marked: bool, known: bool) -> (Row, &'static str) {
    match (readable, place, marked, known) {
        (Readable::Newer, ..) => (Row::Hold, "a version above ours"),
        (Readable::Broken, ..) => (Row::Reject, "not a hook, whatever reads it"),
        (_, Place::SameDamaged, ..) => (Row::Restore, "its bytes here are damaged"),
        (_, Place::SameHook, ..) => (Row::Present, "the same hook is live"),
        (_, Place::FinishedHere, ..) => (Row::Present, "the same hook is finished"),
        (_, Place::OtherHook | Place::FinishedElsewhere, true, _) => {
            (Row::Present, "re-sequenced before")
        }
        (_, Place::OtherHook | Place::FinishedElsewhere, false, true) => {
            (Row::Resequence, "the seq is another hook's")
        }
        (_, Place::OtherHook | Place::FinishedElsewhere, false, false) => (
            Row::ResequenceUnroutable,
            "the seq is another hook's, and no source",
        ),
        (_, Place::Nothing, true, _) => (Row::Present, "re-sequenced, its neighbour undone"),
        (_, Place::Nothing, false, true) => (Row::Apply, "not there"),
        (_, Place::Nothing, false, false) => (Row::Unroutable, "not there, and no source"),
    }
}

/// Some records of one shard, in the order of their positions.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The batch's place in the order of its shard, from 0, without gaps.
    pub turn: u64,
    /// The records.
    pub records: Vec<Replayed>,
    /// Every record of the shard below this position is in this batch or an earlier one; `None`:
    /// the offset is left as it is.
    pub below: Option<u64>,
    /// The lowest position that had to be skipped: the offset stays below it.
    pub hold: Option<u64>,
}

/// What became of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Records looked at.
    pub records: u64,
    /// Written under their seq.
    pub applied: u64,
    /// There already.
    pub present: u64,
    /// Written under a fresh seq.
    pub collided: u64,
    /// Kept as dead letters: no such source.
    pub unroutable: u64,
    /// Written again because the bytes here were damaged.
    pub restored: u64,
    /// Skipped for good.
    pub malformed: u64,
    /// Skipped for a newer version; the lowest position.
    pub held: u64,
    /// Where the lowest of these is.
    pub hold: Option<u64>,
    /// The highest incarnation seen.
    pub incarnation: u32,
}

impl std::ops::AddAssign for Applied {
    fn add_assign(&mut self, other: Applied) {
        self.records += other.records;
        self.applied += other.applied;
        self.present += other.present;
        self.collided += other.collided;
        self.unroutable += other.unroutable;
        self.restored += other.restored;
        self.malformed += other.malformed;
        self.held += other.held;
        self.hold = lower(self.hold, other.hold);
        self.incarnation = self.incarnation.max(other.incarnation);
    }
}

/// The lower of two positions, where there are two.
pub fn lower(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
