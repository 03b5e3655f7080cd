//! The data directory of a node: who owns it, and the node-wide facts in `store.json`.
//!
//! Invariants: one process at a time (a lock held until exit); `store.json` is replaced
//! atomically and its directory synced, so that a crash leaves the old or the new one; a file of
//! a newer format or with a missing field is refused, never guessed at.
//!
//! Plain blocking calls: runs at boot and offline, never on a reactor core.

mod restoring;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::ShardId;
use crate::mutations;

pub use restoring::Restoring;

/// Format version written to `store.json`.
pub const STORE_FORMAT: u32 = 1;

const STORE_FILE: &str = "store.json";
const LOCK_FILE: &str = "lock";
/// There while a restore is under way.
const RESTORE_FILE: &str = "restore.partial";

/// Where the store's content came from; `Fresh` and `Restored` stay until a boot has come
/// through replay and republish once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreOrigin {
    /// Created empty.
    Fresh,
    /// Written by a restore.
    Restored,
    /// Has been through a whole boot.
    Existing,
}

/// The node-wide facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreFacts {
    /// Format version.
    pub format: u32,
    /// The store's identity, in every segment.
    pub uuid: HexBytes,
    /// Key of the dedupe hashes.
    pub hash_key: HexBytes,
    /// Shards of the store.
    pub shards: u16,
    /// How often the store was restored.
    pub incarnation: u32,
    /// Where its content came from.
    pub origin: StoreOrigin,
    /// The intake node id, once stamped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intake_node: Option<String>,
    /// The intake partition, once stamped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intake_partition: Option<u32>,
    /// The intake log's identity, once stamped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intake_log: Option<String>,
}

/// Sixteen bytes, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HexBytes(pub [u8; 16]);

impl Serialize for HexBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match crate::HookId::parse(&text) {
            Some(id) if text.len() == 32 => Ok(HexBytes(id.0)),
            _ => Err(serde::de::Error::custom("not 32 hexadecimal digits")),
        }
    }
}

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum HomeError {
    /// Another process has it.
    #[error("{dir}: another process has this data directory (pid {pid}); stop it first")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Its pid, as it wrote it down.
        pid: String,
    },
    /// Shard directories without a `store.json`: state was wiped, or files of another store were
    /// put here.
    #[error(
        "{dir}: has shard directories but no store.json; they belong to another store. \
         Move them away, or put their store.json back"
    )]
    Orphaned {
        /// The directory.
        dir: PathBuf,
    },
    /// A restore into it did not come to its end.
    #[error(
        "{dir}: a restore into this directory did not come to its end; run `ankusa restore` again, \
         or empty the directory"
    )]
    HalfRestored {
        /// The directory.
        dir: PathBuf,
    },
    /// A restore goes into an empty directory only.
    #[error(
        "{dir}: not empty (it has {what}); a restore goes into an empty data directory only. Move \
         what is there away"
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// Something that is in it.
        what: String,
    },
    /// A shard that `store.json` counts has no directory.
    #[error(
        "{dir}: store.json counts this shard, and its directory is absent with every hook in it. \
         Put it back; an empty directory in its place starts the shard anew, without them"
    )]
    ShardAbsent {
        /// The directory.
        dir: PathBuf,
    },
    /// `store.json` is unreadable.
    #[error("{file}: {why}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Written by a newer release.
    #[error("{file}: format {got} is newer than {STORE_FORMAT}, the newest this release knows")]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        got: u32,
    },
    /// A call failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A data directory that this process owns until it is dropped.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    facts: StoreFacts,
    fresh: bool,
    _lock: File,
}

impl Home {
    /// Opens the directory, or creates it with `shards` shards. `random` fills the store's
    /// identity and hash key when it is new.
    pub fn open(dir: &Path, shards: u16, random: impl Fn(&mut [u8])) -> Result<Home, HomeError> {
        make_dir(dir)?;
        let lock = lock(dir)?;
        if dir.join(RESTORE_FILE).exists() {
            return Err(HomeError::HalfRestored { dir: dir.into() });
        }
        let file = dir.join(STORE_FILE);
        let (facts, fresh) = match fs::read_to_string(&file) {
            Ok(text) => (parse(&file, &text)?, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if has_shards(dir)? {
                    return Err(HomeError::Orphaned { dir: dir.into() });
                }
                let mut facts = StoreFacts {
                    format: STORE_FORMAT,
                    uuid: HexBytes([0; 16]),
                    hash_key: HexBytes([0; 16]),
                    shards: shards.max(1),
                    incarnation: 1,
                    origin: StoreOrigin::Fresh,
                    intake_node: None,
                    intake_partition: None,
                    intake_log: None,
                };
                random(&mut facts.uuid.0);
                random(&mut facts.hash_key.0);
                (facts, true)
            }
            Err(source) => return Err(io_error("reading", &file, source)),
        };
        let mut home = Home {
            dir: dir.into(),
            facts,
            fresh,
            _lock: lock,
        };
        for shard in 0..home.facts.shards {
            let dir = home.shard_dir(ShardId(shard));
            if !home.fresh && !dir.is_dir() {
                return Err(HomeError::ShardAbsent { dir });
            }
            make_dir(&dir)?;
        }
        // IMPORTANT: the directories first: one that `store.json` counts and that is not there
        // was taken away.
        sync_dir(&home.dir)?;
        if home.fresh {
            home.save()?;
        }
        Ok(home)
    }

