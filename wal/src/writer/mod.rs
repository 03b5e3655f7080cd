//! From a group to the medium: building it, the pipeline of groups in flight, the writes.
//!
//! The pipeline is pure and decides; the driver only obeys. Runs on the shard core.

pub(crate) mod pipeline;

pub(crate) mod group;

pub(crate) mod io;

pub(crate) mod cache;

pub(crate) mod notify;

pub use group::GroupBuilder;
