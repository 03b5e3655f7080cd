//! Telling that a core did not come round in time, from a task that should run at a fixed interval.
//!
//! Pure; the caller beats it with its own clock.

use std::cell::Cell;
use std::time::Duration;

/// Watches the gaps between beats.
#[derive(Debug)]
pub struct StallMeter {
    longest_us: u64,
    last_us: Cell<Option<u64>>,
}

impl StallMeter {
    /// A meter for beats `interval` apart; a gap that is longer by more than `tolerance` is a
    /// stall.
    pub fn new(interval: Duration, tolerance: Duration) -> StallMeter {
        StallMeter {
            longest_us: (interval + tolerance).as_micros() as u64,
            last_us: Cell::new(None),
        }
    }

    /// A beat at `now_us`; true when the core had stalled before it.
    pub fn beat(&self, now_us: u64) -> bool {
        self.last_us
            .replace(Some(now_us))
            .is_some_and(|last_us| now_us.saturating_sub(last_us) > self.longest_us)
    }
}
