//! Dispatch: at least once, unordered delivery of what is durable.
//!
//! [`scheduler`] decides (no I/O, no clock); its parts are the lists of 4 bytes per row
//! (`links`), the timer wheel (`wheel`), turns and windows (`lanes`), the breaker and the
//! back-off. Everything runs on the shard's core.

pub mod backoff;
pub mod breaker;
pub mod lanes;
pub mod scheduler;

mod links;
mod wheel;

#[cfg(test)]
mod tests;

pub use backoff::{RETRY_AFTER_MS_MAX, RetryPolicy};
pub use breaker::{Breaker, BreakerPolicy, BreakerState};
pub use lanes::{LaneConfig, LaneState, Load, TenantNo};
pub use scheduler::{
    Counts, DeadReason, Decision, Limits, Outcome, RowFacts, Rows, Scheduler, Start, Verdict,
};

/// The number of a delivery row in its shard: stable while the row lives, then used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub u32);
