//! The breaker of the intake log: one word for the node, read by every core without a lock.
//!
//! | state | a hook is | leaves by |
//! |---|---|---|
//! | closed | admitted | so many failed attempts in a row, a refusal of access, the adapter not ready |
//! | open | refused | its time, then half open; a confirm of whatever was still under way |
//! | half open | admitted, one, when no carried record will probe | that one taken; a republish confirmed or failed |
//! | probing | refused | the probe's confirm or failure; its time, when it was never published |
//!
//! It gates admission only, never the reconciler. Pure; time is told as an event, since the clocks
//! of two cores do not compare: each core times what it sees from when it saw it.

#[cfg(test)]
mod tests;

/// How the breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BreakerState {
    /// The log takes records.
    Closed = 0,
    /// Hooks are refused before anything is written.
    Open = 1,
    /// One group may try.
    HalfOpen = 2,
    /// It was admitted.
    Probing = 3,
}

impl BreakerState {
    /// The word for it in health and metrics.
    pub fn word(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen | BreakerState::Probing => "half_open",
        }
    }
}

/// What moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An attempt was confirmed.
    Confirmed,
    /// An attempt failed for a reason that is not the record's own.
    Failed,
    /// The log refuses this node.
    Denied,
    /// The adapter says that the log is not there.
    NotReady,
    /// It was open, or a probe was out, for long enough.
    Elapsed,
    /// One hook was admitted as the probe.
    ProbeTaken,
    /// That hook was not published after all.
    ProbeGivenBack,
}

/// The breaker as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// How it stands.
    pub state: BreakerState,
    /// Failed attempts in a row while closed.
    pub failures: u16,
    /// Counts changes of state: whoever sees a new one starts its clock.
    pub changes: u32,
}

impl Breaker {
    /// A closed one.
    pub const CLOSED: Breaker = Breaker {
        state: BreakerState::Closed,
        failures: 0,
        changes: 0,
    };

    /// The breaker after `event`; `failures_max` failures in a row open it.
    #[must_use]
    pub fn on(self, event: Event, failures_max: u16) -> Breaker {
        use BreakerState::{Closed, HalfOpen, Open, Probing};
        match (self.state, event) {
            (Closed, Event::Confirmed) => Breaker {
                failures: 0,
                ..self
            },
            (Closed, Event::Failed) => {
                let failures = self.failures.saturating_add(1);
                match failures >= failures_max {
                    true => self.to(Open),
                    false => Breaker { failures, ..self },
                }
            }
            (Closed, Event::Denied | Event::NotReady) => self.to(Open),
            (Open | HalfOpen | Probing, Event::Confirmed) => self.to(Closed),
            (HalfOpen | Probing, Event::Failed | Event::Denied | Event::NotReady) => self.to(Open),
            (Open | Probing, Event::Elapsed) => self.to(HalfOpen),
            (HalfOpen, Event::ProbeTaken) => self.to(Probing),
            (Probing, Event::ProbeGivenBack) => self.to(HalfOpen),
            (Closed, Event::Elapsed | Event::ProbeTaken | Event::ProbeGivenBack)
            | (Open, Event::Failed | Event::Denied | Event::NotReady)
            | (Open, Event::ProbeTaken | Event::ProbeGivenBack)
            | (HalfOpen, Event::Elapsed | Event::ProbeGivenBack)
            | (Probing, Event::ProbeTaken) => self,
        }
    }

    fn to(self, state: BreakerState) -> Breaker {
        Breaker {
            state,
            failures: 0,
            changes: self.changes.wrapping_add(1),
        }
    }

    /// As one word.
    pub fn pack(self) -> u64 {
        u64::from(self.changes) << 32 | u64::from(self.failures) << 8 | self.state as u64
    }

    /// From one word.
    pub fn unpack(word: u64) -> Breaker {
        Breaker {
            state: match word & 0xff {
                0 => BreakerState::Closed,
                1 => BreakerState::Open,
                2 => BreakerState::HalfOpen,
                _ => BreakerState::Probing,
            },
            failures: (word >> 8) as u16,
            changes: (word >> 32) as u32,
        }
    }
}
