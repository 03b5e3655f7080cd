//! The log sink: for trying out what arrives.
//!
//! Prints who a hook is and the beginning of its body. Confirmed once handed to the log, which is
//! as durable as the operator's logging is.
//!
//! Runs on a shard core.

use super::Delivery;
use super::outcome::Outcome;

/// Bytes of a body that are printed.
const SHOWN_BYTES: usize = 512;

/// Prints hooks.
pub struct LogSink {
    name: Box<str>,
}

impl LogSink {
    /// A log sink of this name.
    pub fn new(name: &str) -> LogSink {
        LogSink { name: name.into() }
    }

    /// Prints one hook.
    pub fn deliver(&self, delivery: &Delivery<'_>) -> Outcome {
        let hook = &delivery.hook;
        let shown = &hook.body[..hook.body.len().min(SHOWN_BYTES)];
        tracing::info!(
            sink = %self.name,
            id = %hook.id,
            tenant = %String::from_utf8_lossy(hook.tenant),
            source = %String::from_utf8_lossy(hook.source),
            content_type = %String::from_utf8_lossy(hook.content_type),
            size = hook.body.len(),
            body = %shown.escape_ascii(),
            "hook"
        );
        Outcome::Delivered
    }
}
