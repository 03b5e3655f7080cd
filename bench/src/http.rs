//! `http`: the receiver's HTTP loop answering 201 with nothing behind it, beside the smallest
//! server that answers at all. The first is the yardstick of `ingest`; the second shows how far
//! the generator is from being the limit.

use clap::Args;
use serde_json::json;

use crate::child::Child;
use crate::cli::BenchArgs;
use crate::hostfacts;
use crate::measure::{Subject, measure};
use crate::report::{Figure, Report};

/// Options of `http`.
#[derive(Args, Clone, Debug)]
pub struct HttpArgs {
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

/// Starts the bare HTTP server as a child.
pub fn start_bare(core: usize) -> anyhow::Result<(Child, Subject)> {
    let (child, address) = Child::start_self(&["bare", "--core", &core.to_string()], core)?;
    let subject = Subject {
        name: "http".to_owned(),
        address,
        path: "/webhooks/demo".to_owned(),
        pid: child.pid(),
        device: None,
    };
    Ok((child, subject))
}

/// Runs the bench.
pub fn run(args: &HttpArgs) -> anyhow::Result<()> {
    let bench = &args.bench;
    let host = hostfacts::gather(None);
    let (_bare, http) = start_bare(bench.server_core)?;
    let (responder, address) = Child::start_self(&["responder"], bench.server_core)?;
    let smallest = Subject {
        name: "responder".to_owned(),
        address,
        pid: responder.pid(),
        ..http.clone()
    };
    let settings = json!({
        "connections": args.connections, "body_bytes": args.body, "rounds": bench.rounds,
        "server_core": bench.server_core, "load_core": bench.load_core,
        "duration_s": bench.duration.as_secs_f64(), "warmup_s": bench.warmup.as_secs_f64(),
    });
    let mut report = Report::new("http", host, settings);
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    let mut idles = Vec::new();
    for &connections in &args.connections {
        let mut rates: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); 2];
        for number in 1..=bench.rounds as usize {
            for (at, subject) in [&http, &smallest].into_iter().enumerate() {
                let round = bench.round(number, connections, args.body);
                let measured = measure(subject, &subject.plan(&round))?;
                if measured.load.generator_busy > 0.95 {
                    report.warn(
                        "the generator was over 95 % busy in some rounds: it is the limit there",
                    );
                }
                report.row(measured.row(&subject.name, &round));
                report.latencies(
                    &format!("{} {connections}", subject.name),
                    &measured.load.acked,
                );
                rates[at].0.push(measured.load.rate());
                rates[at].1.push(measured.cpu_us_per_ack);
                idles.push(measured.idle);
            }
        }
        for (subject, (rates, cpu)) in [&http, &smallest].into_iter().zip(&rates) {
            let figure = Figure::new(format!("{} at {connections}", subject.name), "1/s", rates);
            let point = (connections as f64, figure.median);
            match lines.iter_mut().find(|(name, _)| *name == subject.name) {
                Some((_, points)) => points.push(point),
                None => lines.push((subject.name.clone(), vec![point])),
            }
            report.figure(figure);
            report.figure(Figure::new(
                format!("{} at {connections}, server CPU", subject.name),
                "us/request",
                cpu,
            ));
        }
    }
    for (name, points) in lines {
        report.throughput(&name, points);
    }
    report.figure(Figure::new("idle share of the machine", "", &idles));
    report.finish(&bench.out_dir("http"))?;
    Ok(())
}
