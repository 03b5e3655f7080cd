//! The rows of `rounds.csv`: named values in a fixed order. Pure.

use crate::load::LoadResult;

pub use serde_json::Value;

/// One row: column names with their values.
pub type Row = Vec<(&'static str, Value)>;

/// A number, rounded to what can be read.
pub fn number(value: f64) -> Value {
    let digits = if value.abs() >= 1000.0 {
        0
    } else if value.abs() >= 10.0 {
        2
    } else {
        4
    };
    let scale = 10f64.powi(digits);
    serde_json::Number::from_f64((value * scale).round() / scale).map_or(Value::Null, Value::Number)
}

/// A text.
pub fn text(value: impl Into<String>) -> Value {
    Value::String(value.into())
}

/// The columns every run of the load generator has.
pub fn load_row(subject: &str, round: usize, connections: usize, result: &LoadResult) -> Row {
    let acked = &result.acked;
    let us = |p: f64| number(result.acked_us(p));
    vec![
        ("subject", text(subject)),
        ("round", Value::from(round)),
        ("connections", Value::from(connections)),
        ("acked_per_s", number(result.rate())),
        ("p50_us", us(50.0)),
        ("p90_us", us(90.0)),
        ("p99_us", us(99.0)),
        ("p99_9_us", us(99.9)),
        ("p99_99_us", us(99.99)),
        ("max_us", number(acked.max() as f64 / 1000.0)),
        ("sent", Value::from(result.sent)),
        ("unsent", Value::from(result.unsent)),
        ("not_acked", Value::from(result.not_acked())),
        ("reopened", Value::from(result.reopened)),
        ("window_s", number(result.window.as_secs_f64())),
        ("generator_busy", number(result.generator_busy)),
    ]
}
