//! What the reconciler of a shard does next: a function of the pending set and the time.
//!
//! At most one republish and one local write are under way. Each has its own back-off: doubling
//! from [`BACKOFF_MIN_US`] to the probe interval while nothing gets through, the log's own word
//! where it asks for less, none after a success. The breaker does not gate it.
//!
//! Pure; [`super::work`] obeys it on the shard core.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ankusa_intake::{Class, PermanentAbout};
use ankusa_wal::Seq;

use super::claims::Held;
use super::pending::{PendingSet, Refused};

/// Records of one republish, and of one local write.
pub const BATCH_RECORDS_MAX: usize = 256;

/// Records found past their deadline in one turn.
const STUCK_MAX: usize = 256;

/// The first pause after a failure.
pub const BACKOFF_MIN_US: u64 = 100_000;

/// Claims that are held are renewed this often.
const RENEW_US: u64 = 5_000_000;

/// A refused record is spoken of this often.
const SAY_US: u64 = 60_000_000;

/// Pauses between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Backoff {
    until_us: u64,
    step_us: u64,
}

impl Backoff {
    fn fail(&mut self, now_us: u64, most_us: u64) {
        let most_us = most_us.max(BACKOFF_MIN_US);
        self.step_us = (self.step_us * 2).clamp(BACKOFF_MIN_US, most_us);
        self.until_us = now_us + self.step_us;
    }

    fn wait(&mut self, now_us: u64, us: u64) {
        self.until_us = now_us + us;
    }
}

/// A republish under way.
#[derive(Debug, Default)]
struct Batch {
    open: BTreeSet<Seq>,
    is_alone: bool,
    is_any_confirmed: bool,
    /// A failure that is not a record's own was seen: the breaker was told.
    is_failed: bool,
    throttled_us: Option<u64>,
}

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// To publish again, one attempt each, in one call.
    pub republish: Vec<Seq>,
    /// To write here, in one group.
    pub complete_local: Vec<Seq>,
    /// Claims to give up: their records are stuck.
    pub release: Vec<Held>,
    /// The claims that are held are to be renewed.
    pub renew: bool,
    /// There is more to decide, once others had the core.
    pub more: bool,
}

/// What a failed republish of one record means beyond the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The first failure of its batch that the breaker is to hear of.
    pub counts: bool,
    /// The log refuses this node.
    pub is_denied: bool,
    /// What became of the record.
    pub refused: Refused,
}

/// The reconciler of one shard.
#[derive(Debug, Default)]
pub struct Reconciler {
    batch: Option<Batch>,
    is_writing: bool,
    log_pause: Backoff,
    local_pause: Backoff,
    renewed_us: u64,
    said_us: Option<u64>,
}

impl Reconciler {
    /// What to do at `now_us`. What it names is under way from now on.
    pub fn decide(
        &mut self,
        set: &mut PendingSet,
        now_us: u64,
        deadline_us: u64,
        bytes_max: usize,
    ) -> Actions {
        let (release, more) = set.expire(now_us, deadline_us, STUCK_MAX);
        let mut actions = Actions {
            release,
            more,
            ..Actions::default()
        };
        if now_us.saturating_sub(self.renewed_us) >= RENEW_US {
            self.renewed_us = now_us;
            actions.renew = !set.is_empty();
        }
        if !self.is_writing && now_us >= self.local_pause.until_us {
            actions.complete_local = set.take_local(BATCH_RECORDS_MAX, bytes_max);
            self.is_writing = !actions.complete_local.is_empty();
        }
        if self.batch.is_none() && now_us >= self.log_pause.until_us {
            let (seqs, is_alone) = set.take_log(now_us, BATCH_RECORDS_MAX, bytes_max);
            if !seqs.is_empty() {
                self.batch = Some(Batch {
                    open: seqs.iter().copied().collect(),
                    is_alone: is_alone || seqs.len() == 1,
                    ..Batch::default()
                });
            }
            actions.republish = seqs;
        }
        actions
    }

    /// Whether the republish under way waits for an answer about `seq`.
    pub fn is_republishing(&self, seq: Seq) -> bool {
        self.batch.as_ref().is_some_and(|b| b.open.contains(&seq))
    }

    /// The republish of `seq` was confirmed.
    pub fn confirmed(&mut self, seq: Seq, now_us: u64, pause_max_us: u64) {
        if let Some(batch) = &mut self.batch {
            batch.is_any_confirmed = true;
            batch.open.remove(&seq);
        }
        self.end_batch(now_us, pause_max_us);
    }

    /// The republish of `seq` failed.
    pub fn failed(
        &mut self,
        set: &mut PendingSet,
        seq: Seq,
        class: Class,
        now_us: u64,
        pause_max_us: u64,
    ) -> Failed {
        let Some(batch) = &mut self.batch else {
            return Failed {
                counts: false,
                is_denied: false,
                refused: Refused::No,
            };
        };
        batch.open.remove(&seq);
        let is_permanent = class == Class::Permanent(PermanentAbout::Record);
        let counts = !is_permanent && !std::mem::replace(&mut batch.is_failed, !is_permanent);
        if let Class::Throttled { retry_after_ms } = class {
            let us = retry_after_ms.map_or(BACKOFF_MIN_US, |ms| u64::from(ms) * 1000);
            batch.throttled_us = Some(batch.throttled_us.map_or(us, |had| had.max(us)));
        }
        let refused = set.failed(seq, is_permanent, batch.is_alone, now_us);
        self.end_batch(now_us, pause_max_us);
        Failed {
            counts,
            is_denied: class == Class::Permanent(PermanentAbout::Access),
            refused,
        }
    }

    fn end_batch(&mut self, now_us: u64, pause_max_us: u64) {
        let Some(batch) = self.batch.take_if(|batch| batch.open.is_empty()) else {
            return;
        };
        if batch.is_any_confirmed {
            self.log_pause = Backoff::default();
        } else if batch.is_failed {
            self.log_pause.fail(now_us, pause_max_us);
        }
        if let Some(us) = batch.throttled_us {
            self.log_pause.wait(now_us, us);
        }
    }

    /// The local write has ended.
    pub fn wrote(&mut self, is_durable: bool, now_us: u64, pause_max_us: u64) {
        self.is_writing = false;
        match is_durable {
            true => self.local_pause = Backoff::default(),
            false => self.local_pause.fail(now_us, pause_max_us),
        }
    }

    /// Whether it is time to speak of the refused records again.
    pub fn is_time_to_say(&mut self, now_us: u64) -> bool {
        let is_due = self.said_us.is_none_or(|at| now_us - at >= SAY_US);
        if is_due {
            self.said_us = Some(now_us);
        }
        is_due
    }
}
