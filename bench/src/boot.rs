//! `boot`: from the start of the process to the first 200 of `/ready`, on a store full of
//! undelivered hooks.
//!
//! With a checkpoint: after an orderly stop. Without: after `kill -9`, with the checkpoints
//! removed, so that everything is scanned. Each start is made on the same store; what an open
//! writes (a new segment, a checkpoint) is part of it, and the checkpoints are removed anew
//! before each start of the second kind.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use crate::child::NodePlan;
use crate::cli::{BenchArgs, NodeArgs};
use crate::hostfacts;
use crate::ingest::{READY_PATIENCE, fill_count};
use crate::report::{Figure, Report, number, text};

const BOOT_PATIENCE: Duration = Duration::from_secs(300);

/// Options of `boot`.
#[derive(Args, Clone, Debug)]
pub struct BootArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Undelivered hooks in the store
    #[arg(long, default_value_t = 1_000_000, value_name = "HOOKS")]
    pub hooks: u64,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
}

/// The command.
pub fn run(args: &BootArgs) -> anyhow::Result<()> {
    let bench = &args.bench;
    let plan = args.node.plan(bench.server_core)?;
    let mut report = Report::new(
        "boot",
        hostfacts::gather(Some(&args.node.data)),
        json!({"hooks": args.hooks, "body_bytes": args.body, "rounds": bench.rounds, "core": bench.server_core}),
    );
    let node = plan.start(READY_PATIENCE)?;
    fill_count(&node, bench.load_core, args.body, args.hooks)?;
    if !node.stop(BOOT_PATIENCE) {
        bail!("the node did not stop in an orderly way");
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds as usize {
        let mark = hostfacts::busy_mark();
        let node = plan.start(BOOT_PATIENCE)?;
        with.push(node.boot.as_secs_f64());
        let idle = mark.idle_since();
        expect_hooks(&node, args.hooks, &mut report);
        report.row(row(
            "with checkpoint",
            round,
            node.boot,
            node.resident_bytes(),
            idle,
        ));
        node.kill();
        let removed = remove_checkpoints(&plan)?;
        if removed == 0 {
            report.warn("the store had no checkpoint: both kinds of boot scanned everything");
        }
        let mark = hostfacts::busy_mark();
        let node = plan
            .start(BOOT_PATIENCE)
            .context("booting without a checkpoint")?;
        without.push(node.boot.as_secs_f64());
        let idle = mark.idle_since();
        expect_hooks(&node, args.hooks, &mut report);
        report.row(row(
            "without checkpoint",
            round,
            node.boot,
            node.resident_bytes(),
            idle,
        ));
        if !node.stop(BOOT_PATIENCE) {
            bail!("the node did not stop in an orderly way");
        }
    }
    report.figure(Figure::new("boot with a checkpoint", "s", &with));
    report.figure(Figure::new("boot without one", "s", &without));
    args.node.clean();
    report.finish(&bench.out_dir("boot"))?;
    Ok(())
}

fn row(
    subject: &str,
    round: usize,
    boot: Duration,
    resident: u64,
    idle: f64,
) -> crate::report::Row {
    vec![
        ("subject", text(subject)),
        ("round", json!(round)),
        ("boot_s", number(boot.as_secs_f64())),
        ("resident_bytes", json!(resident)),
        ("idle", number(idle)),
    ]
}

/// A quick boot that forgot its hooks would be no feat.
fn expect_hooks(node: &crate::child::Node, hooks: u64, report: &mut Report) {
    match node.live_hooks() {
        Some(found) if found == hooks => {}
        Some(found) => report.warn(format!(
            "the store held {found} hooks after a boot, not {hooks}"
        )),
        None => report.warn("the node does not say how many hooks it holds: not checked"),
    }
}

fn remove_checkpoints(plan: &NodePlan) -> anyhow::Result<usize> {
    let dir = plan.shard_dir();
    let mut removed = 0;
    for entry in std::fs::read_dir(&dir)
        .with_context(|| format!("listing {}", dir.display()))?
        .flatten()
    {
        if is_checkpoint(&entry.path()) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_checkpoint(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "ckpt")
}
