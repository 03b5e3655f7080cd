//! The steps of a boot under the dual commit, up to the moment the node serves.
//!
//! 1. Identity: whose store is it ([`identity`]).
//! 2. The log: is it the one this store knows ([`log_identity`]).
//! 3. Truncation: does it reach back far enough ([`truncation`]).
//! 4. The tail is replayed ([`crate::apply`]).
//! 5. What only this host has is republished.
//!
//! The decisions are pure functions here; [`run`] obeys them. Runs at boot and offline.

mod run;
#[cfg(test)]
mod tests;

pub use run::run;

use std::fmt;
use std::time::Duration;

use ankusa_intake::{AskError, Expected, Finding};
use ankusa_wal::home::StoreOrigin;
use thiserror::Error;

use crate::apply::Applied;
use crate::port::PortError;

/// Where a replay starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// After the store's offset; the first position held where it has none.
    #[default]
    Stored,
    /// The first position held.
    Earliest,
    /// This position.
    Position(u64),
}

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// `intake.node_id`.
    pub node: String,
    /// What the log must be.
    pub expected: Expected,
    /// False: a log that cannot be asked, or has findings, is taken as it is.
    pub verify: bool,
    /// True: a log that does not answer or has findings is waited for; false: it ends the run.
    pub wait: bool,
    /// Between two questions.
    pub probe: Duration,
    /// Where to start.
    pub start: Start,
    /// False: step 4 is left to `ankusa recover`; only for a store that has been through a boot.
    pub replay: bool,
    /// Go on over a gap; also gives up what only a newer version can read.
    pub allow_gap: bool,
    /// Look, count, write nothing.
    pub dry_run: bool,
    /// Records in a chunk.
    pub chunk_records: usize,
    /// Bytes in a chunk, about.
    pub chunk_bytes: usize,
    /// Batches handed to shards and not durable yet.
    pub inflight: usize,
}

/// Records that the log no longer holds, or never was sure to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The node.
    pub node: String,
    /// The first position that was wanted.
    pub wanted: u64,
    /// The first position held.
    pub earliest: u64,
    /// What else there is to say.
    pub why: &'static str,
}

impl Gap {
    /// Positions that are gone.
    pub fn lost(&self) -> u64 {
        self.earliest.saturating_sub(self.wanted)
    }
}

/// Why a run ends before its time. The word at the front is for programs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The store is another node's.
    #[error(
        "intake_node_mismatch: this store belongs to intake node `{store}`, and intake.node_id is \
         `{config}`: two nodes' seqs would mix. Set intake.node_id to `{store}`, or use an empty \
         data directory"
    )]
    NodeMismatch {
        /// The node that the store names.
        store: String,
        /// The node that the configuration names.
        config: String,
    },
    /// The log does not reach back to what the store has.
    #[error(
        "intake_truncated: the store holds the intake log up to position {wanted}, the log only \
         reaches back to {earliest}: up to {} records are gone. Restore a newer backup; or, if they \
         are lost for good, `ankusa recover --allow-gap`",
        earliest - wanted
    )]
    Truncated {
        /// The first position wanted.
        wanted: u64,
        /// The first position held.
        earliest: u64,
    },
    /// The log lost what it held, and this store is no witness of it.
    #[error(
        "intake_recreated: the intake log is not the one this store knows (it knew `{known}` up to \
         position {offset}; it is `{found}`, which ends at {head}): what came since the backup is \
         not in it. If it is lost for good, `ankusa recover --allow-gap`"
    )]
    Recreated {
        /// The identity that the store names.
        known: String,
        /// The log's.
        found: String,
        /// The highest offset of a shard, or 0.
        offset: u64,
        /// Where the log ends.
        head: u64,
    },
    /// A start above what the store holds.
    #[error(
        "--from {from} would leave out positions {wanted}..{from}, which the store does not hold"
    )]
    StartAbove {
        /// The start asked for.
        from: u64,
        /// Where it must start at the latest.
        wanted: u64,
    },
    /// A store that must be recovered by hand first.
    #[error(
        "intake_not_recovered: this store is fresh or restored, and intake.recover_on_boot is off: \
         run `ankusa recover` first, else it would hand out seqs that the log already has"
    )]
    NotRecovered,
    /// The log's settings are not as they must be.
    #[error("intake topic: {}", findings(.0))]
    Findings(Vec<Finding>),
    /// The log does not answer, or refuses.
    #[error("{0}")]
    Log(AskError),
    /// The node could not do its part.
    #[error("{0}")]
    Node(PortError),
}

fn findings(all: &[Finding]) -> String {
    let all: Vec<String> = all.iter().map(Finding::to_string).collect();
    all.join("; ")
}

impl From<PortError> for Refusal {
    fn from(error: PortError) -> Refusal {
        Refusal::Node(error)
    }
}

