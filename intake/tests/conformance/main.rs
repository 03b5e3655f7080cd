//! The cases that every adapter must pass, run against each.
//!
//! The memory adapter runs always. Kafka runs with the `kafka` feature when `ANKUSA_KAFKA` names a
//! file that `drills/kafka up` wrote (`cargo test -p ankusa-intake --features kafka`).
#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod driver;
#[cfg(feature = "kafka")]
mod kafka;
mod memory;
