//! What is asked of the log all the time: is it there (from memory, several times a second), what
//! does it hold (each second), is its topic still as it must be (each minute).
//!
//! Invariants: a setting that turned bad makes the node unready with the finding, and a good answer
//! makes it ready again; an answer that does not come changes nothing that was known of the topic.
//! Another identity, or a head that went back, is told to [`NodeLog`](crate::dual::NodeLog), which
//! tells the shards. Runs on core 0, two tasks: one asks and waits, the other never waits for the
//! log.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_intake::{AskError, Readiness, Verified};
use ankusa_recovery::Stamp;
use ankusa_wal::{Host, IntakeIdentity, TaskClass};
use futures_lite::FutureExt;

use super::{Intake, Phase, what_to_do};
use crate::metrics::Metric;
use crate::node::ask;
use crate::node::core::Core;

const LOOK: Duration = Duration::from_millis(100);
const ASK: Duration = Duration::from_secs(1);
/// Rounds of questions between two about the topic.
const VERIFY_ROUNDS: u32 = 60;
/// How long the last question of a clean stop may take.
const HEAD_PATIENCE: Duration = Duration::from_secs(1);
/// A certificate that ends within this is said so, once a day.
const CERTIFICATE_SOON_S: i64 = 14 * 86_400;

/// How often the log that lost what it held is asked which one it is, before that is left open.
const WHICH_LOG_TRIES: u32 = 10;

/// Starts the two tasks.
pub fn keep(core: &Rc<Core>, intake: &Arc<Intake>) {
    intake.log.will_ask();
    let (host, looking) = (&core.host, (Rc::clone(core), Arc::clone(intake)));
    host.start(TaskClass::Dispatch, async move {
        look(&looking.0, &looking.1).await
    });
    let asking = (Rc::clone(core), Arc::clone(intake));
    host.start(TaskClass::Dispatch, async move {
        question(&asking.0, &asking.1).await
    });
}

async fn look(core: &Rc<Core>, intake: &Arc<Intake>) {
    let registry = Arc::clone(core.observer.metrics.registry());
    let mut last = None;
    let mut said_days = None;
    loop {
        let readiness = intake.adapter.log().ready();
        // Only a change is news: what was said a second ago must not undo a confirm since.
        if last != Some(readiness) {
            if last.is_some() || readiness != Readiness::Unknown {
                tracing::info!("the intake log: {readiness}");
            }
            intake.log.set_readiness(readiness);
            last = Some(readiness);
        }
        let sums = intake.log.pending();
        let is_ready = intake.word() == "up" && intake.log.is_up();
        registry.node_set(Metric::IntakeReady, u64::from(is_ready));
        registry.node_set(Metric::IntakePendingRecords, sums.records);
        registry.node_set(Metric::IntakePendingBytes, sums.bytes);
        registry.node_set(Metric::IntakeReconcileStuck, sums.stuck);
        registry.node_set(Metric::IntakeReconcileOldestAge, sums.oldest_ms);
        if let Some(ends_s) = intake.adapter.certificate_ends_s() {
            let end = u64::try_from(ends_s).unwrap_or(1);
            registry.node_set(Metric::IntakeCertificateEnd, end);
            let left_s = ends_s - (core.host.wall_ms() / 1000) as i64;
            let days = left_s.div_euclid(86_400);
            if left_s < CERTIFICATE_SOON_S && said_days != Some(days) {
                said_days = Some(days);
                match days < 0 {
                    true => tracing::error!("a certificate of intake.kafka.ssl has ended"),
                    false => tracing::warn!(days, "a certificate of intake.kafka.ssl ends soon"),
                }
            }
        }
        core.host.sleep(LOOK).await;
    }
}

