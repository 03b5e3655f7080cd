//! Results as files: `report.json`, `rounds.csv`, `percentiles.csv`, and a table on the terminal.
//!
//! Owns how figures are summed up (median, least, most over rounds of one run) and which columns
//! a run of the load generator has. A figure never stands without its spread, the host's facts
//! and the settings.
//!
//! Runs at the end of a bench, on its main thread.

mod columns;
mod summary;
mod write;

pub use columns::{Row, Value, load_row, number, text};
pub use summary::{Figure, Summary};
pub use write::{Report, ReportError, default_out};
