//! The interface every adapter answers: one [`Publisher`] per reactor core, one [`IntakeLog`] per
//! node.
//!
//! Invariants every adapter keeps (the conformance cases hold them to it):
//! - each record handed to [`Publisher::publish`] gets exactly one answer in time (confirmed, failed
//!   or its deadline), and at most one more afterwards: a late confirm. A late failure is dropped.
//! - a failure says nothing about whether the record landed; it may, once or twice, then or later.
//! - a confirm means the log's own quorum has it. No order is promised.
//! - nothing here blocks the calling core; an answer wakes the task that last polled.
//!
//! Deliberately absent: retries, the breaker, exactly-once. Both traits are usable as objects, so
//! that a simulation can stand in for the log. Runs: reactor core; side threads do the work.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use crate::ask::Asked;
use crate::verify::{Expected, Verified};

/// One hook on its way into the log.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// The caller's name for this attempt; comes back in its answers. Not looked into.
    pub token: u64,
    /// Shard number.
    pub shard: u16,
    /// Seq within the shard.
    pub seq: u64,
    /// Hook id.
    pub id: [u8; 16],
    /// The incarnation of the store that handed out the seq, or 0.
    pub incarnation: u32,
    /// Tenant; `default` when there is none.
    pub tenant: &'a [u8],
    /// Source.
    pub source: &'a [u8],
    /// The encoded hook. Not copied: kept until the client is done with it, also after a deadline.
    pub value: Bytes,
}

/// What a refused or failed record may be told to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The topic or partition is not there. Back off; never dropped.
    NotFound,
    /// The log did not answer, or not with a quorum. Back off.
    Unavailable,
    /// The log asks for less. Back off for the stated time.
    Throttled {
        /// How long, where the log says it.
        retry_after_ms: Option<u32>,
    },
    /// Trying the same again cannot help.
    Permanent(PermanentAbout),
}

/// What a permanent failure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PermanentAbout {
    /// This record (too large, invalid), or one that travelled with it.
    Record,
    /// Rights or credentials: every record.
    Access,
}

impl Class {
    /// The label used by metrics.
    pub fn label(self) -> &'static str {
        match self {
            Class::NotFound => "not_found",
            Class::Unavailable => "unavailable",
            Class::Throttled { .. } => "throttled",
            Class::Permanent(_) => "permanent",
        }
    }
}

/// A failed attempt. Whether the record is in the log is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What to do.
    pub class: Class,
    /// The client's word for it, for the log line.
    pub reason: &'static str,
}

/// A confirmed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// Where the record is; none for a success that names no position, which never moves an offset.
    pub position: Option<u64>,
    /// The head of the partition as known when this attempt was handed over.
    pub floor: u64,
}

impl Confirm {
    /// True when the record landed below what the log already held: the log lost its tail, or is
    /// another log under the same name.
    pub fn log_went_back(self) -> bool {
        self.position.is_some_and(|position| position < self.floor)
    }
}

/// What became of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The log has the record at its quorum.
    Confirmed {
        /// [`Outgoing::token`].
        token: u64,
        /// Where.
        confirm: Confirm,
        /// True when this attempt was already answered with its deadline.
        late: bool,
    },
    /// The attempt is over; outcome unknown.
    Failed {
        /// [`Outgoing::token`].
        token: u64,
        /// Why.
        failure: Failure,
    },
}

/// One core's way into the log, pinned to one partition. Single-threaded.
pub trait Publisher {
    /// Hands records over, one attempt each, to be answered by `deadline_us` on the caller's
    /// monotonic clock. Never blocks and never fails: what cannot be handed over is answered as
    /// failed by the next poll.
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        now_us: u64,
        deadline_us: u64,
    );

    /// Appends answers that have arrived to `out`, a bounded number per call, and registers the
    /// waker for more. Ready when it appended any.
    ///
    /// # Cancel safety
    /// Nothing is lost: an answer is either in `out` or still held here.
    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()>;

    /// To be called every 10 to 50 ms: appends the answers of attempts whose deadline has passed,
    /// and does what a client needs doing while records are unconfirmed.
    fn tick(&self, now_us: u64, out: &mut Vec<Answer>);

    /// Attempts handed over and not yet given back by the client, and the bytes they hold.
    fn outstanding(&self) -> (usize, usize);

    /// Raises the known head (from [`IntakeLog::bounds`]). Never lowers it.
    fn note_head(&self, head: u64);

    /// Forgets the known head: the caller has taken note that the log went back. Attempts handed
    /// over before keep the floor they had.
    fn forget_head(&self);
}

/// The positions a partition still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The first position held (equal to `head` when nothing is).
    pub earliest: u64,
    /// The position the next record will take.
    pub head: u64,
}

/// Whether the log would take a record, as far as is known locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Readiness {
    /// A client is up and the partition has a leader.
    Up = 0,
    /// Not asked yet.
    Unknown = 1,
    /// No broker answers.
    Unreachable = 2,
    /// The partition has no leader.
    NoLeader = 3,
    /// The topic or partition is not there.
    NotFound = 4,
    /// The log refuses us.
    Denied = 5,
}

