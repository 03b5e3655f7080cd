//! Many seeds on a few threads, and what they met together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ankusa_wal::disk::sim::SimCounters;

use super::log::LogCounters;
use super::run::{Plan, Report, Tally, run_seed};

/// Which seeds to run.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// Operations of each.
    pub ops: u32,
    /// Faults of each, at least.
    pub faults: u32,
    /// Threads.
    pub threads: usize,
    /// With an intake log.
    pub dual: bool,
}

/// What came of them.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seeds run.
    pub seeds: u64,
    /// Faults met, by kind.
    pub counters: SimCounters,
    /// What the log did.
    pub log: LogCounters,
    /// Fewest faults that a seed met.
    pub faults_min: u64,
    /// What was done.
    pub tally: Tally,
    /// Seeds with a broken promise, in order.
    pub failed: Vec<Report>,
    /// Time it took.
    pub took: Duration,
}

impl Outcome {
    /// Seeds per second.
    pub fn seeds_per_s(&self) -> f64 {
        self.seeds as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Runs the seeds. A seed that breaks a promise does not stop the others, until there are ten.
pub fn sweep(plan: &Sweep) -> Outcome {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let all = Mutex::new(Outcome {
        faults_min: u64::MAX,
        ..Outcome::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= plan.seeds || !add(&all, run_seed(&one(plan, plan.from + at))) {
                        return;
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.failed.sort_by_key(|report| report.seed);
    all.took = start.elapsed();
    all
}

fn one(plan: &Sweep, seed: u64) -> Plan {
    Plan {
        ops: plan.ops,
        faults: plan.faults,
        dual: plan.dual,
        ..Plan::of(seed)
    }
}

fn add(all: &Mutex<Outcome>, report: Report) -> bool {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.seeds += 1;
    all.counters += report.counters;
    all.log += report.log;
    all.tally += report.tally;
    all.faults_min = all.faults_min.min(report.counters.faults());
    if !report.violations.is_empty() {
        all.failed.push(report);
    }
    all.failed.len() < 10
}
