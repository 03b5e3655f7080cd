//! The `ankusa-drills` command.

mod dual_command;
mod sim_command;

use std::path::PathBuf;
use std::process::ExitCode;

use ankusa_drills::all::{self, AllPlan};
use ankusa_drills::cores::{self, CoresPlan};
use ankusa_drills::disk::{self, DiskPlan};
use ankusa_drills::dm::{self, DmPlan};
use ankusa_drills::dual::broker::{self, BrokerPlan};
use ankusa_drills::dual::kill::DualPlan;
use ankusa_drills::kill::{self, KillPlan};
use ankusa_drills::power::{self, PowerPlan};
use ankusa_drills::shutdown::{self, ShutdownPlan};
use anyhow::Result;
use clap::{Parser, Subcommand};

/// Drills that put the promises of ankusa to the test. Each prints what was acked, recovered,
/// missing, altered and invented, and ends with code 0 only if every promise held
#[derive(Parser)]
#[command(name = "ankusa-drills", version)]
struct Cli {
    #[command(subcommand)]
    drill: Drill,
}

#[derive(Subcommand)]
enum Drill {
    /// One key at once on every core, and a store reopened with fewer and more cores
    Cores {
        /// The ankusa binary
        #[arg(long)]
        binary: PathBuf,
        /// Keys posted at each boot
        #[arg(long, default_value_t = 20)]
        keys: u64,
    },
    /// SIGKILL under load, at random moments and named points, also during boot
    Kill {
        /// The ankusa binary; named points and controls need one built with the feature mutations
        #[arg(long)]
        binary: PathBuf,
        /// Seed of every choice
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Kills
        #[arg(long, default_value_t = 20)]
        kills: u32,
        /// Hooks acked before each kill
        #[arg(long, default_value_t = 2000)]
        acked: usize,
        /// Cores of the node
        #[arg(long, default_value_t = 2)]
        cores: usize,
        /// Under the dual commit; every third kill takes the data directory with it
        #[arg(long)]
        dual: bool,
        /// Leave out the negative control
        #[arg(long)]
        without_control: bool,
        /// Keep the working directory
        #[arg(long)]
        keep: bool,
    },
    /// The node on three real brokers, one trouble after another (`drills/kafka up separate` first)
    Broker(BrokerPlan),
    /// The heart on a simulated disk: seeded histories of faults, power cuts and recoveries
    Sim(sim_command::SimArgs),
    /// Break each promise on purpose; each must be caught (needs the feature mutations)
    Mutations(sim_command::MutationsArgs),
    /// Power cuts and faults of a disk that sees every write and every flush, on ext4 and xfs
    PowerFuse(PowerPlan),
    /// Every drill in turn, and a page that a person reads
    All(AllPlan),
    /// Power cuts with the kernel's device-mapper, here or in a QEMU guest
    PowerDm(DmPlan),
    /// A file system that is shut down under the node, on ext4 and xfs
    PowerShutdown(ShutdownPlan),
    /// A disk that fails, fills, slows down or stops answering, and is well again
    Disk(DiskPlan),
}

fn main() -> ExitCode {
    match run(Cli::parse().drill) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ankusa-drills: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(drill: Drill) -> Result<bool> {
    match drill {
        Drill::Cores { binary, keys } => {
            let dir = tempfile::Builder::new().prefix("drill-cores-").tempdir()?;
            let verdict = cores::run(&CoresPlan {
                binary: binary.canonicalize()?,
                dir: dir.path().into(),
                keys,
            })?;
            println!("cores: {verdict}");
            for example in &verdict.examples {
                println!("cores:   {example}");
            }
            Ok(verdict.holds())
        }
        Drill::PowerFuse(plan) => power::run(&plan),
        Drill::All(plan) => all::run(&plan),
        Drill::Disk(plan) => disk::run(&plan),
        Drill::PowerDm(plan) => dm::run(&plan),
        Drill::PowerShutdown(plan) => shutdown::run(&plan),
        Drill::Kill {
            binary,
            seed,
            kills,
            acked,
            cores,
            dual,
            without_control,
            keep,
        } => {
            let dir = tempfile::Builder::new().prefix("drill-kill-").tempdir()?;
            println!("kill: seed {seed}, working in {}", dir.path().display());
            if dual {
                let plan = DualPlan {
                    binary: binary.canonicalize()?,
                    dir: dir.path().join("promise"),
                    seed,
                    kills,
                    acked_per_kill: acked,
                    cores,
                };
                let holds = dual_command::kill(&plan, !without_control, dir.path());
                if keep || !matches!(holds, Ok(true)) {
                    println!("kill: kept {}", dir.keep().display());
                }
                return holds;
            }
            let plan = KillPlan {
                binary: binary.canonicalize()?,
                dir: dir.path().join("promise"),
                seed,
                kills,
                acked_per_kill: acked,
                cores,
                mutation: None,
            };
            let report = kill::run(&plan)?;
            let (random, named, boot) = report.kills;
            println!(
                "kill: {random} at random moments, {named} at named points, {boot} during boot"
            );
            for missed in &report.missed {
                println!("kill: MISSED {missed}");
            }
            println!("kill: {}", report.verdict);
            for example in &report.verdict.examples {
                println!("kill:   {example}");
            }
            let mut holds = report.holds();
            if !without_control {
                holds &= control(&plan, dir.path().join("control"))?;
            }
            if keep || !holds {
                println!("kill: kept {}", dir.keep().display());
            }
            Ok(holds)
        }
        Drill::Broker(plan) => broker::run(&plan),
        Drill::Sim(args) => sim_command::sim(&args),
        Drill::Mutations(args) => sim_command::mutations(&args),
    }
}

/// The negative control: acks before the write is submitted must be caught.
fn control(plan: &KillPlan, dir: PathBuf) -> Result<bool> {
    let control = KillPlan {
        dir,
        kills: 5,
        mutation: Some("ack_before_write".into()),
        ..plan.clone()
    };
    let report = kill::run(&control)?;
    let caught = !report.verdict.holds();
    println!(
        "kill: control ack_before_write {}: {}",
        if caught { "caught" } else { "MISSED" },
        report.verdict
    );
    Ok(caught)
}
