//! One trouble of the disk under load: what the node says while it lasts, whether it goes on
//! afterwards, and what a boot of the disk's image finds at both times.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::oracle::Verdict;
use crate::power::check::Checker;
use crate::power::cut::{CutKind, CutOrder, Moment};
use crate::power::device::{Fault, FaultOrder};
use crate::power::rig::Rig;
use crate::rng::Rng;

/// How long a node may take to notice, and to be ready again.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a refusal may take while the node is unready.
const REFUSAL: Duration = Duration::from_secs(1);
/// Acks that were on their way when a trouble began come within this.
const SETTLING: Duration = Duration::from_millis(700);
/// Hooks acked before a trouble, and after it.
const ACKED: usize = 300;
/// The file that fills the file system.
const BALLOON: &str = "drill-balloon";

/// What happens to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It fails operations on the log's own blocks.
    Fault {
        /// How.
        fault: Fault,
        /// One operation, else all.
        once: bool,
    },
    /// The file system has no byte left.
    FsFull {
        /// Whether the node was told to keep some free.
        reserve: bool,
    },
    /// Every operation takes so much longer.
    Slow(Duration),
    /// It answers nothing.
    Hung,
    /// It fails writes into the file system's journal; the file system gives up.
    Journal,
}

/// A trouble and how long it lasts.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in reports.
    pub name: &'static str,
    /// What.
    pub trouble: Trouble,
    /// How long from the moment that the node has told it.
    pub lasts: Duration,
}

/// What came of a case.
pub struct CaseReport {
    case: Case,
    /// From the beginning of the trouble to the first 503 of `/ready`, and its word.
    unready: Option<(Duration, String)>,
    /// Acked while it lasted, from [`SETTLING`] after the node was unready on.
    acked_while: usize,
    /// One hook on a fresh connection meanwhile: the answer and how long it took.
    probe: (String, Duration),
    /// Answers from the beginning of the trouble to the node's being ready again.
    answers: BTreeMap<String, usize>,
    /// From the end of the trouble to a 200 of `/ready`.
    ready_again: Duration,
    /// Groups in flight when it began.
    groups: usize,
    /// The fault was meant for the log, and met the file system's journal: its operator mounted it
    /// again. Nothing may be lost by that either, but whether the node goes on alone was not seen.
    pub hit_journal: bool,
    /// What was broken.
    pub faults: Vec<String>,
    /// The images, booted: during and after.
    pub verdicts: Vec<(&'static str, Verdict)>,
}

impl CaseReport {
    /// Whether every promise held.
    pub fn holds(&self) -> bool {
        self.faults.is_empty() && self.verdicts.iter().all(|(_, verdict)| verdict.holds())
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.case.name)?;
        match &self.unready {
            Some((after, word)) => write!(f, "unready_after={after:.1?} ({word})")?,
            None => write!(f, "ready all along")?,
        }
        write!(
            f,
            " acked_while={} probe={} in {:.1?} ready_again_after={:.1?} groups_in_flight={}",
            self.acked_while, self.probe.0, self.probe.1, self.ready_again, self.groups
        )?;
        write!(f, " answers:")?;
        for (words, count) in &self.answers {
            write!(f, " {words} x {count},")?;
        }
        if self.hit_journal {
            write!(f, " (met the journal: the file system gave up)")?;
        }
        write!(f, " {}", if self.holds() { "held" } else { "BROKEN" })
    }
}

