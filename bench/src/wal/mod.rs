//! `wal`: the store of one shard alone, against the device with nothing around it.
//!
//! Both write and sync the same number of bytes at the same depth on the same kind of file, on
//! the same executor, in alternating rounds. The store encodes, checksums and applies every
//! hook; the device loop sends a buffer that is ready.
//!
//! Invariant: the device loop's writes are as large as the frames the store really wrote.
//! Runs on one executor pinned to the server's core; nothing else of the process is running.

mod host;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::{BenchArgs, fresh_dir};
use crate::device::{self, DevicePlan, DeviceResult, Sync};
use crate::hostfacts;
use crate::report::{Figure, Report, number, text};
use store::StoreLoop;

const BLOCK_BYTES: usize = 4096;

/// Options of `wal`.
#[derive(Args, Clone, Debug)]
pub struct WalArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Directory for the store, on the disk to be measured; emptied first
    #[arg(long, default_value = "bench-data", value_name = "DIR")]
    pub data: PathBuf,
    /// Bytes of a group; several, separated by commas, are measured in turn
    #[arg(long, default_value = "4k,16k,64k,256k,1M", value_delimiter = ',', value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub groups: Vec<usize>,
    /// Body bytes of a hook
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    pub body: usize,
    /// Groups in flight
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub depth: u32,
    /// How a group is made durable
    #[arg(long, default_value = "fdatasync", value_name = "MODE")]
    pub sync: Sync,
    /// Leave the data behind
    #[arg(long)]
    pub keep: bool,
}

/// One round of one side.
#[derive(Clone, Debug)]
pub struct WalRound {
    /// `store` or `device`.
    pub subject: &'static str,
    /// Its number, from 1.
    pub number: usize,
    /// The size asked for.
    pub group_bytes: usize,
    /// Bytes really written for each group.
    pub written_bytes: usize,
    /// Hooks for each group (0: the device loop).
    pub hooks: f64,
    /// Rate and latencies.
    pub result: DeviceResult,
    /// Slot files of the store after it.
    pub slots: u32,
    /// Idle share of the machine.
    pub idle: f64,
}

/// Runs the bench and returns its report, not yet written.
pub fn bench(args: &WalArgs) -> anyhow::Result<Report> {
    let bench = &args.bench;
    let dir = fresh_dir(&args.data)?;
    let host = hostfacts::gather(Some(&dir));
    let settings = json!({
        "group_bytes": args.groups, "body_bytes": args.body, "depth": args.depth, "sync": format!("{:?}", args.sync),
        "rounds": bench.rounds, "core": bench.server_core, "duration_s": bench.duration.as_secs_f64(),
    });
    let mut report = Report::new("wal", host, settings);
    let file = device::prepare(&dir, bench.server_core)?;
    let on_core_args = args.clone();
    let rounds = device::on_core(bench.server_core, move || {
        all_rounds(on_core_args, dir, file)
    })?;
    for round in &rounds {
        report.row(row(round));
        report.latencies(
            &format!("{} {}", round.subject, size(round.group_bytes)),
            &round.result.latency,
        );
    }
    for &group in &args.groups {
        summarise(&mut report, &rounds, group);
    }
    let idles: Vec<f64> = rounds.iter().map(|r| r.idle).collect();
    report.figure(Figure::new("idle share of the machine", "", &idles));
    if !args.keep {
        let _ = std::fs::remove_dir_all(&args.data);
    }
    Ok(report)
}

/// The command.
pub fn run(args: &WalArgs) -> anyhow::Result<()> {
    bench(args)?.finish(&args.bench.out_dir("wal"))?;
    Ok(())
}

