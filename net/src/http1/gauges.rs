//! What one core's server counts. Written by its core alone; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with one writer: an add is a plain load and store, not a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.get().wrapping_sub(n), Ordering::Relaxed);
    }
}

/// Gauges and counters of one core's server.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Connections open now.
    pub connections_open: Counter,
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Waiting connections closed because the core was at its ceiling.
    pub connections_evicted: Counter,
    /// Accepts that failed (out of descriptors, mostly).
    pub accept_failures: Counter,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Requests given to the handler.
    pub requests: Counter,
    /// Requests in the handler now.
    pub requests_inflight: Counter,
    /// Requests the handler refused at their head.
    pub refused_at_head: Counter,
    /// Refused: framing, syntax.
    pub refused_malformed: Counter,
    /// Refused: head too large, too many headers.
    pub refused_head_too_large: Counter,
    /// Refused: body over its limit.
    pub refused_body_too_large: Counter,
    /// Refused: a deadline of head or body passed, or the body came too slowly.
    pub refused_timeout: Counter,
    /// Refused: too many bytes of bodies held on this core.
    pub refused_overload: Counter,
    /// The client ended its side inside a body.
    pub bodies_cut: Counter,
    /// Connections that broke, or whose client did not take its answer in time.
    pub connections_broken: Counter,
    /// Bytes of bodies held now.
    pub body_bytes_held: Counter,
    /// Bytes of heads and bodies received.
    pub bytes_in: Counter,
}
