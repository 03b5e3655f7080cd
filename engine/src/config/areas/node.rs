//! `node.*` and `log.*`: who this node is, where its data lies, on which cores it runs, what it
//! says.
//!
//! Runs at boot and offline.

use std::path::PathBuf;

/// The CPUs the reactor cores are pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Every CPU this process may run on.
    All,
    /// So many of them, the lowest first.
    Count(u16),
    /// Exactly these.
    List(Vec<u16>),
}

/// `node.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// What the APIs return as `instance`; the host name by default.
    pub name: String,
    /// The directory of the store.
    pub data_dir: PathBuf,
    /// The CPUs of the reactor cores.
    pub cores: Cores,
    /// Shards at the first boot; `None`: as many as cores.
    pub shards: Option<u16>,
    /// How long a stop may take to finish what is in flight, in milliseconds.
    pub shutdown_ms: u64,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// For finding faults.
    Debug,
    /// What an operator wants to have seen.
    Info,
    /// What may need a hand.
    Warn,
    /// What needs one.
    Error,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `log.*`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// The least severe level that is logged.
    pub level: LogLevel,
    /// The shape of a line.
    pub format: LogFormat,
}
