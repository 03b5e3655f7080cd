//! Metrics: cells per core, merged into Prometheus text when somebody asks.
//!
//! Each core writes its own block of cells with plain (relaxed) loads and stores: no lock, no
//! read-modify-write, no line shared with another core. A scrape reads all blocks and adds them
//! up; it may see one core a moment later than another. What happens off the cores (backups,
//! boot, log writer) goes to one more block, with atomic additions.
//!
//! Names and label sets are fixed when the configuration is loaded (`families`): label values
//! are words of this program or names from the configuration file, never anything from a request,
//! so the number of series does not grow with tenants or traffic. Sources and sinks made over
//! the admin API count as `other`. The families of the intake exist only when there is one.
//!
//! Recording never allocates and runs anywhere on its core; rendering allocates, is done slice
//! by slice so that a core can yield in between, and runs on whichever core serves the scrape.

pub mod families;
pub mod histogram;

mod render;
mod stalls;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ankusa_net::http1::Doubt;

pub use families::{
    BackupResult, DeliveryResult, Half, IngestOutcome, IntakeClass, IntakeRefusal, Metric,
    PublishOutcome, RefusedReason, ReplayResult,
};
pub use render::{CONTENT_TYPE, Renderer};
pub use stalls::StallMeter;

use families::{Kind, LabelSet};
use histogram::BUCKETS_COUNT;

/// Cells of 128 bytes: two cache lines, because neighbouring lines are fetched in pairs.
const CELLS_PER_LINE: usize = 16;

#[repr(align(128))]
struct Line([AtomicU64; CELLS_PER_LINE]);

/// A block of cells: one core's.
struct Block {
    lines: Box<[Line]>,
    is_claimed: AtomicBool,
}

impl Block {
    fn new(cells: usize) -> Block {
        let line = || Line(std::array::from_fn(|_| AtomicU64::new(0)));
        let lines = (0..cells.div_ceil(CELLS_PER_LINE))
            .map(|_| line())
            .collect();
        Block {
            lines,
            is_claimed: AtomicBool::new(false),
        }
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.lines[at / CELLS_PER_LINE].0[at % CELLS_PER_LINE]
    }
}

/// What the configuration fixes.
#[derive(Clone, Debug, Default)]
pub struct MetricsConfig {
    /// Reactor cores.
    pub cores: usize,
    /// Label values of the sources in the file.
    pub sources: Vec<String>,
    /// Label values of the sinks in the file.
    pub sinks: Vec<String>,
    /// Whether there is an intake.
    pub with_intake: bool,
}

/// A source's label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceLabel(u32);

/// A sink's label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkLabel(u32);

/// The label of what the file does not name.
pub const OTHER: &str = "other";

/// Every series of the node.
pub struct Registry {
    /// Where a family's cells start in a block; `None` when it is not registered.
    starts: Vec<Option<usize>>,
    sources: Vec<String>,
    sinks: Vec<String>,
    cores: Vec<Block>,
    node: Block,
}

