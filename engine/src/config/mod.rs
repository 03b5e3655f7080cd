//! The configuration: one YAML file, overridden by the environment, checked whole.
//!
//! Owns the keys, their defaults and ranges (stated once, in a table), and the way from text to
//! the validated [`Config`] that the rest of the service reads. Does not open listeners, look up
//! names or create files. Runs at boot, at a reload and offline; never on a reactor core.

mod areas;
mod secret;

pub use areas::*;
pub use secret::{REDACTED, Secret};

/// Where a configuration came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No file: the built-in try-out, on loopback only.
    Tryout,
    /// This file.
    File(std::path::PathBuf),
}

/// The whole validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it came from.
    pub origin: Origin,
    /// `node.*`.
    pub node: NodeConfig,
    /// `log.*`.
    pub log: LogConfig,
    /// `http.*`.
    pub http: HttpConfig,
    /// `admin.*`.
    pub admin: AdminConfig,
    /// `wal.*`.
    pub wal: WalConfig,
    /// `queue.*`.
    pub queue: QueueConfig,
    /// `dispatch.*`.
    pub dispatch: DispatchConfig,
    /// `dedupe.*` and `fleet.*`.
    pub dedupe: DedupeConfig,
    /// `intake.*`; only under `wal.type: dual`.
    pub intake: Option<IntakeConfig>,
    /// `backup.*`.
    pub backup: BackupConfig,
    /// `egress.*`.
    pub egress: EgressConfig,
    /// `sources.*`, by name.
    pub sources: Vec<SourceConfig>,
}
