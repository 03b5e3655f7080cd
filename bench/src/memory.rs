//! `memory`: resident bytes of the node for each undelivered hook, and for each dedupe key.
//!
//! A slope, not a quotient: the node takes a first batch, so that caches and buffers are full,
//! then a second one; what it grew by is divided by the second batch. Once without keys and once
//! with a key per hook; the difference is the key's. A hash table grows in leaps, so the slope
//! depends on where the counts fall: the report shows resident memory at every step.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::child::{Node, NodePlan};
use crate::cli::{BenchArgs, NodeArgs};
use crate::hostfacts;
use crate::ingest::READY_PATIENCE;
use crate::load::{self, LoadPlan, NoProbe, Stop};
use crate::report::{Figure, Report, text};

const KEY_HEADER: &str = "X-Event-Id";
const STEPS: u64 = 8;

/// Options of `memory`.
#[derive(Args, Clone, Debug)]
pub struct MemoryArgs {
    /// Cores, output. One round is made; times are not used.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Hooks before the first reading
    #[arg(long, default_value_t = 250_000, value_name = "HOOKS")]
    pub first: u64,
    /// Hooks between the first reading and the last
    #[arg(long, default_value_t = 1_000_000, value_name = "HOOKS")]
    pub then: u64,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
}

/// The command.
pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    let mut report = Report::new(
        "memory",
        hostfacts::gather(Some(&args.node.fresh_dir()?)),
        json!({"first": args.first, "then": args.then, "body_bytes": args.body, "sink": "paused"}),
    );
    let mut slopes = Vec::new();
    for keyed in [false, true] {
        let mut plan = args.node.plan(args.bench.server_core)?;
        plan.key_header = keyed.then(|| KEY_HEADER.to_owned());
        slopes.push(slope(args, &plan, keyed, &mut report)?);
    }
    report.figure(Figure::new(
        "resident, a hook without key",
        "bytes",
        &[slopes[0]],
    ));
    report.figure(Figure::new(
        "resident, a hook with key",
        "bytes",
        &[slopes[1]],
    ));
    report.figure(Figure::new(
        "resident, the key alone",
        "bytes",
        &[slopes[1] - slopes[0]],
    ));
    args.node.clean();
    report.finish(&args.bench.out_dir("memory"))?;
    Ok(())
}

fn slope(
    args: &MemoryArgs,
    plan: &NodePlan,
    keyed: bool,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let node = plan.start(READY_PATIENCE)?;
    let empty = node.resident_bytes();
    take(&node, args, keyed, args.first)?;
    let first = node.resident_bytes();
    let mut readings = vec![(0, empty), (args.first, first)];
    for step in 1..=STEPS {
        take(&node, args, keyed, args.then / STEPS)?;
        readings.push((
            args.first + step * (args.then / STEPS),
            node.resident_bytes(),
        ));
    }
    for (hooks, resident) in &readings {
        report.row(vec![
            ("keyed", Value::from(keyed)),
            ("hooks", Value::from(*hooks)),
            ("resident_bytes", Value::from(*resident)),
            ("sink", text("paused")),
        ]);
    }
    node.stop(Duration::from_secs(60));
    let (last_hooks, last) = readings[readings.len() - 1];
    Ok(last.saturating_sub(first) as f64 / (last_hooks - args.first).max(1) as f64)
}

fn take(node: &Node, args: &MemoryArgs, keyed: bool, hooks: u64) -> anyhow::Result<()> {
    let mut plan = LoadPlan::new(node.ingest, "/webhooks/demo");
    plan.connections = 256;
    plan.body.sizes = vec![args.body];
    plan.warmup = Duration::ZERO;
    plan.core = Some(args.bench.load_core);
    plan.stop = Stop::Count(hooks);
    plan.key_header = keyed.then(|| KEY_HEADER.to_owned());
    let result = load::run(&plan, &mut NoProbe)?;
    anyhow::ensure!(
        result.acked.len() == hooks,
        "{} of {hooks} acked: {:?}",
        result.acked.len(),
        result.outcomes
    );
    Ok(())
}
