//! `gate`: runs `wal`, `ingest`, `lone` and `intake` and fails when a ratio is below its floor.
//!
//! For people and for a nightly machine, apart from the tests: a figure depends on the machine.
//! A floor of 0 (a ceiling of 0) leaves its check out.

use anyhow::bail;
use clap::Args;

use crate::cli::{BenchArgs, NodeArgs};
use crate::device::Sync;
use crate::ingest::{self, IngestArgs};
use crate::intake::{self, IntakeArgs, Part};
use crate::lone::{self, LoneArgs};
use crate::report::{Figure, Report};
use crate::wal::{self, WalArgs};

/// Options of `gate`.
#[derive(Args, Clone, Debug)]
pub struct GateArgs {
    /// Rounds, cores, output.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The node and its data.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Least ratio of acked hooks to the bare HTTP loop at 256 connections, 1 KB
    #[arg(long, default_value_t = 0.40, value_name = "RATIO")]
    pub ingest_ratio: f64,
    /// The same with 10 KB bodies
    #[arg(long, default_value_t = 0.0, value_name = "RATIO")]
    pub ingest_ratio_10k: f64,
    /// Most p99 over p50 of the ack in that bench
    #[arg(long, default_value_t = 3.0, value_name = "RATIO")]
    pub tail: f64,
    /// Least acked hooks per second in that bench
    #[arg(long, default_value_t = 0.0, value_name = "PER_S")]
    pub acked: f64,
    /// Least ratio of the store's groups to the device's writes, at every size
    #[arg(long, default_value_t = 0.9, value_name = "RATIO")]
    pub wal_ratio: f64,
    /// Most microseconds that a lone ack takes over the device's sync
    #[arg(long, default_value_t = 150.0, value_name = "MICROSECONDS")]
    pub lone: f64,
    /// Most microseconds that p50 of the ack takes in dual mode over the longer half
    #[arg(long, default_value_t = 300.0, value_name = "MICROSECONDS")]
    pub dual_over: f64,
    /// Least ratio of acked hooks in dual mode to disk mode at 512 connections, 1 KB, 5 ms confirm
    #[arg(long, default_value_t = 0.90, value_name = "RATIO")]
    pub dual_ratio: f64,
}

/// One check and how it came out.
struct Check {
    name: String,
    got: f64,
    bound: f64,
    at_least: bool,
}

impl Check {
    fn holds(&self) -> bool {
        if self.at_least {
            self.got >= self.bound
        } else {
            self.got <= self.bound
        }
    }
}

/// The command.
pub fn run(args: &GateArgs) -> anyhow::Result<()> {
    let out = args.bench.out_dir("gate");
    let mut checks = Vec::new();
    if args.wal_ratio > 0.0 {
        let report = wal::bench(&wal_args(args))?;
        report.finish(&out.join("wal"))?;
        check_all(&mut checks, &report, "ratio at ", args.wal_ratio, true);
    }
    if args.ingest_ratio > 0.0 || args.tail > 0.0 || args.acked > 0.0 {
        let report = ingest::bench(&ingest_args(args, 1024))?;
        report.finish(&out.join("ingest"))?;
        check_all(
            &mut checks,
            &report,
            "ratio to http at 256",
            args.ingest_ratio,
            true,
        );
        check_all(
            &mut checks,
            &report,
            "ack p99 over p50 at 256",
            args.tail,
            false,
        );
        check_all(&mut checks, &report, "acked at 256", args.acked, true);
    }
    if args.ingest_ratio_10k > 0.0 {
        let report = ingest::bench(&ingest_args(args, 10_000))?;
        report.finish(&out.join("ingest-10k"))?;
        check_all(
            &mut checks,
            &report,
            "ratio to http at 256",
            args.ingest_ratio_10k,
            true,
        );
    }
    if args.lone > 0.0 {
        let report = lone::bench(&LoneArgs {
            bench: args.bench.clone(),
            node: args.node.clone(),
            body: 1024,
        })?;
        report.finish(&out.join("lone"))?;
        check_all(
            &mut checks,
            &report,
            "ack p50 over device sync p50",
            args.lone,
            false,
        );
    }
    if args.dual_over > 0.0 || args.dual_ratio > 0.0 {
        let report = intake::bench(&intake_args(args))?;
        report.finish(&out.join("intake"))?;
        check_all(
            &mut checks,
            &report,
            "plain: dual ack p50 over the longer half",
            args.dual_over,
            false,
        );
        check_all(
            &mut checks,
            &report,
            "dual at 512: over disk",
            args.dual_ratio,
            true,
        );
    }
    verdict(&checks)
}

fn intake_args(args: &GateArgs) -> IntakeArgs {
    let mut parts = Vec::new();
    if args.dual_over > 0.0 {
        parts.push(Part::Latency);
    }
    if args.dual_ratio > 0.0 {
        parts.push(Part::Throughput);
    }
    IntakeArgs::over_files(args.bench.clone(), args.node.clone(), parts)
}

fn ingest_args(args: &GateArgs, body: usize) -> IngestArgs {
    IngestArgs {
        bench: args.bench.clone(),
        node: args.node.clone(),
        connections: vec![256],
        body,
        deliver: false,
        no_grow: false,
    }
}

fn wal_args(args: &GateArgs) -> WalArgs {
    WalArgs {
        bench: args.bench.clone(),
        data: args.node.data.clone(),
        groups: vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
        body: 1024,
        depth: args.node.groups_inflight,
        sync: if args.node.sync == "dsync" {
            Sync::Dsync
        } else {
            Sync::Fdatasync
        },
        keep: args.node.keep,
    }
}

/// Adds a check for every figure whose name begins so; a bound of 0 adds none.
fn check_all(checks: &mut Vec<Check>, report: &Report, name: &str, bound: f64, at_least: bool) {
    if bound == 0.0 {
        return;
    }
    let found: Vec<&Figure> = report
        .figures()
        .iter()
        .filter(|figure| figure.name.starts_with(name))
        .collect();
    if found.is_empty() {
        // A check that finds nothing must not pass.
        checks.push(Check {
            name: format!("{name} (absent)"),
            got: f64::NAN,
            bound,
            at_least,
        });
    }
    for figure in found {
        checks.push(Check {
            name: figure.name.clone(),
            got: figure.median,
            bound,
            at_least,
        });
    }
}

fn verdict(checks: &[Check]) -> anyhow::Result<()> {
    let mut failed = 0;
    for check in checks {
        let (word, sign) = (
            if check.holds() { "holds" } else { "FAILS" },
            if check.at_least { ">=" } else { "<=" },
        );
        failed += usize::from(!check.holds());
        println!(
            "{word}  {}: {:.3} {sign} {:.3}",
            check.name, check.got, check.bound
        );
    }
    if checks.is_empty() {
        bail!("every check was left out");
    }
    if failed > 0 {
        bail!("{failed} of {} checks failed", checks.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: f64, bound: f64, at_least: bool) -> Check {
        Check {
            name: "x".to_owned(),
            got,
            bound,
            at_least,
        }
    }

    #[test]
    fn floors_ceilings_and_absent_figures() {
        assert!(verdict(&[check(0.4, 0.4, true), check(3.0, 3.0, false)]).is_ok());
        assert!(verdict(&[check(0.39, 0.4, true)]).is_err());
        assert!(verdict(&[check(3.1, 3.0, false)]).is_err());
        assert!(verdict(&[check(f64::NAN, 0.4, true)]).is_err());
        assert!(verdict(&[check(f64::NAN, 3.0, false)]).is_err());
        assert!(verdict(&[]).is_err());
    }
}
