//! Drill `power-fuse`: the power cord, on any Linux.
//!
//! A loop device whose backing file is served by our own FUSE daemon, which sees each block write
//! and each FLUSH. The built binary runs under load with its data directory there. A cut is a
//! picture of what the medium would hold, atomic with the client's count of acks; a second node
//! boots on it, and everything acked before the cut must be delivered. A cut stops nothing, so one
//! run gives many.
//!
//! Also: faults of the device under load, a recorded history rebuilt at every flush boundary, and
//! the negative controls, which must be caught. Needs root, `/dev/fuse` and loop devices.

pub mod check;
pub mod cut;
pub mod device;
pub mod faults;
pub mod fuse;
pub mod history;
pub mod host;
pub mod pages;
pub mod rig;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use check::Checker;
use cut::{CutKind, CutOrder, Moment};
use device::Fault;
use history::HistoryCheck;
use host::{FsKind, Interrupt, require};
use rig::{BODY_BYTES, Rig, RigPlan, SEGMENT_BYTES};

use crate::rng::Rng;

/// The drill's settings.
#[derive(Clone, Debug, clap::Args)]
pub struct PowerPlan {
    /// The ankusa binary; the negative controls need one built with the feature mutations
    #[arg(long)]
    pub binary: PathBuf,
    /// File systems: ext4, xfs or both
    #[arg(long, default_value = "both", value_parser = ["ext4", "xfs", "both"])]
    pub fs: String,
    /// Cuts under load, on each file system
    #[arg(long, default_value_t = 20)]
    pub cuts: u32,
    /// Hooks acked before each cut
    #[arg(long, default_value_t = 500)]
    pub acked: usize,
    /// Seed of every choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Flushes of the recorded history, on each file system; 0: none
    #[arg(long, default_value_t = 60)]
    pub history: usize,
    /// Parts of the writes between two flushes of the history that are rebuilt
    #[arg(long, default_value_t = 20)]
    pub subsets: usize,
    /// Leave out the faults
    #[arg(long)]
    pub without_faults: bool,
    /// Leave out the negative controls
    #[arg(long)]
    pub without_controls: bool,
    /// Install what is missing, through apt
    #[arg(long)]
    pub install: bool,
}

/// What the cuts of one kind gave.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cuts: usize,
    groups: usize,
    acked: usize,
    recovered: usize,
    missing: usize,
    altered: usize,
    invented: usize,
    duplicates: usize,
    lost: usize,
    sectors: usize,
}

/// Runs the drill and prints what it found. True: every promise held, every control was caught.
pub fn run(plan: &PowerPlan) -> Result<bool> {
    let kinds = FsKind::named(&plan.fs);
    require(kinds, plan.install)?;
    let interrupt = Interrupt::install()?;
    // Dropped last: everything mounted below it is gone by then.
    let dir = tempfile::Builder::new().prefix("drill-power-").tempdir()?;
    println!("power-fuse: seed {}", plan.seed);
    let binary = plan.binary.canonicalize()?;
    let mut holds = true;
    for fs in kinds {
        let rig_plan = RigPlan {
            binary: binary.clone(),
            dir: dir.path().join(fs.name()),
            fs: *fs,
            mutation: None,
            segment_bytes: SEGMENT_BYTES,
            body_bytes: BODY_BYTES,
            env: Vec::new(),
            interrupt: interrupt.clone(),
        };
        holds &= on_fs(plan, &rig_plan)?;
        if !plan.without_controls {
            for mutation in ["skip_sync", "skip_sync_of_two", "ack_before_sync"] {
                let rig_plan = RigPlan {
                    dir: dir.path().join(format!("{}-{mutation}", fs.name())),
                    mutation: Some(mutation),
                    ..rig_plan.clone()
                };
                holds &= control(plan, &rig_plan)?;
            }
        }
    }
    println!("power-fuse: {}", if holds { "held" } else { "BROKEN" });
    Ok(holds)
}

