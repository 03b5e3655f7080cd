//! What the node would say about its intake log if it were asked now: the word of readiness, and
//! why.
//!
//! Written by the core that keeps the log's affairs, read by every core; off the request path.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ankusa_intake::Readiness;

use crate::dual::{BreakerState, NodeLog};

/// How far the boot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The steps before the node serves.
    Recovering = 0,
    /// They are done.
    Serving = 1,
    /// They refuse to go on; an operator must.
    Refused = 2,
}

/// No partition is known, no position.
const NONE: u32 = u32::MAX;
const NOWHERE: u64 = u64::MAX;

/// What is known of the log beside [`NodeLog`].
#[derive(Debug)]
pub struct Status {
    phase: AtomicU8,
    partition: AtomicU32,
    earliest: AtomicU64,
    /// Why the boot waits or refuses.
    boot: Mutex<Option<String>>,
    /// What is wrong with the topic.
    topic: Mutex<Option<String>>,
}

impl Default for Status {
    fn default() -> Status {
        Status {
            phase: AtomicU8::new(Phase::Recovering as u8),
            partition: AtomicU32::new(NONE),
            earliest: AtomicU64::new(NOWHERE),
            boot: Mutex::default(),
            topic: Mutex::default(),
        }
    }
}

fn lock(text: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    /// How far the boot is.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Recovering,
            1 => Phase::Serving,
            _ => Phase::Refused,
        }
    }

    /// From now on.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// The node's partition, once it is known.
    pub fn partition(&self) -> Option<u32> {
        Some(self.partition.load(Ordering::Acquire)).filter(|p| *p != NONE)
    }

    /// It is this one.
    pub fn set_partition(&self, partition: u32) {
        self.partition.store(partition, Ordering::Release);
    }

    /// The first position that the log still holds, as last asked.
    pub fn earliest(&self) -> Option<u64> {
        Some(self.earliest.load(Ordering::Acquire)).filter(|p| *p != NOWHERE)
    }

    /// It is this one.
    pub fn set_earliest(&self, earliest: u64) {
        self.earliest.store(earliest, Ordering::Release);
    }

    /// Why the boot waits or refuses. True when that is news.
    pub fn set_boot_reason(&self, why: Option<String>) -> bool {
        let mut now = lock(&self.boot);
        let is_news = *now != why;
        *now = why;
        is_news
    }

    /// What is wrong with the topic. True when that is news.
    pub fn set_topic_reason(&self, why: Option<String>) -> bool {
        let mut now = lock(&self.topic);
        let is_news = *now != why;
        *now = why;
        is_news
    }

    /// Why the node is not ready, as far as its log is concerned; `adapter`: how that stands.
    pub fn reason(&self, log: &NodeLog, adapter: Readiness) -> Option<String> {
        let boot = lock(&self.boot).clone();
        let topic = lock(&self.topic).clone();
        match self.word(log) {
            "up" => None,
            _ if self.phase() != Phase::Serving => boot.or(topic),
            _ => topic.or_else(|| {
                Some(format!(
                    "the intake log: {adapter}; the breaker is {}",
                    log.breaker().word()
                ))
            }),
        }
    }

    /// The word of readiness.
    pub fn word(&self, log: &NodeLog) -> &'static str {
        let is_closed = log.breaker() == BreakerState::Closed;
        word(self.phase(), log.is_verified(), is_closed, log.may_answer())
    }
}

/// | boot | topic | breaker | adapter | word |
/// |---|---|---|---|---|
/// | refuses | any | any | any | down |
/// | under way | any | any | any | recovering |
/// | done | not as it must be | any | any | down |
/// | done | good | not closed | no answer | down |
/// | done | good | else | | up |
///
/// An open breaker alone is up: a node without traffic would never get the hook that probes.
fn word(phase: Phase, is_verified: bool, is_closed: bool, may_answer: bool) -> &'static str {
    match phase {
        Phase::Refused => "down",
        Phase::Recovering => "recovering",
        Phase::Serving if !is_verified => "down",
        Phase::Serving if !is_closed && !may_answer => "down",
        Phase::Serving => "up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_readiness() {
        for verified in [true, false] {
            for closed in [true, false] {
                for answers in [true, false] {
                    let of = |phase| word(phase, verified, closed, answers);
                    assert_eq!(of(Phase::Refused), "down");
                    assert_eq!(of(Phase::Recovering), "recovering");
                    let up = verified && (closed || answers);
                    assert_eq!(of(Phase::Serving), if up { "up" } else { "down" });
                }
            }
        }
    }

    #[test]
    fn a_reason_is_news_once() {
        let status = Status::default();
        assert!(status.set_boot_reason(Some("a".into())));
        assert!(!status.set_boot_reason(Some("a".into())));
        assert!(status.set_boot_reason(None));
        assert_eq!((status.partition(), status.earliest()), (None, None));
        status.set_partition(3);
        assert_eq!(status.partition(), Some(3));
    }
}
