//! The clean end of a core: nothing new, what is in flight ends, the shards are closed with their
//! place in the intake log written down.
//!
//! Bounded: every step has a time after which it is given up and named. Runs on a shard core.

use std::rc::Rc;
use std::time::Duration;

use ankusa_net::http1::Server;
use ankusa_wal::Host;

use super::core::Core;
use super::log;

/// How long a clean stop may take to write down a shard's place in the intake log.
const MARKS_PATIENCE: Duration = Duration::from_secs(2);

/// How long answers of the admin port may take to go out at a stop.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

/// Stops taking requests, lets those in flight end, and closes the shards. Requests and deliveries
/// have the same time to end in, side by side. `server`: none when the node did not serve yet.
pub(super) async fn shut_down(core: &Rc<Core>, server: Option<Server>) -> Option<String> {
    let grace = Duration::from_millis(core.config.borrow().node.shutdown_ms);
    core.begin_stop();
    if let Some(ingest) = core.ingest.borrow().as_ref() {
        ingest.close();
    }
    let shards = core.shards.borrow().clone();
    for shard in &shards {
        shard.dispatch.begin_stop();
    }
    let began_us = core.host.mono_us();
    let left = || {
        let taken_us = core.host.mono_us().saturating_sub(began_us);
        grace.saturating_sub(Duration::from_micros(taken_us))
    };
    let mut faults = Vec::new();
    if let Some(server) = server {
        let report = server.stop(grace).await;
        if report.connections_left > 0 {
            faults.push(format!(
                "{} connections were still busy",
                report.connections_left
            ));
        }
    }
    for shard in &shards {
        if !shard.dispatch.stop(left()).await {
            faults.push(format!(
                "shard {}: deliveries were still under way",
                shard.id
            ));
        }
        shard.commit.drain().await;
    }
    if let Some(intake) = core.intake.as_ref().filter(|_| core.is_serving()) {
        log::ask_head(intake, &*core.host).await;
    }
    for shard in shards {
        if core.log.borrow().is_some() && !shard.commit.settle_marks(MARKS_PATIENCE).await {
            faults.push(format!(
                "shard {}: its place in the intake log could not be written down; the next boot reads more of it",
                shard.id
            ));
        }
        if let Err(error) = shard.store.close().await {
            faults.push(format!("shard {}: {error}", shard.id));
        }
    }
    if let Some(log) = core.log.borrow_mut().take() {
        log.stop();
    }
    // Last, so that the way down can be watched.
    let admin = core.admin.borrow_mut().take();
    if let Some(admin) = admin {
        admin.stop(ADMIN_GRACE).await;
    }
    (!faults.is_empty()).then(|| faults.join("; "))
}
