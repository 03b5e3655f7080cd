//! The cases that every adapter must pass, run against each.
//!
//! The memory adapter runs always. Kafka runs with the `kafka` feature once `drills/kafka up` has
//! been called and `ANKUSA_KAFKA` is the path of that script; with `ANKUSA_KAFKA_FAULTS=1` brokers
//! are killed and paused too (then run this test alone: the others share the brokers).
#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod driver;
#[cfg(feature = "kafka")]
mod faults;
#[cfg(feature = "kafka")]
mod kafka;
mod memory;
