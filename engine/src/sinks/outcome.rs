//! How an attempt ended, in the words that operators see.
//!
//! Plain data; runs anywhere.

use std::fmt;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sink has confirmed that it has the hook.
    Delivered,
    /// Not confirmed. The sink may have it all the same, so that trying again may deliver it twice.
    Retry {
        /// What happened.
        cause: Cause,
        /// How long the sink asked to be left alone, at most an hour.
        retry_after_ms: Option<u64>,
    },
    /// Refused in a way that trying again does not change.
    Permanent {
        /// What happened.
        cause: Cause,
    },
    /// Nothing was sent, through no fault of the sink: spends no attempt.
    NotMade {
        /// What happened.
        cause: Cause,
        /// When to try again.
        again_ms: u64,
    },
}

impl Outcome {
    pub(super) fn retry(cause: Cause) -> Outcome {
        Outcome::Retry {
            cause,
            retry_after_ms: None,
        }
    }
}

/// What the scheduler must know of it.
impl From<Outcome> for crate::dispatch::Outcome {
    fn from(outcome: Outcome) -> crate::dispatch::Outcome {
        use crate::dispatch::Outcome as Scheduled;
        match outcome {
            Outcome::Delivered => Scheduled::Delivered,
            Outcome::Retry { retry_after_ms, .. } => Scheduled::Retry {
                after_ms: retry_after_ms,
            },
            Outcome::Permanent { .. } => Scheduled::Permanent,
            Outcome::NotMade { again_ms, .. } => Scheduled::NotMade { again_ms },
        }
    }
}

/// Why a hook was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The sink answered with this status.
    Status(u16),
    /// The sink answered with this redirect, which is not followed: the URL must be put right.
    Redirect(u16),
    /// No answer in time.
    Timeout,
    /// The name did not resolve.
    Resolve,
    /// The egress rules forbid every address that the name resolved to, or plain http.
    Egress,
    /// No connection.
    Connect,
    /// No trusted, encrypted connection.
    Tls,
    /// The connection broke, or what came back is not HTTP.
    Protocol,
    /// Too many deliveries are under way here already.
    Busy,
    /// The file could not be opened, written or synced.
    File,
    /// The URL or a header of the sink cannot be sent.
    Unsendable,
}

impl Cause {
    /// One word of a fixed set, for metrics and lists.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Status(_) => "status",
            Cause::Redirect(_) => "redirect",
            Cause::Timeout => "timeout",
            Cause::Resolve => "resolve",
            Cause::Egress => "egress_refused",
            Cause::Connect => "connect",
            Cause::Tls => "tls",
            Cause::Protocol => "protocol",
            Cause::Busy => "busy",
            Cause::File => "file",
            Cause::Unsendable => "unsendable",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Status(status) | Cause::Redirect(status) => {
                write!(f, "{}:{status}", self.word())
            }
            _ => f.write_str(self.word()),
        }
    }
}