async fn all_rounds(args: WalArgs, dir: PathBuf, file: PathBuf) -> anyhow::Result<Vec<WalRound>> {
    let bench = &args.bench;
    let store = StoreLoop::open(&dir, args.depth as usize, args.sync, args.body).await?;
    let mut out = Vec::new();
    for &group_bytes in &args.groups {
        // Grow the slots for a round of this size, outside of any measurement.
        store
            .run(group_bytes, Duration::ZERO, bench.warmup + bench.duration)
            .await?;
        store.recycle().await?;
        for number in 1..=bench.rounds as usize {
            let mark = hostfacts::busy_mark();
            let (result, written) = store.run(group_bytes, bench.warmup, bench.duration).await?;
            let idle = mark.idle_since();
            let frame_bytes = written
                .bytes_per_group
                .next_multiple_of(BLOCK_BYTES)
                .max(BLOCK_BYTES);
            let slots = store.slots();
            let hooks = written.hooks_per_group;
            out.push(WalRound {
                subject: "store",
                number,
                group_bytes,
                written_bytes: frame_bytes,
                hooks,
                result,
                slots,
                idle,
            });
            store.recycle().await?;
            let plan = DevicePlan {
                file: file.clone(),
                core: bench.server_core,
                write_bytes: frame_bytes,
                depth: args.depth as usize,
                sync: args.sync,
                warmup: bench.warmup,
                duration: bench.duration,
            };
            let mark = hostfacts::busy_mark();
            let result = device::run_here(plan).await?;
            let idle = mark.idle_since();
            out.push(WalRound {
                subject: "device",
                number,
                group_bytes,
                written_bytes: frame_bytes,
                hooks: 0.0,
                result,
                slots,
                idle,
            });
        }
    }
    store.close().await?;
    Ok(out)
}

fn row(round: &WalRound) -> crate::report::Row {
    let us = |q: f64| number(round.result.latency.value_at_quantile(q) as f64 / 1000.0);
    vec![
        ("subject", text(round.subject)),
        ("round", json!(round.number)),
        ("group_bytes", json!(round.group_bytes)),
        ("written_bytes", json!(round.written_bytes)),
        ("hooks_per_group", number(round.hooks)),
        ("groups_per_s", number(round.result.rate)),
        ("p50_us", us(0.5)),
        ("p99_us", us(0.99)),
        ("p99_9_us", us(0.999)),
        ("cpu_us_per_group", number(round.result.cpu_us)),
        ("flushes_per_group", number(round.result.flushes)),
        ("slots", json!(round.slots)),
        ("idle", number(round.idle)),
    ]
}

fn summarise(report: &mut Report, rounds: &[WalRound], group: usize) {
    let of = |subject: &str| {
        rounds
            .iter()
            .filter(|r| r.group_bytes == group && r.subject == subject)
            .collect::<Vec<_>>()
    };
    let (store, device) = (of("store"), of("device"));
    let name = |what: &str| format!("{what} at {}", size(group));
    let rates = |side: &[&WalRound]| side.iter().map(|r| r.result.rate).collect::<Vec<f64>>();
    let ratios: Vec<f64> = store
        .iter()
        .zip(&device)
        .map(|(s, d)| s.result.rate / d.result.rate.max(1e-9))
        .collect();
    let p50s: Vec<f64> = store
        .iter()
        .map(|r| r.result.latency.value_at_quantile(0.5) as f64 / 1000.0)
        .collect();
    let bytes: Vec<f64> = store
        .iter()
        .map(|r| r.result.rate * r.written_bytes as f64 / 1e6)
        .collect();
    report.figure(Figure::new(name("store"), "groups/s", &rates(&store)));
    report.figure(Figure::new(name("device"), "writes/s", &rates(&device)));
    report.figure(Figure::new(name("ratio"), "", &ratios));
    report.figure(Figure::new(name("store p50"), "us", &p50s));
    report.figure(Figure::new(name("store written"), "MB/s", &bytes));
    if device.iter().any(|r| r.result.flushes > 0.0)
        && store.iter().any(|r| r.result.flushes <= 0.0)
    {
        report.warn("the device saw no flush in a round of the store");
    }
    let grown = store
        .last()
        .map_or(0, |r| r.slots)
        .saturating_sub(store.first().map_or(0, |r| r.slots));
    if grown > 0 {
        report.warn(format!(
            "the store made {grown} new slots during the rounds of {}",
            size(group)
        ));
    }
}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}
