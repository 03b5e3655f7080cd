//! `wal.*` and `queue.*`: the store of a shard, and what may wait for it.
//!
//! Runs at boot and offline.

/// What a 2xx promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalType {
    /// Durable on this host.
    Disk,
    /// Durable on this host and confirmed in the intake log.
    Dual,
    /// Every sink confirmed the delivery; nothing is stored.
    None,
}

/// How a group is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalSync {
    /// A direct write, then fdatasync.
    Fdatasync,
    /// A direct write on a descriptor opened with O_DSYNC.
    Dsync,
}

/// `wal.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct WalConfig {
    /// What a 2xx promises.
    pub kind: WalType,
    /// The size of a segment, in bytes; a multiple of 4096.
    pub segment_bytes: u64,
    /// How a group is made durable.
    pub sync: WalSync,
    /// Groups written at once, per shard.
    pub groups_inflight: u8,
    /// The most bytes of a group; one larger record is a group of its own.
    pub group_max_bytes: u64,
    /// The most records of a group.
    pub group_max_records: u64,
    /// Free bytes below which ingest is refused; `None`: two segments a shard.
    pub min_free_bytes: Option<u64>,
    /// Undelivered hooks above which ingest is refused, per node.
    pub max_live_hooks: u64,
    /// A write that takes longer makes the shard unready.
    pub stall_ms: u64,
    /// A sealed segment with a smaller live share is relocated, in percent.
    pub relocate_below_percent: u8,
    /// Whether a file system that is known not to keep its word is accepted.
    pub allow_unsafe_filesystem: bool,
}

/// `queue.*`: hooks that wait to be committed, per node.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueConfig {
    /// The most hooks.
    pub max_records: u64,
    /// The most bytes of hooks.
    pub max_bytes: u64,
}
