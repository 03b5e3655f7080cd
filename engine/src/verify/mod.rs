//! Whether a request was signed by the one who holds the source's secret.
//!
//! Owns the verifiers of every provider we know by name, the described ones (`hmac`, `ed25519`,
//! `bearer`, `basic`), and the words for why a request failed. The signature is checked over the
//! body bytes exactly as received; nothing is parsed, decompressed or re-serialised first.
//!
//! Invariants: a verifier that exists has at least one usable secret (a missing or
//! empty one is a [`BuildError`], never a verifier that accepts everything); every compare
//! with a secret-derived value is constant time; the work per request is bounded by
//! [`SECRETS_MAX`] hashes of the body and [`CANDIDATES_MAX`] compares.
//!
//! Does not: read a clock (the caller gives the receive time), look for headers by itself, decide
//! what a failure leads to (`on_verify_failure`), log secrets (they are dropped into key objects).
//!
//! Runs on a shard core, in the request's task. A long body is hashed in slices: the caller feeds
//! [`Check::update`] with pieces of [`Check::chunk_bytes`] and may yield in between.

mod build;
mod challenge;
mod check;
mod encoding;
mod header;
mod plan;
#[cfg(test)]
mod tests;

pub use build::{BuildError, SECRETS_MAX};
pub use challenge::{CHALLENGE_BODY_BYTES_MAX, slack_challenge};
pub use check::{Check, Verifier};
pub use header::{CANDIDATES_MAX, Lookup};

/// Why a request did not verify. The words are part of the wire contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A header that the scheme needs is absent.
    MissingSignature,
    /// A header is there and cannot be read: not hex or base64, of the wrong length, a timestamp
    /// that is not a decimal number of seconds, sent twice, or with too many candidates.
    MalformedSignature,
    /// Readable, and no secret gives any of the candidates.
    NoMatch,
    /// The header speaks another scheme or version than the source is configured for.
    BadScheme,
    /// The source's secret cannot be used (see [`Verifier::refusing`]).
    BadSecret,
    /// Signed longer ago than the tolerance.
    TimestampTooOld,
    /// Signed further in the future than the tolerance.
    TimestampInFuture,
}

impl Reason {
    /// Every reason, for metrics with a fixed set of labels.
    pub const ALL: [Reason; 7] = [
        Reason::MissingSignature,
        Reason::MalformedSignature,
        Reason::NoMatch,
        Reason::BadScheme,
        Reason::BadSecret,
        Reason::TimestampTooOld,
        Reason::TimestampInFuture,
    ];

    /// The word in answers, metrics and the quarantine.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::MissingSignature => "missing_signature",
            Reason::MalformedSignature => "malformed_signature",
            Reason::NoMatch => "no_match",
            Reason::BadScheme => "bad_scheme",
            Reason::BadSecret => "bad_secret",
            Reason::TimestampTooOld => "timestamp_too_old",
            Reason::TimestampInFuture => "timestamp_in_future",
        }
    }
}

/// A request that verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// False when the source asks for no verification at all.
    pub signed: bool,
    /// Which of the configured secrets matched, in their order: shows when a rotation is complete.
    pub secret_index: usize,
    /// The signed timestamp, in seconds, where the scheme has one.
    pub timestamp_s: Option<u64>,
}
