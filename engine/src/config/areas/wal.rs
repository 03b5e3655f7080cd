//! `wal.*` and `queue.*`: the store of a shard, and what may wait for it.
//!
//! Runs at boot and offline.

use crate::config::key::{Key, Unit};
use crate::config::values::Reader;

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

pub(in crate::config) const KEYS: &[Key] = &[
    Key::word("wal.type", &["disk", "dual", "none"], "What a 2xx promises. `disk`: durable on this host. `dual`: and confirmed in the intake log. `none`: every sink confirmed the delivery, and nothing is stored.").or("disk"),
    Key::int("wal.segment_bytes", 1 << 20, 4 << 30, Unit::Bytes, "The size of a segment; a multiple of 4096. Two segments a shard are written at the first boot.").or("128 MiB"),
    Key::word("wal.sync", &["fdatasync", "dsync"], "How a group is made durable; `ankusa wal bench` measures which is faster on a disk.").or("fdatasync"),
    Key::int("wal.groups_inflight", 1, 4, Unit::Of("groups"), "Groups that a shard writes at once.").or("2"),
    Key::int("wal.group_max_bytes", 64 << 10, 16 << 20, Unit::Bytes, "The most bytes of a group; one larger hook is a group of its own.").or("1 MiB"),
    Key::int("wal.group_max_records", 1, 65_536, Unit::Of("records"), "The most records of a group.").or("4096"),
    Key::int("wal.min_free_bytes", 0, 1 << 50, Unit::Bytes, "Free bytes of the disk below which a hook is answered 503 `store_full`; slots to be used again count as free.").or_computed("two segments a shard"),
    Key::int("wal.max_live_hooks", 1_000, 1_000_000_000, Unit::Of("hooks"), "Undelivered hooks of the node above which a hook is answered 503 `store_full`.").or("20000000"),
    Key::int("wal.stall_ms", 100, 600_000, Unit::Millis, "A write that takes longer makes the shard unready.").or("2000"),
    Key::int("wal.relocate_below", 0, 90, Unit::Percent, "A sealed segment of which a smaller share is live is emptied by copying; 0: never.").or("25"),
    Key::boolean("wal.allow_unsafe_filesystem", "Accepts a data directory on FUSE, NFS, overlay or virtiofs, which may not keep what they acknowledged.").or("false"),
    Key::int("queue.max_records", 1, 10_000_000, Unit::Of("hooks"), "Hooks of the node that wait to be committed; above it one is answered 503 `overload`.").or("10000"),
    Key::int("queue.max_bytes", 1 << 20, 1 << 40, Unit::Bytes, "Bytes of those hooks.").or("256 MiB"),
];

impl WalConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> WalConfig {
        WalConfig {
            kind: match r.text("type").as_str() {
                "dual" => WalType::Dual,
                "none" => WalType::None,
                _ => WalType::Disk,
            },
            segment_bytes: r.int("segment_bytes"),
            sync: match r.text("sync").as_str() {
                "dsync" => WalSync::Dsync,
                _ => WalSync::Fdatasync,
            },
            groups_inflight: r.small("groups_inflight"),
            group_max_bytes: r.int("group_max_bytes"),
            group_max_records: r.int("group_max_records"),
            min_free_bytes: r.int_opt("min_free_bytes"),
            max_live_hooks: r.int("max_live_hooks"),
            stall_ms: r.int("stall_ms"),
            relocate_below_percent: r.small("relocate_below"),
            allow_unsafe_filesystem: r.boolean("allow_unsafe_filesystem"),
        }
    }
}

impl QueueConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> QueueConfig {
        QueueConfig {
            max_records: r.int("max_records"),
            max_bytes: r.int("max_bytes"),
        }
    }
}
