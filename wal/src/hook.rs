//! A hook on its way in ([`HookDraft`]) and what the store itself must know of it
//! ([`HookExtra`], [`HookFacts`]).
//!
//! Plain borrowed data; nothing here copies a body. Tenant, source and headers are bytes. Runs
//! anywhere.

use std::net::SocketAddr;

use crate::ids::{HookId, Seq, SinkNo};

/// The headers of a draft, in order. Visited twice: once for the length, once to encode.
pub trait Headers {
    /// Calls `each(name, value)` for every header to be kept.
    fn visit(&self, each: &mut dyn FnMut(&[u8], &[u8]));
}

impl Headers for [(&[u8], &[u8])] {
    fn visit(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in self {
            each(name, value);
        }
    }
}

impl<const N: usize> Headers for [(&[u8], &[u8]); N] {
    fn visit(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        self.as_slice().visit(each);
    }
}

/// How the signature of a hook was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Verification {
    /// The source asks for none.
    #[default]
    None = 0,
    /// Verified.
    Verified = 1,
    /// Failed, kept and marked.
    Flagged = 2,
}

impl Verification {
    /// The value with this number.
    pub fn from_u8(value: u8) -> Option<Verification> {
        Some(match value {
            0 => Verification::None,
            1 => Verification::Verified,
            2 => Verification::Flagged,
            _ => return None,
        })
    }
}

/// What the store keeps beside the envelope: not part of the intake record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookExtra<'a> {
    /// Sinks to deliver to; a row each.
    pub sinks: &'a [SinkNo],
    /// Keyed hash of (tenant, source, key).
    pub dedupe_hash: Option<[u8; 16]>,
    /// To be archived: the hook stays live until [`crate::Record::Archived`].
    pub archive: bool,
    /// Published to the intake log: the hook stays live until the watermark passes it.
    pub log: bool,
}

/// A hook before it has a seq.
#[derive(Clone, Copy)]
pub struct HookDraft<'a> {
    /// Id, kept through retries, replays and recovery.
    pub id: HookId,
    /// Wall clock at arrival, milliseconds.
    pub received_at_ms: u64,
    /// Tenant, at most 65,535 bytes, as are the other short fields.
    pub tenant: &'a [u8],
    /// Source.
    pub source: &'a [u8],
    /// HTTP method.
    pub method: &'a [u8],
    /// Path and query, as received.
    pub target: &'a [u8],
    /// Headers to keep, verbatim.
    pub headers: &'a dyn Headers,
    /// Content type; empty when none.
    pub content_type: &'a [u8],
    /// Body, untouched.
    pub body: &'a [u8],
    /// The dedupe key.
    pub dedupe_key: Option<&'a [u8]>,
    /// Its time to live, seconds.
    pub dedupe_ttl_s: u32,
    /// Verification result.
    pub verification: Verification,
    /// The client.
    pub client: SocketAddr,
    /// What the store keeps beside it.
    pub extra: HookExtra<'a>,
}

/// What the state learns of a hook when it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookFacts {
    /// Id.
    pub id: HookId,
    /// Seq.
    pub seq: Seq,
    /// Arrival, milliseconds.
    pub received_at_ms: u64,
    /// Time to live of the dedupe row, seconds from arrival.
    pub dedupe_ttl_s: u32,
    /// True when the record is a move of a hook that the store already has.
    pub relocated: bool,
}
