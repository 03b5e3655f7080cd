//! Saying the same thing at most once per interval and place.
//!
//! Runs on any thread; costs a clock read and an atomic load when nothing is said.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One place in the code that logs.
#[derive(Debug, Default)]
pub struct Site {
    /// When the place may speak again, milliseconds since the first use of any, plus one.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Site {
    /// A place that has said nothing yet.
    pub const fn new() -> Site {
        Site {
            next_ms: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// `Some` when the place may speak now, with how often it was silent since the last time.
    pub fn admit(&self, interval: Duration) -> Option<Option<u64>> {
        self.admit_at(START.elapsed().as_millis() as u64, interval)
    }

    pub(super) fn admit_at(&self, now_ms: u64, interval: Duration) -> Option<Option<u64>> {
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let after_ms = now_ms + 1 + interval.as_millis() as u64;
        let is_due = now_ms + 1 >= next_ms;
        let exchange = || {
            self.next_ms
                .compare_exchange(next_ms, after_ms, Ordering::Relaxed, Ordering::Relaxed)
        };
        if !is_due || exchange().is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        Some((left_out > 0).then_some(left_out))
    }
}

/// Logs at most once per interval at this place: `log_limited!(warn, Duration::from_secs(10),
/// field, "message")`. What was left out is counted in the field `left_out` of the next one.
#[macro_export]
macro_rules! log_limited {
    ($level:ident, $interval:expr, $($arg:tt)+) => {{
        static SITE: $crate::logging::Site = $crate::logging::Site::new();
        if let Some(left_out) = SITE.admit($interval) {
            ::tracing::$level!(left_out, $($arg)+);
        }
    }};
}