async fn question(core: &Rc<Core>, intake: &Arc<Intake>) {
    let (mut round, mut lag) = (0, Lag::default());
    let mut unsure_rounds = 0;
    loop {
        core.host.sleep(ASK).await;
        // Before that the boot asks.
        if intake.status.phase() != Phase::Serving {
            continue;
        }
        let Some(partition) = intake.status.partition() else {
            continue;
        };
        let epoch = intake.log.epoch();
        match intake.adapter.log().bounds(partition).await {
            Ok(bounds) => {
                intake.status.set_earliest(bounds.earliest);
                if !intake.log.note_head(bounds.head, epoch) {
                    lag = Lag::default();
                }
                lag.note_head(bounds.head, core.host.mono_us() / 1000);
            }
            Err(error) => tracing::debug!(%error, "the intake log's bounds"),
        }
        if let Some(below) = read_below(core).await {
            let lag_ms = lag.of(below, core.host.mono_us() / 1000);
            let registry = core.observer.metrics.registry();
            registry.node_set(Metric::IntakeOffsetLag, lag_ms);
        }
        round += 1;
        if intake.log.is_unsure() {
            unsure_rounds += 1;
            which_log(core, intake, unsure_rounds == WHICH_LOG_TRIES).await;
        } else {
            unsure_rounds = 0;
        }
        stamp_identity(core, intake).await;
        // While it is not good, each time: the reason is wanted now, and so is its end.
        let is_bad = !intake.log.is_verified() || is_refusing(intake.adapter.log().ready());
        if round % VERIFY_ROUNDS == 0 || is_bad {
            let epoch = intake.log.epoch();
            let answer = intake.adapter.log().verify(intake.expected).await;
            judge(core, intake, answer, epoch);
        }
    }
}

/// The log lost what it held: is it the same one?
async fn which_log(core: &Rc<Core>, intake: &Arc<Intake>, is_last: bool) {
    let epoch = intake.log.epoch();
    match intake.adapter.log().verify(intake.expected).await {
        Ok(verified) => another_log(core, intake, &verified.identity, epoch),
        Err(error) if !is_last => {
            tracing::debug!(%error, "which log this is, is not known yet");
            return;
        }
        // Published again all the same. If it is another one after all, the next answer shows it.
        Err(error) => tracing::warn!(%error, "nobody says which log this is"),
    }
    if intake.log.epoch() == epoch {
        intake.log.is_sure();
    }
}

/// The log became another one while the node served: the store's facts are to say so too, else the
/// next boot would find another log once more, and publish everything again.
async fn stamp_identity(core: &Rc<Core>, intake: &Arc<Intake>) {
    let Some(identity) = intake.log.identity() else {
        return;
    };
    let log = String::from_utf8_lossy(&identity.log).into_owned();
    if core.keeper.facts().intake_log.as_ref() == Some(&log) {
        return;
    }
    let epoch = intake.log.epoch();
    let begun = ask::every_core(core, ask::PATIENCE, move |core| {
        Box::pin(async move {
            let shards = core.shards.borrow();
            let mut logs = shards.iter().filter_map(|shard| shard.log());
            logs.all(|log| log.is_in(epoch))
        })
    });
    // IMPORTANT: the shards first: with the new identity, an offset of the old log would pass for
    // one of the new.
    if !begun.await.iter().all(|begun| *begun == Ok(true)) {
        return;
    }
    let stamp = Stamp {
        log: Some(log),
        ..Stamp::default()
    };
    if let Err(error) = core.keeper.stamp(stamp).await {
        tracing::warn!(%error, "the new identity of the intake log is not written down yet");
    }
}

/// Every position below it is in every shard; `None` while a core does not say.
async fn read_below(core: &Rc<Core>) -> Option<u64> {
    let asked = ask::every_core(core, ask::PATIENCE, |core| {
        Box::pin(async move {
            let shards = core.shards.borrow();
            let below = shards.iter().map(|shard| {
                let offset = shard.store.state().meta().offset.offset;
                offset.map_or(0, |offset| offset.0 + 1)
            });
            below.min()
        })
    });
    let mut least = None;
    for below in asked.await {
        least = least.into_iter().chain(below.ok()?).min();
    }
    least
}

/// When the head was seen where, oldest first: tells how long ago what is not yet at or below the
/// offset came, to within the time between two looks.
#[derive(Default)]
struct Lag {
    heads: VecDeque<(u64, u64)>,
}

/// Most looks kept: more than an hour; beyond that the lag is a lower bound.
const HEADS_MAX: usize = 4_096;

impl Lag {
    fn note_head(&mut self, head: u64, now_ms: u64) {
        if self.heads.back().is_none_or(|(last, _)| *last < head) && self.heads.len() < HEADS_MAX {
            self.heads.push_back((head, now_ms));
        }
    }

