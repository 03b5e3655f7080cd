//! `dedupe.*` and `fleet.*`: who remembers the keys of hooks.
//!
//! Runs at boot and offline.

use crate::config::Secret;

/// Who remembers keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeScope {
    /// This node.
    Node,
    /// The fleet, over Redis.
    Fleet,
}

/// `dedupe.*` and `fleet.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct DedupeConfig {
    /// Who remembers keys.
    pub scope: DedupeScope,
    /// The most keys of the node; the oldest goes first.
    pub max_keys: u64,
    /// The fleet's Redis; may hold a password.
    pub redis_url: Option<Secret>,
    /// How long a claim of the fleet may stay unsettled.
    pub pending_ttl_ms: u64,
}
