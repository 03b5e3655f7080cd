//! What a bench and a run say to each other: when the window opens and closes, and why a run
//! could not be made. Plain; runs on the load thread.

use std::io;

/// Told when the measured window opens and closes, on the load thread: keep it short.
pub trait Probe {
    /// The warm-up is over.
    fn window_opens(&mut self) {}
    /// The window is over; answers to its last requests may still come.
    fn window_closes(&mut self) {}
}

/// A probe that does nothing.
pub struct NoProbe;

impl Probe for NoProbe {}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan is not one.
    #[error("bad load plan: {0}")]
    Plan(String),
    /// The target does not take connections.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The address tried.
        target: std::net::SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The ledger or the poller failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}