/// Why a question to the log has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No broker answered in time: wait and ask again.
    #[error("the intake log does not answer: {0}")]
    Unreachable(String),
    /// The topic or partition is not there.
    #[error("the intake topic {0} is not there, and the node never makes one")]
    NotFound(String),
    /// The log answers and refuses: credentials or rights.
    #[error("the intake log refuses: {0}")]
    Denied(String),
    /// The log no longer holds what was asked for.
    #[error("the intake log reaches back to {earliest} only, {wanted} was asked for")]
    Truncated {
        /// Position asked for.
        wanted: u64,
        /// First position held.
        earliest: u64,
    },
    /// The log's head is below what was asked for: it lost what it held.
    #[error("the intake log ends at {head}, {wanted} was asked for")]
    AboveHead {
        /// Position asked for.
        wanted: u64,
        /// The head.
        head: u64,
    },
    /// The log's own file cannot be read or is not what it says (memory adapter).
    #[error("the intake log is damaged: {0}")]
    Damaged(String),
    /// Too many questions are waiting.
    #[error("too many questions to the intake log are waiting")]
    Busy,
    /// The adapter is being closed.
    #[error("the intake log's client is closed")]
    Closed,
}

/// Where a replay starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The first position held.
    Earliest,
    /// This position, which must still be held (or be the head).
    Position(u64),
}

/// What to read back.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    /// Whose records.
    pub node: String,
    /// The partition; ask once per partition when a node has none stamped.
    pub partition: u32,
    /// Where to start. The end is the head at the time of asking.
    pub from: From,
    /// At most this many records per chunk (500).
    pub chunk_records: usize,
    /// A chunk is closed once its values exceed this many bytes.
    pub chunk_bytes: usize,
}

/// One hook read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Its position.
    pub position: u64,
    /// Shard number.
    pub shard: u16,
    /// Seq within the shard.
    pub seq: u64,
    /// Hook id.
    pub id: [u8; 16],
    /// The incarnation that handed out the seq, or 0.
    pub incarnation: u32,
    /// The encoded hook.
    pub value: Bytes,
}

/// A hook's record that only a newer binary can read: the offset must stay below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedNewer {
    /// Its position.
    pub position: u64,
    /// The version it names.
    pub version: u32,
}

/// Some of what a replay reads, in position order. A record may come twice, and seqs in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// This node's hooks.
    pub records: Vec<Replayed>,
    /// Every position below this one has been read: by this chunk or an earlier one.
    pub read_below: u64,
    /// Records skipped since the last chunk, by [`crate::Skip::label`]; other nodes' included.
    pub skipped: Vec<(&'static str, u64)>,
    /// Hooks of newer versions among them.
    pub newer: Vec<SkippedNewer>,
    /// Malformed records of this node among them: position and the header that cannot be read.
    pub malformed: Vec<(u64, &'static str)>,
}

/// Counts over a whole replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Hooks of the node.
    pub records: u64,
    /// Skipped, all reasons but another node.
    pub skipped: u64,
    /// Other nodes' records.
    pub other_nodes: u64,
    /// Everything below this position was read.
    pub read_below: u64,
}

impl ReplaySummary {
    /// Adds one chunk.
    pub fn add(&mut self, chunk: &Chunk) {
        self.records += chunk.records.len() as u64;
        self.read_below = self.read_below.max(chunk.read_below);
        for (label, count) in &chunk.skipped {
            match *label {
                "other_node" => self.other_nodes += count,
                _ => self.skipped += count,
            }
        }
    }
}

/// A running replay: a bounded stream of chunks. Dropping it ends the replay.
pub trait Replay {
    /// The next chunk; none at the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, AskError>>>;
}

impl dyn Replay + '_ {
    /// The next chunk; none at the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Chunk, AskError>> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }
}

/// The node's side of the log: questions, answered by side threads. `ready` and `describe` answer
/// from memory at once.
pub trait IntakeLog {
    /// Asks the log for its identity and settings and holds them against `expected`: every
    /// finding at once. To be asked at boot and every minute.
    fn verify(&self, expected: Expected) -> Asked<Verified>;

    /// The positions that a partition still holds.
    fn bounds(&self, partition: u32) -> Asked<Bounds>;

    /// Reads a partition back, this node's hooks only.
    fn replay(&self, request: ReplayRequest) -> Box<dyn Replay>;

    /// The partition that a node without one is given: [`partition_of`] over today's count. To be
    /// stamped, and never asked again.
    fn assign_partition(&self, node: &str) -> Asked<u32>;

    /// From now on readiness is about this partition.
    fn watch(&self, partition: u32);

    /// As of about a second ago. Never a publish.
    fn ready(&self) -> Readiness;

    /// The clause of the start-up line, as of the last [`IntakeLog::verify`].
    fn describe(&self) -> String;
}

/// CRC-32 of the node id modulo the number of partitions (what librdkafka's `consistent`
/// partitioner would choose for the record's key).
pub fn partition_of(node: &str, partitions: u32) -> u32 {
    crc32fast::hash(node.as_bytes()) % partitions.max(1)
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Readiness::Up => "up",
            Readiness::Unknown => "not asked yet",
            Readiness::Unreachable => "no broker answers",
            Readiness::NoLeader => "the partition has no leader",
            Readiness::NotFound => "the topic or partition is not there",
            Readiness::Denied => "the log refuses us",
        })
    }
}

impl Readiness {
    pub(crate) fn from_u8(value: u8) -> Readiness {
        match value {
            0 => Readiness::Up,
            2 => Readiness::Unreachable,
            3 => Readiness::NoLeader,
            4 => Readiness::NotFound,
            5 => Readiness::Denied,
            _ => Readiness::Unknown,
        }
    }
}
