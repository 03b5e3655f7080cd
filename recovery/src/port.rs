//! What the driver asks of a node, whoever the node is: the service over its cores, a stopped store
//! under `ankusa recover`, a simulation.
//!
//! Invariants a port keeps: what it answers with `Ok` is durable; batches of one shard are applied
//! in the order of their turns. Plain data and one trait; runs where the driver does.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ankusa_wal::home::StoreOrigin;
use ankusa_wal::{IntakeOffset, Seq, ShardId};
use thiserror::Error;

use crate::apply::{Applied, Batch};
use crate::boot::Gap;

/// An answer of a port.
pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, PortError>> + 'a>>;

/// Why the node could not do what was asked. Nothing is lost by it: a later run goes on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    /// A record is larger than a segment takes.
    #[error(
        "shard {shard}: the record at position {position} has {bytes} bytes, a segment takes {max}: \
         raise wal.segment_bytes"
    )]
    TooLarge {
        /// The shard.
        shard: ShardId,
        /// Its position in the log.
        position: u64,
        /// Its bytes.
        bytes: usize,
        /// What a segment takes.
        max: usize,
    },
    /// Every number for a sink is given out.
    #[error("shard {0}: all numbers for sinks are given out")]
    NamesFull(ShardId),
    /// A core did not answer, a file could not be written.
    #[error("{0}")]
    Failed(String),
}

/// What the store says about itself, node-wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The stamped node id.
    pub node: Option<String>,
    /// The stamped partition.
    pub partition: Option<u32>,
    /// The stamped identity of the log.
    pub log: Option<String>,
    /// Where the content came from.
    pub origin: StoreOrigin,
    /// The incarnation that hands out seqs.
    pub incarnation: u32,
}

/// What a shard says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMark {
    /// Which.
    pub shard: ShardId,
    /// How far the log is in it.
    pub offset: IntakeOffset,
    /// The first seq it may hand out: whatever is at or above it was never handed out by it.
    pub next_seq: Seq,
    /// Nothing was ever written to it.
    pub is_blank: bool,
}

/// Node-wide facts to be written down; `None` leaves a fact as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The node id.
    pub node: Option<String>,
    /// The partition.
    pub partition: Option<u32>,
    /// The log's identity.
    pub log: Option<String>,
    /// The incarnation.
    pub incarnation: Option<u32>,
    /// Where the content came from.
    pub origin: Option<StoreOrigin>,
}

/// What a shard writes down after the last record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardEnd {
    /// The offset; `None` leaves it.
    pub offset: Option<u64>,
    /// The lowest position that had to be skipped.
    pub hold: Option<u64>,
    /// The incarnation whose first seq is fixed now.
    pub incarnation: Option<u32>,
    /// Node, partition and log.
    pub identity: Option<(String, u32, String)>,
}

/// What republishing the local tail came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Republished {
    /// Hooks handed to the log.
    pub published: u64,
    /// Of these, refused for good: they do not hold the boot.
    pub stuck: u64,
}

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The log does not answer, or not as it must; asked again.
    Waiting(String),
    /// Records are read back.
    Replaying {
        /// Partition.
        partition: u32,
        /// Everything below was read.
        read_below: u64,
        /// Where the log ended when it was asked.
        head: u64,
        /// Counts so far.
        counts: Applied,
    },
    /// A shard's local tail is published.
    Republishing(ShardId),
    /// Something an operator should read.
    Warning(String),
}

/// The node as the driver sees it.
pub trait NodePort {
    /// The node-wide facts.
    fn node(&self) -> PortFuture<'_, NodeState>;

    /// Every shard, by number.
    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>>;

    /// Writes facts down, durably, all at once.
    fn stamp(&self, stamp: Stamp) -> PortFuture<'_, ()>;

    /// Gives every shard that has no row of incarnations its first one.
    fn number_incarnations(&self, origin: StoreOrigin, incarnation: u32) -> PortFuture<'_, ()>;

    /// Offset none and watermark 0 in every shard, durably.
    fn forget_log(&self) -> PortFuture<'_, ()>;

    /// Adds empty shards, durably, so that there are `shards` of them.
    fn add_shards(&self, shards: u16) -> PortFuture<'_, ()>;

    /// Applies a batch; see [`crate::ShardApply::apply`].
    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied>;

    /// After the last record; see [`crate::ShardApply::end`].
    fn end(&self, shard: ShardId, end: ShardEnd) -> PortFuture<'_, ()>;

    /// Writes the audit row of a gap that the operator allows, durably.
    fn audit_gap(&self, gap: Gap) -> PortFuture<'_, ()>;

    /// Publishes every hook above the shard's watermark, and its exceptions, that was not seen in
    /// the log; completes when the log has them all or has refused the rest for good.
    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished>;

    /// Passes time.
    fn sleep(&self, time: Duration) -> PortFuture<'_, ()>;

    /// Told what goes on. Cheap.
    fn progress(&self, progress: Progress);
}
