//! Drill `kill --dual`: SIGKILL under load, during boots and at named points, and every few kills the
//! host is lost with its data directory: a backup is restored, or nothing is, and the intake log is
//! replayed.
//!
//! Every acked hook must be delivered unaltered under the id it was acked with, and be in the log.
//! Hooks with a key go to a sink that is paused until the end, so that at every loss there is
//! something that only the backup and the log can bring back.

mod named;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{DUAL, acked_ids, command, records, remove, send_again, until_ready};
use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::rng::Rng;
use crate::sink::Sink;

/// A body.
const BODY_BYTES: usize = 600;
/// Connections of the load; what is in flight on each at a death may be delivered unacked.
const CONNECTIONS: usize = 16;
/// Most rows in flight at a kill, and outcomes known but not yet written.
const AGAIN_PER_KILL: u64 = 2 * 4096;
/// Every so manieth kill takes the data directory with it.
const LOSS_EVERY: u32 = 3;
/// What a host that is lost in `disk` mode must be seen to lose, and how long an ack is waited for.
const WAIT: Duration = Duration::from_secs(60);

/// The drill's settings.
#[derive(Clone, Debug)]
pub struct DualPlan {
    /// The `ankusa` binary, built with the feature `mutations` for the controls.
    pub binary: PathBuf,
    /// Where to work.
    pub dir: PathBuf,
    /// Seed of every choice.
    pub seed: u64,
    /// Kills under load.
    pub kills: u32,
    /// Hooks acked before each.
    pub acked_per_kill: usize,
    /// Cores of the node.
    pub cores: usize,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct DualReport {
    /// The oracle's verdict.
    pub verdict: Verdict,
    /// Kills under load, during boots and during restores.
    pub kills: (u32, u32, u32),
    /// Hosts lost and made whole from a backup and the log, and from the log alone.
    pub losses: (u32, u32),
    /// Acked hooks that the log does not have.
    pub not_in_log: usize,
    /// Records in the log, and hooks among them.
    pub records: (usize, usize),
    /// Keyed hooks that were sent again after a death.
    pub again: usize,
    /// Deaths at named points.
    pub named: u32,
    /// Points that were not come to.
    pub missed: Vec<String>,
}

impl DualReport {
    /// Whether every promise held.
    pub fn holds(&self) -> bool {
        self.verdict.holds() && self.not_in_log == 0 && self.missed.is_empty()
    }
}

struct Run<'a> {
    plan: &'a DualPlan,
    node: NodePlan,
    ledger: Ledger,
    numbers: Arc<AtomicU64>,
    rng: Rng,
    report: DualReport,
    /// The next number when the last backup was asked for.
    backed_up: Option<u64>,
    /// Deliveries that may come again.
    allowed: u64,
    /// Acked when the log was last made anew, and delivered at once: they need not be in it.
    before: BTreeSet<String>,
    /// How often it was.
    anew: u64,
}

fn node_plan(plan: &DualPlan, sink: &Sink) -> NodePlan {
    NodePlan {
        binary: plan.binary.clone(),
        dir: plan.dir.clone(),
        sink: sink.address(),
        cores: plan.cores,
        segment_bytes: 1 << 20,
        keyed_paused: true,
        more: "intake: { type: memory, node_id: drill-1, publish_timeout_ms: 1000 }\n\
               backup: { enabled: true, interval_ms: 1h, max_age_ms: 2h, signing_key: \
               only-for-a-drill, store: { type: local, root: ./backup } }"
            .into(),
    }
}

/// Runs the drill.
pub fn run(plan: &DualPlan) -> Result<DualReport> {
    let sink = Sink::start()?;
    let mut run = Run {
        plan,
        node: node_plan(plan, &sink),
        ledger: Ledger::default(),
        numbers: Arc::new(AtomicU64::new(1)),
        rng: Rng::new(plan.seed),
        report: DualReport::default(),
        backed_up: None,
        allowed: 0,
        before: BTreeSet::new(),
        anew: 0,
    };
    for round in 1..=plan.kills {
        run.round(round).with_context(|| format!("round {round}"))?;
        run.named_points(round, plan.kills)
            .with_context(|| format!("after round {round}"))?;
    }
    run.log_made_anew()?;
    run.settle(&sink)?;
    let log = records::ids(&plan.dir.join("data.intake"))?;
    let acked = acked_ids(&run.ledger);
    let wanted = acked.iter().filter(|id| !run.before.contains(*id));
    let absent = wanted.filter(|id| !log.contains_key(*id));
    run.report.not_in_log = absent.count();
    run.report.records = (log.values().sum(), log.len());
    sink.stop();
    Ok(run.report)
}

