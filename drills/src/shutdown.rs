//! Drill `power-shutdown`: the file system is shut down under the node, by its own ioctl.
//!
//! From that moment on the file system writes nothing any more and every call fails; what its
//! journal had not made durable is gone. So this shows what the node relies on in the *metadata*:
//! new slots, checkpoints and their names, lengths. It does not take back data that was written in
//! place past the page cache and not synced; for that there are the other power drills.
//!
//! Any Linux: root and loop devices, no FUSE and no device-mapper.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::power::check::Image;
use crate::power::host::{FsKind, Interrupt, LoopDevice, Mounted, Needs, make_fs};
use crate::power::pages::Pages;
use crate::rng::Rng;
use crate::sink::Sink;

/// Bytes of the device; xfs takes no less than 300 MB.
const DEVICE_BYTES: u64 = 512 << 20;
/// The smallest segments there are: slots and checkpoints are made all the time.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes of a body.
const BODY_BYTES: usize = 2000;
/// Connections of the client.
const CONNECTIONS: usize = 32;
/// How long deliveries may stand still before what is not there counts as missing.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How long the node may take to tell it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Acks that were on their way come within this.
const SETTLING: Duration = Duration::from_millis(500);
/// Deliveries that may be repeated after each crash.
const AGAIN: usize = 2 * 4096;
/// `_IOR('X', 125, u32)`.
const FS_IOC_SHUTDOWN: u64 = 0x8004_587D;

/// How a file system is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// As a power cut: the journal is not flushed.
    WithoutJournal,
    /// The journal is flushed, data is not.
    WithJournal,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            How::WithoutJournal => "without the journal",
            How::WithJournal => "with the journal",
        }
    }

    fn flag(self) -> u32 {
        match self {
            How::WithoutJournal => 2,
            How::WithJournal => 1,
        }
    }
}

/// The drill's settings.
#[derive(Clone, Debug, clap::Args)]
pub struct ShutdownPlan {
    /// The ankusa binary; the negative control needs one built with the feature mutations
    #[arg(long)]
    pub binary: PathBuf,
    /// File systems: ext4, xfs or both
    #[arg(long, default_value = "both", value_parser = ["ext4", "xfs", "both"])]
    pub fs: String,
    /// Shutdowns on each file system, half of them with the journal flushed
    #[arg(long, default_value_t = 10)]
    pub cycles: u32,
    /// Hooks acked before each
    #[arg(long, default_value_t = 500)]
    pub acked: usize,
    /// Seed of every choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Leave out the negative control
    #[arg(long)]
    pub without_control: bool,
    /// Install what is missing, through apt
    #[arg(long)]
    pub install: bool,
}

/// Runs the drill and prints what it found. True: every promise held, the control was caught.
pub fn run(plan: &ShutdownPlan) -> Result<bool> {
    let kinds = FsKind::named(&plan.fs);
    Needs::file_systems(kinds).check(plan.install)?;
    let interrupt = Interrupt::install()?;
    let dir = tempfile::Builder::new()
        .prefix("drill-shutdown-")
        .tempdir()?;
    println!("power-shutdown: seed {}", plan.seed);
    let mut holds = true;
    for fs in kinds {
        let started = Instant::now();
        let bench = |mutation| {
            Bench::new(plan, *fs, mutation, dir.path(), &interrupt)
                .with_context(|| format!("on {}", fs.name()))
        };
        let mut report = Report::default();
        let mut promise = bench(None)?;
        let mut rng = Rng::new(plan.seed);
        for cycle in 0..plan.cycles {
            let how = [How::WithoutJournal, How::WithJournal][cycle as usize % 2];
            promise.cycle(plan.acked, how, &mut rng, &mut report)?;
        }
        drop(promise);
        println!("power-shutdown: {}: {report}", fs.name());
        for example in &report.faults {
            println!("power-shutdown: {}:   {example}", fs.name());
        }
        holds &= report.faults.is_empty();
        if !plan.without_control {
            holds &= control(plan, *fs, bench(Some("ack_before_write"))?)?;
        }
        println!(
            "power-shutdown: {}: took {:.1?}",
            fs.name(),
            started.elapsed()
        );
    }
    println!("power-shutdown: {}", if holds { "held" } else { "BROKEN" });
    Ok(holds)
}

/// Cycles of the control before it counts as missed.
const CONTROL_CYCLES: u32 = 10;

/// The negative control: the ack goes out before the write.
fn control(plan: &ShutdownPlan, fs: FsKind, mut bench: Bench) -> Result<bool> {
    let mut report = Report::default();
    let mut rng = Rng::new(plan.seed);
    while report.verdict.missing == 0 && report.cycles < CONTROL_CYCLES {
        bench.cycle(
            plan.acked.min(200),
            How::WithoutJournal,
            &mut rng,
            &mut report,
        )?;
    }
    let caught = report.verdict.missing > 0;
    println!(
        "power-shutdown: {}: control ack_before_write {} after {} shutdowns: {}",
        fs.name(),
        if caught { "caught" } else { "MISSED" },
        report.cycles,
        report.verdict
    );
    Ok(caught)
}

#[derive(Default)]
struct Report {
    cycles: u32,
    /// The node was unready and refused after each.
    told: u32,
    /// The last verdict: the ledger goes on over all cycles.
    verdict: Verdict,
    faults: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.faults.is_empty();
        write!(
            f,
            "shutdowns={} told={} {} {}",
            self.cycles,
            self.told,
            self.verdict,
            if held { "held" } else { "BROKEN" }
        )
    }
}