fn on_fs(plan: &PowerPlan, rig_plan: &RigPlan) -> Result<bool> {
    let fs = rig_plan.fs.name();
    let mut rng = Rng::new(plan.seed ^ u64::from(rig_plan.fs == FsKind::Xfs));
    let mut holds = true;
    // Each part has a device of its own: a short ledger is judged fast.
    let on = |part: &str| RigPlan {
        dir: rig_plan.dir.join(part),
        ..rig_plan.clone()
    };
    if plan.cuts > 0 {
        let started = Instant::now();
        holds &= cuts(plan, &on("cuts"), &mut rng)?;
        println!("power-fuse: {fs}: cuts took {:.1?}", started.elapsed());
    }
    if !plan.without_faults {
        let started = Instant::now();
        holds &= all_faults(&on("faults"), &mut rng)?;
        println!("power-fuse: {fs}: faults took {:.1?}", started.elapsed());
    }
    if plan.history > 0 {
        // Small segments and large hooks: so that segments are left, slots made and checkpoints
        // written within the history.
        let on = RigPlan {
            segment_bytes: 1 << 20,
            body_bytes: 6000,
            ..on("history")
        };
        holds &= recorded(plan, &on, &mut rng)?;
    }
    Ok(holds)
}

/// A flush of the file system's journal looks to the device as one of the log's: a fault that hit
/// it is tried again.
const FAULT_ATTEMPTS: u32 = 4;

fn all_faults(rig_plan: &RigPlan, rng: &mut Rng) -> Result<bool> {
    let mut rig = Rig::start(rig_plan)?;
    let mut holds = true;
    for (fault, once) in [
        (Fault::FlushError, true),
        (Fault::LateError, true),
        (Fault::WriteError, true),
        (Fault::FlushError, false),
        (Fault::LateError, false),
        (Fault::WriteError, false),
        (Fault::EveryError, false),
    ] {
        for attempt in 1..=FAULT_ATTEMPTS {
            let report = faults::run(&mut rig, &checker(rig_plan), fault, once, rng)?;
            holds &= report.holds();
            print_fault(rig_plan.fs.name(), &report);
            if !report.hit_journal {
                break;
            }
            if attempt == FAULT_ATTEMPTS {
                println!("power-fuse: {} never met the log", fault.name());
                holds = false;
            }
        }
    }
    Ok(holds)
}

fn checker(rig_plan: &RigPlan) -> Checker {
    Checker {
        binary: rig_plan.binary.clone(),
        dir: rig_plan.dir.join("check"),
        fs: rig_plan.fs,
        interrupt: rig_plan.interrupt.clone(),
    }
}

fn cuts(plan: &PowerPlan, rig_plan: &RigPlan, rng: &mut Rng) -> Result<bool> {
    let mut rig = Rig::start(rig_plan)?;
    let fs = rig_plan.fs.name();
    let checker = checker(rig_plan);
    let mut tallies: BTreeMap<CutKind, Tally> = BTreeMap::new();
    let mut holds = true;
    for number in 0..plan.cuts as usize {
        let kind = CutKind::EVERY[number % CutKind::EVERY.len()];
        let moment = Moment::EVERY[rng.range(0, 2) as usize];
        rig.start_load()?;
        rig.wait_acked(plan.acked)?;
        let order = CutOrder {
            kind,
            moment,
            seed: rng.draw(),
            groups_min: 2,
            not_after: Instant::now() + Duration::from_secs(3),
        };
        let cut = rig.cut(order, false)?;
        rig.stop_load();
        let verdict = checker.boot(&rig, &cut)?;
        if !verdict.holds() {
            holds = false;
            println!(
                "power-fuse: {fs}: cut {number} ({}): {verdict}",
                kind.name()
            );
            for example in &verdict.examples {
                println!("power-fuse:   {example}");
            }
        }
        let tally = tallies.entry(kind).or_default();
        tally.cuts += 1;
        tally.groups += usize::from(cut.groups >= 2);
        tally.acked += verdict.acked;
        tally.recovered += verdict.recovered;
        tally.missing += verdict.missing;
        tally.altered += verdict.altered;
        tally.invented += verdict.invented;
        tally.duplicates += verdict.duplicate_hooks;
        tally.lost += cut.sectors_lost;
        tally.sectors += cut.sectors;
    }
    for (kind, t) in &tallies {
        println!(
            "power-fuse: {fs}: {:11} cuts={} with_2_groups={} acked={} recovered={} missing={} \
             altered={} invented={} duplicate_hooks={} sectors_lost={} of {}",
            kind.name(),
            t.cuts,
            t.groups,
            t.acked,
            t.recovered,
            t.missing,
            t.altered,
            t.invented,
            t.duplicates,
            t.lost,
            t.sectors,
        );
    }
    Ok(holds)
}

