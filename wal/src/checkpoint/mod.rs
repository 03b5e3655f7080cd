//! Checkpoints: a shard's state on disk, so that a boot reads little of the log.
//!
//! Owns their layout, their building in slices, the order in which one gets its name, and which
//! are kept. Invariants:
//! - A named checkpoint is synced, whole, and everything it holds is durable in the log.
//! - Two named ones are kept; a bad one is passed over for the older (the caller reads a longer
//!   stretch of log then).
//! - No slice holds the core for more than the host allows.
//!
//! It does not decide when one is due and does not recycle slots ([`crate::relocate`] says which
//! may be). Building and writing run on a shard core in the maintenance queue; reading runs at
//! boot and offline.

pub mod layout;

pub mod block;

mod build;
mod files;
mod load;
#[cfg(test)]
mod tests;

pub use build::{Builder, Filled, SegmentUse};
pub use files::{
    CHECKPOINTS_KEPT, LoadError, Unnamed, discard, file_name, load, name, parse_name, prune,
    read_manifest, write,
};
pub use layout::{End, GenerationRef, SegmentNeed, Start};
pub use load::{Loaded, Loader};
