//! From a file, or none, to a validated configuration.
//!
//! Blocking: reads files. Runs at boot, at a reload and offline; never on a reactor core.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::areas::{
    AdminConfig, BackupConfig, DedupeConfig, DispatchConfig, EgressConfig, HttpConfig,
    IntakeConfig, LogConfig, NodeConfig, QueueConfig, SourceConfig, WalConfig, WalType,
};
use super::expand::Env;
use super::not_built::{NOT_BUILT, NotBuilt};
use super::problem::{At, ConfigError, Fault, Place, Problem};
use super::values::Reader;
use super::walk::walk;
use super::{Config, Loaded, Origin, effective, rules, tree, warnings};

/// Where a configuration is looked for when neither a flag nor a variable names one.
pub const DEFAULT_FILE: &str = "/etc/ankusa/ankusa.yml";
/// The variable that names the file.
pub const FILE_VARIABLE: &str = "ANKUSA_CONFIG";

/// What holds where there is no file at all.
const TRYOUT: &str = "\
http: { ip: 127.0.0.1 }
sources:
  demo:
    verify: { type: none }
    sinks: [ { name: file, type: file, path: ./delivered.ndjson } ]
";

/// The file to read: the flag's, else the variable's, else the usual one where it exists.
pub fn file_of(flag: Option<&Path>, env: &Env) -> Option<PathBuf> {
    if let Some(file) = flag {
        return Some(file.to_path_buf());
    }
    if let Some(Ok(file)) = env.get(FILE_VARIABLE)
        && !file.is_empty()
    {
        return Some(file.into());
    }
    Path::new(DEFAULT_FILE)
        .exists()
        .then(|| DEFAULT_FILE.into())
}

/// Loads the file, or the try-out where there is none.
///
/// # Errors
/// Every problem of the configuration at once.
pub fn load(file: Option<&Path>, env: &Env) -> Result<Loaded, ConfigError> {
    match file {
        None => build(TRYOUT.as_bytes(), Origin::Tryout, env, NOT_BUILT),
        Some(file) => {
            let bytes = read(file).map_err(|error| ConfigError {
                file: Some(file.to_path_buf()),
                problems: vec![Problem {
                    path: String::new(),
                    place: Place::Default,
                    fault: Fault::Syntax(format!("cannot be read: {error}")),
                }],
            })?;
            build(&bytes, Origin::File(file.to_path_buf()), env, NOT_BUILT)
        }
    }
}

/// At most one byte more than is allowed, so that a device or a log file is refused, not read.
fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?
        .take(tree::FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The whole way: tree, values, structs, rules.
pub(super) fn build(
    bytes: &[u8],
    origin: Origin,
    env: &Env,
    not_built: &[NotBuilt],
) -> Result<Loaded, ConfigError> {
    let file = match &origin {
        Origin::Tryout => None,
        Origin::File(file) => Some(file.clone()),
    };
    let (root, mut problems) = tree::parse(bytes);
    if problems.is_empty() && matches!(root.data, tree::NodeData::Null) {
        let fault = Fault::Syntax(
            "the file is empty; `ankusa print-config` shows what may stand in it".into(),
        );
        problems.push(Problem {
            path: String::new(),
            place: Place::File(At::default()),
            fault,
        });
    }
    // Of a text that is not YAML nothing below the fault is known: only what was seen is reported.
    if problems.iter().any(|p| matches!(p.fault, Fault::Syntax(_))) {
        return Err(ConfigError { file, problems });
    }
    let values = walk(&root, env, not_built);
    values.problems.borrow_mut().extend(problems);
    let mut config = read_all(origin, &Reader::new(&values));
    rules::check(&config, &values);
    let mut problems = values.problems.take();
    if !problems.is_empty() {
        problems.sort_by(|a, b| a.place.cmp(&b.place));
        problems.dedup();
        return Err(ConfigError { file, problems });
    }
    let warnings = warnings::warnings(&config, &values, env);
    config.effective = effective::entries(&values, not_built);
    Ok(Loaded { config, warnings })
}

fn read_all(origin: Origin, r: &Reader<'_>) -> Config {
    let dispatch = DispatchConfig::read(&r.at("dispatch"));
    let wal = WalConfig::read(&r.at("wal"));
    let sources = r.at("sources");
    Config {
        origin,
        node: NodeConfig::read(&r.at("node")),
        log: LogConfig::read(&r.at("log")),
        http: HttpConfig::read(&r.at("http")),
        admin: AdminConfig::read(&r.at("admin")),
        queue: QueueConfig::read(&r.at("queue")),
        dedupe: DedupeConfig::read(r),
        intake: (wal.kind == WalType::Dual).then(|| IntakeConfig::read(&r.at("intake"))),
        backup: BackupConfig::read(&r.at("backup")),
        egress: EgressConfig::read(&r.at("egress")),
        sources: sources
            .names()
            .iter()
            .map(|name| SourceConfig::read(&sources.named(name), name, &dispatch))
            .collect(),
        effective: Vec::new(),
        wal,
        dispatch,
    }
}