fn print_fault(fs: &str, report: &faults::FaultReport) {
    let (writes, flushes, dropped) = report.counts;
    println!(
        "power-fuse: {fs}: {:13} {} writes_failed={writes} flushes_failed={flushes} \
         writes_dropped={dropped} unready={} ready_again_alone={} remounted={} groups_in_flight={}{} {}",
        report.fault.name(),
        if report.once { "once" } else { "for a while" },
        report.was_unready,
        report.recovered_alone,
        report.remounted,
        report.groups,
        if report.hit_journal {
            " (met the journal: the file system gave up)"
        } else {
            ""
        },
        if report.holds() { "held" } else { "BROKEN" },
    );
    for verdict in &report.verdicts {
        println!("power-fuse: {fs}:   {verdict}");
        for example in &verdict.examples {
            println!("power-fuse:     {example}");
        }
    }
}

fn recorded(plan: &PowerPlan, rig_plan: &RigPlan, rng: &mut Rng) -> Result<bool> {
    let mut rig = Rig::start(rig_plan)?;
    let fs = rig_plan.fs.name();
    let (done, recording) = channel();
    rig.start_load()?;
    rig.wait_acked(100)?;
    rig.device.lock().record(plan.history, done);
    let history = loop {
        rig_plan.interrupt.check()?;
        match recording.recv_timeout(Duration::from_millis(200)) {
            Ok(history) => break history,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the recording was lost"),
        }
    };
    rig.stop_load();
    let delivered = rig.delivered(usize::MAX);
    let check = HistoryCheck {
        dir: rig_plan.dir.clone(),
        fs: rig_plan.fs,
        segment_bytes: rig_plan.segment_bytes,
        subsets: plan.subsets,
        threads: 2,
        seed: rng.draw(),
        interrupt: &rig_plan.interrupt,
        ledger: &rig.ledger,
        delivered: &delivered,
    };
    let report = check.run(&history)?;
    println!(
        "power-fuse: {fs}: history flushes={} writes={} groups={} segments={} \
         journal_writes={} acked={}..{} subsets={} \
         (+{} repeats) bad={} in {:.1?}",
        report.boundaries,
        report.writes,
        report.groups,
        report.segments,
        report.journal,
        report.acked.0,
        report.acked.1,
        report.subsets,
        report.repeats,
        report.bad,
        report.took,
    );
    println!(
        "power-fuse: {fs}: history acked={} recovered={} missing={} altered={} invented={} \
         duplicate_hooks={} (over all images)",
        report.sum.acked,
        report.sum.recovered,
        report.sum.missing,
        report.sum.altered,
        report.sum.invented,
        report.sum.duplicate_hooks,
    );
    for example in &report.sum.examples {
        println!("power-fuse:   {example}");
    }
    Ok(report.bad == 0)
}

/// Cuts of a control before it counts as missed.
const CONTROL_CUTS: u32 = 8;

fn control(plan: &PowerPlan, rig_plan: &RigPlan) -> Result<bool> {
    let mutation = rig_plan.mutation.unwrap_or_default();
    let mut rng = Rng::new(plan.seed);
    let mut rig = Rig::start(rig_plan)?;
    // Without flushes there is no moment of a flush.
    let moment = match mutation {
        "skip_sync" => Moment::Write,
        _ => Moment::FlushEnding,
    };
    let checker = checker(rig_plan);
    let (mut caught, mut cuts, mut last) = (false, 0, None);
    while !caught && cuts < CONTROL_CUTS {
        rig.start_load()?;
        rig.wait_acked(plan.acked.min(200))?;
        let order = CutOrder {
            kind: CutKind::None,
            moment,
            seed: rng.draw(),
            groups_min: 1,
            not_after: Instant::now() + Duration::from_secs(1),
        };
        let cut = rig.cut(order, false)?;
        rig.stop_load();
        let verdict = checker.boot(&rig, &cut)?;
        cuts += 1;
        caught = verdict.missing > 0;
        last = Some(verdict);
    }
    println!(
        "power-fuse: {}: control {mutation} {} after {cuts} cuts: {}",
        rig_plan.fs.name(),
        if caught { "caught" } else { "MISSED" },
        last.unwrap_or_default(),
    );
    Ok(caught)
}