impl Refusal {
    /// The word for programs and metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::NodeMismatch { .. } => "intake_node_mismatch",
            Refusal::Truncated { .. } => "intake_truncated",
            Refusal::Recreated { .. } => "intake_recreated",
            Refusal::StartAbove { .. } => "from_above_offset",
            Refusal::NotRecovered => "intake_not_recovered",
            Refusal::Findings(_) => "intake_topic",
            Refusal::Log(_) => "intake_unavailable",
            Refusal::Node(_) => "store",
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// What became of the records.
    pub counts: Applied,
    /// Skipped by the log's reader, by reason.
    pub skipped: Vec<(&'static str, u64)>,
    /// Hooks of newer versions among them.
    pub newer: u64,
    /// Hooks published from the local tail.
    pub republished: u64,
    /// Of these, refused for good.
    pub stuck: u64,
    /// Everything below this position was read.
    pub read_below: u64,
    /// A gap that was passed over.
    pub gap: Option<Gap>,
    /// The log had lost what it held: everything local was published again.
    pub log_went_back: bool,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(
            f,
            "records={} applied={} present={} collided={} unroutable={} republished={}",
            c.records, c.applied, c.present, c.collided, c.unroutable, self.republished
        )?;
        let more = [
            ("restored", c.restored),
            ("malformed", c.malformed),
            ("skipped_unknown", self.newer + c.held),
            ("stuck", self.stuck),
        ];
        for (name, count) in more.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, " {name}={count}")?;
        }
        Ok(())
    }
}

/// Step 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The store has none: it gets this one.
    Stamp,
    /// It is ours.
    Same,
    /// It is another's.
    Mismatch,
}

/// Whose store it is.
pub fn identity(stored: Option<&str>, ours: &str) -> Identity {
    match stored {
        None => Identity::Stamp,
        Some(stored) if stored == ours => Identity::Same,
        Some(_) => Identity::Mismatch,
    }
}

/// Step 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogIdentity {
    /// The store knows none yet.
    First,
    /// It is the one.
    Same,
    /// It lost what it held; what this store has is published again.
    Republish,
    /// It lost what it held, and so did this store.
    Refuse,
    /// The same, and the operator goes on.
    AllowedGap,
}

/// Whether the log is the one the store knows. `head` is the position of its next record, `offset`
/// the highest of a shard.
pub fn log_identity(
    known: Option<&str>,
    found: &str,
    offset: Option<u64>,
    head: u64,
    origin: StoreOrigin,
    allow_gap: bool,
) -> LogIdentity {
    // An identity that could not be asked for says nothing.
    let is_other = known.is_some_and(|known| !found.is_empty() && known != found);
    let is_behind = offset.is_some_and(|offset| head <= offset);
    match (known, is_other || is_behind, origin, allow_gap) {
        (None, false, ..) => LogIdentity::First,
        (Some(_), false, ..) => LogIdentity::Same,
        (_, true, StoreOrigin::Existing, _) => LogIdentity::Republish,
        (_, true, _, true) => LogIdentity::AllowedGap,
        (_, true, _, false) => LogIdentity::Refuse,
    }
}

/// What step 3 looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The position after the lowest offset; `None` when a shard has none.
    pub wanted: Option<u64>,
    /// The first position held.
    pub earliest: u64,
    /// Where the store's content came from.
    pub origin: StoreOrigin,
    /// Whether the store was ever in this log: it has an offset or an identity of it.
    pub is_known: bool,
    /// Whether the log holds a record of this node at all.
    pub holds_ours: bool,
    /// The first record held has a seq that this store never handed out.
    pub first_is_beyond: bool,
    /// The operator goes on.
    pub allow_gap: bool,
}

/// Step 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// It reaches back far enough.
    Whole,
    /// It does not, and every hook in the gap is local.
    Warn,
    /// It does not, and what is in the gap may be nowhere else.
    Refuse,
    /// The same, and the operator goes on.
    AllowedGap,
}

/// Whether the log reaches back far enough.
pub fn truncation(reach: &Reach) -> Truncation {
    if reach.earliest <= reach.wanted.unwrap_or(0) {
        return Truncation::Whole;
    }
    let is_lost = match reach.origin {
        // A node that is new to the log misses nothing; one that was in it before does.
        StoreOrigin::Fresh => reach.holds_ours,
        StoreOrigin::Restored => reach.is_known || reach.holds_ours,
        // An older copy of itself is no better than a restored one.
        StoreOrigin::Existing if reach.first_is_beyond => true,
        StoreOrigin::Existing if reach.wanted.is_none() => return Truncation::Whole,
        StoreOrigin::Existing => return Truncation::Warn,
    };
    match (is_lost, reach.allow_gap) {
        (false, _) => Truncation::Whole,
        (true, false) => Truncation::Refuse,
        (true, true) => Truncation::AllowedGap,
    }
}
