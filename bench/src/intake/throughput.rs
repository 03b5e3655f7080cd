//! Acked hooks per second at full load, dual over disk, and what a hook costs the reactor core and
//! all threads of the node.

use super::IntakeArgs;
use super::goals::Goals;
use super::rig::{Brokers, Compared, Rig, Setup};
use crate::measure::Subject;
use crate::report::{Figure, Report};

/// Dual over disk where the core is the limit, and where the disk or the confirm is.
const RATIO_CORE: f64 = 0.90;
const RATIO_DEVICE: f64 = 0.95;
/// From this busy share on the core is the limit.
const CORE_IS_LIMIT: f64 = 0.95;
/// What a hook may cost more than in disk mode, microseconds.
const CORE_US_MAX: f64 = 1.5;
const THREADS_US_MAX: f64 = 8.0;

/// Runs the part.
pub fn run(
    args: &IntakeArgs,
    brokers: Option<&Brokers>,
    report: &mut Report,
    goals: &mut Goals,
    idles: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let bench = &args.bench;
    let seconds = (bench.duration + bench.warmup).as_secs_f64()
        * f64::from(bench.rounds)
        * args.connections.len() as f64;
    let rig = Rig::start(
        args,
        brokers,
        &Setup {
            name: "load",
            program: None,
            sync_delay: std::time::Duration::ZERO,
            confirm: args.confirm,
            grow_s: if args.no_grow { 0.0 } else { seconds },
        },
    )?;
    let names: Vec<&'static str> = rig.subjects.iter().map(|s| s.name).collect();
    let mut lines: Vec<Vec<(f64, f64)>> = names.iter().map(|_| Vec::new()).collect();
    for &connections in &args.connections {
        let mut rounds: Vec<Vec<Compared>> = names.iter().map(|_| Vec::new()).collect();
        for number_of in 1..=bench.rounds as usize {
            let round = bench.round(number_of, connections, args.body);
            let plan = |subject: &Subject| subject.plan(&round);
            let compared = rig.round(&format!("load {connections}"), &round, &plan, report)?;
            for (all, one) in rounds.iter_mut().zip(compared) {
                all.push(one);
            }
        }
        for (at, name) in names.iter().enumerate() {
            let what = format!("{name} at {connections}");
            let median = one(&what, &rounds[at], report);
            lines[at].push((connections as f64, median));
            idles.extend(rounds[at].iter().map(|c| c.measured.idle));
            if at > 0 {
                against_disk(
                    &what,
                    *name == "dual",
                    &rounds[0],
                    &rounds[at],
                    report,
                    goals,
                );
            }
        }
    }
    for (name, line) in names.iter().zip(lines) {
        report.throughput(name, line);
    }
    rig.end();
    Ok(())
}

/// The figures of one subject; the median of its rate.
fn one(what: &str, rounds: &[Compared], report: &mut Report) -> f64 {
    let mut add = |name: &str, unit: &'static str, pick: &dyn Fn(&Compared) -> f64| {
        let values: Vec<f64> = rounds.iter().map(pick).collect();
        let figure = Figure::new(format!("{what}: {name}"), unit, &values);
        let median = figure.median;
        report.figure(figure);
        median
    };
    let rate = add("acked", "1/s", &|c| c.measured.load.rate());
    add("ack p50", "us", &|c| c.measured.load.acked_us(50.0));
    add("ack p99", "us", &|c| c.measured.load.acked_us(99.0));
    add("core busy", "", &|c| c.measured.core_busy);
    add("core", "us/ack", &|c| c.measured.core_us_per_ack);
    add("all threads", "us/ack", &|c| c.measured.threads_us_per_ack);
    add("acks per flush", "", &|c| {
        1.0 / c.measured.flushes_per_ack.max(1e-9)
    });
    if rounds.iter().all(|c| c.confirm_us.is_some()) {
        add("confirm on the core", "us", &|c| {
            c.confirm_us.unwrap_or(0.0)
        });
    }
    rate
}

/// A ratio or a difference is taken within a round.
fn against_disk(
    what: &str,
    in_files: bool,
    disk: &[Compared],
    dual: &[Compared],
    report: &mut Report,
    goals: &mut Goals,
) {
    let within = |pick: &dyn Fn(&Compared, &Compared) -> f64| {
        let pairs = dual.iter().zip(disk);
        pairs
            .map(|(dual, disk)| pick(dual, disk))
            .collect::<Vec<f64>>()
    };
    let ratios =
        within(&|dual, disk| dual.measured.load.rate() / disk.measured.load.rate().max(1.0));
    let core = within(&|dual, disk| dual.measured.core_us_per_ack - disk.measured.core_us_per_ack);
    let threads =
        within(&|dual, disk| dual.measured.threads_us_per_ack - disk.measured.threads_us_per_ack);
    let ratio = Figure::new(format!("{what}: over disk"), "", &ratios);
    let core = Figure::new(format!("{what}: core, more than disk"), "us/ack", &core);
    let threads = Figure::new(
        format!("{what}: all threads, more than disk"),
        "us/ack",
        &threads,
    );
    if in_files {
        let busy: Vec<f64> = dual.iter().map(|c| c.measured.core_busy).collect();
        let busy = Figure::new("", "", &busy).median;
        let goal = match busy >= CORE_IS_LIMIT {
            true => RATIO_CORE,
            false => RATIO_DEVICE,
        };
        goals.at_least(report, ratio, goal);
        goals.at_most(report, core, CORE_US_MAX);
        // The thread that plays the log is no part of a node.
        report.figure(threads);
    } else {
        // Brokers on the same machine take processor time of their own: told, no goal.
        report.figure(ratio);
        goals.at_most(report, core, CORE_US_MAX);
        goals.at_most(report, threads, THREADS_US_MAX);
    }
}
