//! What is wrong with a configuration, and where.
//!
//! Owns the texts. A text never holds the value of a secret key, and a value that came out of a
//! `${…}` is named by the `${…}`. Pure; runs anywhere.

use std::fmt;
use std::path::PathBuf;

/// A position in the file. Lines and columns count from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// Where a value, or the fault in it, stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the file.
    File(At),
    /// In this environment variable.
    Env(String),
    /// Nowhere: a default.
    Default,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text is not YAML.
    #[error("{0}")]
    Syntax(String),
    /// The key stands twice in one map.
    #[error("stands twice; the first is in line {first_line}")]
    DuplicateKey {
        /// Where the first is.
        first_line: usize,
    },
    /// No such key.
    #[error("unknown key{0}")]
    UnknownKey(String),
    /// The key exists, but not beside this `type`.
    #[error("has no meaning for type {kind}, which takes {takes}")]
    NotForType {
        /// The word of `type`.
        kind: String,
        /// The keys it takes.
        takes: String,
    },
    /// A key that must be there is not.
    #[error("is required{0}")]
    Missing(String),
    /// The key is there without a value.
    #[error("has no value; remove the line, or give it {0}")]
    NoValue(String),
    /// A list where a text was wanted, and so on.
    #[error("must be {want}, not {got}")]
    WrongType {
        /// What is wanted.
        want: String,
        /// What is there.
        got: &'static str,
    },
    /// Not a number, not a word of the list, not a name…
    #[error("{got} is not {want}")]
    NotValid {
        /// The value, or the `${…}` that it came from.
        got: String,
        /// What is wanted.
        want: String,
    },
    /// A number out of range.
    #[error("{got} is out of range; allowed: {allowed}")]
    OutOfRange {
        /// The value, or the `${…}` that it came from.
        got: String,
        /// The range, with its unit.
        allowed: String,
    },
    /// Too many or too few entries.
    #[error("has {got} entries; allowed: {allowed}")]
    Length {
        /// How many there are.
        got: usize,
        /// How many may be.
        allowed: String,
    },
    /// A secret that cannot be used; the value is never said.
    #[error("{0}")]
    Secret(&'static str),
    /// A `${…}` that cannot be expanded.
    #[error("{0}")]
    Expansion(String),
    /// A value of a later version.
    #[error("{0}")]
    NotBuilt(&'static str),
    /// A rule between keys.
    #[error("{0}")]
    Rule(String),
}

/// One fault and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key's path, such as `sources.payments.sinks[0].url`; empty for the file as a whole.
    pub path: String,
    /// Where it stands.
    pub place: Place,
    /// What is wrong.
    pub fault: Fault,
}

/// Every fault of a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, where there was one.
    pub file: Option<PathBuf>,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// One line for each problem: place, key path, fault.
    pub fn lines(&self) -> Vec<String> {
        self.problems
            .iter()
            .map(|p| {
                line(
                    self.file.as_deref(),
                    &p.place,
                    &p.path,
                    &p.fault.to_string(),
                )
            })
            .collect()
    }
}

/// Place, key path and text in one line.
pub(super) fn line(
    file: Option<&std::path::Path>,
    place: &Place,
    path: &str,
    text: &str,
) -> String {
    let file = file.map_or("try-out".to_string(), |f| f.display().to_string());
    let place = match place {
        Place::File(At { line: 0, .. }) | Place::Default => file,
        Place::File(at) => format!("{file}:{}:{}", at.line, at.column),
        Place::Env(name) => name.clone(),
    };
    if path.is_empty() {
        format!("{place}: {text}")
    } else {
        format!("{place}: {path}: {text}")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines() {
            writeln!(f, "{line}")?;
        }
        let n = self.problems.len();
        write!(
            f,
            "{n} problem{} in the configuration",
            if n == 1 { "" } else { "s" }
        )
    }
}

impl std::error::Error for ConfigError {}

/// The place as print-config and the admin API name it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(at) => write!(f, "line {}", at.line),
            Place::Env(name) => f.write_str(name),
            Place::Default => f.write_str("default"),
        }
    }
}
