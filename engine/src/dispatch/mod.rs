//! Dispatch: at least once, unordered delivery of what is durable.
//!
//! [`scheduler`] decides (no I/O, no clock); its parts are the lists of 4 bytes per row
//! (`links`), the timer wheel (`wheel`), turns and windows (`lanes`), the breaker and the
//! back-off. [`driver`] obeys it, over what [`backlog`] asks of the store. Everything runs on
//! the shard's core.

pub mod backlog;
pub mod backoff;
pub mod breaker;
pub mod driver;
pub mod gauges;
pub mod lanes;
pub mod plan;
pub mod scheduler;
pub mod verdict;

mod deadlines;
mod links;
mod replayed;
mod wheel;

#[cfg(test)]
mod tests;

pub use ankusa_wal::state::RowId;
pub use backlog::{Backlog, StoreBacklog};
pub use backoff::{RETRY_AFTER_MS_MAX, RetryPolicy};
pub use breaker::{Breaker, BreakerPolicy, BreakerState};
pub use driver::Dispatch;
pub use gauges::Gauges;
pub use lanes::{LaneConfig, LaneState, Load, TenantNo};
pub use plan::{Attempt, Plan, SinkTable, Target, limits};
pub use scheduler::{Counts, Decision, Limits, RowFacts, Rows, Scheduler, Start};
pub use verdict::{DeadReason, Outcome, Verdict};
