//! The ingest pipeline: from a whole HTTP request to its one honest answer.
//!
//! Order: route → `Content-Length` over the limit → source → (body) → verify → claim → commit.
//! What is refused before the body never reads it; what is refused before the commit leaves
//! nothing behind; a 201 leaves only after the commit is complete in every place the mode
//! promises.
//!
//! Runs on a shard core, one task per connection, in its request's turn.

mod answers;
mod fingerprint;
mod headers;
mod item;
mod mint;
mod pipeline;
mod sources;

pub use answers::refusal;
pub use headers::is_kept;
pub use item::{Dedupe, IngestItem};
pub use mint::Minter;
pub use pipeline::{Ingest, IngestLimits, IngestParts, Observer, Readiness, ReadyProbe};
pub use sources::{Route, Source, SourceTable};
