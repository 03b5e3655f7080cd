//! `lone`: what a single request pays over the device's own sync.
//!
//! One connection, one request at a time, against 4 KiB writes and syncs of the device at depth
//! one, alternating in one run.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::{BenchArgs, NodeArgs};
use crate::device::{self, DevicePlan, Sync};
use crate::hostfacts;
use crate::ingest::{READY_PATIENCE, node_subject};
use crate::measure::measure;
use crate::report::{Figure, Report, number, text};

const BLOCK_BYTES: usize = 4096;

/// Options of `lone`.
#[derive(Args, Clone, Debug)]
pub struct LoneArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &LoneArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    let plan = args.node.plan(bench.server_core)?;
    let host = hostfacts::gather(Some(&args.node.data));
    let settings = json!({
        "body_bytes": args.body, "rounds": bench.rounds, "sync": plan.sync, "connections": 1,
        "server_core": bench.server_core, "load_core": bench.load_core, "duration_s": bench.duration.as_secs_f64(),
    });
    let mut report = Report::new("lone", host, settings);
    let file = device::prepare(&args.node.data, bench.server_core)?;
    let device_plan = DevicePlan {
        file,
        core: bench.server_core,
        write_bytes: BLOCK_BYTES,
        depth: 1,
        sync: if plan.sync == "dsync" {
            Sync::Dsync
        } else {
            Sync::Fdatasync
        },
        warmup: bench.warmup,
        duration: bench.duration,
    };
    let node = plan.start(READY_PATIENCE)?;
    let subject = node_subject(&node, &args.node.data);
    let (mut device_p50, mut ack_p50, mut over, mut idles) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number_of in 1..=bench.rounds as usize {
        let synced = device::run(&device_plan)?;
        let p50 = synced.latency.value_at_quantile(0.5) as f64 / 1000.0;
        report.row(vec![
            ("subject", text("device")),
            ("round", json!(number_of)),
            ("p50_us", number(p50)),
            ("flushes_per_ack", number(synced.flushes)),
            (
                "p99_us",
                number(synced.latency.value_at_quantile(0.99) as f64 / 1000.0),
            ),
        ]);
        report.latencies("device sync", &synced.latency);
        let round = bench.round(number_of, 1, args.body);
        let acked = measure(&subject, &subject.plan(&round))?;
        report.row(acked.row("node", &round));
        report.latencies("ack", &acked.load.acked);
        device_p50.push(p50);
        ack_p50.push(acked.load.acked_us(50.0));
        over.push(acked.load.acked_us(50.0) - p50);
        idles.push(acked.idle);
    }
    node.stop(Duration::from_secs(60));
    report.figure(Figure::new("device sync p50", "us", &device_p50));
    report.figure(Figure::new("ack p50", "us", &ack_p50));
    report.figure(Figure::new("ack p50 over device sync p50", "us", &over));
    report.figure(Figure::new("idle share of the machine", "", &idles));
    args.node.clean();
    Ok(report)
}

/// The command.
pub fn run(args: &LoneArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("lone"))?;
    Ok(())
}
