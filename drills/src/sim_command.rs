//! `ankusa-drills sim` and `ankusa-drills mutations`.

use ankusa_drills::sim::enumerate::{every_flush, every_operation};
use ankusa_drills::sim::sweep::{Sweep, sweep};
use ankusa_drills::sim::{Plan, Report, run_seed};
use anyhow::Result;
use clap::Args;

/// Arguments of `sim`.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// Seeds to run
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Operations of each seed
    #[arg(long, default_value_t = 200)]
    ops: u32,
    /// Faults of the disk that each seed meets, at least
    #[arg(long, default_value_t = 5)]
    faults: u32,
    /// Threads; 0: one for each CPU
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// With an intake log: the dual commit
    #[arg(long)]
    dual: bool,
    /// Instead, fail every operation of a short history and cut the power at every flush
    #[arg(long, conflicts_with_all = ["seeds", "ops", "faults", "threads"])]
    enumerate: bool,
    /// Run this one seed and print its trace
    #[arg(long, conflicts_with_all = ["seeds", "from", "threads"])]
    seed: Option<u64>,
    /// Leave the trace out, print only its hash
    #[arg(long, requires = "seed")]
    quiet: bool,
}

/// Arguments of `mutations`.
#[derive(Args)]
pub(crate) struct MutationsArgs {
    /// In the simulation
    #[arg(long)]
    sim: bool,
    /// On three real brokers, which are up (`drills/kafka up separate`): the control of drill `broker`
    #[arg(long, requires = "binary")]
    broker: bool,
    /// The ankusa binary, built with the feature mutations
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
    /// `drills/kafka`
    #[arg(long, default_value = "drills/kafka")]
    kafka: std::path::PathBuf,
    /// Most seeds for each; what is known to be enough when left out
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Only this one
    #[arg(long)]
    only: Option<String>,
}

/// Runs the simulation; true when every promise held.
pub(crate) fn sim(args: &SimArgs) -> Result<bool> {
    hush();
    if let Some(seed) = args.seed {
        return Ok(one(seed, args));
    }
    if args.enumerate {
        return Ok(enumerated(args.from));
    }
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let last = args.from + args.seeds.saturating_sub(1);
    println!(
        "sim: seeds {}..={last}, {} operations and at least {} faults each, {threads} threads",
        args.from, args.ops, args.faults
    );
    let outcome = sweep(&Sweep {
        from: args.from,
        seeds: args.seeds,
        ops: args.ops,
        faults: args.faults,
        threads,
        dual: args.dual,
    });
    println!(
        "sim: met {} (at least {} faults in a seed)",
        outcome.counters, outcome.faults_min
    );
    if args.dual {
        println!("sim: the log {}", outcome.log);
    }
    println!("sim: did {}", outcome.tally);
    for report in &outcome.failed {
        tell(report, args);
    }
    println!(
        "sim: {} seeds, {} broken, {:.1} s, {:.1} seeds/s",
        outcome.seeds,
        outcome.failed.len(),
        outcome.took.as_secs_f64(),
        outcome.seeds_per_s()
    );
    Ok(outcome.failed.is_empty())
}

fn one(seed: u64, args: &SimArgs) -> bool {
    println!("sim: seed {seed}");
    let report = run_seed(&Plan {
        ops: args.ops,
        faults: args.faults,
        trace: !args.quiet,
        dual: args.dual,
        ..Plan::of(seed)
    });
    println!("sim: met {}", report.counters);
    if args.dual {
        println!("sim: the log {}", report.log);
    }
    println!("sim: did {}", report.tally);
    println!("sim: trace hash {:016x}", report.hash);
    if report.violations.is_empty() {
        println!("sim: every promise held");
    } else {
        tell(&report, args);
    }
    report.violations.is_empty()
}

fn tell(report: &Report, args: &SimArgs) {
    println!(
        "sim: seed {} is broken; replay: ankusa-drills sim --seed {} --ops {} --faults {}{}",
        report.seed,
        report.seed,
        args.ops,
        args.faults,
        if args.dual { " --dual" } else { "" }
    );
    for violation in report.violations.iter().take(10) {
        println!("sim:   {violation}");
    }
}

fn enumerated(seed: u64) -> bool {
    let mut holds = true;
    let parts = [
        ("every operation", every_operation(seed)),
        ("every flush", every_flush(seed, 20)),
    ];
    for (name, part) in parts {
        println!(
            "sim: {name} (seed {seed}): {} cases, met {}",
            part.cases, part.counters
        );
        for (case, violation) in part.broken.iter().take(10) {
            println!("sim:   {case}: {violation}");
        }
        holds &= part.broken.is_empty();
    }
    holds
}

/// A failed assertion of the heart is a violation like others: it is told with its seed.
fn hush() {
    std::panic::set_hook(Box::new(|panic| eprintln!("sim: {panic}")));
}

/// Runs the negative controls; true when each was caught.
#[cfg(feature = "mutations")]
pub(crate) fn mutations(args: &MutationsArgs) -> Result<bool> {
    use ankusa_drills::dual::broker::{self, BrokerPlan};
    use ankusa_drills::sim::controls::{CONTROLS, DUAL_CONTROLS, control};
    anyhow::ensure!(args.sim || args.broker, "say where: --sim, --broker");
    let mut all_caught = true;
    if let (true, Some(binary)) = (args.broker, &args.binary) {
        all_caught &= broker::control(&BrokerPlan::new(binary, &args.kafka))?;
    }
    if !args.sim {
        return Ok(all_caught);
    }
    std::panic::set_hook(Box::new(|_| {}));
    let disk = CONTROLS.map(|(name, seeds_max)| (name, seeds_max, false));
    let dual = DUAL_CONTROLS.map(|(name, seeds_max)| (name, seeds_max, true));
    for (name, seeds_max, dual) in disk.into_iter().chain(dual) {
        if args.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let ended = control(name, args.from, args.seeds.unwrap_or(seeds_max), dual);
        match ended.caught_after {
            Some(seeds) => println!("control {name}: caught in {seeds} seeds: {}", ended.how),
            None => println!("control {name}: MISSED: {}", ended.how),
        }
        all_caught &= ended.caught_after.is_some();
    }
    if args.only.is_none() {
        ankusa_wal::mutations::set(Some("ack_before_sync"));
        let broken = every_flush(args.from, 0).broken.len();
        ankusa_wal::mutations::set(None);
        let word = if broken > 0 { "caught" } else { "MISSED" };
        println!("control ack_before_sync at every flush: {word}: {broken} cases");
        all_caught &= broken > 0;
    }
    Ok(all_caught)
}

/// Nothing to break in this build.
#[cfg(not(feature = "mutations"))]
pub(crate) fn mutations(args: &MutationsArgs) -> Result<bool> {
    let _ = (args.sim, args.seeds, args.from, &args.only);
    let _ = (args.broker, &args.binary, &args.kafka);
    anyhow::bail!("build with --features mutations: nothing can be broken in this build")
}
