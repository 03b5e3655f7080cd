//! From opened shards to a node that serves: every core gets its way into the log, core 0 takes the
//! steps of recovery, then all of them go on together.
//!
//! Invariants: no core takes a hook before the steps are done; a log that does not answer, refuses
//! us or is not as it must be is waited for and named, never a reason to end; a refusal of the
//! steps themselves keeps the process alive and unready, because the next start would meet the
//! same. Only a store of another node, or one that cannot be read, ends the boot.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_intake::AskError;
use ankusa_recovery::Refusal;
use ankusa_wal::Host;

use super::{Intake, Phase, steps};
use crate::config::Config;
use crate::metrics::Metric;
use crate::node::ask;
use crate::node::banner::{DualPromise, dual_line};
use crate::node::core::Core;
use crate::node::message::Message;

/// Another core opens its shards, or its client.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
/// A refusal is said again so often.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Takes this core through it. `Err` ends the process.
///
/// # Cancel safety
/// May be dropped: a stop comes before the node serves. What was applied stays.
pub async fn boot(core: &Rc<Core>, intake: &Arc<Intake>) -> Result<(), String> {
    if core.index == 0 {
        lead(core, intake).await?;
    }
    core.may_serve.wait().await;
    Ok(())
}

/// Core 0's part.
async fn lead(core: &Rc<Core>, intake: &Arc<Intake>) -> Result<(), String> {
    refuse_foreign(core.facts.intake_node.as_deref(), &intake.node)?;
    super::keep(core, intake);
    all_open(core).await;
    let partition = match core.facts.intake_partition {
        Some(partition) => partition,
        None => assigned(core, intake).await,
    };
    intake.adapter.log().watch(partition);
    open_ways(core, intake, partition).await?;
    intake.status.set_partition(partition);
    let began_us = core.host.mono_us();
    let summary = match steps::take(core, intake).await {
        Ok(summary) => summary,
        Err(refusal) if is_for_an_operator(&refusal) => {
            return stay_unready(core, intake, &refusal).await;
        }
        Err(refusal) => return Err(refusal.to_string()),
    };
    let us = core.host.mono_us().saturating_sub(began_us);
    let registry = core.observer.metrics.registry();
    registry.node_observe(Metric::IntakeReplayDuration, 0, us);
    tracing::info!("recovered: {summary}");
    same_partition(core.keeper.facts().intake_partition, partition)?;
    say_warnings(intake).await;
    intake.status.set_boot_reason(None);
    intake.log.set_verified(true);
    intake.status.set_phase(Phase::Serving);
    tracing::info!("{}", promise(&core.config.borrow(), intake));
    for to in 0..core.port.cores() {
        let call = |there: &Rc<Core>| there.may_serve.set();
        core.port.send(to, Message::Call(Box::new(call)));
    }
    Ok(())
}

/// A store of another node: two seq spaces would mix. Asked before anything else is.
fn refuse_foreign(store: Option<&str>, config: &str) -> Result<(), String> {
    match store {
        Some(store) if store != config => Err(Refusal::NodeMismatch {
            store: store.to_owned(),
            config: config.to_owned(),
        }
        .to_string()),
        _ => Ok(()),
    }
}

/// What was stamped is what is published to: else a replay would read another partition.
fn same_partition(stamped: Option<u32>, ours: u32) -> Result<(), String> {
    match stamped {
        Some(stamped) if stamped != ours => Err(format!(
            "the store's partition of the intake log is {stamped}, this boot publishes to {ours}: start again"
        )),
        _ => Ok(()),
    }
}

/// What about the topic is only said.
async fn say_warnings(intake: &Intake) {
    if !intake.is_verifying || intake.adapter.is_on_this_host() {
        return;
    }
    if let Ok(verified) = intake.adapter.log().verify(intake.expected).await {
        for warning in &verified.warnings {
            tracing::warn!("intake topic: {warning}");
        }
    }
}

async fn all_open(core: &Rc<Core>) {
    loop {
        let asked = ask::every_core(core, PATIENCE, |core| {
            Box::pin(async move { core.is_open.get() })
        });
        if asked.await.iter().all(|open| *open == Ok(true)) {
            return;
        }
        core.host.sleep(LOOK).await;
    }
}

