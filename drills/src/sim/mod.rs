//! The simulation: the real heart of the node on a simulated disk, clock, mesh, client and sinks.
//!
//! One thread, one seed, and every choice follows from it: what the client sends, what the sinks
//! do, which operation of the disk meets which fault, which of several ready tasks runs next, when
//! the power goes and what the medium keeps. What runs is what the node runs: the pipeline, the
//! claims, the commit, the shard and its store, dispatch. What is replaced: the sockets (requests
//! are handed to the pipeline's handler), the mesh between cores ([`wire`]), the sinks ([`sinks`]),
//! the disk and the thread.
//!
//! [`book`] writes down what the client was told and what the sinks were given; [`judge`]
//! compares, and shares no code with what it judges. [`run`] is one seed; [`enumerate`] fails
//! every operation in turn and cuts the power at every flush; [`controls`] breaks each promise on
//! purpose and demands that it is noticed.
//!
//! Plain threads, one world per seed. Not in the node.

pub mod book;
pub mod controls;
pub mod enumerate;
pub mod judge;
pub mod run;
pub mod sweep;

mod client;
mod dual;
mod faults;
mod finish;
mod log;
mod medium;
mod node;
mod reader;
mod sinks;
#[cfg(test)]
mod tests;
mod trace;
mod weather;
mod wire;

pub use book::{Kind, Violation};
pub use run::{Plan, Report, run_seed};
