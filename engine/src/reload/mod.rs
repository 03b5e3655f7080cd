//! A reload: another configuration for a running node, whole or not at all.
//!
//! The main thread reads and checks the file ([`read`]); every core then makes what it needs of it
//! beside what it has ([`prepare`]), and only when all have does each put it in place ([`take`]).
//! A file that does not hold, or a core that cannot make it, leaves everything as it was. Keys
//! that need a restart keep their old value, and are named.
//!
//! Requests and deliveries under way end with what they began with. Rows of sinks that are gone
//! become dead letters when their turn comes. A pause given over the admin port ends.

mod round;
#[cfg(test)]
mod tests;

pub use round::{Place, ReloadNo, Round};

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, Config, ConfigError, Diff, Env, Loaded, Origin};
use crate::dispatch::{self, SinkTable};
use crate::ingest::{IngestLimits, SourceTable};
use crate::node::core::Core;
use crate::sinks::CoreSinks;

/// Keys that the file may change at any time, and that the listener takes up only when it starts.
const AT_START: &[&str] = &["http.limits.", "http.tls."];

/// How long the numbers of new sinks may take to be durable; less than the main thread waits.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// What a hook takes beside its body and head, at most.
const ENVELOPE_BYTES: u64 = 65_536;

/// A configuration that is to be put in place.
pub struct Next {
    /// What holds from then on: the new one, with the old value of what needs a restart.
    pub config: Config,
    /// What changes, and what would with a restart.
    pub diff: Diff,
    /// What is odd about it.
    pub warnings: Vec<String>,
}

/// Reads the configuration again, from where the one in force came from. Blocking: main thread.
///
/// `body_bytes_held_max` is what each core's listener was started with: it takes no larger body.
pub fn read(current: &Config, body_bytes_held_max: u64) -> Result<Next, ConfigError> {
    let file = match &current.origin {
        Origin::Tryout => None,
        Origin::File(file) => Some(file.as_path()),
    };
    let loaded = config::load(file, &Env::process())?;
    Ok(next(current, loaded, body_bytes_held_max))
}

fn next(current: &Config, loaded: Loaded, body_bytes_held_max: u64) -> Next {
    let warnings = loaded.warning_lines();
    let mut diff = Config::diff(current, &loaded.config);
    let (at_start, live) = std::mem::take(&mut diff.live)
        .into_iter()
        .partition(|path| AT_START.iter().any(|prefix| path.starts_with(prefix)));
    diff.live = live;
    diff.restart.extend::<Vec<String>>(at_start);
    // IMPORTANT: the port stays where it is until a restart, so it stays guarded until then, even
    // where the new file moves it to loopback and takes the token away.
    if loaded.config.admin.token.is_none() && !current.admin.ip.is_loopback() {
        diff.live.retain(|path| path != "admin.token");
        diff.restart.push("admin.token".into());
    }
    // IMPORTANT: the file holds as a whole, and not all of it is taken over: a body that only the
    // segments, the queue, the listener or the heads after a restart have room for must wait for
    // it too.
    const BODY: &str = "http.max_body_bytes";
    let largest =
        loaded.config.http.max_body_bytes + current.http.limits.head_bytes + ENVELOPE_BYTES;
    let has_room = current.wal.segment_bytes > largest
        && current.queue.max_bytes >= largest
        && body_bytes_held_max >= loaded.config.http.max_body_bytes;
    if !has_room && diff.live.iter().any(|path| path == BODY) {
        diff.live.retain(|path| path != BODY);
        diff.restart.push(BODY.into());
    }
    Next {
        config: merge(current, loaded.config, &diff),
        diff,
        warnings,
    }
}

/// The new configuration, with the old value of every key that needs a restart.
fn merge(old: &Config, mut new: Config, diff: &Diff) -> Config {
    let shutdown_ms = new.node.shutdown_ms;
    new.node.clone_from(&old.node);
    new.node.shutdown_ms = shutdown_ms;
    new.log.format = old.log.format;
    let body_bytes = new.http.max_body_bytes;
    new.http.clone_from(&old.http);
    if diff.live.iter().any(|path| path == "http.max_body_bytes") {
        new.http.max_body_bytes = body_bytes;
    }
    (new.admin.ip, new.admin.port) = (old.admin.ip, old.admin.port);
    if diff.restart.iter().any(|path| path == "admin.token") {
        new.admin.token.clone_from(&old.admin.token);
    }
    new.wal.clone_from(&old.wal);
    new.queue.clone_from(&old.queue);
    new.dedupe.clone_from(&old.dedupe);
    new.intake.clone_from(&old.intake);
    new.backup.clone_from(&old.backup);
    let keeps = |path: &String| diff.restart.contains(path);
    new.effective.retain(|entry| !keeps(&entry.path));
    let kept = old.effective.iter().filter(|entry| keeps(&entry.path));
    new.effective.extend(kept.cloned());
    new
}

/// What a core made of a configuration, not in place yet.
pub struct Prepared {
    config: Arc<Config>,
    sources: Rc<SourceTable>,
    sinks: Rc<CoreSinks>,
}

/// Makes what a core needs of `config`. Changes nothing but the numbers given to new sinks, which
/// are durable when it completes: hooks that name them may be acked from then on.
///
/// # Errors
/// Why it cannot be made.
pub async fn prepare(core: &Rc<Core>, config: &Arc<Config>) -> Result<Prepared, String> {
    let home = core.home()?;
    let sources = SourceTable::build(config, |tenant, source, name| {
        home.sink_no(tenant, source, name)
            .map_err(|e| e.to_string())
    })?;
    let sinks = core.sinks(config)?;
    if !home.commit.flush(FLUSH_PATIENCE).await {
        return Err("the numbers of new sinks cannot be written".into());
    }
    Ok(Prepared {
        config: Arc::clone(config),
        sources: Rc::new(sources),
        sinks: Rc::new(sinks),
    })
}

/// Puts it in place on this core.
pub fn take(core: &Rc<Core>, prepared: Prepared) {
    let Prepared {
        config,
        sources,
        sinks,
    } = prepared;
    core.observer.set_sources(&config);
    if let Some(ingest) = core.ingest.borrow().as_ref() {
        ingest.set_sources(sources);
        ingest.set_limits(ingest_limits(&config));
    }
    for shard in core.shards.borrow().iter() {
        let table = Rc::clone(&sinks) as Rc<dyn SinkTable>;
        shard.dispatch.set_table(table);
        let shards = core.port.cores().max(core.shards_of_node);
        shard
            .dispatch
            .set_limits(dispatch::limits(&config.dispatch, shards));
    }
    *core.config.borrow_mut() = config;
}

/// The limits of the pipeline.
pub fn ingest_limits(config: &Config) -> IngestLimits {
    IngestLimits {
        body_bytes_max: config.http.max_body_bytes,
        intake_retry_after_s: config.intake.as_ref().map_or(2, |i| i.retry_after_s),
    }
}
