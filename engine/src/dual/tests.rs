//! The dual commit of a shard as its providers and its consumers see it: the real pipeline, desk,
//! committer, store and dispatch on a simulated disk, over a log that does what the test says.

#![allow(clippy::unwrap_used)]

mod ack;
mod fleet;
mod log_lost;
mod marks;
mod random;
mod reconcile;
mod refused;
mod rig;
mod script;
