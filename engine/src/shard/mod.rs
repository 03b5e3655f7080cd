//! One shard put together: its store, its commit and its deliveries, on the core that owns it.
//!
//! Runs on a shard core.

mod durable;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;

use ankusa_wal::generation::{GenerationDamage, GenerationFault};
use ankusa_wal::home::StoreFacts;
use ankusa_wal::state::NamesFull;
use ankusa_wal::{
    DedupeRow, Disk, Host, OpenError, OpenReport, Outcome, Seq, ShardId, SinkNo, Store,
    StoreConfig, SyncMode,
};

use crate::claims::{Desk, KeyHash};
use crate::commit::QueueLimits;
use crate::commit::driver::LogHalf;
use crate::commit::driver::{Commit, GroupLimits, Listener};
use crate::config::{Config, WalSync};
use crate::dispatch::{Dispatch, Limits, SinkTable, StoreBacklog};
use crate::dual::work::Work;
use crate::dual::{CoreLog, Republished, ShardLog, feeder};
use crate::metrics::Metric;
use crate::node::observe::CoreObserver;

/// Dedupe rows taken up before others get the core.
const ROWS_SLICE: usize = 1024;

/// A shard that is open.
pub struct Shard<D: Disk> {
    /// Its number.
    pub id: ShardId,
    /// Its store.
    pub store: Store<D>,
    /// Its commit.
    pub commit: Commit<D>,
    /// Its deliveries.
    pub dispatch: Dispatch<StoreBacklog<D>>,
    /// What the open found.
    pub report: OpenReport,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    work: Option<Rc<Work<D>>>,
    /// Dedupe rows of hooks that the log is not known to have.
    deferred: RefCell<Vec<DedupeRow>>,
    listener: Rc<ShardListener<D>>,
}

impl<D: Disk> Drop for Shard<D> {
    /// The commit tells the listener, which tells dispatch, which nudges the commit: the ring is
    /// opened here, else the store would outlive its shard.
    fn drop(&mut self) {
        self.listener.dispatch.borrow_mut().take();
        if let Some(work) = &self.work {
            work.log.close();
        }
    }
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
        shards_on_disk: u32::from(facts.shards),
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

/// What a shard is put together from.
pub struct ShardParts<D: Disk> {
    /// Its directory.
    pub disk: D,
    /// The core's time and tasks.
    pub host: Rc<dyn Host>,
    /// Settings of the store.
    pub store: StoreConfig,
    /// Ceilings of the queue.
    pub queue: QueueLimits,
    /// Ceilings of a group.
    pub group: GroupLimits,
    /// Bounds of dispatch.
    pub deliveries: Limits,
    /// Today's sinks.
    pub sinks: Rc<dyn SinkTable>,
    /// The core's counts.
    pub observer: Rc<CoreObserver>,
    /// The core's way into the intake log, where the mode has one.
    pub log: Option<Rc<CoreLog>>,
}

impl<D: Disk> Shard<D> {
    /// Opens the store and starts the commit. Deliveries start with [`Dispatch::start`].
    pub async fn open(parts: ShardParts<D>) -> Result<Shard<D>, OpenError> {
        let (id, segment_bytes) = (parts.store.shard, parts.store.segment_bytes);
        let hash_key = parts.store.hash_key;
        let (store, report) = Store::open(parts.disk, Rc::clone(&parts.host), parts.store).await?;
        let listener = Rc::new(ShardListener {
            host: Rc::clone(&parts.host),
            observer: Rc::clone(&parts.observer),
            dispatch: RefCell::new(None),
        });
        let log = parts.log.map(|core| ShardLog::new(id, core));
        let commit = Commit::new(
            store.clone(),
            Rc::clone(&parts.host),
            parts.queue,
            parts.group,
            log.clone().map(|log| log as Rc<dyn LogHalf>),
            Rc::clone(&listener) as Rc<dyn Listener>,
        );
        let work = log.map(|log| Work::new(log, commit.clone(), Rc::clone(&parts.host), hash_key));
        let queued = commit.clone();
        let dispatch = Dispatch::new(
            parts.host,
            StoreBacklog::new(store.clone(), Rc::new(move || queued.nudge())),
            parts.sinks,
            parts.deliveries,
            Rc::clone(&parts.observer.metrics),
        );
        *listener.dispatch.borrow_mut() = Some(dispatch.clone());
        commit.start();
        if let Some(work) = &work {
            work.start();
        }
        Ok(Shard {
            id,
            store,
            commit,
            dispatch,
            report,
            segment_bytes,
            work,
            deferred: RefCell::default(),
            listener,
        })
    }

    /// Its side of the intake log, where the mode has one.
    pub fn log(&self) -> Option<&Rc<ShardLog>> {
        self.work.as_ref().map(|work| &work.log)
    }