    /// The age, where everything below `below` is in the store.
    fn of(&mut self, below: u64, now_ms: u64) -> u64 {
        while self.heads.front().is_some_and(|(head, _)| *head <= below) {
            // The last one stays, so that the same head is not news again.
            if self.heads.len() == 1 {
                return 0;
            }
            self.heads.pop_front();
        }
        let oldest = self.heads.front();
        oldest.map_or(0, |(_, at_ms)| now_ms.saturating_sub(*at_ms))
    }
}

/// Asks for the head once more, for the marks of a clean stop: nothing of this node is under way any
/// more, so what the log holds below it is in the store.
pub async fn ask_head(intake: &Arc<Intake>, host: &dyn Host) {
    let Some(partition) = intake.status.partition() else {
        return;
    };
    let epoch = intake.log.epoch();
    let asked = async { intake.adapter.log().bounds(partition).await.ok() };
    let late = async {
        host.sleep(HEAD_PATIENCE).await;
        None
    };
    if let Some(bounds) = asked.or(late).await {
        intake.log.note_head(bounds.head, epoch);
    }
}

/// The log answers, with a refusal that has a reason.
fn is_refusing(readiness: Readiness) -> bool {
    matches!(readiness, Readiness::Denied | Readiness::NotFound)
}

/// What an answer about the topic means for a node that serves.
fn judge(core: &Rc<Core>, intake: &Arc<Intake>, answer: Result<Verified, AskError>, epoch: u64) {
    match answer {
        Ok(verified) => {
            another_log(core, intake, &verified.identity, epoch);
            if !intake.is_verifying {
                return;
            }
            let findings: Vec<String> = verified.findings.iter().map(ToString::to_string).collect();
            let is_good = findings.is_empty();
            let why = (!is_good).then(|| {
                format!(
                    "the intake topic is not as it must be: {}",
                    findings.join("; ")
                )
            });
            intake.log.set_verified(is_good);
            if intake.status.set_topic_reason(why.clone()) {
                match why {
                    Some(why) => tracing::error!("not ready: {why}"),
                    None => tracing::info!("the intake topic is as it must be again"),
                }
            }
        }
        Err(error) if !intake.is_verifying => {
            tracing::debug!(%error, "the intake topic is not verified");
        }
        // It is not there, or we may not ask: nobody knows what it keeps.
        Err(error @ (AskError::NotFound(_) | AskError::Denied(_))) => {
            intake.log.set_verified(false);
            let why = format!("intake topic unverified: {}", what_to_do(&error, intake));
            if intake.status.set_topic_reason(Some(why.clone())) {
                tracing::error!("not ready: {why}");
            }
        }
        Err(error) => tracing::warn!(%error, "the intake topic could not be asked about"),
    }
}

/// The log under this name is another one than the store knows.
fn another_log(core: &Rc<Core>, intake: &Arc<Intake>, identity: &str, epoch: u64) {
    let Ok(home) = core.home() else { return };
    let known = home.store.state().meta().intake.clone();
    let Some(known) = known else { return };
    let told = intake.log.identity().unwrap_or(known);
    if &*told.log == identity.as_bytes() {
        return;
    }
    tracing::error!(
        known = %String::from_utf8_lossy(&told.log),
        found = identity,
        "the intake topic is another one under the same name: it was deleted and made again"
    );
    let identity = IntakeIdentity {
        log: identity.as_bytes().into(),
        ..told
    };
    intake.log.log_went_back(Some(identity), epoch);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_age_of_the_oldest_head_above_the_offset_and_zero_when_idle() {
        let mut lag = Lag::default();
        assert_eq!(lag.of(0, 0), 0);
        lag.note_head(10, 1_000);
        lag.note_head(10, 2_000);
        assert_eq!(lag.of(10, 2_000), 0, "idle");
        lag.note_head(20, 3_000);
        lag.note_head(30, 4_000);
        assert_eq!(lag.of(10, 5_000), 2_000);
        assert_eq!(lag.of(20, 5_000), 1_000);
        assert_eq!(lag.of(30, 9_000), 0);
        lag.note_head(30, 10_000);
        assert_eq!(lag.of(30, 99_000), 0, "the same head is not news");
    }
}
