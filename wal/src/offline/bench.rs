//! `wal bench`: what the device under a directory does with synced writes, and which settings it
//! recommends.
//!
//! Measures a write followed by a data sync, and a synced write (`O_DSYNC`), at several sizes and
//! with several in flight, in place on a file that was written before: the same operations, on
//! the same disk code, as the log's own. Needs a disk whose operations run at the same time; runs
//! on a core of its own, beside nothing else.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{OfflineError, io_error};
use crate::config::SyncMode;
use crate::disk::{Disk, IO_BYTES_MAX};
use crate::sim::SimRng;

/// The file that is written; removed afterwards.
const FILE: &str = "ankusa-bench.tmp";

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// Size of the file, a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Bytes of each write.
    pub sizes: Vec<usize>,
    /// How many in flight.
    pub inflight: Vec<usize>,
    /// Time for each cell.
    pub cell: Duration,
    /// Rounds over all cells; each cell's figures are over all rounds, which are interleaved.
    pub rounds: u32,
}

impl Default for BenchConfig {
    fn default() -> BenchConfig {
        BenchConfig {
            file_bytes: 64 << 20,
            sizes: vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            inflight: vec![1, 2, 4],
            cell: Duration::from_millis(500),
            rounds: 3,
        }
    }
}

/// One cell of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchCell {
    /// How each write was made durable.
    pub sync: SyncMode,
    /// Bytes of each.
    pub bytes: usize,
    /// In flight.
    pub inflight: usize,
    /// Durable writes a second.
    pub per_second: f64,
    /// Median time of one, microseconds.
    pub p50_us: u64,
    /// 99th percentile, microseconds.
    pub p99_us: u64,
    /// Writes measured.
    pub writes: usize,
}

/// What was measured, and what follows.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// All cells.
    pub cells: Vec<BenchCell>,
    /// The setting `wal.sync`.
    pub sync: SyncMode,
    /// The setting `wal.groups_inflight`.
    pub groups_inflight: usize,
    /// How idle the machine's processors were meanwhile, percent; below about 40 the figures say
    /// more about the other work than about the disk.
    pub idle_percent: Option<u64>,
}