/// Runs one case under load.
pub fn run(rig: &mut Rig, checker: &Checker, case: Case, rng: &mut Rng) -> Result<CaseReport> {
    rig.start_load()?;
    rig.wait_acked(ACKED)?;
    let before = rig.ledger.answers();
    let began = Instant::now();
    begin(rig, case)?;
    let groups = rig.device.lock().groups_unflushed();
    let mut report = CaseReport {
        case,
        unready: None,
        acked_while: 0,
        probe: (String::new(), Duration::ZERO),
        answers: BTreeMap::new(),
        ready_again: Duration::ZERO,
        groups,
        hit_journal: false,
        faults: Vec::new(),
        verdicts: Vec::new(),
    };
    match case.trouble {
        Trouble::Slow(_) => slow(rig, case, &mut report)?,
        _ => told(rig, case, began, &mut report)?,
    }
    let kind = if rng.one_in(2) {
        CutKind::None
    } else {
        CutKind::Half
    };
    let during = rig.cut(order(kind, Moment::Write, rng), true)?;
    end(rig, case)?;
    let ended = Instant::now();
    if !rig.wait_ready_again(PATIENCE)? {
        report.hit_journal = true;
        rig.remount()?;
    }
    report.ready_again = ended.elapsed();
    rig.start_load()?;
    rig.wait_acked(ACKED)?;
    report.answers = rig.ledger.answers();
    for (words, count) in &before {
        if let Some(now) = report.answers.get_mut(words) {
            *now -= count;
        }
    }
    report.answers.retain(|_, count| *count > 0);
    let after = rig.cut(order(CutKind::None, Moment::FlushEnding, rng), false)?;
    rig.stop_load();
    report.verdicts.push((
        "image during it",
        checker.boot_after(rig, &during, |dir| {
            // Without a reserve there may be no room for the segment that a boot starts: then its
            // operator makes room first.
            match case.trouble {
                Trouble::FsFull { reserve: false } => Ok(fs::remove_file(dir.join(BALLOON))?),
                _ => Ok(()),
            }
        })?,
    ));
    report
        .verdicts
        .push(("image after it", checker.boot(rig, &after)?));
    judge_answers(&mut report);
    Ok(report)
}

/// The image after a flush that failed and lost its writes: the mutation's bad case.
pub fn late_error(rig: &mut Rig, checker: &Checker, rng: &mut Rng) -> Result<Verdict> {
    rig.start_load()?;
    rig.wait_acked(ACKED)?;
    set_fault(rig, Fault::LateError, 2, u64::MAX);
    rig.wait("the fault is met", PATIENCE, |rig| {
        Ok(rig.device.lock().counts().groups_at_fault > 0)
    })?;
    std::thread::sleep(Duration::from_millis(50));
    rig.device.lock().set_fault(None);
    rig.wait_acked(ACKED)?;
    let after = rig.cut(order(CutKind::None, Moment::FlushEnding, rng), false)?;
    rig.stop_load();
    checker.boot(rig, &after)
}

fn order(kind: CutKind, moment: Moment, rng: &mut Rng) -> CutOrder {
    CutOrder {
        kind,
        moment,
        seed: rng.draw(),
        groups_min: 1,
        not_after: Instant::now() + Duration::from_secs(2),
    }
}

fn set_fault(rig: &Rig, fault: Fault, groups_min: usize, failures_max: u64) {
    rig.device.lock().set_fault(Some(FaultOrder {
        fault,
        groups_min,
        failures_max,
    }));
}

fn begin(rig: &mut Rig, case: Case) -> Result<()> {
    match case.trouble {
        Trouble::Fault { fault, once } => {
            set_fault(rig, fault, 2, if once { 1 } else { u64::MAX });
            rig.wait("the fault is met", PATIENCE, |rig| {
                Ok(rig.device.lock().counts().groups_at_fault > 0)
            })
        }
        Trouble::FsFull { .. } => fill_up(rig),
        Trouble::Slow(delay) => {
            rig.device.lock().set_delay(delay);
            Ok(())
        }
        Trouble::Hung => rig.wait("two groups are in flight", PATIENCE, |rig| {
            let mut device = rig.device.lock();
            let is_so = device.groups_unflushed() >= 2;
            device.set_hung(is_so);
            Ok(is_so)
        }),
        Trouble::Journal => {
            set_fault(rig, Fault::JournalError, 0, u64::MAX);
            // The log's blocks do not need the journal; this does.
            poke(rig)
        }
    }
}

fn end(rig: &mut Rig, case: Case) -> Result<()> {
    let mut device = rig.device.lock();
    device.set_fault(None);
    device.set_delay(Duration::ZERO);
    device.set_hung(false);
    drop(device);
    match case.trouble {
        Trouble::FsFull { .. } => Ok(fs::remove_file(balloon(rig)?)?),
        Trouble::Journal => rig.remount(),
        _ => Ok(()),
    }
}