    /// The node-wide facts of a directory that may be in use: for tools that only read.
    pub fn peek(dir: &Path) -> Result<StoreFacts, HomeError> {
        let file = dir.join(STORE_FILE);
        let text = fs::read_to_string(&file).map_err(|e| io_error("reading", &file, e))?;
        parse(&file, &text)
    }

    /// Holds a store that is there, and changes no byte of it: for a dry run. Refused while another
    /// process has it. [`Home::change`] and [`Home::grow`] are not for it.
    pub fn hold(dir: &Path) -> Result<Home, HomeError> {
        let facts = Home::peek(dir)?;
        let path = dir.join(LOCK_FILE);
        let file = File::open(&path).map_err(|e| io_error("opening", &path, e))?;
        let lock = take_lock(dir, file)?;
        Ok(Home {
            dir: dir.into(),
            facts,
            fresh: false,
            _lock: lock,
        })
    }

    /// The facts.
    pub fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    /// Whether this open created the store.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of one shard.
    pub fn shard_dir(&self, shard: ShardId) -> PathBuf {
        shard_dir(&self.dir, shard)
    }

    /// Adds empty shards up to `shards`; never takes one away.
    pub fn grow(&mut self, shards: u16) -> Result<(), HomeError> {
        if shards <= self.facts.shards {
            return Ok(());
        }
        for shard in self.facts.shards..shards {
            make_dir(&self.shard_dir(ShardId(shard)))?;
        }
        sync_dir(&self.dir)?;
        self.facts.shards = shards;
        self.save()
    }

    /// Changes the facts, durably.
    pub fn change(&mut self, change: impl FnOnce(&mut StoreFacts)) -> Result<(), HomeError> {
        change(&mut self.facts);
        self.save()
    }

    fn save(&mut self) -> Result<(), HomeError> {
        write_facts(&self.dir, &self.facts)
    }
}

fn write_facts(dir: &Path, facts: &StoreFacts) -> Result<(), HomeError> {
    let file = dir.join(STORE_FILE);
    let temporary = dir.join("store.json.new");
    let mut text = serde_json::to_string_pretty(facts).map_err(|e| HomeError::Unreadable {
        file: file.clone(),
        why: e.to_string(),
    })?;
    text.push('\n');
    // IMPORTANT: file, fsync, rename, fsync of the directory, in this order.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut out = options
        .open(&temporary)
        .map_err(|e| io_error("creating", &temporary, e))?;
    out.write_all(text.as_bytes())
        .and_then(|()| out.sync_all())
        .map_err(|e| io_error("writing", &temporary, e))?;
    mutations::point("home.written");
    fs::rename(&temporary, &file).map_err(|e| io_error("renaming to", &file, e))?;
    mutations::point("home.renamed");
    sync_dir(dir)
}

/// The directory of one shard.
pub fn shard_dir(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(format!("shard-{:03}", shard.0))
}

fn parse(file: &Path, text: &str) -> Result<StoreFacts, HomeError> {
    let unreadable = |why: String| HomeError::Unreadable {
        file: file.into(),
        why,
    };
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?;
    let format = value.get("format").and_then(serde_json::Value::as_u64);
    match format {
        Some(format) if format > u64::from(STORE_FORMAT) => Err(HomeError::Newer {
            file: file.into(),
            got: format.min(u64::from(u32::MAX)) as u32,
        }),
        _ => {
            let facts: StoreFacts =
                serde_json::from_value(value).map_err(|e| unreadable(e.to_string()))?;
            if facts.shards == 0 {
                return Err(unreadable("shards is 0".into()));
            }
            Ok(facts)
        }
    }
}

fn lock(dir: &Path) -> Result<File, HomeError> {
    let path = dir.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let file = options
        .open(&path)
        .map_err(|e| io_error("opening", &path, e))?;
    let mut file = take_lock(dir, file)?;
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(|e| io_error("writing", &path, e))?;
    Ok(file)
}

