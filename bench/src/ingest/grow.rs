//! Makes the store as large as the rounds will need it, and empty.
//!
//! A segment file is reserved and written whole before its first use. A node that has been
//! running for a while reuses old files; a fresh one would pay for new ones inside the rounds.
//! So: take as many bytes as the rounds will bring with the sink paused, deliver everything, stop
//! in an orderly way, twice, so that both kept checkpoints let the slots go.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::READY_PATIENCE;
use crate::child::{Node, NodePlan, SinkPlan};
use crate::load::{self, LoadPlan, NoProbe, Stop};
use crate::sink::Sink;

/// How much more than the rounds are expected to need.
const MARGIN: f64 = 1.2;
const DRAIN_STALL: Duration = Duration::from_secs(30);
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Grows the store for `seconds` of full load; the result is the number of slot files.
pub fn grow(
    plan: &NodePlan,
    load_core: usize,
    body_bytes: usize,
    seconds: f64,
) -> anyhow::Result<usize> {
    let mut held = plan.clone();
    held.sink = SinkPlan::Paused;
    let node = held.start(READY_PATIENCE)?;
    let hooks = fill(&node, load_core, body_bytes, seconds * MARGIN)?;
    stop(node)?;
    drain(plan, hooks)?;
    // The older of the two kept checkpoints still needs the segments: one more.
    stop(held.start(READY_PATIENCE)?)?;
    Ok(slot_files(&plan.shard_dir()))
}

/// Offers full load for a time; the result is how many hooks were acked.
pub fn fill(node: &Node, load_core: usize, body_bytes: usize, seconds: f64) -> anyhow::Result<u64> {
    let mut plan = filling(node, load_core, body_bytes);
    plan.stop = Stop::After(Duration::from_secs_f64(seconds));
    let result = load::run(&plan, &mut NoProbe)?;
    if result.acked.is_empty() || result.not_acked() > 0 {
        bail!(
            "filling the store: {} acked, {:?}",
            result.acked.len(),
            result.outcomes
        );
    }
    Ok(result.acked.len())
}

/// Offers exactly so many hooks.
pub fn fill_count(
    node: &Node,
    load_core: usize,
    body_bytes: usize,
    hooks: u64,
) -> anyhow::Result<()> {
    let mut plan = filling(node, load_core, body_bytes);
    plan.stop = Stop::Count(hooks);
    let result = load::run(&plan, &mut NoProbe)?;
    if result.acked.len() != hooks {
        bail!(
            "filling the store: {} of {hooks} acked, {:?}",
            result.acked.len(),
            result.outcomes
        );
    }
    Ok(())
}

fn filling(node: &Node, load_core: usize, body_bytes: usize) -> LoadPlan {
    let mut plan = LoadPlan::new(node.ingest, "/webhooks/demo");
    plan.connections = 256;
    plan.body.sizes = vec![body_bytes];
    plan.warmup = Duration::ZERO;
    plan.core = Some(load_core);
    plan
}

/// Delivers everything that is in the store, and stops the node.
fn drain(plan: &NodePlan, hooks: u64) -> anyhow::Result<()> {
    let sink = Sink::start(None).context("starting the sink")?;
    let mut delivering = plan.clone();
    delivering.sink = SinkPlan::Http(sink.address);
    let node = delivering.start(READY_PATIENCE)?;
    await_distinct(&sink, hooks)?;
    stop(node)
}

/// Waits until so many different hooks have arrived; an error when nothing arrives any more.
pub fn await_distinct(sink: &Sink, hooks: u64) -> anyhow::Result<()> {
    let mut last = (sink.distinct(), Instant::now());
    while sink.distinct() < hooks {
        std::thread::sleep(Duration::from_millis(20));
        let now = sink.distinct();
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > DRAIN_STALL {
            bail!(
                "deliveries stopped at {now} of {hooks} ({} wrong)",
                sink.wrong()
            );
        }
    }
    Ok(())
}

fn stop(node: Node) -> anyhow::Result<()> {
    if !node.stop(STOP_PATIENCE) {
        bail!("the node did not stop in an orderly way within {STOP_PATIENCE:?}");
    }
    Ok(())
}

/// Segment files in a shard's directory.
pub fn slot_files(shard_dir: &Path) -> usize {
    std::fs::read_dir(shard_dir).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|e| e.path().extension().is_some_and(|x| x == "wal"))
            .count()
    })
}
