//! `peers`: the same durable write against what others use for it, in one run on one disk.
//!
//! One 1 KB record per request, answered when it is durable, no pipelining, the same client loop
//! for all: Redis with an append-only file and `appendfsync always`, PostgreSQL with one row per
//! commit, NATS JetStream with `sync_interval: always`, and the node over HTTP with its sink
//! paused. Rounds alternate. Every server is started here, pinned to the server core, and stopped
//! here; one that is not installed is left out and said so.
//!
//! What is compared is the durable write, not what else the products do.

mod client;
mod nats;
mod node;
mod postgres;
mod redis;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::cli::{BenchArgs, NodeArgs};
use crate::hostfacts::{self, busy_mark};
use crate::ingest::{READY_PATIENCE, grow};
use crate::load::LoadResult;
use crate::measure::{device_of, flushes};
use crate::report::{Figure, Report, load_row, number};

use client::Protocol;
use server::Server;

/// Options of `peers`.
#[derive(Args, Clone, Debug)]
pub struct PeersArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and the data of all.
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
    /// The `redis-server` program
    #[arg(long, default_value = "redis-server", value_name = "FILE")]
    pub redis: PathBuf,
    /// The directory of `initdb` and `postgres` [default: the newest of /usr/lib/postgresql]
    #[arg(long, value_name = "DIR")]
    pub postgres: Option<PathBuf>,
    /// The `nats-server` program
    #[arg(long, default_value = "nats-server", value_name = "FILE")]
    pub nats: PathBuf,
}

/// A server under test, and how to talk to it.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) settings: String,
    pub(crate) server: Server,
    pub(crate) protocol: Box<dyn Protocol>,
}

/// The rounds of one peer at one number of connections.
#[derive(Default)]
struct Cell {
    rounds: Vec<LoadResult>,
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &PeersArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    let plan = args.node.plan(bench.server_core)?;
    let data = args.node.data.canonicalize()?;
    let host = hostfacts::gather(Some(&args.node.data));
    let seconds = (bench.duration + bench.warmup).as_secs_f64()
        * f64::from(bench.rounds)
        * args.connections.len() as f64;
    grow(&plan, bench.load_core, args.body, seconds)?;
    let mut missing = Vec::new();
    let mut peers = Vec::new();
    let mut add = |name: &str, peer: anyhow::Result<Peer>| match peer {
        Ok(peer) => peers.push(peer),
        Err(why) => missing.push(format!("{name} is left out: {why:#}")),
    };
    let core = bench.server_core;
    add(
        "redis",
        redis::start(&args.redis, &data.join("redis"), core),
    );
    add(
        "postgresql",
        postgres::start(args.postgres.as_deref(), &data.join("postgres"), core),
    );
    add("nats", nats::start(&args.nats, &data.join("nats"), core));
    let node = plan.start(READY_PATIENCE)?;
    let settings = json!({
        "connections": args.connections, "body_bytes": args.body, "rounds": bench.rounds,
        "server_core": core, "load_core": bench.load_core, "sync": plan.sync,
        "duration_s": bench.duration.as_secs_f64(), "warmup_s": bench.warmup.as_secs_f64(),
        "peers": peers.iter().map(|p| json!({"name": p.name, "settings": p.settings})).collect::<Vec<_>>(),
    });
    let mut report = Report::new("peers", host, settings);
    for line in missing {
        report.warn(line);
    }
    let http = node::Http::new(node.ingest);
    let subjects: Vec<(&str, std::net::SocketAddr, &dyn Protocol)> =
        std::iter::once(("ankusa", node.ingest, &http as &dyn Protocol))
            .chain(
                peers
                    .iter()
                    .map(|p| (p.name, p.server.address, p.protocol.as_ref())),
            )
            .collect();
    let device = device_of(&data);
    let mut idles = Vec::new();
    for &connections in &args.connections {
        let mut cells: Vec<Cell> = subjects.iter().map(|_| Cell::default()).collect();
        for number_of in 1..=bench.rounds as usize {
            for (cell, (name, address, protocol)) in cells.iter_mut().zip(&subjects) {
                let round = bench.round(number_of, connections, args.body);
                let (busy, flushed) = (busy_mark(), device.as_deref().map_or(0, flushes));
                let result = client::run(*address, *protocol, &round)?;
                let idle = busy.idle_since();
                let flushed = device.as_deref().map_or(0, flushes) - flushed;
                if result.not_acked() > 0 {
                    bail!("{name} refused: {:?}", result.outcomes);
                }
                let mut row = load_row(name, number_of, connections, &result);
                let acks = result.acked.len().max(1) as f64;
                row.push(("flushes_per_ack", number(flushed as f64 / acks)));
                row.push(("idle", number(idle)));
                report.row(row);
                report.latencies(&format!("{name} {connections}"), &result.acked);
                if device.is_some() && flushed == 0 {
                    bail!("the device saw no flush while {name} answered");
                }
                idles.push(idle);
                cell.rounds.push(result);
            }
        }
        summarise(&mut report, connections, &subjects, &cells);
    }
    report.figure(Figure::new("idle share of the machine", "", &idles));
    node.stop(Duration::from_secs(60));
    for peer in &mut peers {
        peer.server.stop();
    }
    args.node.clean();
    Ok(report)
}

fn summarise(
    report: &mut Report,
    connections: usize,
    subjects: &[(&str, std::net::SocketAddr, &dyn Protocol)],
    cells: &[Cell],
) {
    let Some(own) = cells.first() else { return };
    for ((name, _, _), cell) in subjects.iter().zip(cells) {
        let all = |pick: &dyn Fn(&LoadResult) -> f64| -> Vec<f64> {
            cell.rounds.iter().map(pick).collect()
        };
        let mut add = |what: &str, unit: &'static str, rounds: &[f64]| {
            report.figure(Figure::new(
                format!("{name} {what} at {connections}"),
                unit,
                rounds,
            ));
        };
        add("durable writes", "1/s", &all(&|r| r.rate()));
        add("p50", "us", &all(&|r| r.acked_us(50.0)));
        add("p99", "us", &all(&|r| r.acked_us(99.0)));
        if *name != "ankusa" {
            let pairs = || own.rounds.iter().zip(&cell.rounds);
            let rate: Vec<f64> = pairs()
                .map(|(own, peer)| own.rate() / peer.rate().max(1.0))
                .collect();
            let p99: Vec<f64> = pairs()
                .map(|(own, peer)| own.acked_us(99.0) / peer.acked_us(99.0).max(0.001))
                .collect();
            add("rate of ankusa over it", "", &rate);
            add("p99 of ankusa over it", "", &p99);
        }
    }
}

/// The command.
pub fn run(args: &PeersArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("peers"))?;
    Ok(())
}

/// Writes a record's body: ASCII, unique by its number.
pub(crate) fn body(number: u64, bytes: usize, out: &mut Vec<u8>) {
    let from = out.len();
    out.extend_from_slice(format!("{{\"event\":{number:020},\"data\":\"").as_bytes());
    let end = from + bytes.max(out.len() - from + 2);
    out.resize(end - 2, b'x');
    out.extend_from_slice(b"\"}");
}