impl Run<'_> {
    fn number(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }

    fn load(&self, node: &Node) -> Load {
        let load = LoadPlan {
            address: node.address(),
            connections: CONNECTIONS,
            body_bytes: BODY_BYTES,
            keyed_every: 3,
        };
        Load::start(load, self.ledger.clone(), Arc::clone(&self.numbers))
    }

    /// What the log does from now on.
    fn log_does(&self, order: &str) -> Result<()> {
        let dir = self.plan.dir.join("data.intake");
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("control.new"), order)?;
        Ok(fs::rename(dir.join("control.new"), dir.join("control"))?)
    }

    fn round(&mut self, round: u32) -> Result<()> {
        let began = self.number();
        let mut node = self.node.start(&[DUAL])?;
        until_ready(&mut node, &self.node)?;
        self.report.again += send_again(&self.ledger, node.address(), BODY_BYTES)?;
        let weather = self.weather();
        self.log_does(&weather)?;
        let load = self.load(&node);
        self.until_acked(self.plan.acked_per_kill / 2, &mut node)?;
        if !round.is_multiple_of(LOSS_EVERY) {
            let number = self.number();
            command(&self.node, &["backup", "now"])?;
            self.backed_up = Some(number);
        }
        if self.rng.range(0, 2) == 0 {
            self.log_does("refuse")?;
            std::thread::sleep(Duration::from_millis(self.rng.range(50, 400)));
            if self.rng.range(0, 1) == 0 {
                self.log_does(&weather)?;
            }
        }
        if fs::read(self.plan.dir.join("data.intake/control"))? != b"refuse" {
            self.until_acked(self.plan.acked_per_kill / 2, &mut node)?;
        }
        std::thread::sleep(Duration::from_micros(self.rng.range(0, 100_000)));
        node.kill()?;
        load.stop();
        self.log_does("")?;
        self.report.kills.0 += 1;
        self.allowed += (self.number() - began).min(AGAIN_PER_KILL);
        if round.is_multiple_of(LOSS_EVERY) {
            self.lose_host()?;
        }
        if round.is_multiple_of(2) || round.is_multiple_of(LOSS_EVERY) {
            self.during_boot()?;
        }
        Ok(())
    }

    /// How the log behaves in a round.
    fn weather(&mut self) -> String {
        match self.rng.range(0, 3) {
            0 => format!("latency_ms {}", self.rng.range(1, 60)),
            _ => String::new(),
        }
    }

    fn until_acked(&self, more: usize, node: &mut Node) -> Result<()> {
        let (target, end) = (self.ledger.acked_count() + more, Instant::now() + WAIT);
        while self.ledger.acked_count() < target {
            if node.has_ended()? {
                bail!("the node ended:\n{}", log_tail(&self.node.log_file()));
            }
            if Instant::now() > end {
                let acked = self.ledger.acked_count();
                bail!("only {acked} of {target} hooks were acked");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The data directory is gone, in turn with the backups, when the log has everything, and without
    /// them: restored from the last one, the restore killed once.
    fn lose_host(&mut self) -> Result<()> {
        remove(&self.node.data_dir())?;
        let (restored, replayed) = self.report.losses;
        match self.backed_up.filter(|_| restored < replayed) {
            Some(number) => {
                self.allowed += self.number() - number;
                self.kill_a_restore()?;
                remove(&self.node.data_dir())?;
                command(&self.node, &["restore"])?;
                self.report.losses.0 += 1;
            }
            None => {
                remove(&self.plan.dir.join("backup"))?;
                self.backed_up = None;
                self.allowed += self.number();
                self.report.losses.1 += 1;
            }
        }
        Ok(())
    }

    fn kill_a_restore(&mut self) -> Result<()> {
        let mut restore = std::process::Command::new(&self.node.binary)
            .args(["restore", "--config", "ankusa.yml"])
            .current_dir(&self.node.dir)
            .env(DUAL.0, DUAL.1)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_micros(self.rng.range(1_000, 150_000)));
        restore.kill()?;
        restore.wait()?;
        self.report.kills.2 += 1;
        Ok(())
    }

    /// Kills at random moments of a boot that replays.
    fn during_boot(&mut self) -> Result<()> {
        for _ in 0..2 {
            let mut node = self.node.start(&[DUAL])?;
            std::thread::sleep(Duration::from_micros(self.rng.range(1_000, 600_000)));
            if node.has_ended()? {
                bail!("the node ended:\n{}", log_tail(&self.node.log_file()));
            }
            node.kill()?;
            self.report.kills.1 += 1;
            self.allowed += (CONNECTIONS * 16) as u64;
        }
        Ok(())
    }

    /// Boots a last time with no sink paused, lets everything be delivered, stops, judges.
    fn settle(&mut self, sink: &Sink) -> Result<()> {
        let plan = NodePlan {
            keyed_paused: false,
            ..self.node.clone()
        };
        let mut node = plan.start(&[DUAL])?;
        until_ready(&mut node, &plan)?;
        self.report.again += send_again(&self.ledger, node.address(), BODY_BYTES)?;
        self.report.verdict = delivered(&self.ledger, sink, self.allowed as usize);
        if !node.stop()? {
            bail!("not a clean stop:\n{}", log_tail(&plan.log_file()));
        }
        Ok(())
    }
}

/// Waits until nothing is missing, or nothing comes any more.
pub(super) fn delivered(ledger: &Ledger, sink: &Sink, allowed: usize) -> Verdict {
    let (mut last, mut since) = (sink.count(), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = sink.count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let verdict = judge(&ledger.rows(), &sink.delivered(), allowed);
        let quiet = since.elapsed();
        if quiet > Duration::from_secs(8) || verdict.missing == 0 && quiet > Duration::from_secs(2)
        {
            return verdict;
        }
    }
}

/// A control: the promise is broken, or is not given, and the host is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The ack leaves before the log has confirmed.
    AckBeforeConfirm,
    /// There is no log: what the mode states is lost.
    Disk,
    /// None: the same with the promise kept, which must lose nothing.
    Kept,
}