/// The node tells the trouble, and keeps to what it says.
fn told(rig: &mut Rig, case: Case, began: Instant, report: &mut CaseReport) -> Result<()> {
    let mut word = String::new();
    rig.wait("the node tells it", PATIENCE, |rig| {
        Ok(match rig.node()?.ready_word() {
            Some((200, _)) => false,
            Some((_, said)) => {
                word = said;
                true
            }
            None => false,
        })
    })?;
    report.unready = Some((began.elapsed(), word));
    std::thread::sleep(SETTLING);
    let acked = rig.ledger.acked_count();
    let asked = Instant::now();
    let answer = rig.post_one();
    report.probe.1 = asked.elapsed();
    report.probe.0 = match answer {
        Ok(answer) => format!("{} {}", answer.status, answer.error.unwrap_or_default()),
        Err(error) => format!("no answer ({error})"),
    };
    std::thread::sleep(case.lasts);
    report.acked_while = rig.ledger.acked_count() - acked;
    let is_once = matches!(case.trouble, Trouble::Fault { once: true, .. });
    if is_once {
        return Ok(());
    }
    if report.acked_while > 0 {
        report.faults.push("acked while unready".into());
    }
    if !report.probe.0.starts_with("503 ") || report.probe.1 > REFUSAL {
        report.faults.push("no quick refusal while unready".into());
    }
    if rig.node()?.is_ready() {
        report.faults.push("ready while it lasts".into());
    }
    let expected = match case.trouble {
        Trouble::FsFull { .. } => Some("full"),
        Trouble::Hung => Some("stalled"),
        _ => None,
    };
    if let (Some(expected), Some((_, word))) = (expected, &report.unready)
        && word != expected
    {
        report
            .faults
            .push(format!("/ready says {word}, not {expected}"));
    }
    Ok(())
}

/// A slow disk is no trouble that stops anything: acks go on, readiness too.
fn slow(rig: &mut Rig, case: Case, report: &mut CaseReport) -> Result<()> {
    std::thread::sleep(SETTLING);
    let acked = rig.ledger.acked_count();
    let end = Instant::now() + case.lasts;
    let mut began = Instant::now();
    while Instant::now() < end {
        if !rig.node()?.is_ready() {
            report.unready = Some((began.elapsed(), "slow".into()));
            report.faults.push("unready, though only slow".into());
            break;
        }
        began = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
    }
    let asked = Instant::now();
    let answer = rig.post_one()?;
    report.probe = (
        format!("{} {}", answer.status, answer.error.unwrap_or_default()),
        asked.elapsed(),
    );
    report.acked_while = rig.ledger.acked_count() - acked;
    if report.acked_while == 0 {
        report.faults.push("nothing acked, though only slow".into());
    }
    Ok(())
}

/// Every answer must be one that a provider can rely on: acked, refused for now, or none at all
/// where the node was stopped.
fn judge_answers(report: &mut CaseReport) {
    for words in report.answers.keys() {
        let is_fine = match words.as_str() {
            "201" | "409 dedupe_pending" => true,
            "no answer" => report.hit_journal || report.case.trouble == Trouble::Journal,
            other => other.starts_with("503 ") && !other.ends_with("without Retry-After"),
        };
        if !is_fine {
            report.faults.push(format!("answered {words}"));
        }
    }
}

fn balloon(rig: &Rig) -> Result<PathBuf> {
    Ok(rig.mount_dir()?.join(BALLOON))
}

/// Takes every block that the file system has left.
fn fill_up(rig: &Rig) -> Result<()> {
    let file = File::create(balloon(rig)?)?;
    let (mut at, mut step) = (0i64, 64i64 << 20);
    while step >= 4096 {
        #[expect(unsafe_code, reason = "std reserves no blocks")]
        // SAFETY: an open descriptor and two numbers.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, at, step) };
        if result == 0 {
            at += step;
            continue;
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSPC) {
            bail!("filling the file system: {error}");
        }
        step /= 2;
    }
    // An image of the disk taken meanwhile must be full too.
    Ok(file.sync_all()?)
}

/// Makes the file system write its journal; meant to fail.
fn poke(rig: &Rig) -> Result<()> {
    let path = rig.mount_dir()?.join("drill-poke");
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(b"poke");
        let _ = file.sync_all();
    }
    Ok(())
}
