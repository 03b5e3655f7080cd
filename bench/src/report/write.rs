//! Writes a report's files and prints its table.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use serde_json::json;

use super::columns::{Row, Value};
use super::summary::Figure;
use crate::hostfacts::HostFacts;
use crate::plot;

/// A report being put together.
pub struct Report {
    bench: &'static str,
    host: HostFacts,
    settings: Value,
    warnings: Vec<String>,
    rows: Vec<Row>,
    figures: Vec<Figure>,
    curves: Vec<(String, Histogram<u64>)>,
    throughput: Vec<(String, Vec<(f64, f64)>)>,
    extra: serde_json::Map<String, Value>,
}

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file failed.
    #[error("writing {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A plot failed.
    #[error("drawing {path}: {message}")]
    Plot {
        /// Which.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// Where a bench's files go when nobody says.
pub fn default_out(bench: &str) -> PathBuf {
    PathBuf::from("bench-results").join(format!("{bench}-{}", crate::sys::unix_us() / 1_000_000))
}

impl Report {
    /// An empty report; the host's warnings are in it.
    pub fn new(bench: &'static str, host: HostFacts, settings: Value) -> Report {
        let warnings = host.warnings();
        Report {
            bench,
            host,
            settings,
            warnings,
            rows: Vec::new(),
            figures: Vec::new(),
            curves: Vec::new(),
            throughput: Vec::new(),
            extra: serde_json::Map::new(),
        }
    }

    /// Adds a row of `rounds.csv`.
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds a summed-up figure.
    pub fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Adds something that makes the result weaker.
    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Adds latencies under a name; rounds of one name are put together.
    pub fn latencies(&mut self, name: &str, histogram: &Histogram<u64>) {
        match self.curves.iter_mut().find(|(known, _)| known == name) {
            Some((_, all)) => {
                let _ = all.add(histogram);
            }
            None => self.curves.push((name.to_owned(), histogram.clone())),
        }
    }

    /// Adds a line of the throughput plot: (connections, requests per second).
    pub fn throughput(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.throughput.push((name.to_owned(), points));
    }

    /// Adds a value of its own to `report.json`.
    pub fn extra(&mut self, key: &str, value: Value) {
        self.extra.insert(key.to_owned(), value);
    }

    /// The figures so far.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// Prints the summary and writes everything into `dir`.
    pub fn finish(&self, dir: &Path) -> Result<(), ReportError> {
        self.print_summary();
        self.write(dir)?;
        println!("files in {}", dir.display());
        Ok(())
    }

    /// The whole report as one value.
    pub fn json(&self) -> Value {
        json!({
            "bench": self.bench,
            "host": self.host,
            "settings": self.settings,
            "warnings": self.warnings,
            "figures": self.figures,
            "rounds": self.rows.iter().map(row_json).collect::<Vec<_>>(),
            "more": self.extra,
        })
    }

    /// Writes the files into `dir`.
    pub fn write(&self, dir: &Path) -> Result<(), ReportError> {
        let file = |name: &str, content: &str| {
            let path = dir.join(name);
            fs::write(&path, content).map_err(|source| ReportError::File { path, source })
        };
        fs::create_dir_all(dir).map_err(|source| ReportError::File {
            path: dir.to_owned(),
            source,
        })?;
        file("report.json", &format!("{:#}\n", self.json()))?;
        if !self.rows.is_empty() {
            file("rounds.csv", &rounds_csv(&self.rows))?;
        }
        if !self.curves.is_empty() {
            file("percentiles.csv", &percentiles_csv(&self.curves))?;
            let path = dir.join("latency.svg");
            plot::latency(
                &path,
                &format!("{}: latency by percentile", self.bench),
                &self.curves,
            )
            .map_err(|message| ReportError::Plot { path, message })?;
        }
        if self.throughput.iter().any(|(_, points)| points.len() > 1) {
            let path = dir.join("throughput.svg");
            plot::throughput(
                &path,
                &format!("{}: throughput by connections", self.bench),
                &self.throughput,
            )
            .map_err(|message| ReportError::Plot { path, message })?;
        }
        Ok(())
    }

    /// Prints host, warnings and figures.
    pub fn print_summary(&self) {
        println!(
            "{} on {}, {} cores, Linux {}",
            self.bench,
            self.host.cpu,
            self.host.cores.len(),
            self.host.kernel
        );
        for warning in &self.warnings {
            println!("warning: {warning}");
        }
        print!("{}", table(&self.figures));
    }
}

fn row_json(row: &Row) -> Value {
    Value::Object(
        row.iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    )
}

fn table(figures: &[Figure]) -> String {
    let mut out = String::new();
    let width = figures
        .iter()
        .map(|f| f.name.len())
        .max()
        .unwrap_or(0)
        .max(8);
    if !figures.is_empty() {
        let _ = writeln!(
            out,
            "{:width$} {:>14} {:>14} {:>14}  unit (rounds)",
            "figure", "median", "least", "most"
        );
    }
    for f in figures {
        let show = |v: f64| {
            if v.abs() >= 1000.0 {
                format!("{v:.0}")
            } else {
                format!("{v:.3}")
            }
        };
        let _ = writeln!(
            out,
            "{:width$} {:>14} {:>14} {:>14}  {} ({})",
            f.name,
            show(f.median),
            show(f.min),
            show(f.max),
            f.unit,
            f.rounds
        );
    }
    out
}

fn rounds_csv(rows: &[Row]) -> String {
    let mut names: Vec<&'static str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut out = names.join(",");
    out.push('\n');
    for row in rows {
        let cells: Vec<String> = names
            .iter()
            .map(|name| match row.iter().find(|(key, _)| key == name) {
                Some((_, Value::String(text))) => text.replace(',', ";"),
                Some((_, value)) => value.to_string(),
                None => String::new(),
            })
            .collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

fn percentiles_csv(curves: &[(String, Histogram<u64>)]) -> String {
    let mut out = "subject,percentile,latency_us\n".to_owned();
    for (name, histogram) in curves {
        for (percentile, us) in plot::percentile_points(histogram) {
            let _ = writeln!(out, "{name},{percentile},{us:.1}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::columns::{number, text};
    use super::*;

    #[test]
    fn csv_has_every_column_and_keeps_rows_apart() {
        let rows = vec![
            vec![("a", number(1.0)), ("b", text("x,y"))],
            vec![("a", number(2.5)), ("c", number(3.0))],
        ];
        assert_eq!(rounds_csv(&rows), "a,b,c\n1.0,x;y,\n2.5,,3.0\n");
    }
}
