//! How a node is made whole again: what the intake log holds and the store does not, and back.
//!
//! Owns the steps of a boot under the dual commit up to the moment the node serves, as decisions
//! ([`boot`], tables with labelled rows) and one driver ([`boot::run`]), and what becomes of each
//! record that is read back ([`apply`]). `ankusa recover` is the same driver over a stopped store.
//! What only the service knows (a source's sinks of today, how hooks are published) comes through
//! two small traits, [`port::NodePort`] and [`apply::Today`].
//!
//! Invariants: a replay never overwrites, never drops, and converges: killed anywhere and run
//! again, run twice, or over a log full of duplicates in any order, it ends in the same store. The
//! offset of a shard never passes a record of that shard that is not durable in it.
//!
//! And the way back onto an empty host: [`backup`] and [`restore`], blocking calls for a side
//! thread or offline.
//!
//! Deliberately absent: sockets, threads, clocks (time comes through the port), and the dual
//! commit of a running node. All but backups runs on a shard core at boot, and offline.

pub mod apply;

pub mod boot;

pub mod port;

pub mod backup;

pub mod restore;

#[cfg(test)]
mod tests;

pub use apply::{Applied, Batch, Groups, ShardApply, SourceToday, Today};
pub use boot::{Options, Refusal, Start, Summary, run};
pub use port::{NodePort, NodeState, PortError, Progress, Republished, ShardEnd, ShardMark, Stamp};
