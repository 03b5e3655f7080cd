//! Opening the shards of a core, and what is asked of them before the core takes a hook.
//!
//! Runs on a shard core, at boot; a shard that a replay needs is opened later.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::{StoreFacts, shard_dir};
use ankusa_wal::{Host, OpenError, ShardId, mutations};

use super::core::Core;
use crate::config::Config;
use crate::dispatch;
use crate::shard::{self, Shard, ShardParts};
use crate::sinks::CoreSinks;

/// Opens the shards of this core: those whose number is its own modulo the cores. The first is
/// its home, which takes new hooks; the others drain.
pub(super) async fn open_shards(
    core: &Rc<Core>,
    facts: &StoreFacts,
    sinks: &Rc<CoreSinks>,
) -> Result<Vec<String>, String> {
    let cores = core.port.cores();
    let mut lines = Vec::new();
    for number in (core.index..usize::from(facts.shards)).step_by(cores.max(1)) {
        lines.push(open_shard(core, facts, sinks, ShardId(number as u16)).await?);
    }
    Ok(lines)
}

impl Core {
    /// Opens one more shard of this core, beyond those of its boot.
    ///
    /// # Errors
    /// A text for the operator.
    pub async fn open_shard(
        self: &Rc<Self>,
        facts: &StoreFacts,
        id: ShardId,
    ) -> Result<(), String> {
        let config = Arc::clone(&self.config.borrow());
        let sinks = Rc::new(self.sinks(&config)?);
        let line = open_shard(self, facts, &sinks, id).await?;
        tracing::info!(core = self.index, "{line}");
        Ok(())
    }
}

/// A line about it.
async fn open_shard(
    core: &Rc<Core>,
    facts: &StoreFacts,
    sinks: &Rc<CoreSinks>,
    id: ShardId,
) -> Result<String, String> {
    let config = Arc::clone(&core.config.borrow());
    let cores = core.port.cores();
    let dir = shard_dir(&config.node.data_dir, id);
    let fault = |why: &dyn std::fmt::Display| format!("shard {id} ({}): {why}", dir.display());
    let disk = GlommioDisk::open(&dir).map_err(|e| fault(&e))?;
    let log = core.log.borrow().clone();
    let shard = Shard::open(ShardParts {
        disk,
        host: Rc::clone(&core.host) as Rc<dyn Host>,
        store: shard::store_config(&config, facts, id),
        queue: shard::queue_limits(&config, cores),
        group: shard::group_limits(&config),
        // A core with several shards has several schedulers.
        deliveries: dispatch::limits(&config.dispatch, cores.max(usize::from(facts.shards))),
        sinks: Rc::clone(sinks) as Rc<dyn crate::dispatch::SinkTable>,
        observer: Rc::clone(&core.observer),
        log,
    })
    .await
    .map_err(|e| fault(&format_args!("{e}{}", what_helps(&e, &config, id))))?;
    let line = format!(
        "shard {id}: {} live hooks, {} frames scanned ({} bytes), {} rewritten, {} dropped",
        shard.report.live_hooks,
        shard.report.frames_scanned,
        shard.report.bytes_scanned,
        shard.report.frames_rewritten,
        shard.report.frames_dropped,
    );
    core.shards.borrow_mut().push(Rc::new(shard));
    Ok(line)
}

/// What the operator can do about a shard that does not open.
fn what_helps(error: &OpenError, config: &Config, id: ShardId) -> String {
    match (error, config.intake.is_some()) {
        (OpenError::Damaged(_), true) => {
            ". `ankusa recover` gives up what is damaged and fills it from the intake log; `ankusa wal verify` shows all of it".into()
        }
        (OpenError::Damaged(_), false) => {
            let restore = match config.backup.enabled {
                true => "`ankusa restore` goes back to the last backup, ",
                false => "",
            };
            format!(
                ". `ankusa wal verify` shows all of it; {restore}`ankusa wal repair --shard {id}` \
                 goes on without what is damaged, and says what is lost"
            )
        }
        _ => String::new(),
    }
}

/// Streams the live dedupe rows of this core's shards to the cores that own their keys. A row that
/// cannot be read costs a duplicate, never a hook: it is said, and the boot goes on.
pub(super) async fn restore_claims(core: &Rc<Core>) -> Result<(), String> {
    let now_s = core.host.wall_ms() / 1000;
    let shards = core.shards.borrow().clone();
    for shard in shards {
        let rest = || {
            mutations::point("boot.claims_slice");
            rest(core)
        };
        let restored = shard.restore_claims(&core.desk, now_s, rest).await;
        restored.map_err(|error| format!("shard {}: {error}", shard.id))?;
    }
    Ok(())
}

/// Says that this core has handed all its rows over, and waits until every core has.
pub(super) async fn all_claims(core: &Rc<Core>) {
    let now_s = core.host.wall_ms() / 1000;
    for shard in core.shards.borrow().iter() {
        shard.restore_deferred(&core.desk, now_s);
    }
    // IMPORTANT: after recovery, which remembers keys as well: a core's rows go before this.
    core.desk.rows_done();
    while !core.desk.has_all_rows() {
        core.host.sleep(Duration::from_millis(1)).await;
    }
}

/// The rows of other cores wait in the mesh; do not run ahead of it.
async fn rest(core: &Rc<Core>) {
    while core.port.held_back() > 0 {
        core.port.flush();
        core.host.sleep(Duration::from_millis(1)).await;
    }
    if core.host.must_yield() {
        core.host.yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use ankusa_wal::Damage;

    use super::*;

    #[test]
    fn a_damaged_shard_names_what_helps() {
        let damaged = OpenError::Damaged(Damage {
            what: "a frame",
            file: None,
            segment: None,
            offset: 0,
            lsns: None,
            seqs: None,
        });
        let disk = crate::config::for_test("http: { ip: 127.0.0.1 }");
        let told = what_helps(&damaged, &disk, ShardId(3));
        assert!(told.contains("`ankusa wal repair --shard 3`"), "{told}");
        assert!(!told.contains("restore"), "no backup is configured: {told}");
        let dual = crate::config::for_test(
            "wal: { type: dual }
http: { ip: 127.0.0.1 }
intake: { type: memory, node_id: n-1 }
backup: { enabled: true, max_age_ms: 1h, store: { type: local, root: /b }, signing_key: k }
",
        );
        assert!(what_helps(&damaged, &dual, ShardId(0)).contains("`ankusa recover`"));
    }
}
