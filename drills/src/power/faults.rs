//! Faults under load: while they last the node is unready and acks nothing it cannot keep; when
//! they are over it is ready again without a restart, unless the file system itself gave up.
//! A cut during the fault and one right after it must lose nothing.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::check::Checker;
use super::cut::{Cut, CutKind, CutOrder, Moment};
use super::device::{Fault, FaultOrder};
use super::rig::Rig;
use crate::oracle::Verdict;
use crate::rng::Rng;

/// What came of one fault.
pub struct FaultReport {
    /// Which.
    pub fault: Fault,
    /// One operation failed, the next succeeded.
    pub once: bool,
    /// Writes failed, flushes failed, writes reported as done and dropped.
    pub counts: (u64, u64, u64),
    /// `/ready` said 503 while it lasted.
    pub was_unready: bool,
    /// It was ready again, and acked, without a restart.
    pub recovered_alone: bool,
    /// The file system gave up and was mounted again, and the node restarted.
    pub remounted: bool,
    /// The fault was meant for the log, and met the file system's journal.
    pub hit_journal: bool,
    /// Groups in flight when the fault was first met.
    pub groups: usize,
    /// The verdicts of the cuts.
    pub verdicts: Vec<Verdict>,
}

impl FaultReport {
    /// Whether every promise held.
    pub fn holds(&self) -> bool {
        let ends_well = match self.fault {
            Fault::EveryError => self.remounted,
            _ => self.recovered_alone || self.hit_journal,
        };
        ends_well
            && self.was_unready
            && self.groups >= 2
            && self.verdicts.iter().all(Verdict::holds)
    }
}

/// How long a node may take to be ready again.
const RECOVERY: Duration = Duration::from_secs(30);

fn order(kind: CutKind, moment: Moment, rng: &mut Rng) -> CutOrder {
    CutOrder {
        kind,
        moment,
        seed: rng.draw(),
        groups_min: 2,
        not_after: Instant::now() + Duration::from_secs(2),
    }
}

/// Runs one fault under load, with a cut during it and one after it. `once`: one operation fails
/// and the next succeeds.
pub fn run(
    rig: &mut Rig,
    checker: &Checker,
    fault: Fault,
    once: bool,
    rng: &mut Rng,
) -> Result<FaultReport> {
    rig.start_load()?;
    rig.wait_acked(300)?;
    let before = rig.device.lock().counts();
    rig.device.lock().set_fault(Some(FaultOrder {
        fault,
        groups_min: 2,
        failures_max: if once { 1 } else { u64::MAX },
    }));
    if fault == Fault::EveryError {
        rig.wait("the fault is met", RECOVERY, |rig| {
            Ok(rig.device.lock().counts().groups_at_fault > 0)
        })?;
        provoke(rig)?;
    }
    let mut was_unready = false;
    rig.wait("the fault is met and told", RECOVERY, |rig| {
        let met = rig.device.lock().counts().groups_at_fault > 0;
        was_unready |= met && !rig.node()?.is_ready();
        Ok(was_unready)
    })?;
    let kind = if rng.one_in(2) {
        CutKind::None
    } else {
        CutKind::Half
    };
    let mut cuts: Vec<Cut> = vec![rig.cut(order(kind, Moment::Write, rng), true)?];
    if !once {
        // Some more of it, so that the ways out of it fail too.
        std::thread::sleep(Duration::from_millis(rng.range(50, 1200)));
    }
    let groups = rig.device.lock().counts().groups_at_fault;
    rig.device.lock().set_fault(None);
    if fault == Fault::EveryError {
        rig.remount()?;
        rig.start_load()?;
    }
    let hit_journal = !rig.wait_acked_again(200)?;
    if hit_journal {
        rig.remount()?;
        rig.start_load()?;
        rig.wait_acked(200)?;
    }
    cuts.push(rig.cut(order(CutKind::None, Moment::FlushEnding, rng), false)?);
    rig.stop_load();
    let after = rig.device.lock().counts();
    let mut report = FaultReport {
        fault,
        once,
        counts: (
            after.writes_failed - before.writes_failed,
            after.flushes_failed - before.flushes_failed,
            after.writes_dropped - before.writes_dropped,
        ),
        was_unready,
        recovered_alone: false,
        remounted: hit_journal || fault == Fault::EveryError,
        hit_journal,
        groups,
        verdicts: Vec::new(),
    };
    for cut in &cuts {
        report.verdicts.push(checker.boot(rig, cut)?);
    }
    report.recovered_alone = rig.wait_ready_again(RECOVERY)? && !report.remounted;
    Ok(report)
}

/// Makes the file system write its journal.
fn provoke(rig: &Rig) -> Result<()> {
    let path = rig.mount_dir()?.join("drill-poke");
    // It is meant to fail.
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(b"poke");
        let _ = file.sync_all();
    }
    Ok(())
}
