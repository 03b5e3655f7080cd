//! The durable store of one shard: an append-only write-ahead log that is the store.
//!
//! Hooks stay where they were appended; an in-memory index points at them, a checkpoint makes
//! boot short, relocation frees space. Tenant and source are bytes to this crate; it knows
//! nothing of HTTP, of Kafka or of who delivers a hook.
//!
//! Reading order: [`ids`] (the vocabulary), [`host`] and [`disk`] (the seams), then the format,
//! the state, the writer, the opening, and the maintenance.

pub mod disk;
pub mod host;
pub mod ids;

pub use disk::{Disk, DiskBuf};
pub use host::{Host, TaskClass};
pub use ids::{HookId, Lsn, SegmentId, Seq, ShardId, SinkNo};
