//! Drill `power-dm`: the power cord with the kernel's own device-mapper.
//!
//! Two parts, on ext4 and xfs. *flakey*: from one moment under load on the device says "done" to
//! every write and drops it, or fails it; what was acked before must be there. *log-writes*: every
//! write and flush under load is logged by the kernel, and the medium is rebuilt at every FLUSH
//! and FUA, with parts of what none had covered.
//!
//! On a host with device-mapper it runs there, on loop devices over files unless devices are
//! named, which it asks about first. Elsewhere, or with `--guest`, it boots a kernel of Debian in
//! QEMU and runs there ([`guest`]).

mod bench;
pub mod guest;
pub mod log;
mod pack;
pub mod target;

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::power::history::HistoryCheck;
use crate::power::host::{FsKind, Interrupt, LoopDevice, Needs, has_command, run as run_command};
use crate::rng::Rng;
use bench::{Bench, SEGMENT_BYTES};
use target::{Flakey, LogWrites, Writes};

/// Bytes of a device made here; xfs takes no less than 300 MB.
const DEVICE_BYTES: u64 = 320 << 20;
/// Bytes of its log: what mkfs, boot and load write.
const LOG_BYTES: u64 = 512 << 20;

/// The drill's settings.
#[derive(Clone, Debug, clap::Args)]
pub struct DmPlan {
    /// The ankusa binary; the negative control needs one built with the feature mutations
    #[arg(long)]
    pub binary: PathBuf,
    /// File systems: ext4, xfs or both
    #[arg(long, default_value = "both", value_parser = ["ext4", "xfs", "both"])]
    pub fs: String,
    /// Cuts by dropped writes, and periods of failed writes, on each file system
    #[arg(long, default_value_t = 3)]
    pub cuts: u32,
    /// Hooks acked before each
    #[arg(long, default_value_t = 200)]
    pub acked: usize,
    /// Hooks acked while everything is logged
    #[arg(long, default_value_t = 300)]
    pub logged: usize,
    /// Parts of the writes between two flushes of the log that are rebuilt
    #[arg(long, default_value_t = 3)]
    pub subsets: usize,
    /// Seed of every choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A block device to work on, which is erased; asks first. Else a loop device over a file
    #[arg(long)]
    pub device: Option<PathBuf>,
    /// A block device for the log of dm-log-writes, which is erased; asks first
    #[arg(long)]
    pub log_device: Option<PathBuf>,
    /// Does not ask before it erases the named devices
    #[arg(long)]
    pub yes: bool,
    /// Run in a QEMU guest, also where this host has device-mapper
    #[arg(long)]
    pub guest: bool,
    /// Leave out the negative control
    #[arg(long)]
    pub without_control: bool,
    /// Install what is missing, through apt
    #[arg(long)]
    pub install: bool,
    /// Where the kernel of the guest is kept
    #[arg(long, default_value = "/var/tmp/ankusa-drills")]
    pub cache: PathBuf,
    /// Seconds that the guest may take
    #[arg(long, default_value_t = 900)]
    pub guest_timeout: u64,
}

/// Runs the drill and prints what it found. True: every promise held, the control was caught.
pub fn run(plan: &DmPlan) -> Result<bool> {
    let named = plan.device.is_some() || plan.log_device.is_some();
    if plan.guest || !(has_command("dmsetup") && target::has_targets()) {
        if named {
            bail!("this host has no device-mapper targets flakey and log-writes");
        }
        println!("power-dm: in a guest");
        return guest::run(plan);
    }
    direct(plan)
}

fn direct(plan: &DmPlan) -> Result<bool> {
    let kinds = FsKind::named(&plan.fs);
    let mut needs = Needs::file_systems(kinds);
    needs
        .commands
        .extend([("dmsetup", "dmsetup"), ("blockdev", "util-linux")]);
    needs.check(plan.install)?;
    let interrupt = Interrupt::install()?;
    for device in [&plan.device, &plan.log_device].into_iter().flatten() {
        may_erase(device, plan.yes)?;
    }
    // Dropped last: everything mounted below it is gone by then.
    let dir = tempfile::Builder::new().prefix("drill-dm-").tempdir()?;
    println!("power-dm: seed {}", plan.seed);
    let device = Disk::get(plan.device.as_deref(), dir.path(), "disk", DEVICE_BYTES)?;
    let log = Disk::get(plan.log_device.as_deref(), dir.path(), "log", LOG_BYTES)?;
    let drill = Drill {
        plan,
        binary: plan.binary.canonicalize()?,
        dir: dir.path(),
        device: device.path(),
        log: log.path(),
        interrupt: &interrupt,
    };
    let mut holds = true;
    for fs in kinds {
        let started = Instant::now();
        holds &= drill.flakey(*fs)?;
        holds &= drill.logged(*fs, None)?;
        if !plan.without_control {
            holds &= drill.logged(*fs, Some("skip_sync"))?;
        }
        println!("power-dm: {}: took {:.1?}", fs.name(), started.elapsed());
    }
    println!("power-dm: {}", if holds { "held" } else { "BROKEN" });
    Ok(holds)
}

