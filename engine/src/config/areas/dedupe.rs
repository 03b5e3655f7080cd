//! `dedupe.*` and `fleet.*`: who remembers the keys of hooks.
//!
//! Runs at boot and offline.

use crate::config::Secret;
use crate::config::key::{Key, Unit};
use crate::config::problem::Fault;
use crate::config::values::Reader;

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

pub(in crate::config) const KEYS: &[Key] = &[
    Key::word("dedupe.scope", &["node", "fleet"], "Who remembers the keys of hooks: this node, or all nodes over Redis.").or("node"),
    Key::int("dedupe.max_keys", 1_000, 1_000_000_000, Unit::Of("keys"), "The most keys of the node; the oldest goes first, which can cost a duplicate and never a hook.").or("20000000"),
    Key::secret("fleet.redis_url", "The fleet's Redis, `redis://` or `rediss://`; required for `dedupe.scope: fleet`."),
    Key::int("fleet.pending_ttl_ms", 1_000, 600_000, Unit::Millis, "How long a claim of the fleet may stay unsettled.").or("30000"),
];

impl DedupeConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> DedupeConfig {
        let (dedupe, fleet) = (r.at("dedupe"), r.at("fleet"));
        let redis_url = fleet.secret("redis_url");
        if redis_url.as_ref().is_some_and(|url| {
            !["redis://", "rediss://"]
                .iter()
                .any(|s| url.expose_str().starts_with(s))
        }) {
            fleet.fault(
                "redis_url",
                Fault::Secret("must start with redis:// or rediss://"),
            );
        }
        DedupeConfig {
            scope: if dedupe.text("scope") == "fleet" {
                DedupeScope::Fleet
            } else {
                DedupeScope::Node
            },
            max_keys: dedupe.int("max_keys"),
            redis_url,
            pending_ttl_ms: fleet.int("pending_ttl_ms"),
        }
    }
}
