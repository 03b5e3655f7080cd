//! When the k-th request of an open loop is meant to be sent.
//!
//! Pure. A constant rate, with an optional linear ramp in front; absolute times, so that no
//! rounding adds up and a late request never shifts the ones after it.

use std::time::Duration;

/// The plan of an open loop.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    rate: f64,
    ramp_s: f64,
}

impl Schedule {
    /// `rate` requests per second after a ramp of `ramp`.
    pub fn new(rate: f64, ramp: Duration) -> Schedule {
        Schedule {
            rate,
            ramp_s: ramp.as_secs_f64(),
        }
    }

    /// The moment of request `k` (from 0), counted from the start.
    pub fn due(&self, k: u64) -> Duration {
        let k = k as f64;
        // During the ramp the rate is rate·t/ramp, so k = rate·t²/(2·ramp) requests lie before t.
        let in_ramp = self.rate * self.ramp_s / 2.0;
        let seconds = if k < in_ramp {
            (2.0 * k * self.ramp_s / self.rate).sqrt()
        } else {
            self.ramp_s + (k - in_ramp) / self.rate
        };
        Duration::from_secs_f64(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_rate_is_evenly_spaced() {
        let s = Schedule::new(1000.0, Duration::ZERO);
        assert_eq!(s.due(0), Duration::ZERO);
        assert_eq!(s.due(1), Duration::from_millis(1));
        assert_eq!(s.due(3_600_000), Duration::from_secs(3600));
    }

    #[test]
    fn ramp_sends_half_of_the_full_rate() {
        let s = Schedule::new(1000.0, Duration::from_secs(2));
        assert_eq!(s.due(1000), Duration::from_secs(2));
        assert_eq!(s.due(250), Duration::from_secs(1));
        assert_eq!(s.due(2000), Duration::from_secs(3));
    }

    #[test]
    fn moments_never_go_back() {
        let s = Schedule::new(777.0, Duration::from_millis(1500));
        let mut last = Duration::ZERO;
        for k in 0..5000 {
            assert!(s.due(k) >= last, "request {k}");
            last = s.due(k);
        }
    }
}