impl Registry {
    /// The registry of a configuration.
    pub fn new(config: MetricsConfig) -> Arc<Registry> {
        let with_other = |names: Vec<String>| {
            let mut all = vec![OTHER.to_owned()];
            for name in names {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            all
        };
        let (sources, sinks) = (with_other(config.sources), with_other(config.sinks));
        let mut cells = 0;
        let starts = Metric::ALL
            .iter()
            .map(|metric| {
                let family = metric.family();
                (config.with_intake || !family.only_with_intake).then(|| {
                    let start = cells;
                    cells += family.series_count(sources.len(), sinks.len()) * family.cells_each();
                    start
                })
            })
            .collect();
        Arc::new(Registry {
            starts,
            sources,
            sinks,
            cores: (0..config.cores.max(1))
                .map(|_| Block::new(cells))
                .collect(),
            node: Block::new(cells),
        })
    }

    /// The cells of core `core`, for the one thread that runs it; `None` when they are taken or
    /// there is no such core.
    pub fn core(self: &Arc<Registry>, core: usize) -> Option<CoreMetrics> {
        let is_taken = self
            .cores
            .get(core)?
            .is_claimed
            .swap(true, Ordering::AcqRel);
        (!is_taken).then(|| CoreMetrics {
            registry: Arc::clone(self),
            core,
            not_send: PhantomData,
        })
    }

    /// The label of a source: `other` when the file does not name it.
    pub fn source(&self, name: &str) -> SourceLabel {
        SourceLabel(position(&self.sources, name))
    }

    /// The label of a sink: `other` when the file does not name it.
    pub fn sink(&self, name: &str) -> SinkLabel {
        SinkLabel(position(&self.sinks, name))
    }

    /// Counts something that happened off the cores.
    pub fn node_add(&self, metric: Metric, label: usize, by: u64) {
        if let Some(at) = self.at(metric, label) {
            self.node.cell(at).fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Sets a gauge of the node.
    pub fn node_set(&self, metric: Metric, value: u64) {
        if let Some(at) = self.at(metric, 0) {
            self.node.cell(at).store(value, Ordering::Relaxed);
        }
    }

    /// Records a value off the cores.
    pub fn node_observe(&self, metric: Metric, label: usize, value: u64) {
        if let Some(at) = self.at(metric, label) {
            self.node
                .cell(at + histogram::bucket_of(value))
                .fetch_add(1, Ordering::Relaxed);
            self.node
                .cell(at + BUCKETS_COUNT)
                .fetch_add(value, Ordering::Relaxed);
        }
    }

    /// The whole exposition at once: for tests and the command line. A core uses [`Renderer`].
    pub fn render(self: &Arc<Registry>) -> String {
        let (mut text, mut renderer) = (String::new(), Renderer::new(Arc::clone(self)));
        while renderer.next_slice(&mut text) {}
        text
    }

    /// The first cell of a series, `None` when the family is not registered.
    fn at(&self, metric: Metric, label: usize) -> Option<usize> {
        let family = metric.family();
        let series = family.series_count(self.sources.len(), self.sinks.len());
        debug_assert!(label < series, "{} has no series {label}", family.name);
        let start = (*self.starts.get(metric as usize)?)?;
        (label < series).then(|| start + label * family.cells_each())
    }
}

fn position(names: &[String], name: &str) -> u32 {
    names.iter().position(|known| known == name).unwrap_or(0) as u32
}

/// One core's side of the registry. Stays on its thread: its cells have one writer.
pub struct CoreMetrics {
    registry: Arc<Registry>,
    core: usize,
    not_send: PhantomData<*const ()>,
}

impl CoreMetrics {
    /// The registry.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Counts one.
    pub fn inc(&self, metric: Metric) {
        self.add_at(metric, 0, 1);
    }

    /// Counts `by`.
    pub fn add(&self, metric: Metric, by: u64) {
        self.add_at(metric, 0, by);
    }

    /// Sets a gauge of this core, in the family's own unit (see [`families`]).
    pub fn set(&self, metric: Metric, value: u64) {
        if let Some(cell) = self.cell(metric, 0, 0) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Records a value, in the family's own unit (microseconds, or records).
    pub fn observe(&self, metric: Metric, value: u64) {
        self.observe_at(metric, 0, value);
    }

    /// Counts an ingest request.
    pub fn ingest_request(&self, source: SourceLabel, outcome: IngestOutcome) {
        let label = source.0 as usize * IngestOutcome::WORDS.len() + outcome as usize;
        self.add_at(Metric::IngestRequests, label, 1);
    }

    /// Counts a request refused before a source took it.
    pub fn ingest_refused(&self, reason: RefusedReason) {
        self.add_at(Metric::IngestRefused, reason as usize, 1);
    }

    /// Counts a request refused as malformed.
    pub fn malformed(&self, doubt: Doubt) {
        self.add_at(Metric::IngestMalformed, doubt as usize, 1);
    }

    /// Counts a delivery attempt.
    pub fn delivery(&self, sink: SinkLabel, result: DeliveryResult) {
        // `result` comes before `sink` in the label set.
        let label = result as usize * self.registry.sinks.len() + sink.0 as usize;
        self.add_at(Metric::DispatchDeliveries, label, 1);
    }

    /// Records a publish to the intake log, microseconds.
    pub fn publish(&self, outcome: PublishOutcome, us: u64) {
        self.observe_at(Metric::IntakePublishDuration, outcome as usize, us);
    }

    /// Counts a failed publish.
    pub fn intake_failure(&self, class: IntakeClass) {
        self.add_at(Metric::IntakeFailures, class as usize, 1);
    }

    /// Counts a record whose missing half was completed.
    pub fn reconciled(&self, half: Half) {
        self.add_at(Metric::IntakeReconciled, half as usize, 1);
    }

    /// Counts a hook refused because of the intake.
    pub fn intake_refused(&self, reason: IntakeRefusal) {
        self.add_at(Metric::IntakeRefused, reason as usize, 1);
    }

    /// Counts a replayed record.
    pub fn replayed(&self, result: ReplayResult, by: u64) {
        self.add_at(Metric::IntakeReplay, result as usize, by);
    }

    fn add_at(&self, metric: Metric, label: usize, by: u64) {
        if let Some(cell) = self.cell(metric, label, 0) {
            bump(cell, by);
        }
    }

    fn observe_at(&self, metric: Metric, label: usize, value: u64) {
        debug_assert!(matches!(metric.family().kind, Kind::Histogram(_)));
        let bucket = histogram::bucket_of(value);
        if let Some(cell) = self.cell(metric, label, bucket) {
            bump(cell, 1);
        }
        if let Some(cell) = self.cell(metric, label, BUCKETS_COUNT) {
            bump(cell, value);
        }
    }

    fn cell(&self, metric: Metric, label: usize, offset: usize) -> Option<&AtomicU64> {
        let at = self.registry.at(metric, label)?;
        Some(self.registry.cores[self.core].cell(at + offset))
    }
}

/// NOTE: not `fetch_add`: this cell has one writer, and a locked instruction costs more than the
/// rest of the record path together.
fn bump(cell: &AtomicU64, by: u64) {
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

impl LabelSet {
    /// The label values of the dimension, in cell order.
    fn values<'a>(&'a self, registry: &'a Registry) -> Vec<&'a str> {
        match self {
            LabelSet::Words(_, words) => words.to_vec(),
            LabelSet::Sources => registry.sources.iter().map(String::as_str).collect(),
            LabelSet::Sinks => registry.sinks.iter().map(String::as_str).collect(),
        }
    }
}
