//! `ingest`: acked hooks of the whole node against the same HTTP loop with nothing behind it.
//!
//! Rounds of both alternate in one run, so that the ratio is that of one machine in one state.
//! The sink is paused. The node's slots are grown beforehand, so that no round pays for writing
//! new files; with `--deliver` an HTTP sink on the load's core is delivered to meanwhile. Asserts from outside that the node wrote at least what it acked and that the device
//! was flushed.
//!
//! Node on one core, load on another.

mod grow;

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::child::{Node, SinkPlan};
use crate::cli::{BenchArgs, NodeArgs};
use crate::hostfacts;
use crate::http::start_bare;
use crate::measure::{Measured, Subject, device_of, measure};
use crate::report::{Figure, Report, number};
use crate::sink::Sink;

pub use grow::{await_distinct, fill_count, grow, slot_files};

/// How long a node may take to become ready.
pub const READY_PATIENCE: Duration = Duration::from_secs(60);

/// Options of `ingest`.
#[derive(Args, Clone, Debug)]
pub struct IngestArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Connections; several, separated by commas, are measured in turn
    #[arg(
        short,
        long,
        default_value = "64,256",
        value_delimiter = ',',
        value_name = "N"
    )]
    pub connections: Vec<usize>,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
    /// Deliver meanwhile to an HTTP sink on the load's core, instead of a paused sink
    #[arg(long)]
    pub deliver: bool,
    /// Do not grow the slots first: the figures then include the writing of new files
    #[arg(long)]
    pub no_grow: bool,
}

/// The rounds of one number of connections.
#[derive(Default)]
struct Cell {
    bare: Vec<Measured>,
    node: Vec<Measured>,
    /// Deliveries per second, warm-up included; empty with a paused sink.
    delivered: Vec<f64>,
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &IngestArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    let mut plan = args.node.plan(bench.server_core)?;
    let host = hostfacts::gather(Some(&args.node.data));
    let settings = json!({
        "connections": args.connections, "body_bytes": args.body, "rounds": bench.rounds, "sync": plan.sync,
        "groups_inflight": plan.groups_inflight, "grown": !args.no_grow, "sink": if args.deliver { "http" } else { "paused" },
        "server_core": bench.server_core, "load_core": bench.load_core,
        "duration_s": bench.duration.as_secs_f64(), "warmup_s": bench.warmup.as_secs_f64(),
    });
    let mut report = Report::new("ingest", host, settings);
    if !args.no_grow {
        let seconds = (bench.duration + bench.warmup).as_secs_f64()
            * f64::from(bench.rounds)
            * args.connections.len() as f64;
        let grown = grow(&plan, bench.load_core, args.body, seconds)?;
        report.extra("grown_slots", json!(grown));
    }
    let slots_before = slot_files(&plan.shard_dir());
    let (_bare, http) = start_bare(bench.server_core)?;
    let sink = if args.deliver {
        Some(Sink::start(Some(bench.load_core))?)
    } else {
        None
    };
    if let Some(sink) = &sink {
        plan.sink = SinkPlan::Http(sink.address);
    }
    let node = plan.start(READY_PATIENCE)?;
    let subject = node_subject(&node, &args.node.data);
    let mut cells = Vec::new();
    for &connections in &args.connections {
        let mut cell = Cell::default();
        for number_of in 1..=bench.rounds as usize {
            let round = bench.round(number_of, connections, args.body);
            let bare = measure(&http, &http.plan(&round))?;
            report.row(bare.row("http", &round));
            let delivered_before = sink.as_ref().map_or(0, Sink::distinct);
            let acked = measure(&subject, &subject.plan(&round))?;
            let mut row = acked.row("node", &round);
            if let Some(sink) = &sink {
                let seconds = (round.warmup + round.duration).as_secs_f64();
                let rate = (sink.distinct() - delivered_before) as f64 / seconds;
                cell.delivered.push(rate);
                row.push(("delivered_per_s", number(rate)));
            }
            report.row(row);
            check(&acked, args.body, subject.device.is_some())?;
            report.latencies(&format!("http {connections}"), &bare.load.acked);
            report.latencies(&format!("node {connections}"), &acked.load.acked);
            if bare.load.generator_busy > 0.95 {
                report.warn("the generator was over 95 % busy in some http rounds: the ratio is flattered there");
            }
            cell.bare.push(bare);
            cell.node.push(acked);
        }
        cells.push(cell);
    }
    let slots_after = slot_files(&plan.shard_dir());
    if slots_after > slots_before && !args.no_grow {
        report.warn(format!(
            "slots grew from {slots_before} to {slots_after} during the rounds"
        ));
    }
    report.extra(
        "slots",
        json!({"before": slots_before, "after": slots_after}),
    );
    if sink.as_ref().is_some_and(|sink| sink.wrong() > 0) {
        bail!("some deliveries did not match their digest");
    }
    let stopped = node.stop(Duration::from_secs(60));
    if !stopped {
        report.warn("the node did not stop in an orderly way");
    }
    summarise(&mut report, &args.connections, &cells);
    args.node.clean();
    Ok(report)
}

