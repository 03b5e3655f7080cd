//! One round of one subject: the load, and what the server and the machine did meanwhile.
//!
//! The server is judged from outside: its processor time, the bytes it handed to the block layer
//! (`/proc/<pid>/io`) and the flushes the device saw (`/sys/block`), not what it says of itself.
//!
//! Runs on the load thread; the samples are taken when the window opens and closes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::{ThreadTimes, cpu_time, thread_times};
use crate::hostfacts::{self, BusyMark, busy_mark};
use crate::load::{self, LoadError, LoadPlan, LoadResult, Probe, Stop};
use crate::report::{Row, load_row, number};

/// A server that is running.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// The request target.
    pub path: String,
    /// Its process.
    pub pid: u32,
    /// The device its data is on, as a directory of `/sys`.
    pub device: Option<PathBuf>,
}

/// The settings of a round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Its number, from 1.
    pub number: usize,
    /// Connections.
    pub connections: usize,
    /// Body bytes.
    pub body_bytes: usize,
    /// Not recorded.
    pub warmup: Duration,
    /// Recorded.
    pub duration: Duration,
    /// The generator's core.
    pub load_core: usize,
}

/// What a round showed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The client's side.
    pub load: LoadResult,
    /// Processor time of the server for each 2xx answer, microseconds.
    pub cpu_us_per_ack: f64,
    /// The same of its reactor cores alone, and of all its threads one by one.
    pub core_us_per_ack: f64,
    /// See there.
    pub threads_us_per_ack: f64,
    /// Share of the window in which its reactor cores ran (1 for each).
    pub core_busy: f64,
    /// Bytes the server handed to the block layer for each 2xx answer.
    pub written_per_ack: f64,
    /// Flushes of the device for each 2xx answer.
    pub flushes_per_ack: f64,
    /// Idle share of the machine.
    pub idle: f64,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    cpu: Duration,
    threads: ThreadTimes,
    written_bytes: u64,
    flushes: u64,
    busy: BusyMark,
}

struct Sampler<'a> {
    subject: &'a Subject,
    opened: Sample,
    closed: Sample,
    idle: f64,
}

impl Subject {
    /// The plan of a closed loop against it.
    pub fn plan(&self, round: &Round) -> LoadPlan {
        let mut plan = LoadPlan::new(self.address, &self.path);
        plan.connections = round.connections;
        plan.body.sizes = vec![round.body_bytes];
        plan.warmup = round.warmup;
        plan.stop = Stop::After(round.duration);
        plan.core = Some(round.load_core);
        plan
    }

    fn sample(&self) -> Sample {
        Sample {
            cpu: cpu_time(self.pid).unwrap_or_default(),
            threads: thread_times(self.pid),
            written_bytes: written_bytes(self.pid),
            flushes: self.device.as_deref().map_or(0, flushes),
            busy: busy_mark(),
        }
    }
}

impl Probe for Sampler<'_> {
    fn window_opens(&mut self) {
        self.opened = self.subject.sample();
    }

    fn window_closes(&mut self) {
        self.closed = self.subject.sample();
        self.idle = self.opened.busy.idle_since();
    }
}

/// Makes one round with a plan.
pub fn measure(subject: &Subject, plan: &LoadPlan) -> Result<Measured, LoadError> {
    let mut sampler = Sampler {
        subject,
        opened: Sample::default(),
        closed: Sample::default(),
        idle: 0.0,
    };
    let load = load::run(plan, &mut sampler)?;
    let acks = load.acked_in_window.max(1) as f64;
    let (opened, closed) = (sampler.opened, sampler.closed);
    let us = |from: Duration, to: Duration| to.saturating_sub(from).as_nanos() as f64 / 1000.0;
    let cores_us = us(opened.threads.cores, closed.threads.cores);
    Ok(Measured {
        core_us_per_ack: cores_us / acks,
        threads_us_per_ack: us(opened.threads.all, closed.threads.all) / acks,
        core_busy: cores_us / 1e6 / load.window.as_secs_f64().max(1e-9),
        cpu_us_per_ack: closed.cpu.saturating_sub(opened.cpu).as_micros() as f64 / acks,
        written_per_ack: closed.written_bytes.saturating_sub(opened.written_bytes) as f64 / acks,
        flushes_per_ack: closed.flushes.saturating_sub(opened.flushes) as f64 / acks,
        idle: sampler.idle,
        load,
    })
}

impl Measured {
    /// The row of this round.
    pub fn row(&self, subject: &str, round: &Round) -> Row {
        let mut row = load_row(subject, round.number, round.connections, &self.load);
        row.push(("server_cpu_us_per_ack", number(self.cpu_us_per_ack)));
        row.push(("core_us_per_ack", number(self.core_us_per_ack)));
        row.push(("threads_us_per_ack", number(self.threads_us_per_ack)));
        row.push(("core_busy", number(self.core_busy)));
        row.push(("written_bytes_per_ack", number(self.written_per_ack)));
        row.push(("flushes_per_ack", number(self.flushes_per_ack)));
        row.push(("idle", number(self.idle)));
        row
    }
}

/// The `/sys` directory of the whole disk under a directory, when there is one.
pub fn device_of(dir: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let dev = std::fs::metadata(dir).ok()?.dev();
    let path = PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        libc::major(dev),
        libc::minor(dev)
    ));
    if path.join("queue").is_dir() {
        Some(path)
    } else {
        path.join("..").canonicalize().ok()
    }
}

/// Flushes a device has completed: field 16 of its `stat`.
pub fn flushes(device: &Path) -> u64 {
    let stat = hostfacts::read(device.join("stat"));
    stat.split_ascii_whitespace()
        .nth(15)
        .and_then(|f| f.parse().ok())
        .unwrap_or(0)
}

fn written_bytes(pid: u32) -> u64 {
    hostfacts::read(format!("/proc/{pid}/io"))
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(0)
}
