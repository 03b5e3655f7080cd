//! The intake log: the second durable home of a hook, a partition of a replicated topic.
//!
//! Owns the record ([`record`]), the interface every adapter answers ([`log`]), the adapters
//! ([`memory`], and Kafka behind the `kafka` feature) and the rules a topic's settings must meet
//! ([`verify`]). Every adapter passes one suite of cases: `tests/conformance`. Knows nothing of the rest
//! of the product: plain integers and bytes go in and come out.
//!
//! Deliberately absent: retries (one attempt per publish; the caller owns every retry), the
//! breaker, the meaning of a record's bytes, and any creation, change or deletion of a topic.
//!
//! Runs: [`log::Publisher`] on a reactor core, never blocking it; everything else is asked there
//! and answered by side threads.

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod log;
pub mod memory;
pub mod record;
pub mod verify;

mod ask;
mod attempts;
mod replay;

pub use ask::{Answering, question, wait_for};
pub use log::{
    Answer, AskError, Asked, Bounds, Chunk, Class, Confirm, Failure, From, IntakeLog, Outgoing,
    PermanentAbout, Publisher, Readiness, Replay, ReplayRequest, ReplaySummary, Replayed,
    SkippedNewer, partition_of,
};
pub use record::{Kind, RecordHead, Skip};
pub use verify::{Expected, Finding, Verified};
