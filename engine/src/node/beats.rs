//! A heartbeat of every core, for the service manager's watchdog: a core that does not come round
//! stops the pings.
//!
//! Written by each core's sweep, read by the main thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The last beat of every core.
#[derive(Clone)]
pub struct Beats {
    start: Instant,
    /// Milliseconds since the start; a cache line each is not worth it at ten beats a second.
    last_ms: Arc<[AtomicU64]>,
}

impl Beats {
    /// No core has beaten yet.
    pub fn new(cores: usize) -> Beats {
        Beats {
            start: Instant::now(),
            last_ms: (0..cores).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The core came round.
    pub fn beat(&self, core: usize) {
        let now_ms = self.start.elapsed().as_millis() as u64;
        self.last_ms[core].store(now_ms, Ordering::Relaxed);
    }

    /// A core that has not come round for `longest`.
    pub fn stuck(&self, longest: Duration) -> Option<usize> {
        let now_ms = self.start.elapsed().as_millis() as u64;
        self.last_ms.iter().position(|last| {
            let since_ms = now_ms.saturating_sub(last.load(Ordering::Relaxed));
            u128::from(since_ms) > longest.as_millis()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_without_a_beat_is_named_and_one_that_beats_is_not() {
        let start = Instant::now().checked_sub(Duration::from_secs(60));
        let beats = Beats {
            start: start.unwrap_or_else(Instant::now),
            ..Beats::new(2)
        };
        beats.beat(0);
        assert_eq!(beats.stuck(Duration::from_secs(30)), Some(1));
        beats.beat(1);
        assert_eq!(beats.stuck(Duration::from_secs(30)), None);
    }
}