/// The command.
pub fn run(args: &IngestArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("ingest"))?;
    Ok(())
}

/// A node as the subject of rounds.
pub fn node_subject(node: &Node, data: &Path) -> Subject {
    Subject {
        name: "node".to_owned(),
        address: node.ingest,
        path: "/webhooks/demo".to_owned(),
        pid: node.pid(),
        device: device_of(data),
    }
}

/// A round in which something was refused, or less was written than was acked, proves nothing.
fn check(measured: &Measured, body_bytes: usize, has_device: bool) -> anyhow::Result<()> {
    if measured.load.not_acked() > 0 {
        let ends: Vec<String> = measured
            .load
            .outcomes
            .iter()
            .map(|(outcome, count)| format!("{count} x {} {}", outcome.status, outcome.word))
            .collect();
        bail!("the node refused some requests: {}", ends.join(", "));
    }
    if measured.written_per_ack < body_bytes as f64 {
        bail!(
            "the node acked {} hooks of {body_bytes} bytes and wrote {:.0} bytes for each: not on the disk",
            measured.load.acked_in_window,
            measured.written_per_ack
        );
    }
    if has_device && measured.flushes_per_ack <= 0.0 {
        bail!(
            "the device saw no flush while the node acked {} hooks",
            measured.load.acked_in_window
        );
    }
    Ok(())
}

fn summarise(report: &mut Report, connections: &[usize], cells: &[Cell]) {
    let all = |rounds: &[Measured], pick: &dyn Fn(&Measured) -> f64| {
        rounds.iter().map(pick).collect::<Vec<f64>>()
    };
    let mut idles = Vec::new();
    let (mut http_line, mut node_line) = (Vec::new(), Vec::new());
    for (n, cell) in connections.iter().zip(cells) {
        let mut add = |name: &str, unit: &'static str, rounds: &[f64]| {
            let figure = Figure::new(format!("{name} at {n}"), unit, rounds);
            let median = figure.median;
            report.figure(figure);
            median
        };
        let http = add("http", "1/s", &all(&cell.bare, &|m| m.load.rate()));
        let node = add("acked", "1/s", &all(&cell.node, &|m| m.load.rate()));
        http_line.push((*n as f64, http));
        node_line.push((*n as f64, node));
        let ratios: Vec<f64> = cell
            .node
            .iter()
            .zip(&cell.bare)
            .map(|(node, bare)| node.load.rate() / bare.load.rate().max(1.0))
            .collect();
        add("ratio to http", "", &ratios);
        add(
            "ack p50",
            "us",
            &all(&cell.node, &|m| m.load.acked_us(50.0)),
        );
        add(
            "ack p99",
            "us",
            &all(&cell.node, &|m| m.load.acked_us(99.0)),
        );
        add(
            "ack p99 over p50",
            "",
            &all(&cell.node, &|m| {
                m.load.acked_us(99.0) / m.load.acked_us(50.0).max(0.001)
            }),
        );
        add(
            "http p50",
            "us",
            &all(&cell.bare, &|m| m.load.acked_us(50.0)),
        );
        add(
            "node CPU",
            "us/ack",
            &all(&cell.node, &|m| m.cpu_us_per_ack),
        );
        add(
            "http CPU",
            "us/request",
            &all(&cell.bare, &|m| m.cpu_us_per_ack),
        );
        let cpu: Vec<f64> = cell
            .node
            .iter()
            .zip(&cell.bare)
            .map(|(node, bare)| node.cpu_us_per_ack / bare.cpu_us_per_ack.max(0.001))
            .collect();
        add("CPU over http", "", &cpu);
        add(
            "written",
            "bytes/ack",
            &all(&cell.node, &|m| m.written_per_ack),
        );
        add(
            "acks per flush",
            "",
            &all(&cell.node, &|m| 1.0 / m.flushes_per_ack.max(1e-9)),
        );
        if !cell.delivered.is_empty() {
            add("delivered", "1/s", &cell.delivered);
        }
        idles.extend(cell.node.iter().chain(&cell.bare).map(|m| m.idle));
    }
    report.throughput("http", http_line);
    report.throughput("node", node_line);
    report.extra(
        "idle_rounds",
        json!(idles.iter().map(|i| number(*i)).collect::<Vec<_>>()),
    );
    report.figure(Figure::new("idle share of the machine", "", &idles));
}