/// Asks before a device is erased.
fn may_erase(device: &Path, yes: bool) -> Result<()> {
    let text = device.to_str().context("a device's name")?;
    let sectors = target::sectors(device)?;
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    let is_mounted = |line: &str| line.split(' ').next().is_some_and(|d| d.starts_with(text));
    if mounts.lines().any(is_mounted) {
        bail!("{text} is mounted");
    }
    // The kernel itself says whether anything else holds it.
    let mut exclusive = File::options();
    exclusive.read(true).custom_flags(libc::O_EXCL);
    drop(
        exclusive
            .open(device)
            .with_context(|| format!("{text} is in use"))?,
    );
    if yes {
        return Ok(());
    }
    let what = run_command(&["lsblk", "-n", text], &[]).unwrap_or_default();
    println!(
        "power-dm: everything on {text} ({} MB) is erased:\n{what}",
        sectors >> 11
    );
    print!("power-dm: type its name to go on: ");
    std::io::stdout().flush()?;
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed)?;
    if typed.trim() != text {
        bail!("not confirmed");
    }
    Ok(())
}

/// A disk to work on: the one that was named, or a loop device over a file that goes with it.
enum Disk {
    Named(PathBuf),
    Made(LoopDevice),
}

impl Disk {
    fn get(named: Option<&Path>, dir: &Path, name: &str, bytes: u64) -> Result<Disk> {
        if let Some(device) = named {
            return Ok(Disk::Named(device.into()));
        }
        let file = dir.join(name);
        File::create(&file)?.set_len(bytes)?;
        Ok(Disk::Made(LoopDevice::attach(&file, false)?))
    }

    fn path(&self) -> &Path {
        match self {
            Disk::Named(path) => path,
            Disk::Made(device) => device.path(),
        }
    }
}

struct Drill<'a> {
    plan: &'a DmPlan,
    binary: PathBuf,
    dir: &'a Path,
    device: &'a Path,
    log: &'a Path,
    interrupt: &'a Interrupt,
}

