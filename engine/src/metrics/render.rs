//! The Prometheus text exposition (version 0.0.4), a slice of series at a time.
//!
//! Runs on whichever core serves the scrape; the caller yields between slices.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::families::{Family, Kind, Metric, Scale};
use super::histogram::{BUCKETS_COUNT, upper_bound};
use super::{Block, Registry};

/// The content type of what is rendered.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Series written in one slice; a histogram counts as a slice of its own.
const SLICE_SERIES: usize = 256;

/// One scrape under way.
pub struct Renderer {
    registry: Arc<Registry>,
    next: usize,
    /// Series of the next family that are written already.
    at: usize,
}

impl Renderer {
    /// A scrape from the start.
    pub fn new(registry: Arc<Registry>) -> Renderer {
        Renderer {
            registry,
            next: 0,
            at: 0,
        }
    }

    /// Appends the next series, of one family; false when there was none left. Under a
    /// millisecond, however many sources there are.
    pub fn next_slice(&mut self, out: &mut String) -> bool {
        let Some(metric) = Metric::ALL.get(self.next) else {
            return false;
        };
        let (registry, family) = (&self.registry, metric.family());
        let series = family.series_count(registry.sources.len(), registry.sinks.len());
        let slice = match family.kind {
            Kind::Histogram(_) => 1,
            _ => SLICE_SERIES,
        };
        let end = (self.at + slice).min(series);
        if let Some(start) = registry.starts[*metric as usize] {
            // Writing to a string cannot fail.
            _ = write_series(registry, family, start, self.at..end, out);
        }
        self.at = end;
        if end == series {
            (self.next, self.at) = (self.next + 1, 0);
        }
        true
    }
}

fn write_series(
    registry: &Registry,
    family: &Family,
    start: usize,
    series: Range<usize>,
    out: &mut String,
) -> std::fmt::Result {
    if series.start == 0 {
        let word = match family.kind {
            Kind::Counter | Kind::CounterPerCore => "counter",
            Kind::Histogram(_) => "histogram",
            _ => "gauge",
        };
        writeln!(
            out,
            "# HELP {} {}\n# TYPE {} {word}",
            family.name, family.help, family.name
        )?;
    }
    let values: Vec<_> = family.labels.iter().map(|l| l.values(registry)).collect();
    for at in series {
        let cell = start + at * family.cells_each();
        let labels = labels_of(&values, family, at);
        match family.kind {
            Kind::Counter => {
                let sum = merged(registry, cell, u64::wrapping_add);
                write_sample(out, family.name, "", &labels, sum, Scale::Whole)?;
            }
            Kind::GaugeSum(scale) => {
                let sum = merged(registry, cell, u64::wrapping_add);
                write_sample(out, family.name, "", &labels, sum, scale)?;
            }
            Kind::GaugeMax(scale) => {
                let max = merged(registry, cell, u64::max);
                write_sample(out, family.name, "", &labels, max, scale)?;
            }
            Kind::GaugePerCore(scale) => write_per_core(registry, family, cell, scale, out)?,
            Kind::CounterPerCore => write_per_core(registry, family, cell, Scale::Whole, out)?,
            Kind::Histogram(scale) => write_histogram(registry, family, cell, &labels, scale, out)?,
        }
    }
    Ok(())
}

fn write_per_core(
    registry: &Registry,
    family: &Family,
    cell: usize,
    scale: Scale,
    out: &mut String,
) -> std::fmt::Result {
    for (core, block) in registry.cores.iter().enumerate() {
        let labels = format!("core=\"{core}\"");
        write_sample(out, family.name, "", &labels, read(block, cell), scale)?;
    }
    Ok(())
}

fn write_histogram(
    registry: &Registry,
    family: &Family,
    cell: usize,
    labels: &str,
    scale: Scale,
    out: &mut String,
) -> std::fmt::Result {
    let mut count = 0u64;
    let comma = if labels.is_empty() { "" } else { "," };
    for bucket in 0..BUCKETS_COUNT {
        count = count.wrapping_add(merged(registry, cell + bucket, u64::wrapping_add));
        write!(out, "{}_bucket{{{labels}{comma}le=\"", family.name)?;
        match upper_bound(bucket) {
            Some(bound) => write_scaled(out, bound, scale)?,
            None => out.push_str("+Inf"),
        }
        writeln!(out, "\"}} {count}")?;
    }
    let sum = merged(registry, cell + BUCKETS_COUNT, u64::wrapping_add);
    write_sample(out, family.name, "_sum", labels, sum, scale)?;
    // The same reading as the buckets', so that the two always agree.
    write_sample(out, family.name, "_count", labels, count, Scale::Whole)
}

fn write_sample(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &str,
    value: u64,
    scale: Scale,
) -> std::fmt::Result {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() {
        write!(out, "{{{labels}}}")?;
    }
    out.push(' ');
    write_scaled(out, value, scale)?;
    out.push('\n');
    Ok(())
}

/// A scaled whole number, exactly, without trailing zeros.
fn write_scaled(out: &mut String, value: u64, scale: Scale) -> std::fmt::Result {
    let (one, width) = match scale {
        Scale::Whole => return write!(out, "{value}"),
        Scale::Milli => (1_000, 3),
        Scale::Micro => (1_000_000, 6),
    };
    write!(out, "{}", value / one)?;
    let rest = value % one;
    if rest > 0 {
        let digits = format!("{rest:0width$}");
        write!(out, ".{}", digits.trim_end_matches('0'))?;
    }
    Ok(())
}

fn labels_of(values: &[Vec<&str>], family: &Family, series: usize) -> String {
    let mut parts = Vec::with_capacity(family.labels.len());
    let mut rest = series;
    for (label, values) in family.labels.iter().zip(values).rev() {
        parts.push(format!(
            "{}=\"{}\"",
            label.name(),
            escaped(values[rest % values.len()])
        ));
        rest /= values.len();
    }
    parts.reverse();
    parts.join(",")
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn merged(registry: &Registry, cell: usize, merge: fn(u64, u64) -> u64) -> u64 {
    registry
        .cores
        .iter()
        .fold(read(&registry.node, cell), |sum, block| {
            merge(sum, read(block, cell))
        })
}

fn read(block: &Block, cell: usize) -> u64 {
    block.cell(cell).load(Ordering::Relaxed)
}