/// Takes the lock, or says who has it.
fn take_lock(dir: &Path, mut file: File) -> Result<File, HomeError> {
    #[expect(
        unsafe_code,
        reason = "std has no non-blocking file lock in a stable form we use"
    )]
    // SAFETY: `file` is an open descriptor for the whole call.
    let taken = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    if !taken {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        let pid = match pid.trim() {
            "" => "unknown".into(),
            pid => pid.into(),
        };
        return Err(HomeError::Locked {
            dir: dir.into(),
            pid,
        });
    }
    Ok(file)
}

fn has_shards(dir: &Path) -> Result<bool, HomeError> {
    let entries = fs::read_dir(dir).map_err(|e| io_error("listing", dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| io_error("listing", dir, e))?;
        let is_shard = entry.file_name().to_string_lossy().starts_with("shard-");
        let is_used = is_shard && fs::read_dir(entry.path()).is_ok_and(|mut d| d.next().is_some());
        if is_used {
            return Ok(true);
        }
    }
    Ok(false)
}

fn make_dir(dir: &Path) -> Result<(), HomeError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| io_error("creating", dir, e))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<(), HomeError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| io_error("syncing", dir, e))
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> HomeError {
    HomeError::Io {
        doing,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn fill(bytes: &mut [u8]) {
        bytes.fill(7);
    }

    #[test]
    fn a_second_process_is_refused_with_the_pid_that_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let _home = Home::open(dir.path(), 2, fill).unwrap();
        let error = Home::open(dir.path(), 2, fill).unwrap_err();
        assert!(
            error.to_string().contains(&std::process::id().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_store_that_is_only_held_stays_as_it_is_and_is_not_had_twice() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Home::hold(dir.path()).is_err(), "no store there");
        let facts = Home::open(dir.path(), 2, fill).unwrap().facts().clone();
        let lock = dir.path().join(LOCK_FILE);
        fs::write(&lock, "as it was").unwrap();
        let held = Home::hold(dir.path()).unwrap();
        assert_eq!(held.facts(), &facts);
        assert_eq!(fs::read_to_string(&lock).unwrap(), "as it was");
        let refused = Home::open(dir.path(), 2, fill).unwrap_err();
        assert!(matches!(refused, HomeError::Locked { .. }));
    }

    #[test]
    fn the_facts_survive_and_the_shard_count_is_that_of_the_first_boot() {
        let dir = tempfile::tempdir().unwrap();
        let first = Home::open(dir.path(), 2, fill).unwrap().facts().clone();
        let mut again = Home::open(dir.path(), 8, |_| panic!("not fresh")).unwrap();
        assert_eq!((again.facts(), again.is_fresh()), (&first, false));
        again.grow(4).unwrap();
        drop(again);
        let grown = Home::open(dir.path(), 1, fill).unwrap();
        assert_eq!(grown.facts().shards, 4);
        assert!(grown.shard_dir(ShardId(3)).is_dir());
    }

    #[test]
    fn wal_files_without_their_store_json_are_refused_not_replayed_into_a_new_store() {
        let dir = tempfile::tempdir().unwrap();
        drop(Home::open(dir.path(), 1, fill).unwrap());
        fs::write(dir.path().join("shard-000/0.wal"), b"x").unwrap();
        fs::remove_file(dir.path().join(STORE_FILE)).unwrap();
        assert!(matches!(
            Home::open(dir.path(), 1, fill),
            Err(HomeError::Orphaned { .. })
        ));
    }

    #[test]
    fn a_shard_whose_directory_is_gone_is_refused_not_started_anew() {
        let dir = tempfile::tempdir().unwrap();
        drop(Home::open(dir.path(), 2, fill).unwrap());
        fs::remove_dir(dir.path().join("shard-001")).unwrap();
        let error = Home::open(dir.path(), 2, fill).unwrap_err();
        assert!(
            matches!(&error, HomeError::ShardAbsent { dir } if dir.ends_with("shard-001")),
            "{error}"
        );
    }

    #[test]
    fn a_first_boot_that_died_before_store_json_is_a_first_boot_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("shard-000")).unwrap();
        assert!(Home::open(dir.path(), 2, fill).unwrap().is_fresh());
    }

    #[test]
    fn a_broken_or_newer_store_json_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Home::open(dir.path(), 1, fill).unwrap());
        let file = dir.path().join(STORE_FILE);
        let text = fs::read_to_string(&file).unwrap();
        for (from, to) in [
            ("\"format\": 1", "\"format\": 2"),
            ("0707", "07"),
            ("\"shards\"", "\"shard\""),
            ("{", ""),
        ] {
            fs::write(&file, text.replacen(from, to, 1)).unwrap();
            assert!(Home::open(dir.path(), 1, fill).is_err(), "{to}");
        }
    }
}
