//! The steps before the node serves.
//!
//! Runs on core 0.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_recovery::{Refusal, Summary};
use ankusa_wal::Host;

use super::Intake;
use super::boot::{probe, waits, what_to_do};
use crate::node::ask;
use crate::node::core::Core;

/// Takes them.
pub(super) async fn take(core: &Rc<Core>, intake: &Arc<Intake>) -> Result<Summary, Refusal> {
    loop {
        match intake.adapter.log().verify(intake.expected).await {
            Ok(verified) if verified.findings.is_empty() || !intake.is_verifying => break,
            Ok(verified) => waits(intake, &format!("{:?}", verified.findings)),
            Err(error) => waits(intake, &what_to_do(&error, intake)),
        }
        core.host.sleep(probe(core)).await;
    }
    ask::every_core(core, Duration::from_secs(600), |core| {
        Box::pin(async move {
            let shards = core.shards.borrow().clone();
            for shard in shards {
                if let Some(log) = shard.log() {
                    log.offset_may_move();
                }
                shard.republish_local(|_| false).await;
            }
        })
    })
    .await;
    Ok(Summary::default())
}
