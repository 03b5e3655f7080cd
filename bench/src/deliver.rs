//! `deliver`: how fast a backlog drains to an HTTP sink while new hooks come in.
//!
//! A backlog is taken in with the sink paused; the node is started again with the sink open, and
//! an open loop offers hooks at a constant rate meanwhile. The sink checks every body against its
//! digest. It shares the load's core; the node has its own.

use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::child::SinkPlan;
use crate::cli::{BenchArgs, NodeArgs};
use crate::hostfacts;
use crate::ingest::{READY_PATIENCE, await_distinct, fill_count, node_subject};
use crate::load::{self, Pace, Probe};
use crate::report::{Figure, Report, load_row, number};
use crate::sink::Sink;

/// Options of `deliver`.
#[derive(Args, Clone, Debug)]
pub struct DeliverArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Hooks waiting when a round begins
    #[arg(long, default_value_t = 200_000, value_name = "HOOKS")]
    pub backlog: u64,
    /// Hooks offered per second meanwhile
    #[arg(long, default_value_t = 10_000.0, value_name = "PER_S")]
    pub rate: f64,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
}

struct SinkProbe<'a> {
    sink: &'a Sink,
    opened: (u64, Instant),
    closed: (u64, Instant),
}

impl Probe for SinkProbe<'_> {
    fn window_opens(&mut self) {
        self.opened = (self.sink.distinct(), Instant::now());
    }

    fn window_closes(&mut self) {
        self.closed = (self.sink.distinct(), Instant::now());
    }
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &DeliverArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    let mut plan = args.node.plan(bench.server_core)?;
    let host = hostfacts::gather(Some(&args.node.data));
    let settings = json!({
        "backlog": args.backlog, "rate": args.rate, "body_bytes": args.body, "rounds": bench.rounds,
        "server_core": bench.server_core, "load_and_sink_core": bench.load_core,
        "duration_s": bench.duration.as_secs_f64(),
    });
    let mut report = Report::new("deliver", host, settings);
    let (mut drained, mut acked, mut p99, mut idles) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number_of in 1..=bench.rounds as usize {
        plan.sink = SinkPlan::Paused;
        let node = plan.start(READY_PATIENCE)?;
        fill_count(&node, bench.load_core, args.body, args.backlog)?;
        stop(node)?;
        let sink = Sink::start(Some(bench.load_core))?;
        plan.sink = SinkPlan::Http(sink.address);
        let node = plan.start(READY_PATIENCE)?;
        let round = bench.round(number_of, 64, args.body);
        let mut load_plan = node_subject(&node, &args.node.data).plan(&round);
        load_plan.pace = Pace::Open {
            rate: args.rate,
            ramp: Duration::ZERO,
        };
        let now = Instant::now();
        let mut probe = SinkProbe {
            sink: &sink,
            opened: (0, now),
            closed: (0, now),
        };
        let mark = hostfacts::busy_mark();
        let result = load::run(&load_plan, &mut probe)?;
        let idle = mark.idle_since();
        let rate = (probe.closed.0 - probe.opened.0) as f64
            / (probe.closed.1 - probe.opened.1).as_secs_f64();
        if probe.closed.0 as f64 >= args.backlog as f64 + args.rate * bench.warmup.as_secs_f64() {
            report.warn("the backlog was gone before the window closed: the rate is at least what is shown; raise --backlog");
        }
        let offered = ((bench.warmup + bench.duration).as_secs_f64() * args.rate) as u64;
        await_distinct(
            &sink,
            args.backlog + offered - result.unsent - result.not_acked(),
        )?;
        if sink.wrong() > 0 {
            bail!("{} deliveries did not match their digest", sink.wrong());
        }
        let mut row = load_row("deliver", number_of, 64, &result);
        row.push(("delivered_per_s", number(rate)));
        row.push(("repeated", json!(sink.received() - sink.distinct())));
        row.push(("idle", number(idle)));
        report.row(row);
        report.latencies("ack while draining", &result.acked);
        drained.push(rate);
        acked.push(result.rate());
        p99.push(result.acked_us(99.0));
        idles.push(idle);
        stop(node)?;
    }
    report.figure(Figure::new("delivered", "1/s", &drained));
    report.figure(Figure::new("acked meanwhile", "1/s", &acked));
    report.figure(Figure::new("ack p99 meanwhile", "us", &p99));
    report.figure(Figure::new("idle share of the machine", "", &idles));
    args.node.clean();
    Ok(report)
}

fn stop(node: crate::child::Node) -> anyhow::Result<()> {
    if !node.stop(Duration::from_secs(60)) {
        bail!("the node did not stop in an orderly way");
    }
    Ok(())
}

/// The command.
pub fn run(args: &DeliverArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("deliver"))?;
    Ok(())
}
