//! Gauges of dispatch, added up over the shards of a core. Pure but for the cells it sets.

use super::scheduler::Counts;
use crate::metrics::{CoreMetrics, Metric};

/// Gauges of dispatch: of one shard, or of all shards of a core together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// What waits and what is under way.
    pub counts: Counts,
    /// Dead letters.
    pub dead_count: u64,
    /// How long the oldest row that could start, but for its sink, has been due.
    pub oldest_due_age_ms: u64,
}

impl Gauges {
    /// Adds another shard of the same core.
    pub fn add(&mut self, other: &Gauges) {
        let (mine, its) = (&mut self.counts, &other.counts);
        mine.ready_count += its.ready_count;
        mine.scheduled_count += its.scheduled_count;
        mine.inflight.rows += its.inflight.rows;
        mine.inflight.bytes += its.inflight.bytes;
        mine.held_count += its.held_count;
        mine.paused_sinks_count = mine.paused_sinks_count.max(its.paused_sinks_count);
        mine.open_breakers_count += its.open_breakers_count;
        self.dead_count += other.dead_count;
        self.oldest_due_age_ms = self.oldest_due_age_ms.max(other.oldest_due_age_ms);
    }

    /// Sets the core's cells.
    pub fn write(&self, metrics: &CoreMetrics) {
        let counts = &self.counts;
        metrics.set(Metric::QueuePending, u64::from(counts.ready_count));
        metrics.set(Metric::QueueScheduled, u64::from(counts.scheduled_count));
        metrics.set(Metric::QueueInflight, u64::from(counts.inflight.rows));
        metrics.set(Metric::QueueInflightBytes, counts.inflight.bytes);
        metrics.set(Metric::QueueDead, self.dead_count);
        metrics.set(
            Metric::DispatchPausedSinks,
            u64::from(counts.paused_sinks_count),
        );
        metrics.set(Metric::DispatchPausedHooks, u64::from(counts.held_count));
        metrics.set(
            Metric::DispatchBreakersOpen,
            u64::from(counts.open_breakers_count),
        );
        metrics.set(Metric::OldestDueAge, self.oldest_due_age_ms);
    }
}
