//! Drill `kill`: SIGKILL under load, at random moments and at named points, also during boot.
//! Every acked hook must be delivered in the end, unaltered, under the id it was acked with.
//!
//! A run goes through every point of [`points`], in an order of its seed. A point that the node
//! does not come to is told and fails the drill: else a point that was renamed would go on
//! counting as a kill.
//!
//! A killed process loses what it had not handed to the kernel; it says nothing about a lost disk
//! cache (for that: the power drills).

mod points;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::rng::Rng;
use crate::sink::Sink;

use points::{Point, Way};

/// Most rows in flight at a kill, and outcomes known but not yet written: what may be delivered
/// again after each kill.
const AGAIN_PER_KILL: usize = 2 * 4096;

/// How long deliveries may stand still before the drill stops waiting for more.
const STANDSTILL: Duration = Duration::from_secs(8);

/// How long the node may take to come to a point.
const POINT_TIMEOUT: Duration = Duration::from_secs(30);

/// The drill's settings.
#[derive(Clone, Debug)]
pub struct KillPlan {
    /// The `ankusa` binary, built with the feature `mutations` for named points and controls.
    pub binary: PathBuf,
    /// Where to work.
    pub dir: PathBuf,
    /// Seed of every choice.
    pub seed: u64,
    /// Kills.
    pub kills: u32,
    /// Hooks acked before each.
    pub acked_per_kill: usize,
    /// Cores of the node.
    pub cores: usize,
    /// A mutation to switch on: the negative control.
    pub mutation: Option<String>,
}

/// What a run of the drill found.
#[derive(Clone, Debug)]
pub struct KillReport {
    /// The oracle's verdict.
    pub verdict: Verdict,
    /// Kills at random moments, at named points, at random moments of a boot.
    pub kills: (u32, u32, u32),
    /// Points that the node did not die at, and why.
    pub missed: Vec<String>,
}

impl KillReport {
    /// Whether every promise held and every point was come to.
    pub fn holds(&self) -> bool {
        self.verdict.holds() && self.missed.is_empty()
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a KillPlan,
    node: NodePlan,
    ledger: Ledger,
    numbers: Arc<AtomicU64>,
    rng: Rng,
    kills: (u32, u32, u32),
    missed: Vec<String>,
}

/// Runs the drill.
pub fn run(plan: &KillPlan) -> Result<KillReport> {
    let sink = Sink::start()?;
    let mut run = Run {
        plan,
        node: NodePlan {
            binary: plan.binary.clone(),
            dir: plan.dir.clone(),
            sink: sink.address(),
            cores: plan.cores,
            segment_bytes: 1 << 20,
            keyed_paused: false,
            more: String::new(),
        },
        ledger: Ledger::default(),
        numbers: Arc::new(AtomicU64::new(1)),
        rng: Rng::new(plan.seed),
        kills: (0, 0, 0),
        missed: Vec::new(),
    };
    match plan.mutation {
        Some(_) => run.random_kills()?,
        None => run.all_kinds()?,
    }
    let (kills, missed) = (run.kills, run.missed);
    let allowed = (kills.0 + kills.1 + kills.2) as usize * AGAIN_PER_KILL;
    let verdict = settle(&run.node, &run.ledger, &sink, allowed)?;
    sink.stop();
    Ok(KillReport {
        verdict,
        kills,
        missed,
    })
}

impl Run<'_> {
    /// The control: only kills at random moments, with the mutation.
    fn random_kills(&mut self) -> Result<()> {
        for _ in 0..self.plan.kills {
            self.under_load()?;
        }
        Ok(())
    }

    /// Kills at random moments under load, each followed by one kind of others; the points are
    /// dealt out over the rounds.
    fn all_kinds(&mut self) -> Result<()> {
        for point in points::POINTS.iter().filter(|p| p.way == Way::FirstBoot) {
            self.die_at(point)?;
        }
        let rounds = self.plan.kills as usize;
        let at_boot = rounds.div_ceil(4);
        let mut boot = points::deal(&mut self.rng, at_boot, |way| way == Way::Boot);
        let is_later = |way| way != Way::Boot && way != Way::FirstBoot;
        let mut later = points::deal(&mut self.rng, rounds.div_ceil(2), is_later);
        for round in 0..rounds {
            self.under_load()?;
            let dealt = match round % 4 {
                0 | 2 => later.pop(),
                1 => boot.pop(),
                _ => None,
            };
            if round % 4 == 1 {
                self.during_boot()?;
            }
            for point in dealt.unwrap_or_default() {
                self.die_at(&point)?;
            }
        }
        for point in later.into_iter().chain(boot).flatten() {
            self.die_at(&point)?;
        }
        Ok(())
    }

