//! What a mistyped or foreign key most likely meant.
//!
//! Pure; runs anywhere.

use super::key::Kind;
use super::table::{join, row};

/// The nearest of the candidates, where one is near enough to be a slip of the keyboard.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let bound = 1 + lower.len() / 4;
    candidates
        .map(|c| (distance(&lower, &c.to_ascii_lowercase()), c))
        .filter(|(d, _)| *d <= bound)
        .min()
        .map(|(_, c)| c)
}

/// Insertions, deletions, replacements and swaps of neighbours from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let cost = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (rows[i - 1][j] + 1)
                    .min(rows[i][j - 1] + 1)
                    .min(rows[i - 1][j - 1] + cost);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

/// Keys that other Ankusa receivers have under another name, or that have no meaning here. Each
/// with what to say.
pub(super) const FOREIGN: &[(&str, &str)] = &[
    ("node.roles", "every node has every role here; remove it"),
    ("node.instance", "here it is node.name"),
    ("instance", "here it is node.name"),
    ("data_dir", "here it is node.data_dir"),
    ("port", "here it is http.port"),
    ("max_body_bytes", "here it is http.max_body_bytes"),
    (
        "batcher",
        "groups form by themselves; see wal.group_max_records, queue.max_records and queue.max_bytes",
    ),
    ("batcher.max_batch", "here it is wal.group_max_records"),
    ("batcher.max_queue", "here it is queue.max_records"),
    ("batcher.max_queue_bytes", "here it is queue.max_bytes"),
    (
        "batcher.max_delay_ms",
        "a group is written as soon as the one before it is; remove it",
    ),
    ("batcher.partitions", "here it is node.shards"),
    (
        "admin.enabled",
        "the admin listener is always on; it binds to loopback unless admin.ip says otherwise",
    ),
    (
        "admin.gauge_interval_ms",
        "gauges are read when they are asked for; remove it",
    ),
    ("routes", "a route is a source here; see sources"),
    ("claim_check", "large bodies are delivered whole; remove it"),
    ("lifecycle", "lifecycle events are not in this version yet"),
    ("source_store", "sources stand in this file; remove it"),
    (
        "wal.publish_timeout_ms",
        "here it is intake.publish_timeout_ms",
    ),
    ("wal.segment_size", "here it is wal.segment_bytes"),
    ("wal.fsync", "here it is wal.sync"),
    (
        "dispatch.batch",
        "a delivery starts as soon as there is room for it; remove it",
    ),
    (
        "dispatch.sink_concurrency",
        "here it is dispatch.concurrency",
    ),
    (
        "dispatch.poll_ms",
        "deliveries wake by themselves; remove it",
    ),
    (
        "dedupe.ttl_seconds",
        "here it is sources.<name>.dedupe.ttl_seconds",
    ),
    ("dedupe.redis_url", "here it is fleet.redis_url"),
    ("dedupe.fleet", "here it is fleet"),
    ("sources.*.tenant_id", "here it is sources.<name>.tenant"),
    ("sources.*.verifier", "here it is sources.<name>.verify"),
    ("sources.*.dedup", "here it is sources.<name>.dedupe"),
    (
        "sources.*.secret",
        "here it is sources.<name>.verify.secret",
    ),
    (
        "sources.*.verify.secrets",
        "here it is sources.<name>.verify.secret, which takes a list as well",
    ),
    (
        "sources.*.verify.tolerance",
        "here it is sources.<name>.verify.tolerance_seconds",
    ),
    (
        "sources.*.verify.tolerance_ms",
        "here it is sources.<name>.verify.tolerance_seconds",
    ),
    (
        "sources.*.dedupe.ttl",
        "here it is sources.<name>.dedupe.ttl_seconds",
    ),
    (
        "sources.*.sinks.#.timeout",
        "here it is sources.<name>.sinks[].timeout_ms",
    ),
    (
        "sources.*.sinks.#.id",
        "here it is sources.<name>.sinks[].name",
    ),
    ("tls", "here it is http.tls"),
    (
        "retry",
        "here it is dispatch.retry, or sources.<name>.retry",
    ),
    ("sinks", "sinks belong to a source: sources.<name>.sinks"),
];

/// What to say of a foreign key.
pub(super) fn foreign(pattern: &str) -> Option<&'static str> {
    FOREIGN
        .iter()
        .find(|(key, _)| *key == pattern)
        .map(|(_, says)| *says)
}

/// Words of other Ankusa receivers, with what to say.
const FOREIGN_WORDS: &[(&str, &str, &str)] = &[
    ("sources.*.sinks.#.type", "nats", "here it is jetstream"),
    (
        "sources.*.sinks.#.type",
        "rabbitmq",
        "there is no such sink here",
    ),
    (
        "sources.*.sinks.#.type",
        "redis",
        "there is no such sink here",
    ),
    (
        "sources.*.sinks.#.type",
        "sqs",
        "there is no such sink here",
    ),
    (
        "sources.*.sinks.#.type",
        "google_pubsub",
        "there is no such sink here",
    ),
    (
        "sources.*.verify.type",
        "svix",
        "here it is standard_webhooks",
    ),
    ("log.format", "pretty", "here it is text"),
    ("wal.sync", "fsync", "fdatasync is what is meant"),
];

/// What to say of a foreign word.
pub(super) fn foreign_word(pattern: &str, word: &str) -> Option<&'static str> {
    FOREIGN_WORDS
        .iter()
        .find(|(key, w, _)| *key == pattern && *w == word)
        .map(|(_, _, says)| *says)
}

/// How to write a map that its `type` alone was given for.
pub(super) fn type_map(pattern: &str, word: &str) -> Option<String> {
    match row(&join(pattern, "type"))?.kind {
        Kind::Word(words) if words.contains(&word) => {
            Some(format!("; did you mean {{ type: {word} }}?"))
        }
        _ => None,
    }
}
