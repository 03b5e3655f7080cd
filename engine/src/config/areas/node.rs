//! `node.*` and `log.*`: who this node is, where its data lies, on which cores it runs, what it
//! says.
//!
//! Runs at boot and offline.

use crate::config::key::{Key, Unit};
use crate::config::text;
use crate::config::values::Reader;
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

pub(in crate::config) const KEYS: &[Key] = &[
    Key::text("node.name", &text::NODE_NAME, "What the APIs return as `instance`.").or_computed("the host name"),
    Key::text("node.data_dir", &text::PATH, "The directory of the store. Relative to the working directory.").or("./data"),
    Key::cores("node.cores", "The CPUs that reactor cores are pinned to: `all`, how many, or a list of their numbers. More than there are CPUs share them (a warning), and each locks memory of its own; a listed CPU must be there.").or("all"),
    Key::int("node.shards", 1, 1024, Unit::Of("shards"), "Shards of the store at its first boot; later boots keep what the store has, and add shards up to the number of cores.").or_computed("as many as cores"),
    Key::int("node.shutdown_ms", 100, 600_000, Unit::Millis, "How long a stop may take to finish what is in flight.").or("30000").live(),
    Key::word("log.level", &["trace", "debug", "info", "warn", "warning", "error"], "The least severe level that is logged. `warning` is `warn`.").or("info").live(),
    Key::word("log.format", &["auto", "text", "json"], "`auto` is text on a terminal, else one JSON object a line.").or("auto"),
];

impl NodeConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> NodeConfig {
        NodeConfig {
            name: r.text_or("name", host_name),
            data_dir: r.text("data_dir").into(),
            cores: r.cores("cores"),
            shards: r.int_opt("shards").map(|_| r.small("shards")),
            shutdown_ms: r.int("shutdown_ms"),
        }
    }
}

impl LogConfig {
    pub(in crate::config) fn read(r: &Reader<'_>) -> LogConfig {
        LogConfig {
            level: match r.text("level").as_str() {
                "trace" => LogLevel::Trace,
                "debug" => LogLevel::Debug,
                "warn" | "warning" => LogLevel::Warn,
                "error" => LogLevel::Error,
                _ => LogLevel::Info,
            },
            format: match r.text("format").as_str() {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => LogFormat::Auto,
            },
        }
    }
}

/// The name of this host; `ankusa` where it has none that can stand in an API.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if (text::NODE_NAME.check)(name).is_ok() {
        name.to_string()
    } else {
        "ankusa".to_string()
    }
}