impl Drill<'_> {
    fn bench(&self, device: &Path, fs: FsKind, mutation: Option<&'static str>) -> Result<Bench> {
        let part = format!(
            "{}-{}",
            fs.name(),
            device.file_name().unwrap_or_default().display()
        );
        let part = format!("{part}-{}", mutation.unwrap_or("promise"));
        let dir = self.dir.join(part);
        Bench::new(&self.binary, &dir, (device, fs), mutation, self.interrupt)
    }

    /// Cuts by dropped writes, then periods of failed writes, on one file system that goes on.
    fn flakey(&self, fs: FsKind) -> Result<bool> {
        let flakey = Flakey::over(self.device)?;
        let mut bench = self.bench(flakey.path(), fs, None)?;
        let mut rng = Rng::new(self.plan.seed);
        let mut holds = true;
        let (mut lies, mut lost) = (0, 0);
        // What the device lied about is gone for good: the ledger forgets it after each cut.
        for cut in 0..self.plan.cuts {
            bench.mount()?;
            bench.start(true)?;
            bench.load(2)?;
            bench.wait_acked(self.plan.acked, || Ok(()))?;
            let acked = bench.ledger.acked_count();
            flakey.set(Writes::Dropped)?;
            std::thread::sleep(Duration::from_millis(rng.range(200, 800)));
            bench.die()?;
            flakey.set(Writes::Taken)?;
            lies += bench.ledger.acked_count() - acked;
            let verdict = bench.settle(acked)?;
            lost += bench.lost_after(acked);
            holds &= self.say(fs, &format!("dropped writes, cut {cut}"), &verdict);
            bench.ledger.forget_after(acked);
            bench.unmount();
        }
        println!(
            "power-dm: {}: the device lied about {lies} later acks, {lost} of them are gone{}",
            fs.name(),
            if lost > 0 || self.plan.cuts == 0 {
                ""
            } else {
                ": it drops nothing, NOTHING PROVEN"
            },
        );
        holds &= lost > 0 || self.plan.cuts == 0;
        for period in 0..self.plan.cuts {
            holds &= self.failed_writes(fs, period, &flakey, &mut bench, &mut rng)?;
        }
        Ok(holds)
    }

    /// Every write fails for a while: the node says so; then it goes on, or, where the file system
    /// gave up, its operator mounts it again.
    fn failed_writes(
        &self,
        fs: FsKind,
        period: u32,
        flakey: &Flakey,
        bench: &mut Bench,
        rng: &mut Rng,
    ) -> Result<bool> {
        bench.mount()?;
        bench.start(true)?;
        bench.load(2)?;
        bench.wait_acked(self.plan.acked, || Ok(()))?;
        flakey.set(Writes::Failed)?;
        bench.wait("the node tells it", || Ok(!bench.node()?.is_ready()))?;
        std::thread::sleep(Duration::from_millis(rng.range(100, 1500)));
        flakey.set(Writes::Taken)?;
        let until = Instant::now() + Duration::from_secs(30);
        let mut alone = false;
        bench.wait("the node is ready again, or will not be", || {
            alone = bench.node()?.is_ready();
            Ok(alone || Instant::now() > until)
        })?;
        if alone {
            bench.wait_acked(self.plan.acked / 2, || Ok(()))?;
        }
        let acked = bench.ledger.acked_count();
        bench.die()?;
        let verdict = bench.settle(acked)?;
        bench.unmount();
        let how = if alone {
            "ready again alone"
        } else {
            "the file system gave up, remounted"
        };
        Ok(self.say(
            fs,
            &format!("failed writes, period {period} ({how})"),
            &verdict,
        ))
    }

    fn say(&self, fs: FsKind, what: &str, verdict: &crate::oracle::Verdict) -> bool {
        let holds = verdict.holds();
        let word = if holds { "held" } else { "BROKEN" };
        println!("power-dm: {}: {what}: {verdict} {word}", fs.name());
        for example in &verdict.examples {
            println!("power-dm: {}:   {example}", fs.name());
        }
        holds
    }

    /// Load while everything is logged, then the medium at every FLUSH and FUA. With a mutation:
    /// its control.
    fn logged(&self, fs: FsKind, mutation: Option<&'static str>) -> Result<bool> {
        let log_writes = LogWrites::over(self.device, self.log)?;
        let mut bench = self.bench(log_writes.path(), fs, mutation)?;
        bench.mount()?;
        bench.start(true)?;
        log_writes.mark(&format!("{}0", log::ACKED))?;
        // Every hook goes to the paused sink: all of them must be on the medium itself.
        bench.load(1)?;
        let (ledger, mut marked) = (bench.ledger.clone(), 0);
        let count = if mutation.is_some() {
            self.plan.logged / 3
        } else {
            self.plan.logged
        };
        bench.wait_acked(count, || {
            let acked = ledger.acked_count();
            if acked > marked {
                log_writes.mark(&format!("{}{acked}", log::ACKED))?;
                marked = acked;
            }
            Ok(())
        })?;
        bench.die()?;
        log_writes.mark(&format!("{}{}", log::ACKED, ledger.acked_count()))?;
        drop(log_writes);
        let bytes = target::sectors_used(self.device)? * 512;
        let mut log = BufReader::with_capacity(1 << 20, File::open(self.log)?);
        let history = log::read(&mut log, bytes)?;
        let check = HistoryCheck {
            dir: self.dir.join(format!("replay-{}", fs.name())),
            fs,
            segment_bytes: SEGMENT_BYTES,
            subsets: if mutation.is_some() {
                0
            } else {
                self.plan.subsets
            },
            threads: 2,
            seed: self.plan.seed,
            interrupt: self.interrupt,
            ledger: &ledger,
            delivered: &[],
        };
        let report = check.run(&history)?;
        let caught = report.bad > 0;
        let word = match (mutation.is_some(), caught) {
            (false, false) => "held",
            (false, true) => "BROKEN",
            (true, true) => "caught",
            (true, false) => "MISSED",
        };
        let what = mutation.map_or("log-writes".to_owned(), |name| format!("control {name}"));
        println!(
            "power-dm: {}: {what}: flush_points={} writes={} groups={} segments={} \
             journal_writes={} acked={}..{} subsets={} bad={} in {:.1?}; over all images: acked={} \
             recovered={} missing={} altered={} invented={} duplicate_hooks={} {word}",
            fs.name(),
            report.boundaries,
            report.writes,
            report.groups,
            report.segments,
            report.journal,
            report.acked.0,
            report.acked.1,
            report.subsets,
            report.bad,
            report.took,
            report.sum.acked,
            report.sum.recovered,
            report.sum.missing,
            report.sum.altered,
            report.sum.invented,
            report.sum.duplicate_hooks,
        );
        if mutation.is_none() {
            for example in &report.sum.examples {
                println!("power-dm: {}:   {example}", fs.name());
            }
        }
        Ok(caught == mutation.is_some())
    }
}
