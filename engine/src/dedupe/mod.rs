//! Which hooks are the same hook: the key a provider gives an event, and what is made of it.
//!
//! Owns the extraction of the key from a header or the JSON body, its normal form, the 128 bit
//! hash it is remembered by, and the `idempotency_key` that every sink is told.
//!
//! Invariants: a request without a usable key has *no* key (it becomes a new hook), never an
//! empty or shared one, because two events under one key would lose the second; a key is at most
//! [`KEY_BYTES_MAX`] bytes that a header can carry unchanged (anything else is named by its
//! SHA-256); the hash is a format: its definition never changes.
//!
//! Does not: remember keys (the claims do), parse bodies beyond the value asked for, expire
//! anything.
//!
//! Runs on a shard core, in the request's task, after verification. A long JSON body is scanned in
//! steps of [`SCAN_STEP_BYTES`]; the caller yields between them.

mod hash;
mod path;
mod plan;
mod scalar;
mod scan;
#[cfg(test)]
mod tests;

pub use hash::{DEDUPE_HASH_BYTES, dedupe_hash};
pub use path::{JsonPath, PathError};
pub use plan::{DedupeKey, Extraction, KeyPlan, idempotency_key, write_idempotency_key};
pub use scalar::Scalar;
pub use scan::{Absence, DEPTH_MAX, JsonScan, SCAN_STEP_BYTES, ScanStep};

/// The longest key that is kept as it is.
pub const KEY_BYTES_MAX: usize = 200;
