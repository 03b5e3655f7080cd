//! What to offer: target, connections, pace, bodies, signatures, and when to stop.
//!
//! Plain data; validated by `validate`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::sign::Scheme;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection sends its next request as soon as the answer to the last one is there.
    Closed,
    /// A constant rate over all connections, in requests per second.
    Open {
        /// Requests per second.
        rate: f64,
        /// The rate rises from nothing over this time, which belongs to the warm-up.
        ramp: Duration,
    },
}

/// When the measurement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After this time of measuring.
    After(Duration),
    /// After this many requests sent, the warm-up's not counted.
    Count(u64),
}

/// The bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPlan {
    /// Sizes in bytes, used in turn.
    pub sizes: Vec<usize>,
}

/// One run of the generator.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Where to.
    pub target: SocketAddr,
    /// The request target, such as `/webhooks/demo`.
    pub path: String,
    /// Keep-alive connections.
    pub connections: usize,
    /// When to send.
    pub pace: Pace,
    /// Time before the measurement, not recorded.
    pub warmup: Duration,
    /// When the measurement ends.
    pub stop: Stop,
    /// Ends the run early when it becomes true.
    pub stop_flag: Option<Arc<AtomicBool>>,
    /// Bodies.
    pub body: BodyPlan,
    /// How requests are signed, and the secret.
    pub signature: Option<(Scheme, String)>,
    /// A header that carries a key unique to the request.
    pub key_header: Option<String>,
    /// Further headers, sent as they are.
    pub headers: Vec<(String, String)>,
    /// A request without an answer after this time is given up and its connection closed.
    pub timeout: Duration,
    /// Open a connection anew when it is lost, waiting this long after a refused attempt.
    pub reconnect_after: Option<Duration>,
    /// Where to write the ledger of (id, sha256, status, time).
    pub ledger: Option<PathBuf>,
    /// The core to pin the thread to.
    pub core: Option<usize>,
    /// A number unique to the run, part of every body and key.
    pub run: u64,
}

impl LoadPlan {
    /// A closed loop of 1 KB posts with nothing special: the starting point of every bench.
    pub fn new(target: SocketAddr, path: &str) -> LoadPlan {
        LoadPlan {
            target,
            path: path.to_owned(),
            connections: 64,
            pace: Pace::Closed,
            warmup: Duration::from_secs(1),
            stop: Stop::After(Duration::from_secs(5)),
            stop_flag: None,
            body: BodyPlan { sizes: vec![1024] },
            signature: None,
            key_header: None,
            headers: Vec::new(),
            timeout: Duration::from_secs(30),
            reconnect_after: None,
            ledger: None,
            core: None,
            run: fresh_run(),
        }
    }

    /// Says what is wrong with the plan, if anything is.
    pub fn validate(&self) -> Result<(), String> {
        if self.connections == 0 || self.connections > 60_000 {
            return Err(format!(
                "connections must be 1 to 60000, not {}",
                self.connections
            ));
        }
        if self.body.sizes.is_empty() {
            return Err("at least one body size is needed".to_owned());
        }
        if let Pace::Open { rate, .. } = self.pace
            && !(rate.is_finite() && rate > 0.0 && rate <= 5_000_000.0)
        {
            return Err(format!(
                "the rate must be above 0 and at most 5000000, not {rate}"
            ));
        }
        if !self.path.starts_with('/') || self.path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(format!(
                "the path must start with / and hold no blanks: {:?}",
                self.path
            ));
        }
        let bad = |text: &str| {
            text.is_empty() || text.bytes().any(|b| b == b'\r' || b == b'\n' || b == 0)
        };
        if self.key_header.as_deref().is_some_and(bad) {
            return Err("the key header's name is not a header name".to_owned());
        }
        if let Some((name, _)) = self
            .headers
            .iter()
            .find(|(name, value)| bad(name) || bad(value))
        {
            return Err(format!("header {name:?} is empty or holds a line end"));
        }
        Ok(())
    }
}

/// A run number that differs between runs: the clock and the process id.
fn fresh_run() -> u64 {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    nanos.rotate_left(20) ^ u64::from(std::process::id()).rotate_left(48)
}