/// Measures. The file is made first, which takes as long as writing it once.
pub async fn device_bench<D: Disk>(
    disk: &D,
    config: &BenchConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BenchReport, OfflineError> {
    let _ = disk.remove(FILE).await;
    let before = cpu_times();
    let result = measure_all(disk, config, progress).await;
    let after = cpu_times();
    let _ = disk.remove(FILE).await;
    let cells = result?;
    let (sync, groups_inflight) = recommend(&cells);
    let idle_percent = before
        .zip(after)
        .and_then(|((idle_0, all_0), (idle_1, all_1))| {
            (idle_1.saturating_sub(idle_0) * 100).checked_div(all_1.saturating_sub(all_0))
        });
    Ok(BenchReport {
        cells,
        sync,
        groups_inflight,
        idle_percent,
    })
}

async fn measure_all<D: Disk>(
    disk: &D,
    config: &BenchConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<BenchCell>, OfflineError> {
    let file = disk
        .create(FILE)
        .await
        .map_err(io_error("creating", FILE))?;
    let buf = noise(disk, IO_BYTES_MAX, 1);
    for pos in (0..config.file_bytes).step_by(IO_BYTES_MAX) {
        disk.write_at(&file, Rc::clone(&buf), pos)
            .await
            .map_err(io_error("writing", FILE))?;
    }
    disk.sync_data(&file)
        .await
        .map_err(io_error("syncing", FILE))?;
    disk.sync_dir()
        .await
        .map_err(io_error("syncing the directory of", FILE))?;
    let synced = disk
        .reopen_dsync(FILE)
        .await
        .map_err(io_error("opening", FILE))?;

    let mut shapes = Vec::new();
    for &bytes in &config.sizes {
        for &inflight in &config.inflight {
            shapes.push((SyncMode::Fdatasync, bytes, inflight));
            shapes.push((SyncMode::Dsync, bytes, inflight));
        }
    }
    let mut samples: Vec<(Vec<u64>, Duration)> = vec![Default::default(); shapes.len()];
    let total = shapes.len() as u64 * u64::from(config.rounds);
    let mut done = 0;
    for _ in 0..config.rounds {
        for (&(sync, bytes, inflight), (times, spent)) in shapes.iter().zip(&mut samples) {
            let file = if sync == SyncMode::Dsync {
                &synced
            } else {
                &file
            };
            let start = Instant::now();
            let round = cell(disk, file, sync, bytes, inflight, config).await;
            times.extend(round.map_err(io_error("writing", FILE))?);
            *spent += start.elapsed();
            done += 1;
            progress(done, total);
        }
    }
    disk.close(synced).await;
    disk.close(file).await;
    let cells = shapes.into_iter().zip(samples);
    Ok(cells
        .map(|((sync, bytes, inflight), s)| summarize(sync, bytes, inflight, s))
        .collect())
}

/// Bytes that no device makes smaller.
fn noise<D: Disk>(disk: &D, bytes: usize, seed: u64) -> Rc<D::Buf> {
    let mut rng = SimRng::new(seed);
    let mut buf = disk.alloc(bytes);
    for chunk in buf.as_mut().chunks_mut(8) {
        let random = rng.next_u64().to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    Rc::new(buf)
}

/// Processor time of the machine so far, from `/proc/stat`: idle (waiting for disks too), all.
fn cpu_times() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = fields
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    Some((times.get(3)? + times.get(4)?, times.iter().take(8).sum()))
}

/// One cell: `inflight` loops that share the position; answers the time of each write.
async fn cell<D: Disk>(
    disk: &D,
    file: &D::File,
    sync: SyncMode,
    bytes: usize,
    inflight: usize,
    config: &BenchConfig,
) -> std::io::Result<Vec<u64>> {
    let next = std::cell::Cell::new(0u64);
    let end = Instant::now() + config.cell;
    let lane = || async {
        let mut times = Vec::new();
        let buf = noise(disk, bytes, 2);
        loop {
            let pos = next.get();
            let after = pos + bytes as u64;
            next.set(if after + bytes as u64 > config.file_bytes {
                0
            } else {
                after
            });
            let start = Instant::now();
            let wrote = disk.write_at(file, Rc::clone(&buf), pos).await?;
            if wrote < bytes {
                return Err(std::io::Error::from(std::io::ErrorKind::WriteZero));
            }
            if sync == SyncMode::Fdatasync {
                disk.sync_data(file).await?;
            }
            times.push(start.elapsed().as_micros() as u64);
            if Instant::now() >= end {
                return Ok(times);
            }
        }
    };
    let lanes: Vec<Lane<'_, std::io::Result<Vec<u64>>>> =
        (0..inflight).map(|_| Box::pin(lane()) as _).collect();
    let mut all = Vec::new();
    for times in join(lanes).await {
        all.extend(times?);
    }
    Ok(all)
}

type Lane<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Polls a handful of futures until all are done.
async fn join<T>(mut futures: Vec<Lane<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waits = false;
        for (future, slot) in futures.iter_mut().zip(&mut done) {
            if slot.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(out) => *slot = Some(out),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

fn summarize(
    sync: SyncMode,
    bytes: usize,
    inflight: usize,
    (mut times, spent): (Vec<u64>, Duration),
) -> BenchCell {
    times.sort_unstable();
    let at = |q: usize| times.get((times.len() * q / 100).min(times.len().saturating_sub(1)));
    BenchCell {
        sync,
        bytes,
        inflight,
        per_second: times.len() as f64 / spent.as_secs_f64().max(1e-9),
        p50_us: at(50).copied().unwrap_or(0),
        p99_us: at(99).copied().unwrap_or(0),
        writes: times.len(),
    }
}

/// The default (`fdatasync`, two in flight) unless another choice does clearly better (a quarter
/// or more) over the sizes of ordinary groups, up to 64 KiB. Of those that do, the one with the
/// fewest in flight within a tenth of the best: each further group in flight costs latency.
pub fn recommend(cells: &[BenchCell]) -> (SyncMode, usize) {
    const DEFAULT: (SyncMode, usize) = (SyncMode::Fdatasync, 2);
    const CLEARLY: f64 = 1.25;
    let rate = |choice: (SyncMode, usize)| -> Option<f64> {
        let rates = cells
            .iter()
            .filter(|c| (c.sync, c.inflight) == choice && c.bytes <= 64 << 10);
        let logs: Vec<f64> = rates.map(|c| c.per_second.max(1e-9).ln()).collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let mut choices: Vec<(SyncMode, usize)> = cells.iter().map(|c| (c.sync, c.inflight)).collect();
    choices.sort_by_key(|(sync, inflight)| (*inflight, *sync != SyncMode::Fdatasync));
    choices.dedup();
    let best = choices.iter().filter_map(|c| rate(*c)).fold(0.0, f64::max);
    match rate(DEFAULT) {
        Some(default) if best < default * CLEARLY => DEFAULT,
        _ => choices
            .into_iter()
            .find(|c| rate(*c).is_some_and(|r| r >= best * 0.9))
            .unwrap_or(DEFAULT),
    }
}

fn sync_name(sync: SyncMode) -> &'static str {
    match sync {
        SyncMode::Fdatasync => "fdatasync",
        SyncMode::Dsync => "dsync",
    }
}

impl BenchReport {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let cell = |c: &BenchCell| {
            json!({
                "sync": sync_name(c.sync),
                "bytes": c.bytes,
                "inflight": c.inflight,
                "per_second": c.per_second,
                "mib_per_second": c.per_second * c.bytes as f64 / f64::from(1 << 20),
                "p50_us": c.p50_us,
                "p99_us": c.p99_us,
                "writes": c.writes,
            })
        };
        json!({
            "idle_percent": self.idle_percent,
            "cells": self.cells.iter().map(cell).collect::<Vec<_>>(),
            "recommended": {
                "wal.sync": sync_name(self.sync),
                "wal.groups_inflight": self.groups_inflight,
            },
        })
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if cfg!(debug_assertions) {
            writeln!(f, "warning: a debug build; figures are too low")?;
        }
        if let Some(idle) = self.idle_percent.filter(|idle| *idle < 40) {
            writeln!(
                f,
                "warning: the machine was busy with other work ({idle} % idle); measure again when \
                 it is not"
            )?;
        }
        writeln!(
            f,
            "   KiB  sync       in flight   writes/s    MiB/s   p50 us   p99 us"
        )?;
        for c in &self.cells {
            writeln!(
                f,
                "{:>6}  {:<9} {:>10} {:>10.0} {:>8.1} {:>8} {:>8}",
                c.bytes >> 10,
                sync_name(c.sync),
                c.inflight,
                c.per_second,
                c.per_second * c.bytes as f64 / f64::from(1 << 20),
                c.p50_us,
                c.p99_us
            )?;
        }
        write!(
            f,
            "recommended: wal.sync: {}, wal.groups_inflight: {}",
            sync_name(self.sync),
            self.groups_inflight
        )
    }
}