    /// Publishes every live hook above the watermark, its exceptions included, of which `seen` does
    /// not say that the log was just seen to hold it; within the pending ceiling. Completes when
    /// each is confirmed or refused for good (then it is stuck); from then on the watermark moves.
    /// Once at every boot, before the shard takes hooks.
    pub async fn republish_local(&self, seen: impl Fn(Seq) -> bool) -> Republished {
        match &self.work {
            None => Republished::default(),
            Some(work) => feeder::feed(work, self.store.next_seq(), &seen).await,
        }
    }

    /// Hands the dedupe rows that the open found to the cores that own their keys, oldest first,
    /// with a `rest` after each slice. Once after an open, before the desk says that its rows are
    /// done. Rows that are damaged or absent cost a duplicate, never a hook: it is said, and the
    /// boot goes on. Rows that could not be read this time stop it, as a segment does: the next
    /// attempt may read them, and without them a retry would be stored twice.
    pub async fn restore_claims<F: Future<Output = ()>>(
        &self,
        desk: &Desk,
        now_s: u64,
        rest: impl Fn() -> F,
    ) -> Result<(), OpenError> {
        let Some((mut rows, newest)) = self.store.take_boot_dedupe() else {
            return Ok(());
        };
        let restore = |rows: &[DedupeRow]| {
            for row in rows {
                if self.is_unconfirmed(row.seq) {
                    self.deferred.borrow_mut().push(*row);
                } else {
                    restore_row(desk, row, now_s);
                }
            }
        };
        while let Some(block) = rows.next_block(now_s).await {
            match block {
                Ok(block) => restore(&block),
                Err(GenerationDamage {
                    what: GenerationFault::Io(source),
                    ..
                }) if source.kind() != ErrorKind::NotFound => {
                    return Err(OpenError::Io {
                        doing: "reading dedupe rows (when it stays so, `ankusa wal verify` names \
                                the file and `ankusa wal repair` gives its rows up)",
                        source,
                    });
                }
                Err(damage) => {
                    tracing::error!(shard = %self.id, %damage, "dedupe rows are lost");
                }
            }
            rest().await;
        }
        for slice in newest.chunks(ROWS_SLICE) {
            restore(slice);
            rest().await;
        }
        Ok(())
    }

    /// Whether a hook is here and the log is not known to have it.
    fn is_unconfirmed(&self, seq: Seq) -> bool {
        let state = self.store.state();
        self.work.is_some() && !state.meta().is_confirmed(seq) && state.slot_of_seq(seq).is_some()
    }

    /// Hands over the rows that [`Shard::restore_claims`] held back, once the local tail was
    /// published. A hook that the log still lacks is safe in one place only: its row counts as
    /// absent until it is complete, also beside the row of a later hook that was acked for its key.
    pub fn restore_deferred(&self, desk: &Desk, now_s: u64) {
        for row in self.deferred.take() {
            let is_carried = self.log().is_some_and(|log| log.halves(row.id).is_some());
            if !is_carried {
                restore_row(desk, &row, now_s);
            }
        }
    }

    /// The number of a sink in this shard; a new one is written down with the next group, before
    /// any hook that refers to it.
    pub fn sink_no(&self, tenant: &[u8], source: &[u8], name: &[u8]) -> Result<SinkNo, NamesFull> {
        let (sink, new) = self.store.state_mut().sink_no(tenant, source, name)?;
        if let Some(new) = new {
            self.store.enqueue(new);
            self.commit.nudge();
        }
        Ok(sink)
    }
}

fn restore_row(desk: &Desk, row: &DedupeRow, now_s: u64) {
    let expiry_s = u32::try_from(row.expires_at_s).unwrap_or(u32::MAX);
    desk.restore(KeyHash(row.hash), row.id, expiry_s, now_s as u32);
}

/// What a shard's commit tells the rest of its core.
struct ShardListener<D: Disk> {
    host: Rc<dyn Host>,
    observer: Rc<CoreObserver>,
    dispatch: RefCell<Option<Dispatch<StoreBacklog<D>>>>,
}

impl<D: Disk> Listener for ShardListener<D> {
    fn durable(&self, seq: Seq) {
        if let Some(dispatch) = self.dispatch.borrow().as_ref() {
            dispatch.durable(seq);
        }
    }

    fn group_started(&self, records: usize, _bytes: usize) {
        let metrics = &self.observer.metrics;
        metrics.observe(Metric::WalCommitBatchSize, records as u64);
    }

    fn group_settled(&self, outcome: Outcome, micros: u64) {
        self.observer
            .group_settled(outcome, micros, self.host.mono_us());
    }
}
