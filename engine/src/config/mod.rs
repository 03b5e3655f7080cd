//! The configuration: one YAML file, overridden by the environment, checked whole.
//!
//! Owns the keys, their defaults and ranges (stated once, in a table), and the way from text to
//! the validated [`Config`] that the rest of the service reads. Does not open listeners, look up
//! names or create files. Runs at boot, at a reload and offline; never on a reactor core.

mod areas;
mod effective;
mod expand;
mod key;
mod load;
mod not_built;
mod print;
mod problem;
mod rules;
mod scalars;
mod schema;
mod secret;
mod suggest;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod values;
mod walk;
mod warnings;

pub use areas::*;
pub use effective::{Diff, Entry};
pub use expand::Env;
pub use load::{DEFAULT_FILE, FILE_VARIABLE, file_of, load};
pub use problem::{At, ConfigError, Fault, Place, Problem};
pub use schema::{json_schema, reference};
pub use secret::{REDACTED, Secret};
pub use text::is_name;

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
    /// `sources.*`, in the order of the file; names are unique.
    pub sources: Vec<SourceConfig>,
    /// Every key in effect, hidden values hidden.
    pub effective: Vec<Entry>,
}

impl Config {
    /// What holds where there is no file and no variable: loopback only, a source `demo` without
    /// verification that delivers into `./delivered.ndjson`, data in `./data`.
    pub fn tryout() -> Config {
        match load(None, &Env::default()) {
            Ok(loaded) => loaded.config,
            // Built in, and a test loads it.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// What changed, and what of it a reload takes over.
    pub fn diff(old: &Config, new: &Config) -> Diff {
        effective::diff(&old.effective, &new.effective)
    }
}

/// A configuration that another area's test needs, as if everything were built.
#[cfg(test)]
pub(crate) fn for_test(yaml: &str) -> Config {
    let origin = Origin::File("test".into());
    match load::build(yaml.as_bytes(), origin, &Env::default(), &[]) {
        Ok(loaded) => loaded.config,
        Err(error) => panic!("{error}"),
    }
}

/// Something that is allowed and most likely not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The key's path; empty where there is none.
    pub path: String,
    /// Where it stands.
    pub place: Place,
    /// What is odd.
    pub text: String,
}

/// A configuration that holds, and what is odd about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is odd about it.
    pub warnings: Vec<Warning>,
}

impl Loaded {
    /// One line for each warning: place, key path, text.
    pub fn warning_lines(&self) -> Vec<String> {
        let file = match &self.config.origin {
            Origin::Tryout => None,
            Origin::File(file) => Some(file.as_path()),
        };
        self.warnings
            .iter()
            .map(|w| problem::line(file, &w.place, &w.path, &w.text))
            .collect()
    }
}
