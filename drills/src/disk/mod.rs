//! Drill `disk`: a disk that fails, fills, slows down or stops answering under load, and is well
//! again. The node says so (`/ready`, 503 with `Retry-After`), acks nothing it cannot keep, and
//! goes on by itself; only a file system that gave up needs its operator.
//!
//! The disk is that of the power cuts ([`crate::power`]): it is ours, so every case is met on the
//! blocks it is meant for, and an image of it can be booted while the trouble lasts. Needs root,
//! `/dev/fuse` and loop devices.

mod cases;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::power::check::Checker;
use crate::power::device::Fault;
use crate::power::host::{FsKind, Interrupt, require};
use crate::power::rig::{BODY_BYTES, Rig, RigPlan, SEGMENT_BYTES};
use crate::rng::Rng;
use cases::{Case, CaseReport, Trouble};

/// The drill's settings.
#[derive(Clone, Debug, clap::Args)]
pub struct DiskPlan {
    /// The ankusa binary; the negative control needs one built with the feature mutations
    #[arg(long)]
    pub binary: PathBuf,
    /// File systems: ext4, xfs or both
    #[arg(long, default_value = "both", value_parser = ["ext4", "xfs", "both"])]
    pub fs: String,
    /// Seed of every choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only the cases whose name has this in it
    #[arg(long)]
    pub only: Option<String>,
    /// How long the longer troubles last, in milliseconds
    #[arg(long, default_value_t = 4000)]
    pub trouble_ms: u64,
    /// Leave out the negative control
    #[arg(long)]
    pub without_control: bool,
    /// Install what is missing, through apt
    #[arg(long)]
    pub install: bool,
}

/// Runs the drill and prints what it found. True: every promise held, the control was caught.
pub fn run(plan: &DiskPlan) -> Result<bool> {
    let kinds = FsKind::named(&plan.fs);
    require(kinds, plan.install)?;
    let interrupt = Interrupt::install()?;
    // Dropped last: everything mounted below it is gone by then.
    let dir = tempfile::Builder::new().prefix("drill-disk-").tempdir()?;
    println!("disk: seed {}", plan.seed);
    let mut holds = true;
    for fs in kinds {
        let rig_plan = RigPlan {
            binary: plan.binary.canonicalize()?,
            dir: dir.path().join(fs.name()),
            fs: *fs,
            mutation: None,
            segment_bytes: SEGMENT_BYTES,
            body_bytes: BODY_BYTES,
            env: Vec::new(),
            interrupt: interrupt.clone(),
        };
        let started = Instant::now();
        holds &= on_fs(plan, &rig_plan)?;
        if !plan.without_control {
            holds &= control(plan, &rig_plan)?;
        }
        println!("disk: {}: took {:.1?}", fs.name(), started.elapsed());
    }
    println!("disk: {}", if holds { "held" } else { "BROKEN" });
    Ok(holds)
}

/// A flush of the file system's journal looks to the device as one of the log's: a fault that hit
/// it is tried again, on a new device.
const ATTEMPTS: u32 = 4;

fn cases(plan: &DiskPlan) -> Vec<Case> {
    let long = Duration::from_millis(plan.trouble_ms);
    let fault = |name, fault, once| Case {
        name,
        trouble: Trouble::Fault { fault, once },
        lasts: if once { Duration::ZERO } else { long },
    };
    let case = |name, trouble, lasts| Case {
        name,
        trouble,
        lasts,
    };
    vec![
        fault("write EIO, once", Fault::WriteError, true),
        fault("write EIO, for a while", Fault::WriteError, false),
        fault("flush EIO, once", Fault::FlushError, true),
        fault("flush EIO, for a while", Fault::FlushError, false),
        fault("device full, once", Fault::NoRoom, true),
        fault("device full, for a while", Fault::NoRoom, false),
        case("file system full", Trouble::FsFull { reserve: true }, long),
        case(
            "file system full, no reserve",
            Trouble::FsFull { reserve: false },
            long,
        ),
        case(
            "slow",
            Trouble::Slow(Duration::from_millis(300)),
            Duration::from_secs(3),
        ),
        case("hung", Trouble::Hung, long),
        case("journal EIO", Trouble::Journal, Duration::from_secs(1)),
    ]
}

fn on_fs(plan: &DiskPlan, rig_plan: &RigPlan) -> Result<bool> {
    let mut rng = Rng::new(plan.seed);
    let mut holds = true;
    for (number, case) in cases(plan).into_iter().enumerate() {
        let seed = rng.draw();
        if !plan
            .only
            .as_deref()
            .is_none_or(|part| case.name.contains(part))
        {
            continue;
        }
        let mut rng = Rng::new(seed);
        for attempt in 0..ATTEMPTS {
            let report = attempt_at(rig_plan, case, number, attempt, &mut rng)?;
            holds &= report.holds();
            print(rig_plan.fs, &report);
            if !report.hit_journal {
                break;
            }
            if attempt + 1 == ATTEMPTS {
                println!(
                    "disk: {}: {} never met the log",
                    rig_plan.fs.name(),
                    case.name
                );
                holds = false;
            }
        }
    }
    Ok(holds)
}

fn attempt_at(
    rig_plan: &RigPlan,
    case: Case,
    number: usize,
    attempt: u32,
    rng: &mut Rng,
) -> Result<CaseReport> {
    // Each has a device of its own: a short ledger is judged fast.
    let mut rig_plan = RigPlan {
        dir: rig_plan.dir.join(format!("{number}-{attempt}")),
        ..rig_plan.clone()
    };
    if case.trouble == (Trouble::FsFull { reserve: false }) {
        // The store itself meets the full file system.
        rig_plan
            .env
            .push(("ANKUSA_WAL_MIN_FREE_BYTES", "0".to_owned()));
    }
    let mut rig = Rig::start(&rig_plan)?;
    cases::run(&mut rig, &checker(&rig_plan), case, rng)
}

fn checker(rig_plan: &RigPlan) -> Checker {
    Checker {
        binary: rig_plan.binary.clone(),
        dir: rig_plan.dir.join("check"),
        fs: rig_plan.fs,
        interrupt: rig_plan.interrupt.clone(),
    }
}

fn print(fs: FsKind, report: &CaseReport) {
    let fs = fs.name();
    println!("disk: {fs}: {report}");
    for (when, verdict) in &report.verdicts {
        println!("disk: {fs}:   {when}: {verdict}");
        for example in &verdict.examples {
            println!("disk: {fs}:     {example}");
        }
    }
    for fault in &report.faults {
        println!("disk: {fs}:   BROKEN: {fault}");
    }
}

/// The negative control: a failed sync is tried again, and believed when it then succeeds.
fn control(plan: &DiskPlan, rig_plan: &RigPlan) -> Result<bool> {
    let mutation = "retry_failed_sync";
    let rig_plan = RigPlan {
        dir: rig_plan.dir.join("control"),
        mutation: Some(mutation),
        ..rig_plan.clone()
    };
    let mut rig = Rig::start(&rig_plan)?;
    let verdict = cases::late_error(&mut rig, &checker(&rig_plan), &mut Rng::new(plan.seed))?;
    let caught = verdict.missing > 0;
    println!(
        "disk: {}: control {mutation} {}: {verdict}",
        rig_plan.fs.name(),
        if caught { "caught" } else { "MISSED" },
    );
    Ok(caught)
}