/// A file system on a loop device over a file in memory, and what sends and takes hooks. Fields are
/// in the order in which they must be undone.
struct Bench {
    mounted: Option<Mounted>,
    loop_device: LoopDevice,
    _image: Image,
    fs: FsKind,
    mutation: Option<&'static str>,
    node_plan: NodePlan,
    ledger: Ledger,
    numbers: Arc<AtomicU64>,
    sink: Sink,
    interrupt: Interrupt,
}

impl Bench {
    fn new(
        plan: &ShutdownPlan,
        fs: FsKind,
        mutation: Option<&'static str>,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Bench> {
        let part = mutation.unwrap_or("promise");
        let mut image = Image::new(&format!("shutdown-{}", fs.name()))?;
        image.fill(&Pages::new(DEVICE_BYTES))?;
        let loop_device = LoopDevice::attach(image.path(), false)?;
        make_fs(fs, loop_device.path())?;
        let sink = Sink::start()?;
        let node_plan = NodePlan {
            binary: plan.binary.canonicalize()?,
            dir: dir.join(format!("{}-{part}", fs.name())),
            sink: sink.address(),
            cores: 1,
            segment_bytes: SEGMENT_BYTES,
            keyed_paused: true,
            more: String::new(),
        };
        let mounted = Mounted::mount(fs, loop_device.path(), &node_plan.data_dir())?;
        Ok(Bench {
            mounted: Some(mounted),
            loop_device,
            _image: image,
            fs,
            mutation,
            node_plan,
            ledger: Ledger::default(),
            numbers: Arc::new(AtomicU64::new(1)),
            sink,
            interrupt: interrupt.clone(),
        })
    }

    fn start(&self, keyed_paused: bool) -> Result<Node> {
        let env: Vec<(&str, &str)> = self
            .mutation
            .iter()
            .map(|name| ("ANKUSA_MUTATION", *name))
            .collect();
        let plan = NodePlan {
            keyed_paused,
            ..self.node_plan.clone()
        };
        let mut node = plan.start(&env)?;
        if !node.wait_ready()? {
            bail!("the node did not come up:\n{}", self.log());
        }
        Ok(node)
    }

    fn log(&self) -> String {
        log_tail(&self.node_plan.log_file())
    }

    /// Load, shutdown, the operator's remount, and a boot that delivers everything.
    fn cycle(&mut self, acked: usize, how: How, rng: &mut Rng, report: &mut Report) -> Result<()> {
        let mut node = self.start(true)?;
        let plan = LoadPlan {
            address: node.address(),
            connections: CONNECTIONS,
            body_bytes: BODY_BYTES,
            keyed_every: 2,
        };
        let load = Load::start(plan, self.ledger.clone(), Arc::clone(&self.numbers));
        let ended = self.hurt(&mut node, acked, how, rng, report);
        node.kill()?;
        load.stop();
        ended?;
        report.cycles += 1;
        self.mounted = None;
        let mounted = Mounted::mount(self.fs, self.loop_device.path(), &self.node_plan.data_dir())?;
        self.mounted = Some(mounted);
        let mut node = self.start(false)?;
        self.drain()?;
        if !node.stop()? {
            report
                .faults
                .push(format!("not a clean stop: {}", self.log()));
        }
        let allowed = report.cycles as usize * AGAIN;
        report.verdict = judge(&self.ledger.rows(), &self.sink.delivered(), allowed);
        if !report.verdict.holds() {
            let what = format!(
                "shutdown {} ({}): {}",
                report.cycles,
                how.name(),
                report.verdict
            );
            report.faults.push(what);
            report.faults.extend(report.verdict.examples.clone());
        }
        Ok(())
    }

    fn hurt(
        &self,
        node: &mut Node,
        acked: usize,
        how: How,
        rng: &mut Rng,
        report: &mut Report,
    ) -> Result<()> {
        let target = self.ledger.acked_count() + acked;
        self.wait("enough is acked", Duration::from_secs(120), || {
            Ok(self.ledger.acked_count() >= target)
        })?;
        std::thread::sleep(Duration::from_micros(rng.range(0, 50_000)));
        let mounted = self.mounted.as_ref().context("not mounted")?;
        shut_down(mounted.dir(), how)?;
        self.wait("the node tells it", PATIENCE, || Ok(!node.is_ready()))?;
        std::thread::sleep(SETTLING);
        let before = self.ledger.acked_count();
        std::thread::sleep(SETTLING);
        let after = self.ledger.acked_count();
        if node.has_ended()? {
            report
                .faults
                .push(format!("the node ended: {}", self.log()));
        } else if after > before {
            report
                .faults
                .push(format!("{} acks after it", after - before));
        } else if node.is_ready() {
            report
                .faults
                .push("ready again, on a dead file system".into());
        } else {
            report.told += 1;
        }
        Ok(())
    }

    fn wait(&self, what: &str, most: Duration, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + most;
        while !is_so()? {
            self.interrupt.check()?;
            if Instant::now() > end {
                bail!("waiting until {what}: not after {most:?}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until everything acked is delivered, or nothing more comes.
    fn drain(&self) -> Result<()> {
        let (mut seen, mut since) = (self.sink.count(), Instant::now());
        let rows = self.ledger.rows();
        while since.elapsed() < STANDSTILL {
            self.interrupt.check()?;
            if judge(&rows, &self.sink.delivered(), usize::MAX).missing == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
            let now = self.sink.count();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

fn shut_down(dir: &Path, how: How) -> Result<()> {
    let dir = File::open(dir)?;
    let flag = how.flag();
    #[expect(unsafe_code, reason = "std has no such ioctl")]
    // SAFETY: an open descriptor, and the address of a u32 that outlives the call.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const flag) };
    if result != 0 {
        bail!(
            "shutting the file system down: {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(())
}
