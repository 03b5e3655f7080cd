//! Commands, options and exit codes.
//!
//! Options with units say them in the help; an unknown or repeated flag is an error. Exit codes:
//! 0, 1 failure (a gate that does not hold included), 64 usage.
//!
//! Runs on the main thread.

mod load;
mod node;
mod units;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::measure::Round;

pub use load::LoadArgs;
pub use node::{NodeArgs, fresh_dir};
pub use units::{parse_duration, parse_size};

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 64;

#[derive(Parser)]
#[command(
    name = "ankusa-bench",
    version,
    about = "Load generator and benches of ankusa",
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offer load to a running server: closed loop, or open loop at a constant rate
    Load(LoadArgs),
    /// What the load generator itself can do, against the smallest server that answers
    Ceiling(crate::ceiling::CeilingArgs),
    /// The receiver's HTTP loop answering 201 with nothing behind it
    Http(crate::http::HttpArgs),
    /// Acked hooks of the whole node, against the same HTTP loop with nothing behind it
    Ingest(crate::ingest::IngestArgs),
    /// What the second home of a hook costs: dual against disk, and the brokers' own producer tool
    Intake(crate::intake::IntakeArgs),
    /// What a single request pays over the device's own sync
    Lone(crate::lone::LoneArgs),
    /// How fast a backlog drains to an HTTP sink while new hooks come in
    Deliver(crate::deliver::DeliverArgs),
    /// The store of one shard alone, against the device with nothing around it
    Wal(crate::wal::WalArgs),
    /// Resident bytes for each undelivered hook and each dedupe key
    Memory(crate::memory::MemoryArgs),
    /// Time from start to ready on a store full of undelivered hooks
    Boot(crate::boot::BootArgs),
    /// The same durable write against Redis, PostgreSQL and NATS JetStream
    Peers(crate::peers::PeersArgs),
    /// Run wal, ingest, lone and intake; exit 1 when a ratio is below its floor
    Gate(crate::gate::GateArgs),
    /// (internal) The smallest server that answers
    #[command(hide = true)]
    Responder,
    /// (internal) The receiver's HTTP loop with nothing behind it
    #[command(hide = true)]
    Bare {
        /// Core to run on
        #[arg(long)]
        core: usize,
    },
}

/// Where a bench writes, and on which cores it runs.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Directory for report.json, CSV and plots [default: bench-results/<bench>-<time>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Core of the server
    #[arg(long, default_value_t = 1, value_name = "CORE")]
    pub server_core: usize,
    /// Core of the load generator
    #[arg(long, default_value_t = 0, value_name = "CORE")]
    pub load_core: usize,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Measured time of one round of one subject, such as 5s
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = parse_duration)]
    pub duration: std::time::Duration,
    /// Time before each measurement, not recorded
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = parse_duration)]
    pub warmup: std::time::Duration,
}

impl BenchArgs {
    /// The settings of one round.
    pub fn round(&self, number: usize, connections: usize, body_bytes: usize) -> Round {
        Round {
            number,
            connections,
            body_bytes,
            warmup: self.warmup,
            duration: self.duration,
            load_core: self.load_core,
        }
    }

    /// The directory of the results.
    pub fn out_dir(&self, bench: &str) -> PathBuf {
        self.out
            .clone()
            .unwrap_or_else(|| crate::report::default_out(bench))
    }
}

/// The command's `main`.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let result = match cli.command {
        Command::Load(args) => load::run(&args),
        Command::Ceiling(args) => crate::ceiling::run(&args),
        Command::Http(args) => crate::http::run(&args),
        Command::Ingest(args) => crate::ingest::run(&args),
        Command::Intake(args) => crate::intake::run(&args),
        Command::Lone(args) => crate::lone::run(&args),
        Command::Deliver(args) => crate::deliver::run(&args),
        Command::Wal(args) => crate::wal::run(&args),
        Command::Memory(args) => crate::memory::run(&args),
        Command::Boot(args) => crate::boot::run(&args),
        Command::Peers(args) => crate::peers::run(&args),
        Command::Gate(args) => crate::gate::run(&args),
        Command::Bare { core } => crate::bare::serve(core),
        Command::Responder => crate::responder::serve().map_err(anyhow::Error::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ankusa-bench: {e:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}
