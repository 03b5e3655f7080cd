//! One partition on real brokers, acks=all: the node's adapter against the brokers' own producer
//! tool, tuned (batches of 1 MB), in alternating rounds into one topic.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::json;

use super::goals::Goals;
use super::rig::{Brokers, Topic};
use super::{IntakeArgs, adapter};
use crate::hostfacts::busy_mark;
use crate::report::{Figure, Report, number, text};

const RATIO_MIN: f64 = 1.0;

/// Runs the part.
pub fn run(
    args: &IntakeArgs,
    brokers: &Brokers,
    report: &mut Report,
    goals: &mut Goals,
    idles: &mut Vec<f64>,
) -> anyhow::Result<()> {
    for &bytes in &args.records {
        let records = (args.volume / bytes.max(1)).max(1000) as u64;
        let warmup = records / 4;
        let (mut tool, mut ours) = (Vec::new(), Vec::new());
        for round in 1..=args.bench.rounds as usize {
            // A topic of its own for each round: a log that grows does not decide a later one.
            let topic = brokers.topic(&format!("producer-{bytes}-{round}"), 1)?;
            let mut one = |subject: &str,
                           rates: &mut Vec<f64>,
                           rate: &dyn Fn() -> anyhow::Result<f64>|
             -> anyhow::Result<()> {
                let (mark, begun) = (busy_mark(), Instant::now());
                let rate = rate()?;
                let idle = mark.idle_since();
                report.row(vec![
                    ("subject", text(format!("{subject} {bytes}"))),
                    ("round", json!(round)),
                    ("acked_per_s", number(rate)),
                    ("window_s", number(begun.elapsed().as_secs_f64())),
                    ("idle", number(idle)),
                ]);
                idles.push(idle);
                rates.push(rate);
                Ok(())
            };
            one("producer tool", &mut tool, &|| {
                tool_rate(brokers, &topic, bytes, warmup, records)
            })?;
            one("adapter", &mut ours, &|| {
                adapter::rate(&topic.name, bytes, warmup, records)
            })?;
        }
        let ratios: Vec<f64> = ours
            .iter()
            .zip(&tool)
            .map(|(o, t)| o / t.max(1.0))
            .collect();
        let name = |what: &str| format!("{what} at {bytes} bytes");
        report.figure(Figure::new(name("producer tool"), "1/s", &tool));
        report.figure(Figure::new(name("adapter"), "1/s", &ours));
        let ratio = Figure::new(name("adapter over producer tool"), "", &ratios);
        goals.at_least(report, ratio, RATIO_MIN);
    }
    Ok(())
}

/// What the brokers' tool says of itself, its warm-up left out.
fn tool_rate(
    brokers: &Brokers,
    topic: &Topic<'_>,
    bytes: usize,
    warmup: u64,
    records: u64,
) -> anyhow::Result<f64> {
    let said = brokers.call(&[
        "perf",
        "--topic",
        &topic.name,
        "--record-size",
        &bytes.to_string(),
        "--num-records",
        &(warmup + records).to_string(),
        "--warmup-records",
        &warmup.to_string(),
        "--throughput",
        "-1",
        "--command-property",
        "acks=all",
        "batch.size=1000000",
        "linger.ms=5",
        "buffer.memory=67108864",
        "compression.type=none",
    ])?;
    steady_rate(&said).with_context(|| format!("what the producer tool said:\n{said}"))
}

/// The rate of its last summary line.
fn steady_rate(said: &str) -> Option<f64> {
    let line = said.lines().rfind(|line| line.contains(" records/sec"))?;
    let before = line.split(" records/sec").next()?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_summary_line_is_taken() {
        let said = "100 records sent, 20.0 records/sec (0.02 MB/sec), 1.0 ms avg latency.\n\
                    500000 records sent, 70000.5 records/sec (68.36 MB/sec), 9.0 ms avg latency\n\
                    400000 steady state records sent, 75,x\n\
                    400000 steady state records sent, 75123.4 records/sec (73.36 MB/sec), 8 ms\n\n";
        assert_eq!(steady_rate(said), Some(75123.4));
        assert_eq!(steady_rate("nothing"), None);
    }
}
