//! What a store is opened with. Tunables only; format constants live beside the format.
//!
//! Plain data, validated by the caller except where noted. Runs anywhere.

use crate::ids::ShardId;

/// How a group is made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// A direct write, then `fdatasync`.
    #[default]
    Fdatasync,
    /// A direct write on a descriptor opened with `O_DSYNC`.
    Dsync,
}

/// The settings of one shard's store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The shard.
    pub shard: ShardId,
    /// The store it belongs to; a segment of another one is refused.
    pub store_uuid: [u8; 16],
    /// Key of the dedupe hashes; not used by the store itself.
    pub hash_key: [u8; 16],
    /// Size of a segment file, a multiple of 4 KiB, at least 64 KiB.
    pub segment_bytes: u64,
    /// How a group is made durable.
    pub sync: SyncMode,
    /// Groups in flight, 1 to 4.
    pub groups_inflight: usize,
    /// Most bytes in a group; one larger record is a group of its own.
    pub group_bytes_max: usize,
    /// Most records in a group.
    pub group_records_max: usize,
    /// Below this much free space nothing is admitted. Slots to be used again count as free.
    pub min_free_bytes: u64,
    /// How many shards share the disk: each leaves the others what their next open needs.
    pub shards_on_disk: u32,
    /// Above this many live hooks nothing is admitted.
    pub max_live_hooks: u64,
    /// A write in flight for longer makes the shard unready.
    pub stall_ms: u64,
    /// A sealed segment whose live share falls below is relocated.
    pub relocate_below_percent: u8,
    /// Relocation's rate.
    pub relocate_bytes_per_s: u64,
    /// After this much idle time the last groups are claimed durable by an empty frame.
    pub idle_claim_ms: u64,
    /// Between two attempts to leave a fence.
    pub fence_retry_ms: u64,
    /// Most bytes of recent groups kept for reads right after an ack.
    pub cache_bytes_max: usize,
    /// Most dedupe rows; the oldest goes first.
    pub dedupe_keys_max: u64,
    /// Most records waiting in the store's own queue.
    pub queued_records_max: usize,
    /// A checkpoint is due after this much appended log.
    pub checkpoint_log_bytes: u64,
    /// A checkpoint is due after this many segments started.
    pub checkpoint_segments: u32,
    /// Most slots; 0 for no bound but the disk.
    pub slots_max: u32,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            shard: ShardId(0),
            store_uuid: [0; 16],
            hash_key: [0; 16],
            segment_bytes: 128 << 20,
            sync: SyncMode::Fdatasync,
            groups_inflight: 2,
            group_bytes_max: 1 << 20,
            group_records_max: 4096,
            min_free_bytes: 256 << 20,
            shards_on_disk: 1,
            max_live_hooks: 20_000_000,
            stall_ms: 2_000,
            relocate_below_percent: 25,
            relocate_bytes_per_s: 16 << 20,
            idle_claim_ms: 100,
            fence_retry_ms: 500,
            cache_bytes_max: 16 << 20,
            dedupe_keys_max: 20_000_000,
            queued_records_max: 1 << 20,
            checkpoint_log_bytes: 1 << 30,
            checkpoint_segments: 8,
            slots_max: 0,
        }
    }
}
