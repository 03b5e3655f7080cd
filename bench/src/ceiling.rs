//! `ceiling`: what the load generator can do, against the smallest server that answers.
//!
//! A bench whose result comes near this figure has measured the generator. Runs the responder on
//! one core and the generator on another.

use clap::Args;
use serde_json::json;

use crate::child::{self, Child};
use crate::cli::BenchArgs;
use crate::hostfacts;
use crate::load::{self, LoadPlan, NoProbe, Stop};
use crate::report::{self, Figure, Report, number};

/// Options of `ceiling`.
#[derive(Args, Clone, Debug)]
pub struct CeilingArgs {
    #[command(flatten)]
    bench: BenchArgs,
    /// Connections; several, separated by commas, are measured in turn
    #[arg(
        short,
        long,
        default_value = "64,256",
        value_delimiter = ',',
        value_name = "N"
    )]
    connections: Vec<usize>,
    /// Body bytes
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = crate::cli::parse_size)]
    body: usize,
}

/// Runs the bench.
pub fn run(args: &CeilingArgs) -> anyhow::Result<()> {
    let bench = &args.bench;
    let host = hostfacts::gather(None);
    let (child, address) = Child::start_self(&["responder"], bench.server_core)?;
    let settings = json!({
        "connections": args.connections, "body_bytes": args.body, "rounds": bench.rounds,
        "server_core": bench.server_core, "load_core": bench.load_core, "duration_s": bench.duration.as_secs_f64(),
    });
    let mut report = Report::new("ceiling", host, settings);
    let mut rates = vec![Vec::new(); args.connections.len()];
    let mut idles = Vec::new();
    for round in 1..=bench.rounds as usize {
        for (at, &connections) in args.connections.iter().enumerate() {
            let mut plan = LoadPlan::new(address, "/");
            plan.connections = connections;
            plan.body.sizes = vec![args.body];
            plan.warmup = bench.warmup;
            plan.stop = Stop::After(bench.duration);
            plan.core = Some(bench.load_core);
            let mark = hostfacts::busy_mark();
            let cpu = child::cpu_time(child.pid())?;
            let result = load::run(&plan, &mut NoProbe)?;
            let server_cpu = child::cpu_time(child.pid())?.saturating_sub(cpu);
            let idle = mark.idle_since();
            let mut row = report::load_row("responder", round, connections, &result);
            row.push(("server_cpu_s", number(server_cpu.as_secs_f64())));
            row.push(("idle", number(idle)));
            report.row(row);
            report.latencies(&format!("{connections} connections"), &result.acked);
            rates[at].push(result.rate());
            idles.push(idle);
        }
    }
    let mut points = Vec::new();
    for (rounds, connections) in rates.iter().zip(&args.connections) {
        let figure = Figure::new(format!("{connections} connections"), "1/s", rounds);
        points.push((*connections as f64, figure.median));
        report.figure(figure);
    }
    report.throughput("responder", points);
    report.figure(Figure::new("idle share of the machine", "", &idles));
    report.finish(&bench.out_dir("ceiling"))?;
    Ok(())
}
