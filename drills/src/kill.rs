//! Drill `kill`: SIGKILL under load, at random moments and at named points, also during boot.
//! Every acked hook must be delivered in the end, unaltered, under the id it was acked with.
//!
//! A killed process loses what it had not handed to the kernel; it says nothing about a lost disk
//! cache (for that: the power drills).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::rng::Rng;
use crate::sink::Sink;

/// Most rows in flight at a kill, and outcomes known but not yet written: what may be delivered
/// again after each kill.
const AGAIN_PER_KILL: usize = 2 * 4096;

/// How long deliveries may stand still before the drill stops waiting for more.
const STANDSTILL: Duration = Duration::from_secs(8);

/// Points at which the node kills itself, with the highest count to draw.
const POINTS: &[(&str, u64)] = &[
    ("commit.built", 300),
    ("commit.submitted", 300),
    ("commit.settled", 300),
];

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
    /// Kills at random moments, at named points, during boot.
    pub kills: (u32, u32, u32),
}

/// Runs the drill.
pub fn run(plan: &KillPlan) -> Result<KillReport> {
    let mut rng = Rng::new(plan.seed);
    let sink = Sink::start()?;
    let ledger = Ledger::default();
    let numbers = Arc::new(AtomicU64::new(1));
    let node_plan = NodePlan {
        binary: plan.binary.clone(),
        dir: plan.dir.clone(),
        sink: sink.address(),
        cores: plan.cores,
        segment_bytes: 2 << 20,
        keyed_paused: false,
        more: String::new(),
    };
    let mut kills = (0, 0, 0);
    for kill in 0..plan.kills {
        let kind = match plan.mutation {
            Some(_) => 0,
            None => kill % 4,
        };
        match kind {
            1 | 3 => {
                let (point, count_max) = POINTS[rng.range(0, POINTS.len() as u64 - 1) as usize];
                let count = rng.range(1, count_max);
                named(
                    plan,
                    &node_plan,
                    &ledger,
                    &numbers,
                    &format!("{point}:{count}"),
                )?;
                kills.1 += 1;
            }
            2 => {
                during_boot(&node_plan, &mut rng)?;
                kills.2 += 1;
                under_load(plan, &node_plan, &ledger, &numbers, &mut rng)?;
                kills.0 += 1;
            }
            _ => {
                under_load(plan, &node_plan, &ledger, &numbers, &mut rng)?;
                kills.0 += 1;
            }
        }
    }
    let allowed = (kills.0 + kills.1 + kills.2) as usize * AGAIN_PER_KILL;
    let verdict = settle(&node_plan, &ledger, &sink, allowed)?;
    sink.stop();
    Ok(KillReport { verdict, kills })
}

fn load(
    plan: &KillPlan,
    address: std::net::SocketAddr,
    ledger: &Ledger,
    numbers: &Arc<AtomicU64>,
) -> Load {
    let load = LoadPlan {
        address,
        connections: 16,
        body_bytes: 600,
        keyed_every: if plan.mutation.is_some() { 0 } else { 5 },
    };
    Load::start(load, ledger.clone(), Arc::clone(numbers))
}

/// A kill at a random moment after enough hooks were acked.
fn under_load(
    plan: &KillPlan,
    node_plan: &NodePlan,
    ledger: &Ledger,
    numbers: &Arc<AtomicU64>,
    rng: &mut Rng,
) -> Result<()> {
    let env: Vec<(&str, &str)> = plan
        .mutation
        .iter()
        .map(|name| ("ANKUSA_MUTATION", name.as_str()))
        .collect();
    let mut node = node_plan.start(&env)?;
    if !node.wait_ready()? {
        bail!(
            "the node did not come up:\n{}",
            log_tail(&node_plan.log_file())
        );
    }
    let before = ledger.acked_count();
    let load = load(plan, node.address(), ledger, numbers);
    wait_acked(ledger, before + plan.acked_per_kill, || node.has_ended())
        .with_context(|| log_tail(&node_plan.log_file()))?;
    std::thread::sleep(Duration::from_micros(rng.range(0, 100_000)));
    node.kill()?;
    load.stop();
    Ok(())
}

/// The node kills itself when it comes to `point` for the given time, under load.
fn named(
    plan: &KillPlan,
    node_plan: &NodePlan,
    ledger: &Ledger,
    numbers: &Arc<AtomicU64>,
    point: &str,
) -> Result<()> {
    // First enough acked hooks without the point, then the node that dies at it.
    let mut rng = Rng::new(numbers.load(std::sync::atomic::Ordering::Relaxed));
    under_load(plan, node_plan, ledger, numbers, &mut rng)?;
    let mut node = node_plan.start(&[("ANKUSA_FAILPOINT", point)])?;
    if node.wait_ready()? {
        let load = load(plan, node.address(), ledger, numbers);
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end && !node.has_ended()? {
            std::thread::sleep(Duration::from_millis(5));
        }
        node.kill()?;
        load.stop();
    }
    Ok(())
}

/// Kills at random moments of a boot, twice in a row.
fn during_boot(node_plan: &NodePlan, rng: &mut Rng) -> Result<()> {
    for _ in 0..2 {
        let mut node = node_plan.start(&[])?;
        std::thread::sleep(Duration::from_micros(rng.range(1_000, 400_000)));
        node.kill()?;
    }
    Ok(())
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
