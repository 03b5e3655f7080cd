//! The breaker of one sink on one core: stops trying a sink that does not answer.
//!
//! | state | event | next |
//! |---|---|---|
//! | closed | failure, fewer than the limit in a row | closed |
//! | closed | failure that reaches the limit | open for the first period |
//! | closed | success | closed, failures in a row = 0 |
//! | open | the period ends | half open |
//! | open | an attempt that began before it opened ends, either way | open, unchanged |
//! | half open | a probe starts | probing |
//! | half open | an older attempt ends, either way | half open, unchanged |
//! | probing | the probe succeeds | closed |
//! | probing | the probe fails | open for twice the period, up to the longest |
//! | probing | the probe is not made after all | half open |
//! | probing | an older attempt ends, either way | probing, unchanged |
//!
//! Rows that wait behind an open breaker spend no attempt. Pure.

/// Settings of the breakers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub failures: u32,
    /// First open period, milliseconds.
    pub open_ms: u64,
    /// Longest open period, milliseconds.
    pub open_ms_max: u64,
}

impl Default for BreakerPolicy {
    fn default() -> BreakerPolicy {
        BreakerPolicy {
            failures: 5,
            open_ms: 30_000,
            open_ms_max: 300_000,
        }
    }
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Deliveries run.
    Closed,
    /// None runs until the time, monotonic milliseconds.
    Open {
        /// When it becomes half open.
        until_ms: u64,
    },
    /// The next row is the probe.
    HalfOpen,
    /// The probe is in flight; nothing else starts.
    Probing,
}

/// One sink's breaker.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    state: BreakerState,
    failures_in_a_row: u32,
    period_ms: u64,
}

impl Breaker {
    /// A closed breaker.
    pub fn new() -> Breaker {
        Breaker {
            state: BreakerState::Closed,
            failures_in_a_row: 0,
            period_ms: 0,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// May one more row start while `inflight` of `window` are under way? The probe may, beside
    /// a window full of attempts that still hang.
    pub fn admits(&self, inflight: u32, window: u32) -> bool {
        match self.state {
            BreakerState::Closed => inflight < window,
            BreakerState::HalfOpen => true,
            BreakerState::Open { .. } | BreakerState::Probing => false,
        }
    }

    /// An attempt starts; true when it is the probe.
    pub fn start(&mut self) -> bool {
        let probe = self.state == BreakerState::HalfOpen;
        if probe {
            self.state = BreakerState::Probing;
        }
        probe
    }

    /// The period may have ended; true when the state changed.
    pub fn tick(&mut self, now_ms: u64) -> bool {
        let ended = matches!(self.state, BreakerState::Open { until_ms } if until_ms <= now_ms);
        if ended {
            self.state = BreakerState::HalfOpen;
        }
        ended
    }

    /// The sink answered; true when the state changed.
    pub fn success(&mut self, probe: bool) -> bool {
        match (self.state, probe) {
            (BreakerState::Closed, _) => {
                self.failures_in_a_row = 0;
                false
            }
            (BreakerState::Probing, true) => {
                *self = Breaker::new();
                true
            }
            _ => false,
        }
    }

    /// The sink failed; the time until which it is now open, when this opened it.
    pub fn failure(&mut self, policy: &BreakerPolicy, probe: bool, now_ms: u64) -> Option<u64> {
        self.period_ms = match (self.state, probe) {
            (BreakerState::Closed, _) => {
                self.failures_in_a_row += 1;
                if self.failures_in_a_row < policy.failures {
                    return None;
                }
                policy.open_ms
            }
            (BreakerState::Probing, true) => {
                self.period_ms.saturating_mul(2).min(policy.open_ms_max)
            }
            _ => return None,
        };
        let until_ms = now_ms + self.period_ms;
        self.state = BreakerState::Open { until_ms };
        Some(until_ms)
    }

    /// The attempt was not made after all.
    pub fn forget(&mut self, probe: bool) {
        if probe && self.state == BreakerState::Probing {
            self.state = BreakerState::HalfOpen;
        }
    }
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::new()
    }
}
