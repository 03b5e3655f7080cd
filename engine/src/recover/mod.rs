//! The service's side of a recovery: what [`ankusa_recovery::run`] asks of a node.
//!
//! Owns what only the service knows (a source's sinks of today, [`today`]), one shard's part
//! ([`shard`]), the node's facts ([`home`]), and the two nodes that a run meets: the cores of a node
//! that boots ([`mesh`]) and a stopped store ([`offline`], `ankusa recover`), which is healed first
//! where acked frames are damaged ([`heal`]). Both go through the same driver and the same shard.
//!
//! Deliberately absent: the steps and the table, which are the recovery crate's; publishing, which
//! is [`crate::dual`]'s. Runs at boot on shard cores, and offline.

pub mod dry;
pub mod heal;
pub mod home;
pub mod local;
pub mod mesh;
pub mod offline;
pub mod revive;
pub mod shard;
pub mod today;

#[cfg(test)]
mod tests;

pub use home::HomeKeeper;
pub use mesh::at_boot;
pub use shard::{Part, ShardRecovery};
pub use today::ConfigToday;

use std::task::Poll;
use std::time::Duration;

use ankusa_intake::Expected;
use ankusa_recovery::boot::Gap;
use ankusa_recovery::port::PortError;
use ankusa_recovery::{Options, Start};
use ankusa_wal::{Host, State, TrailRow};
use serde_json::json;

use crate::config::{Config, IntakeConfig};

/// The name of the sink that stands for a source that is not configured: no sink can have it.
pub const NO_SOURCE: &[u8] = b"(no source)";

/// Records in a batch.
const CHUNK_RECORDS: usize = 500;

/// Batches handed out and not durable yet, for each shard.
const BATCHES_PER_SHARD: usize = 4;

/// How often what is waited for is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// The action of an audit row for a gap that was passed over.
pub(crate) const ALLOW_GAP: &str = "intake.recover.allow_gap";

/// How a run is made, from the configuration.
pub fn options(config: &Config, intake: &IntakeConfig, shards: usize) -> Options {
    Options {
        node: intake.node_id.clone(),
        expected: Expected {
            backup_max_age_ms: config.backup.max_age_ms.unwrap_or_default(),
            max_record_bytes: intake.max_record_bytes,
        },
        verify: intake.verify_topic,
        wait: true,
        probe: Duration::from_millis(intake.probe_ms),
        start: Start::Stored,
        replay: intake.recover_on_boot,
        allow_gap: false,
        dry_run: false,
        chunk_records: CHUNK_RECORDS,
        // So that a batch is one group, with what a record takes beside its value.
        chunk_bytes: config.wal.group_max_bytes as usize / 4 * 3,
        inflight: BATCHES_PER_SHARD * shards.max(1),
    }
}

/// A port's failure in words.
pub(crate) fn failed(why: impl std::fmt::Display) -> PortError {
    PortError::Failed(why.to_string())
}

/// The audit row of a gap that the operator passed over.
pub(crate) fn gap_row(state: &State, gap: &Gap, now_ms: u64) -> TrailRow {
    let body = json!({
        "actor": "ankusa recover",
        "remote_ip": null,
        "action": ALLOW_GAP,
        "tenant": null,
        "resource": gap.node,
        "result": "ok",
        "detail": {
            "node": gap.node,
            "wanted": gap.wanted,
            "earliest": gap.earliest,
            "lost": gap.lost(),
            "why": gap.why,
        },
    });
    TrailRow {
        no: state.meta().audit_last() + 1,
        at_ms: now_ms,
        body: body.to_string().into_bytes().into(),
    }
}

/// Runs a future and looks at it again every few milliseconds, whether or not something woke it.
///
/// NOTE: a wake from another thread (an answer of the log, a file written) can be lost when it meets
/// an executor that is falling asleep. What is waited for here says itself whether it is there.
pub(crate) async fn looked_at<T>(host: &dyn Host, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut tick = host.sleep(LOOK);
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            match tick.as_mut().poll(cx) {
                Poll::Ready(()) => tick = host.sleep(LOOK),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}