/// Acks under a log that confirms nothing for a while, then the loss of the host. The acked hooks
/// that are missing afterwards.
pub fn control(plan: &DualPlan, control: Control) -> Result<Verdict> {
    let sink = Sink::start()?;
    let node_plan = node_plan(plan, &sink);
    let mode = match control {
        Control::Disk => (DUAL.0, "disk"),
        Control::AckBeforeConfirm | Control::Kept => DUAL,
    };
    let mutation = match control {
        Control::AckBeforeConfirm => ("ANKUSA_MUTATION", "ack_before_confirm"),
        Control::Disk | Control::Kept => ("ANKUSA_MUTATION", ""),
    };
    let run = Run {
        plan,
        node: node_plan.clone(),
        ledger: Ledger::default(),
        numbers: Arc::new(AtomicU64::new(1)),
        rng: Rng::new(plan.seed),
        report: DualReport::default(),
        backed_up: None,
        allowed: 0,
        before: BTreeSet::new(),
        anew: 0,
    };
    let mut node = node_plan.start(&[mode, mutation])?;
    until_ready(&mut node, &node_plan)?;
    run.log_does("silent")?;
    std::thread::sleep(Duration::from_millis(200));
    let load = run.load(&node);
    std::thread::sleep(Duration::from_millis(800));
    node.kill()?;
    load.stop();
    run.log_does("")?;
    remove(&node_plan.data_dir())?;
    let after = NodePlan {
        keyed_paused: false,
        ..node_plan
    };
    let mut node = after.start(&[mode])?;
    until_ready(&mut node, &after)?;
    let verdict = delivered(&run.ledger, &sink, usize::MAX);
    node.stop()?;
    sink.stop();
    Ok(verdict)
}
