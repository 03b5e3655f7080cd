//! A sink as dispatch sees it: where it delivers, and its settings of today.
//!
//! The seam between the driver and what is configured. Runs on a shard core.

use std::pin::Pin;
use std::rc::Rc;

use ankusa_wal::SinkName;

use super::backoff::RetryPolicy;
use super::breaker::BreakerPolicy;
use super::scheduler::Limits;
use super::verdict::Outcome;
use crate::config::DispatchConfig;
use crate::metrics::SinkLabel;
use crate::replay::ReplayId;

/// The work of one attempt, on its core.
pub type Attempt<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// One sink, ready to be delivered to.
pub trait Target {
    /// Makes one attempt with the bytes of a hook's envelope, on behalf of a replay or not.
    ///
    /// # Cancel safety
    /// Dropping it gives the attempt up; the sink may have the hook all the same.
    fn deliver<'a>(&'a self, envelope: &'a [u8], replay: Option<ReplayId>) -> Attempt<'a>;
}

/// A sink as it is configured today.
#[derive(Clone)]
pub struct Plan {
    /// Where it delivers.
    pub target: Rc<dyn Target>,
    /// Rows in flight at once, on this core.
    pub concurrency: u32,
    /// Retry settings.
    pub retry: RetryPolicy,
    /// An attempt that takes longer has failed.
    pub timeout_ms: u64,
    /// Its rows wait.
    pub paused: bool,
    /// Its label.
    pub label: SinkLabel,
}

/// Today's sinks.
pub trait SinkTable {
    /// The sink of this name; `None` when it is not configured any more.
    fn plan(&self, name: &SinkName) -> Option<Plan>;
}

/// A shard's share of the node's limits when `shards` are at work.
pub fn limits(config: &DispatchConfig, shards: usize) -> Limits {
    let clamped = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let node = Limits {
        inflight_max: clamped(config.max_inflight),
        inflight_bytes_max: config.max_inflight_bytes,
        breaker: BreakerPolicy {
            failures: clamped(config.breaker_failures),
            open_ms: config.breaker_open_ms,
            open_ms_max: config.breaker_max_open_ms,
        },
    };
    Limits::share(node, clamped(shards as u64))
}
