//! Tools for a store at rest: what is in it, whether it is whole, what to do when it is not, and
//! what the device under it can do.
//!
//! They never run beside a live shard: the caller holds the data directory's lock. Each returns
//! data with a [`std::fmt::Display`] for people and a `to_json` for programs; the command line
//! only parses arguments and calls them. They read with ordinary reads, so a block that cannot
//! be read is an error with a place and not a signal; a whole segment is in memory at a time.
//!
//! The judgement here shares the byte formats with the opening, and not its code: it is a second
//! reader of the same rules. Only [`repair`](repair::repair) writes.

pub mod scan;

pub mod judge;

pub mod checkpoints;

pub mod lost;

pub mod verify;

pub mod stat;

pub mod dump;

pub mod repair;

pub mod bench;

#[cfg(test)]
mod tests;

use std::io;

use thiserror::Error;

pub use bench::{BenchConfig, BenchReport, device_bench};
pub use dump::{DumpItem, DumpOptions, dump};
pub use lost::LostHook;
pub use repair::{RepairPlan, RepairReport, repair};
pub use scan::{ShardScan, scan};
pub use stat::{StatReport, stat};
pub use verify::{VerifyReport, verify};

/// Why a tool could not do its work. Damage is not an error: it is the answer.
#[derive(Debug, Error)]
pub enum OfflineError {
    /// An operation of the disk failed.
    #[error("{doing} {name}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file; empty for the directory.
        name: String,
        /// The error.
        source: io::Error,
    },
    /// A file was asked for that is not a slot of the shard.
    #[error("no slot {0} here")]
    NoSlot(String),
    /// The plan was shown and not agreed to. Nothing was changed.
    #[error("not agreed to, nothing was changed")]
    Declined,
    /// There is nothing here that a repair can do.
    #[error("no repair: {0}")]
    NoRepair(String),
}

pub(crate) fn io_error<'a>(
    doing: &'static str,
    name: &'a str,
) -> impl FnOnce(io::Error) -> OfflineError + 'a {
    move |source| OfflineError::Io {
        doing,
        name: name.to_owned(),
        source,
    }
}
