//! The durable store of one shard: an append-only write-ahead log that is the store.
//!
//! Hooks stay where they were appended; an in-memory index points at them, a checkpoint makes
//! boot short, relocation frees space. Tenant and source are bytes to this crate; it knows
//! nothing of HTTP, of Kafka or of who delivers a hook.
//!
//! Reading order: [`ids`] (the vocabulary), [`host`] and [`disk`] (the seams), [`record`] and
//! [`hook`] (what is stored), then the format, the state, the writer, the opening, and the
//! maintenance; [`store`] is what the engine uses.

pub mod ids;

pub mod home;

pub mod host;

pub mod disk;

pub mod record;

pub mod hook;

pub mod config;

pub mod error;

pub mod format;

pub mod state;

pub mod checkpoint;

pub(crate) mod slots;

pub(crate) mod writer;

pub mod open;

pub mod generation;

pub mod relocate;

pub mod store;

pub mod offline;

pub mod sim;

pub mod mutations;

pub use config::{StoreConfig, SyncMode};
pub use disk::{Disk, DiskBuf};
pub use error::{CheckpointError, CloseError, Damage, OpenError, ReadError, Refusal};
pub use format::Envelope;
pub use hook::{Headers, HookDraft, HookExtra, HookFacts, Verification};
pub use host::{Host, TaskClass};
pub use ids::{HookId, LogOffset, Lsn, SegmentId, Seq, ShardId, SinkNo};
pub use record::{
    Counter, DedupeRow, Delivery, DeliveryState, Incarnation, IntakeIdentity, IntakeOffset,
    Location, Record, Resequenced, SinkName, TrailRow, Watermark,
};
pub use state::State;
pub use store::backup::{BackupMarks, BackupSource, FileSource, SegmentSource};
pub use store::{
    CheckpointReport, OpenReport, Outcome, Pin, Settled, Store, StoreStats, StoredHook,
};
pub use writer::GroupBuilder;
