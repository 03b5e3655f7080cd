//! `intake`: what the second home of a hook costs. The node under `wal.type: dual` against the same
//! node under `disk`, in alternating rounds of one run.
//!
//! Three parts. `latency`: p50 of the ack at a moderate constant rate, against the larger of the
//! disk's own and of the confirm as a core sees it; with syncs and confirms of other lengths too.
//! `throughput`: acked hooks per second at full load, and the processor time of each on the reactor
//! core and in all threads. `producer`: one partition on real brokers through the node's adapter,
//! against the brokers' own producer tool.
//!
//! The log in files stands for one elsewhere: it is on a memory file system, so that its syncs do
//! not wait for the disk that is measured. Reactor core and load have a core each; every other
//! thread of the node, the log's and the Kafka client's among them, runs where there is room.

mod adapter;
mod confirm;
mod goals;
mod latency;
mod producer;
mod rig;
mod throughput;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::{BenchArgs, NodeArgs, parse_duration, parse_size};
use crate::hostfacts;
use crate::report::{Figure, Report, number};

use goals::Goals;
use rig::Brokers;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// p50 of the ack at a moderate rate.
    Latency,
    /// Full load, and the processor time of a hook.
    Throughput,
    /// The adapter alone against the brokers' own producer tool; needs --kafka.
    Producer,
}

/// Options of `intake`.
#[derive(Args, Clone, Debug)]
pub struct IntakeArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Only these parts [default: all that can run]
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub parts: Vec<Part>,
    /// `drills/kafka`, whose brokers are up: rows over real brokers beside those over the log in files
    #[arg(long, value_name = "FILE")]
    pub kafka: Option<PathBuf>,
    /// The node built with `--features ankusa-engine/mutations`: only it can be given slow syncs
    #[arg(long, value_name = "FILE")]
    pub stalled_ankusa: Option<PathBuf>,
    /// When the log in files confirms, after a record has come to it
    #[arg(long, default_value = "5ms", value_name = "TIME", value_parser = parse_duration)]
    pub confirm: Duration,
    /// What a slow sync takes longer, and a slow confirm takes
    #[arg(long, default_value = "30ms", value_name = "TIME", value_parser = parse_duration)]
    pub slow: Duration,
    /// Hooks per second of the latency part
    #[arg(long, default_value_t = 5000.0, value_name = "PER_S")]
    pub rate: f64,
    /// Connections of the throughput part; several, separated by commas, are measured in turn
    #[arg(
        short,
        long,
        default_value = "512",
        value_delimiter = ',',
        value_name = "N"
    )]
    pub connections: Vec<usize>,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = parse_size)]
    pub body: usize,
    /// Record bytes of the producer part
    #[arg(long, default_value = "1024,10240", value_delimiter = ',', value_name = "BYTES", value_parser = parse_size)]
    pub records: Vec<usize>,
    /// Bytes of a round of the producer part, a quarter more before it not counted
    #[arg(long, default_value = "400MiB", value_name = "BYTES", value_parser = parse_size)]
    pub volume: usize,
    /// Where the log in files is
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub log_dir: PathBuf,
    /// Do not grow the slots first: the figures then include the writing of new files
    #[arg(long)]
    pub no_grow: bool,
}

impl IntakeArgs {
    /// Some parts over the log in files, all else as by default.
    pub fn over_files(bench: BenchArgs, node: NodeArgs, parts: Vec<Part>) -> IntakeArgs {
        IntakeArgs {
            bench,
            node,
            parts,
            kafka: None,
            stalled_ankusa: None,
            confirm: Duration::from_millis(5),
            slow: Duration::from_millis(30),
            rate: 5000.0,
            connections: vec![512],
            body: 1024,
            records: Vec::new(),
            volume: 0,
            log_dir: PathBuf::from("/dev/shm"),
            no_grow: false,
        }
    }

    fn has(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &IntakeArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    args.node.fresh_dir()?;
    let host = hostfacts::gather(Some(&args.node.data));
    let settings = json!({
        "rate": args.rate, "connections": args.connections, "body_bytes": args.body,
        "confirm_ms": ms(args.confirm), "slow_ms": ms(args.slow), "kafka": args.kafka.is_some(),
        "rounds": bench.rounds, "sync": args.node.sync, "groups_inflight": args.node.groups_inflight,
        "grown": !args.no_grow, "server_core": bench.server_core, "load_core": bench.load_core,
        "duration_s": bench.duration.as_secs_f64(), "warmup_s": bench.warmup.as_secs_f64(),
        "records_bytes": args.records, "volume_bytes": args.volume,
    });
    let mut report = Report::new("intake", host, settings);
    let brokers = args.kafka.as_deref().map(Brokers::new).transpose()?;
    let (mut goals, mut idles) = (Goals::default(), Vec::new());
    if args.has(Part::Latency) {
        latency::run(args, brokers.as_ref(), &mut report, &mut goals, &mut idles)?;
    }
    if args.has(Part::Throughput) {
        throughput::run(args, brokers.as_ref(), &mut report, &mut goals, &mut idles)?;
    }
    match &brokers {
        Some(brokers) if args.has(Part::Producer) => {
            producer::run(args, brokers, &mut report, &mut goals, &mut idles)?;
        }
        _ if args.parts.contains(&Part::Producer) => {
            anyhow::bail!("the part `producer` needs --kafka")
        }
        _ => {}
    }
    report.extra(
        "idle_rounds",
        json!(idles.iter().map(|i| number(*i)).collect::<Vec<_>>()),
    );
    report.figure(Figure::new("idle share of the machine", "", &idles));
    goals.tell(&mut report);
    args.node.clean();
    Ok(report)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The command.
pub fn run(args: &IntakeArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("intake"))?;
    Ok(())
}
