//! p50 of the ack at a moderate constant rate: the two halves run beside each other, so the ack
//! takes as long as the longer of them, and a little.

use std::path::Path;
use std::time::Duration;

use super::goals::Goals;
use super::rig::{Brokers, Compared, Rig, Setup};
use super::{IntakeArgs, ms};
use crate::load::Pace;
use crate::measure::Subject;
use crate::report::{Figure, Report};

/// What the ack may take over the longer half, microseconds.
const OVER_US_MAX: f64 = 300.0;
/// Enough for what is in flight at any of the rates meant here.
const CONNECTIONS: usize = 512;

/// One comparison.
struct Cell<'a> {
    name: &'static str,
    program: Option<&'a Path>,
    sync_delay: Duration,
    confirm: Duration,
    with_brokers: bool,
}

/// Runs the part.
pub fn run(
    args: &IntakeArgs,
    brokers: Option<&Brokers>,
    report: &mut Report,
    goals: &mut Goals,
    idles: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let stalled = args.stalled_ankusa.as_deref();
    let mut cells = vec![
        Cell {
            name: "plain",
            program: None,
            sync_delay: Duration::ZERO,
            confirm: args.confirm,
            with_brokers: true,
        },
        Cell {
            name: "slow-confirm",
            program: stalled,
            // The reverse of the next one, where syncs can be slowed down.
            sync_delay: stalled.map_or(Duration::ZERO, |_| args.confirm),
            confirm: args.slow,
            with_brokers: false,
        },
    ];
    match stalled {
        Some(_) => cells.push(Cell {
            name: "slow-sync",
            program: stalled,
            sync_delay: args.slow,
            confirm: args.confirm,
            with_brokers: false,
        }),
        None => {
            report.warn("no --stalled-ankusa: nothing was measured with slow syncs".to_owned());
        }
    }
    for cell in &cells {
        measure(
            args,
            cell,
            brokers.filter(|_| cell.with_brokers),
            report,
            goals,
            idles,
        )?;
    }
    Ok(())
}

fn measure(
    args: &IntakeArgs,
    cell: &Cell<'_>,
    brokers: Option<&Brokers>,
    report: &mut Report,
    goals: &mut Goals,
    idles: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let bench = &args.bench;
    let seconds = (bench.duration + bench.warmup).as_secs_f64() * f64::from(bench.rounds);
    let rig = Rig::start(
        args,
        brokers,
        &Setup {
            name: cell.name,
            program: cell.program,
            sync_delay: cell.sync_delay,
            confirm: cell.confirm,
            // Full load is several times this rate.
            grow_s: match args.no_grow {
                true => 0.0,
                false => (seconds * args.rate / 10_000.0).max(1.0),
            },
        },
    )?;
    let mut rounds: Vec<Vec<Compared>> = rig.subjects.iter().map(|_| Vec::new()).collect();
    for number_of in 1..=bench.rounds as usize {
        let round = bench.round(number_of, CONNECTIONS, args.body);
        let plan = |subject: &Subject| {
            let mut plan = subject.plan(&round);
            plan.pace = Pace::Open {
                rate: args.rate,
                ramp: bench.warmup / 2,
            };
            plan
        };
        let compared = rig.round(cell.name, &round, &plan, report)?;
        for (all, one) in rounds.iter_mut().zip(compared) {
            all.push(one);
        }
    }
    summarise(cell, &rig, &rounds, report, goals, idles);
    rig.end();
    Ok(())
}

fn summarise(
    cell: &Cell<'_>,
    rig: &Rig<'_>,
    rounds: &[Vec<Compared>],
    report: &mut Report,
    goals: &mut Goals,
    idles: &mut Vec<f64>,
) {
    let p50 = |compared: &Compared| compared.measured.load.acked_us(50.0);
    let disk: Vec<f64> = rounds[0].iter().map(p50).collect();
    for (running, rounds) in rig.subjects.iter().zip(rounds) {
        let what = format!("{}: {}", cell.name, running.name);
        let mut add = |name: &str, unit: &'static str, values: &[f64]| {
            report.figure(Figure::new(format!("{what} {name}"), unit, values));
        };
        let of = |pick: &dyn Fn(&Compared) -> f64| rounds.iter().map(pick).collect::<Vec<f64>>();
        add("ack p50", "us", &of(&p50));
        add("ack p99", "us", &of(&|c| c.measured.load.acked_us(99.0)));
        add("core busy", "", &of(&|c| c.measured.core_busy));
        let busy = of(&|c| c.measured.core_busy.max(c.measured.load.generator_busy));
        if busy.iter().any(|busy| *busy > 0.5) {
            report.warn(format!(
                "{what}: a core was over half busy in some rounds: lower --rate"
            ));
        }
        if rounds.iter().any(|c| c.measured.load.unsent > 0) {
            report.warn(format!("{what}: some hooks could not be sent in time"));
        }
        idles.extend(rounds.iter().map(|c| c.measured.idle));
        let confirms: Vec<f64> = rounds.iter().filter_map(|c| c.confirm_us).collect();
        if confirms.len() < rounds.len() {
            continue;
        }
        report.figure(Figure::new(
            format!("{what} confirm on the core"),
            "us",
            &confirms,
        ));
        let over: Vec<f64> = rounds
            .iter()
            .zip(&confirms)
            .zip(&disk)
            .map(|((dual, confirm), disk)| p50(dual) - confirm.max(*disk))
            .collect();
        let name = format!("{what} ack p50 over the longer half");
        goals.at_most(report, Figure::new(name, "us", &over), OVER_US_MAX);
    }
    let confirm_us = ms(cell.confirm) * 1e3;
    if let Some(dual) = rounds.get(1) {
        // The strictest reading: the confirm takes what the log was told, and no more.
        let over = dual.iter().zip(&disk);
        let over: Vec<f64> = over
            .map(|(dual, disk)| p50(dual) - disk.max(confirm_us))
            .collect();
        let name = format!("{}: dual ack p50 over the confirm as set", cell.name);
        report.figure(Figure::new(name, "us", &over));
    }
}
