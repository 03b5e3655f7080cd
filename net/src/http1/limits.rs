//! What one core's server allows: sizes, counts and deadlines, with their ranges. Pure.
//!
//! Deadlines are enforced by a sweep every [`SWEEP_MS`], so they are met late by up to two sweeps.

/// How often deadlines are looked at.
pub const SWEEP_MS: u64 = 100;

/// Limits of one core's server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once on this core.
    pub connections_max: usize,
    /// Request line and header lines together, bytes; 512 to 65,535.
    pub head_bytes_max: usize,
    /// Header lines; 1 to [`super::head::HEADERS_MAX`].
    pub headers_max: usize,
    /// From accept to the first byte.
    pub first_byte_ms: u64,
    /// From the first byte to the end of the head; a TLS handshake has as long.
    pub head_ms: u64,
    /// From the end of the head to the end of the body.
    pub body_ms: u64,
    /// Least average rate of a body, bytes a second, once `body_rate_grace_ms` have passed; 0: none.
    pub body_rate_min: u64,
    /// How long a body may be slower than `body_rate_min`.
    pub body_rate_grace_ms: u64,
    /// Between an answer and the next request's first byte.
    pub idle_ms: u64,
    /// For the client to take one answer.
    pub write_ms: u64,
    /// After a refusal: how long what the client still sends is thrown away before closing.
    pub drain_ms: u64,
    /// After a refusal: how much of it.
    pub drain_bytes_max: u64,
    /// Bytes of bodies being received or handled on this core, all connections together.
    pub body_bytes_held_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 10_000,
            head_bytes_max: 32 * 1024,
            headers_max: 100,
            first_byte_ms: 10_000,
            head_ms: 10_000,
            body_ms: 60_000,
            body_rate_min: 1024,
            body_rate_grace_ms: 5_000,
            idle_ms: 75_000,
            write_ms: 20_000,
            drain_ms: 10_000,
            drain_bytes_max: 256 * 1024 * 1024,
            body_bytes_held_max: 512 * 1024 * 1024,
        }
    }
}

/// A limit is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {got}, it must be from {least} to {most}")]
pub struct LimitsError {
    /// The field of [`Limits`].
    pub name: &'static str,
    /// Its value.
    pub got: u64,
    /// Least value allowed.
    pub least: u64,
    /// Greatest value allowed.
    pub most: u64,
}

impl Limits {
    /// Checks every range.
    pub fn check(&self) -> Result<(), LimitsError> {
        const DAY_MS: u64 = 86_400_000;
        let headers_most = super::head::HEADERS_MAX as u64;
        let rows = [
            ("connections_max", self.connections_max as u64, 1, 1_000_000),
            (
                "head_bytes_max",
                self.head_bytes_max as u64,
                512,
                u64::from(u16::MAX),
            ),
            ("headers_max", self.headers_max as u64, 1, headers_most),
            ("first_byte_ms", self.first_byte_ms, 1, DAY_MS),
            ("head_ms", self.head_ms, 1, DAY_MS),
            ("body_ms", self.body_ms, 1, DAY_MS),
            ("idle_ms", self.idle_ms, 1, DAY_MS),
            ("write_ms", self.write_ms, 1, DAY_MS),
            ("drain_ms", self.drain_ms, 1, DAY_MS),
            ("body_bytes_held_max", self.body_bytes_held_max, 1, u64::MAX),
        ];
        for (name, got, least, most) in rows {
            if got < least || got > most {
                return Err(LimitsError {
                    name,
                    got,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }
}