    fn load(&self, address: std::net::SocketAddr) -> Load {
        let load = LoadPlan {
            address,
            connections: 16,
            body_bytes: 600,
            keyed_every: if self.plan.mutation.is_some() { 0 } else { 5 },
        };
        Load::start(load, self.ledger.clone(), Arc::clone(&self.numbers))
    }

    /// A kill at a random moment after enough hooks were acked.
    fn under_load(&mut self) -> Result<()> {
        let env: Vec<(&str, &str)> = self
            .plan
            .mutation
            .iter()
            .map(|name| ("ANKUSA_MUTATION", name.as_str()))
            .collect();
        let mut node = self.node.start(&env)?;
        if !node.wait_ready()? {
            bail!(
                "the node did not come up:\n{}",
                log_tail(&self.node.log_file())
            );
        }
        let target = self.ledger.acked_count() + self.plan.acked_per_kill;
        let load = self.load(node.address());
        wait_acked(&self.ledger, target, || node.has_ended())
            .with_context(|| log_tail(&self.node.log_file()))?;
        std::thread::sleep(Duration::from_micros(self.rng.range(0, 100_000)));
        node.kill()?;
        load.stop();
        self.kills.0 += 1;
        Ok(())
    }

    /// The node kills itself when it comes to `point` for a time that is drawn.
    fn die_at(&mut self, point: &Point) -> Result<()> {
        let count = self.rng.range(1, point.count_max);
        let failpoint = format!("{}:{count}", point.name);
        let plan = NodePlan {
            keyed_paused: point.way == Way::LoadWithBacklog,
            ..self.node.clone()
        };
        let mut node = plan.start(&[("ANKUSA_FAILPOINT", &failpoint)])?;
        match self.bring_to(point.way, &mut node) {
            Ok(true) => self.kills.1 += 1,
            Ok(false) => self
                .missed
                .push(format!("{failpoint}: not come to in {POINT_TIMEOUT:?}")),
            Err(error) => self.missed.push(format!("{failpoint}: {error}")),
        }
        node.kill()
    }

    /// True when the node died by itself on the way.
    fn bring_to(&mut self, way: Way, node: &mut Node) -> Result<bool> {
        if !node.wait_ready()? {
            return node.has_died();
        }
        match way {
            // The spare slots are made while it already serves.
            Way::FirstBoot | Way::Boot => wait_died(node, POINT_TIMEOUT),
            Way::Load | Way::LoadWithBacklog => {
                let load = self.load(node.address());
                let died = wait_died(node, POINT_TIMEOUT);
                node.kill()?;
                load.stop();
                died
            }
            Way::Stop => {
                let load = self.load(node.address());
                let some = Duration::from_millis(self.rng.range(100, 800));
                let died = wait_died(node, some);
                if let Ok(false) = died {
                    node.ask_to_stop();
                }
                load.stop();
                match died {
                    Ok(false) => wait_died(node, POINT_TIMEOUT),
                    died => died,
                }
            }
        }
    }

    /// Kills at random moments of a boot, twice in a row.
    fn during_boot(&mut self) -> Result<()> {
        for _ in 0..2 {
            let mut node = self.node.start(&[])?;
            std::thread::sleep(Duration::from_micros(self.rng.range(1_000, 400_000)));
            node.kill()?;
            self.kills.2 += 1;
        }
        Ok(())
    }
}

/// Waits until the node has killed itself; an error when it ended in another way.
fn wait_died(node: &mut Node, patience: Duration) -> Result<bool> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if node.has_died()? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

fn wait_acked(
    ledger: &Ledger,
    target: usize,
    mut ended: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(120);
    while ledger.acked_count() < target {
        if ended()? {
            bail!("the node ended by itself");
        }
        if Instant::now() > end {
            bail!("only {} of {target} hooks were acked", ledger.acked_count());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Starts the node a last time, lets everything be delivered, stops it cleanly, and judges.
fn settle(node_plan: &NodePlan, ledger: &Ledger, sink: &Sink, allowed: usize) -> Result<Verdict> {
    let mut node = node_plan.start(&[])?;
    if !node.wait_ready()? {
        bail!(
            "the node did not come up:\n{}",
            log_tail(&node_plan.log_file())
        );
    }
    let (mut last, mut since) = (sink.count(), Instant::now());
    while since.elapsed() < STANDSTILL {
        std::thread::sleep(Duration::from_millis(100));
        let now = sink.count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let verdict = judge(&ledger.rows(), &sink.delivered(), allowed);
        if verdict.missing == 0 && since.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    if !node.stop()? {
        bail!("not a clean stop:\n{}", log_tail(&node_plan.log_file()));
    }
    Ok(judge(&ledger.rows(), &sink.delivered(), allowed))
}
