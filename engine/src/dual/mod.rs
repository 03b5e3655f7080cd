//! The dual commit: the log half of every group, and what becomes of a record whose halves did
//! not both succeed.
//!
//! A record is *carried* once one half was issued and the other failed: its bytes are kept in the
//! shard's [`pending`] set, its claim is held, and the [`reconciler`] completes it, for ever if it
//! must. Nothing is undone. Records whose halves are both open are in the groups of
//! [`crate::commit`] and count against the same ceilings.
//!
//! Invariants, asserted where they move:
//! * the watermark never passes a seq that the log has not confirmed, stuck ones excepted by name;
//! * the offset never passes a position at which a record of this shard may be whose local half is
//!   not durable;
//! * a claim is promoted only when both halves are confirmed;
//! * an entry leaves the pending set only complete.
//!
//! Split as the process is: [`NodeLog`] one per node (atomics, shared by the cores), [`CoreLog`]
//! one per core (the way into the log), [`ShardLog`] one per shard. The decisions ([`breaker`],
//! [`quota`], [`pending`], [`reconciler`], [`marks`]) are functions of state and time; nothing here
//! names an executor, a socket or a clock. Runs on shard cores.

pub mod breaker;
pub mod claims;
pub mod core_log;
pub mod feeder;
pub mod marks;
pub mod node_log;
pub mod pending;
pub mod quota;
pub mod reconciler;
pub mod shard_log;
pub(crate) mod work;

#[cfg(test)]
mod tests;

/// The promises of the dual commit that a build with the feature `mutations` can break, each where
/// it is kept (see [`ankusa_wal::mutations`]).
pub const MUTATIONS: [&str; 7] = [
    "ack_before_confirm",
    "watermark_from_unconfirmed",
    "offset_from_unconfirmed",
    "promote_on_one_half",
    "release_on_half_failure",
    "drop_permanent",
    "assume_failed_absent",
];

pub use breaker::BreakerState;
pub use claims::{ClaimStore, Held, Hold};
pub use core_log::CoreLog;
pub use feeder::Republished;
pub use node_log::{DualSettings, NodeLog, PendingSums};
pub use shard_log::{Halves, ShardFacts, ShardLog};
