//! Where a core's counts go: from the pipeline, the commit and the sweep into its metric cells.
//!
//! Runs on the shard core that owns the cells.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_net::http1::{Doubt, Gauges};
use ankusa_wal::{Disk, Host, Outcome as GroupOutcome};

use crate::config::Config;
use crate::ingest::Observer;
use crate::metrics::{
    CoreMetrics, IngestOutcome, IntakeRefusal, Metric, RefusedReason, Registry, SourceLabel,
    StallMeter,
};
use crate::shard::Shard;
use crate::verify::Reason;

use super::core::Core;

/// A sweep that is late by more than this means that the core stalled.
const STALL_TOLERANCE: Duration = Duration::from_millis(50);

/// Between two log lines about malformed requests: anybody can send them.
const MALFORMED_EVERY: Duration = Duration::from_secs(10);

/// One core's observer.
pub struct CoreObserver {
    /// The core's cells.
    pub metrics: Rc<CoreMetrics>,
    sources: RefCell<Vec<SourceLabel>>,
    last_failure_us: Cell<Option<u64>>,
    last_busy_us: Cell<(u64, u64)>,
    stalls: StallMeter,
}

impl CoreObserver {
    /// The observer of a core; its cells can be taken once.
    pub fn new(
        registry: &Arc<Registry>,
        core: usize,
        config: &Config,
    ) -> Result<Rc<CoreObserver>, String> {
        let metrics = registry
            .core(core)
            .ok_or_else(|| format!("the metrics of core {core} are taken"))?;
        Ok(Rc::new(CoreObserver {
            metrics: Rc::new(metrics),
            sources: RefCell::new(labels(registry, config)),
            last_failure_us: Cell::new(None),
            last_busy_us: Cell::new((0, 0)),
            stalls: StallMeter::new(super::core::SWEEP, STALL_TOLERANCE),
        }))
    }

    /// Other sources from now on (a reload): those that the first file did not name count as
    /// `other`.
    pub fn set_sources(&self, config: &Config) {
        *self.sources.borrow_mut() = labels(self.metrics.registry(), config);
    }

    /// A group settled so, after so long.
    pub fn group_settled(&self, outcome: GroupOutcome, micros: u64, now_us: u64) {
        self.metrics.observe(Metric::WalSyncDuration, micros);
        if outcome == GroupOutcome::Fenced {
            self.last_failure_us.set(Some(now_us));
        }
    }

    /// Microseconds since the last failed write or sync.
    pub fn since_failure_us(&self, now_us: u64) -> Option<u64> {
        self.last_failure_us
            .get()
            .map(|at| now_us.saturating_sub(at))
    }

    /// Writes the gauges of the core.
    pub fn sample(&self, core: &Core, server: Option<&Gauges>) {
        let m = &self.metrics;
        let mut sums = Sums::default();
        let mut deliveries = crate::dispatch::Gauges::default();
        for shard in core.shards.borrow().iter() {
            sums.add(shard);
            deliveries.add(&shard.dispatch.gauges());
        }
        deliveries.write(m);
        m.set(Metric::StoreHooks, sums.hooks);
        m.set(Metric::StoreDeliveries, sums.deliveries);
        m.set(Metric::StoreLiveBytes, sums.live_bytes);
        m.set(Metric::StoreDiskBytes, sums.disk_bytes);
        m.set(Metric::StoreFreeBytes, sums.free_bytes);
        m.set(Metric::StoreSlots, sums.slots);
        m.set(Metric::StoreSlotsSpare, sums.slots_spare);
        m.set(Metric::StoreAppendedBytes, sums.appended_bytes);
        m.set(Metric::WalFences, sums.fences);
        m.set(Metric::WalReadFailures, sums.read_failures);
        m.set(Metric::CommitQueue, sums.queue);
        m.set(Metric::CommitQueueBytes, sums.queue_bytes);
        m.set(Metric::CoreQueueDepth, sums.queue);
        let (keys, _, evicted, _) = core.desk.counts();
        m.set(Metric::DedupeKeys, keys as u64);
        m.set(Metric::DedupeEvicted, evicted);
        if let Some(server) = server {
            m.set(Metric::CoreConnections, server.connections_open.get());
        }
        let dropped = crate::logging::dropped_count();
        m.registry().node_set(Metric::LogLinesDropped, dropped);
        let (now_us, busy_us) = (core.host.mono_us(), core.host.busy().as_micros() as u64);
        if self.stalls.beat(now_us) {
            m.inc(Metric::CoreStalls);
        }
        let (then_us, then_busy_us) = self.last_busy_us.replace((now_us, busy_us));
        let span_us = now_us.saturating_sub(then_us).max(1);
        let share = busy_us.saturating_sub(then_busy_us) * 1000 / span_us;
        m.set(Metric::CoreBusy, share.min(1000));
    }
}

fn labels(registry: &Arc<Registry>, config: &Config) -> Vec<SourceLabel> {
    let sources = config.sources.iter();
    sources.map(|s| registry.source(&s.name)).collect()
}

#[derive(Default)]
struct Sums {
    hooks: u64,
    deliveries: u64,
    live_bytes: u64,
    disk_bytes: u64,
    free_bytes: u64,
    slots: u64,
    slots_spare: u64,
    appended_bytes: u64,
    fences: u64,
    read_failures: u64,
    queue: u64,
    queue_bytes: u64,
}

impl Sums {
    fn add<D: Disk>(&mut self, shard: &Shard<D>) {
        let stats = shard.store.stats();
        let (waiting, waiting_bytes, _) = shard.commit.depth();
        let state = shard.store.state();
        let counts = state.counts();
        self.hooks += counts.hooks;
        self.deliveries += counts.rows_pending + counts.rows_scheduled + counts.rows_dead;
        self.live_bytes += state.live_bytes();
        drop(state);
        self.disk_bytes += u64::from(stats.slots) * shard.segment_bytes;
        self.free_bytes = stats.free_bytes;
        self.slots += u64::from(stats.slots);
        self.slots_spare += u64::from(stats.slots_spare);
        self.appended_bytes += stats.bytes;
        self.fences += stats.fences;
        self.read_failures += stats.read_failures;
        self.queue += waiting as u64;
        self.queue_bytes += waiting_bytes as u64;
    }
}

impl Observer for CoreObserver {
    fn ended(&self, source_index: usize, outcome: IngestOutcome, micros: u64) {
        if let Some(source) = self.sources.borrow().get(source_index) {
            self.metrics.ingest_request(*source, outcome);
        }
        self.metrics.observe(Metric::IngestDuration, micros);
        if outcome == IngestOutcome::Overload {
            self.metrics.inc(Metric::LoadShed);
        }
    }

    fn committed(&self, micros: u64) {
        self.metrics.observe(Metric::WalCommitDuration, micros);
    }

    fn malformed(&self, doubt: Doubt) {
        self.metrics.malformed(doubt);
        let reason = doubt.word();
        crate::log_limited!(
            info,
            MALFORMED_EVERY,
            reason,
            "a malformed request was refused"
        );
    }

    fn mismatched(&self) {
        self.metrics.inc(Metric::DedupeMismatches);
    }

    fn verify_failed(&self, _source_index: usize, _reason: Reason) {
        self.metrics.inc(Metric::VerifyFailures);
    }

    fn refused(&self, reason: &'static str) {
        if let Some(reason) = IntakeRefusal::from_word(reason) {
            self.metrics.intake_refused(reason);
        } else if let Some(reason) = RefusedReason::from_word(reason) {
            self.metrics.ingest_refused(reason);
        } else if reason == "overload" {
            self.metrics.inc(Metric::LoadShed);
        }
    }
}
