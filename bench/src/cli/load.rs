//! The `load` command: options to plan, result to files and terminal.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::units::{parse_duration, parse_size};
use crate::hostfacts;
use crate::load::{self, LoadPlan, LoadResult, NoProbe, Pace, Scheme, Stop};
use crate::report::{self, Figure, Report};

/// Options of `load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Where to: http://HOST:PORT/PATH
    #[arg(value_name = "URL")]
    pub url: String,
    /// Keep-alive connections, each with at most one request in flight
    #[arg(short, long, default_value_t = 64, value_name = "N")]
    pub connections: usize,
    /// Open loop: requests per second over all connections, latency counted from the moment a
    /// request was meant to be sent [default: closed loop]
    #[arg(short, long, value_name = "PER_S")]
    pub rate: Option<f64>,
    /// Open loop: the rate rises from nothing over this time, which is part of the warm-up
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = parse_duration, requires = "rate")]
    pub ramp: Duration,
    /// Time before the measurement, not recorded
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Measured time
    #[arg(short, long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    pub duration: Duration,
    /// Stop after this many measured requests instead of after a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    pub count: Option<u64>,
    /// Body bytes; several, separated by commas, are used in turn
    #[arg(short, long, default_value = "1024", value_name = "BYTES", value_delimiter = ',', value_parser = parse_size)]
    pub body: Vec<usize>,
    /// Sign requests the way a provider does
    #[arg(long, value_name = "SCHEME", requires = "secret")]
    pub sign: Option<Scheme>,
    /// The signing secret
    #[arg(long, value_name = "SECRET", requires = "sign")]
    pub secret: Option<String>,
    /// Send a key unique to the request in this header
    #[arg(long, value_name = "NAME")]
    pub key_header: Option<String>,
    /// A further header, as NAME:VALUE; may be given more than once
    #[arg(short = 'H', long = "header", value_name = "NAME:VALUE")]
    pub headers: Vec<String>,
    /// Give a request up after this time
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Keep opening lost connections, this long after a refused attempt (for drills)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub reconnect: Option<Duration>,
    /// Write seq,id,sha256,status,word,sent_unix_us,latency_us of every request to this file
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Pin the generator to this core
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Directory for report.json, CSV and plots
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    fn plan(&self) -> anyhow::Result<LoadPlan> {
        let (target, path) = parse_url(&self.url)?;
        let mut plan = LoadPlan::new(target, &path);
        plan.connections = self.connections;
        plan.pace = match self.rate {
            Some(rate) => Pace::Open {
                rate,
                ramp: self.ramp,
            },
            None => Pace::Closed,
        };
        plan.warmup = self.warmup.max(self.ramp);
        plan.stop = match self.count {
            Some(count) => Stop::Count(count),
            None => Stop::After(self.duration),
        };
        plan.body.sizes.clone_from(&self.body);
        plan.signature = self.sign.zip(self.secret.clone());
        plan.key_header.clone_from(&self.key_header);
        for header in &self.headers {
            let Some((name, value)) = header.split_once(':') else {
                bail!("header {header:?} is not NAME:VALUE")
            };
            plan.headers
                .push((name.trim().to_owned(), value.trim().to_owned()));
        }
        plan.timeout = self.timeout;
        plan.reconnect_after = self.reconnect;
        plan.ledger.clone_from(&self.ledger);
        plan.core = self.core;
        Ok(plan)
    }
}

/// `http://host:port/path` to an address and a path. Only plain HTTP is spoken.
fn parse_url(url: &str) -> anyhow::Result<(SocketAddr, String)> {
    let rest = url
        .strip_prefix("http://")
        .with_context(|| format!("{url:?} does not start with http://"))?;
    let (host, path) = match rest.find('/') {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, "/"),
    };
    let host = if host.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let address = host
        .to_socket_addrs()
        .with_context(|| format!("looking up {host}"))?
        .next();
    Ok((
        address.with_context(|| format!("{host} has no address"))?,
        path.to_owned(),
    ))
}

/// Runs the command.
pub(super) fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let plan = args.plan()?;
    plan.validate().map_err(anyhow::Error::msg)?;
    let host = hostfacts::gather(
        args.ledger
            .as_deref()
            .and_then(|p| p.parent())
            .filter(|p| p.is_dir()),
    );
    let mark = hostfacts::busy_mark();
    let result = load::run(&plan, &mut NoProbe)?;
    let idle = mark.idle_since();
    let settings = json!({
        "url": args.url, "connections": plan.connections, "pace": format!("{:?}", plan.pace),
        "warmup_s": plan.warmup.as_secs_f64(), "stop": format!("{:?}", plan.stop),
        "body_bytes": plan.body.sizes, "signed": args.sign.map(|s| format!("{s:?}")), "core": plan.core,
    });
    let mut report = Report::new("load", host, settings);
    fill(&mut report, plan.connections, &result, idle);
    if args.json {
        println!("{:#}", report.json());
    } else {
        report.print_summary();
        print_outcomes(&result);
    }
    if let Some(dir) = &args.out {
        report.write(dir)?;
    }
    Ok(())
}

fn fill(report: &mut Report, connections: usize, result: &LoadResult, idle: f64) {
    if result.generator_busy > 0.9 {
        report.warn(format!(
            "the generator was {:.0} % busy: it may be the limit",
            result.generator_busy * 100.0
        ));
    }
    if result.unsent > 0 {
        report.warn(format!(
            "{} requests were due and never sent: too few connections for the rate",
            result.unsent
        ));
    }
    if result.cut_short {
        report.warn("every connection was lost before the end");
    }
    report.row(report::load_row("load", 1, connections, result));
    report.latencies("2xx", &result.acked);
    if !result.refused.is_empty() {
        report.latencies("refused", &result.refused);
    }
    report.figure(Figure::new("acked", "1/s", &[result.rate()]));
    for percentile in [50.0, 90.0, 99.0, 99.9, 99.99] {
        report.figure(Figure::new(
            format!("p{percentile}"),
            "us",
            &[result.acked_us(percentile)],
        ));
    }
    report.figure(Figure::new(
        "max",
        "us",
        &[result.acked.max() as f64 / 1000.0],
    ));
    report.figure(Figure::new("idle share of the machine", "", &[idle]));
    report.figure(Figure::new("generator busy", "", &[result.generator_busy]));
    let outcomes: Vec<_> = result
        .outcomes
        .iter()
        .map(|(o, n)| json!({"status": o.status, "word": o.word, "count": n}))
        .collect();
    report.extra("outcomes", json!(outcomes));
    report.extra("acked_per_second", json!(result.per_second));
}

fn print_outcomes(result: &LoadResult) {
    for (outcome, count) in &result.outcomes {
        println!("{:>12}  {} {}", count, outcome.status, outcome.word);
    }
    if result.reopened > 0 {
        println!("{:>12}  connections opened again", result.reopened);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_are_plain_http() {
        let (address, path) = parse_url("http://127.0.0.1:4000/webhooks/demo?x=1").unwrap();
        assert_eq!(
            (address.to_string().as_str(), path.as_str()),
            ("127.0.0.1:4000", "/webhooks/demo?x=1")
        );
        assert_eq!(parse_url("http://127.0.0.1").unwrap().0.port(), 80);
        assert!(parse_url("https://127.0.0.1/").is_err());
    }
}