/// The partition of a node that has none: today's count decides, once.
async fn assigned(core: &Rc<Core>, intake: &Arc<Intake>) -> u32 {
    loop {
        match intake.adapter.log().assign_partition(&intake.node).await {
            Ok(partition) => return partition,
            Err(error) => waits(intake, &what_to_do(&error, intake)),
        }
        core.host.sleep(probe(core)).await;
    }
}

pub(super) fn probe(core: &Rc<Core>) -> Duration {
    let config = core.config.borrow();
    Duration::from_millis(config.intake.as_ref().map_or(1_000, |i| i.probe_ms))
}

/// The boot waits for the log; said when it is news.
pub fn waits(intake: &Intake, why: &str) {
    if intake.status.set_boot_reason(Some(why.to_owned())) {
        tracing::warn!("not ready: {why}");
    }
}

/// An answer that an operator must do something about, with what.
pub fn what_to_do(error: &AskError, intake: &Intake) -> String {
    match error {
        AskError::NotFound(_) => format!("{error}. Create it: {}", create_command(intake)),
        _ => error.to_string(),
    }
}

/// The command that makes the topic as it must be.
fn create_command(intake: &Intake) -> String {
    let retention_ms = intake.expected.backup_max_age_ms.saturating_mul(2);
    format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {} --partitions 16 --replication-factor 3 --config min.insync.replicas=2 --config unclean.leader.election.enable=false --config cleanup.policy=delete --config retention.ms={retention_ms} --config retention.bytes=-1 --config max.message.bytes={} --config message.timestamp.type=LogAppendTime",
        intake.brokers, intake.topic, intake.expected.max_record_bytes
    )
}

async fn open_ways(core: &Rc<Core>, intake: &Arc<Intake>, partition: u32) -> Result<(), String> {
    let intake = Arc::clone(intake);
    let opened = ask::every_core(core, PATIENCE, move |core| {
        let intake = Arc::clone(&intake);
        Box::pin(async move { open_way(&core, &intake, partition).await })
    });
    for (index, opened) in opened.await.into_iter().enumerate() {
        let opened = opened.map_err(|e| e.to_string())?;
        opened.map_err(|e| format!("core {index}: the intake log's client: {e}"))?;
    }
    Ok(())
}

async fn open_way(core: &Rc<Core>, intake: &Intake, partition: u32) -> Result<(), AskError> {
    let Some(way) = core.way.borrow().clone() else {
        return Ok(());
    };
    let number = core.index as u16;
    let publisher = intake.adapter.publisher(number, partition, &intake.node);
    way.open(publisher.await?);
    Ok(())
}

/// Whether another start would be refused all the same, until somebody does something.
fn is_for_an_operator(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Truncated { .. } | Refusal::Recreated { .. } | Refusal::NotRecovered
    )
}

/// For ever: a stop ends it.
async fn stay_unready(
    core: &Rc<Core>,
    intake: &Arc<Intake>,
    refusal: &Refusal,
) -> Result<(), String> {
    intake.status.set_boot_reason(Some(refusal.to_string()));
    intake.status.set_phase(Phase::Refused);
    loop {
        tracing::error!("not ready, and not until this is settled: {refusal}");
        core.host.sleep(SAY_AGAIN).await;
    }
}

/// The start-up line.
fn promise(config: &Config, intake: &Intake) -> String {
    let log = match intake.is_verifying {
        true => intake.adapter.log().describe(),
        false => format!("`{}` (intake topic settings UNVERIFIED)", intake.topic),
    };
    dual_line(&DualPromise {
        data_dir: &config.node.data_dir,
        log: &log,
        is_on_this_host: intake.adapter.is_on_this_host(),
        backup_interval_ms: config.backup.interval_ms,
        backup_max_age_ms: intake.expected.backup_max_age_ms,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn store_of_another_node_is_refused_by_name() {
        assert_eq!(refuse_foreign(None, "b"), Ok(()));
        assert_eq!(refuse_foreign(Some("b"), "b"), Ok(()));
        let text = refuse_foreign(Some("a"), "b").unwrap_err();
        assert!(text.starts_with("intake_node_mismatch: "), "{text}");
        assert!(text.contains("`a`") && text.contains("`b`"), "{text}");
    }
}
