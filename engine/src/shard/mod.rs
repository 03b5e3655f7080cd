//! One shard put together: its store and its commit, on the core that owns it.
//!
//! Runs on a shard core.

use std::rc::Rc;

use ankusa_wal::home::StoreFacts;
use ankusa_wal::state::NamesFull;
use ankusa_wal::{
    Disk, Host, OpenError, OpenReport, ShardId, SinkNo, Store, StoreConfig, SyncMode,
};

use crate::commit::QueueLimits;
use crate::commit::driver::{Commit, GroupLimits, Listener};
use crate::config::{Config, WalSync};

/// A shard that is open.
pub struct Shard<D: Disk> {
    /// Its number.
    pub id: ShardId,
    /// Its store.
    pub store: Store<D>,
    /// Its commit.
    pub commit: Commit<D>,
    /// What the open found.
    pub report: OpenReport,
    /// Bytes of one segment.
    pub segment_bytes: u64,
}

/// The settings of a shard's store, from the node's.
pub fn store_config(config: &Config, facts: &StoreFacts, shard: ShardId) -> StoreConfig {
    let shards = u64::from(facts.shards.max(1));
    let wal = &config.wal;
    StoreConfig {
        shard,
        store_uuid: facts.uuid.0,
        hash_key: facts.hash_key.0,
        segment_bytes: wal.segment_bytes,
        sync: match wal.sync {
            WalSync::Fdatasync => SyncMode::Fdatasync,
            WalSync::Dsync => SyncMode::Dsync,
        },
        groups_inflight: wal.groups_inflight as usize,
        group_bytes_max: wal.group_max_bytes as usize,
        group_records_max: wal.group_max_records as usize,
        min_free_bytes: wal.min_free_bytes.unwrap_or(2 * wal.segment_bytes * shards),
        max_live_hooks: (wal.max_live_hooks / shards).max(1),
        stall_ms: wal.stall_ms,
        relocate_below_percent: wal.relocate_below_percent,
        dedupe_keys_max: (config.dedupe.max_keys / shards).max(1),
        ..StoreConfig::default()
    }
}

/// The ceilings of a shard's queue: its share of the node's.
pub fn queue_limits(config: &Config, cores: usize) -> QueueLimits {
    let cores = cores.max(1);
    QueueLimits {
        records_max: (config.queue.max_records as usize).div_ceil(cores),
        bytes_max: (config.queue.max_bytes as usize).div_ceil(cores),
        deadline_us: config.http.limits.request_deadline_ms * 1000,
    }
}

/// The ceilings of a group.
pub fn group_limits(config: &Config) -> GroupLimits {
    GroupLimits {
        bytes_max: config.wal.group_max_bytes as usize,
        records_max: config.wal.group_max_records as usize,
    }
}

impl<D: Disk> Shard<D> {
    /// Opens the store and starts the commit.
    pub async fn open(
        disk: D,
        host: Rc<dyn Host>,
        store: StoreConfig,
        queue: QueueLimits,
        group: GroupLimits,
        listener: Rc<dyn Listener>,
    ) -> Result<Shard<D>, OpenError> {
        let (id, segment_bytes) = (store.shard, store.segment_bytes);
        let (store, report) = Store::open(disk, Rc::clone(&host), store).await?;
        let commit = Commit::new(store.clone(), host, queue, group, None, listener);
        commit.start();
        Ok(Shard {
            id,
            store,
            commit,
            report,
            segment_bytes,
        })
    }

    /// The number of a sink in this shard; a new one is written down with the next group, before
    /// any hook that refers to it.
    pub fn sink_no(&self, tenant: &[u8], source: &[u8], name: &[u8]) -> Result<SinkNo, NamesFull> {
        let (sink, new) = self.store.state_mut().sink_no(tenant, source, name)?;
        if let Some(new) = new {
            self.store.enqueue(new);
        }
        Ok(sink)
    }
}
