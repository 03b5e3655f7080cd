//! A data directory while a restore fills it.
//!
//! Invariants: a mark stands in it, durably, from before the first file to after `store.json`, and
//! [`super::Home::open`] refuses a directory that has it; so a restore that was killed is never
//! taken for a store, nor for a fresh one. Beginning again clears what a killed one left; nothing
//! else is ever removed.
//!
//! Plain blocking calls, offline.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{
    HomeError, LOCK_FILE, RESTORE_FILE, STORE_FILE, StoreFacts, io_error, lock, make_dir,
    shard_dir, sync_dir, write_facts,
};
use crate::ids::ShardId;
use crate::mutations;

/// A data directory that a restore owns until it is finished or dropped.
#[derive(Debug)]
pub struct Restoring {
    dir: PathBuf,
    _lock: File,
}

impl Restoring {
    /// Whether a restore may go into this directory: it is absent, empty, or holds what is left
    /// of a restore. Changes nothing.
    pub fn check(dir: &Path) -> Result<(), HomeError> {
        if !dir.exists() || dir.join(RESTORE_FILE).exists() {
            return Ok(());
        }
        let entries = fs::read_dir(dir).map_err(|e| io_error("listing", dir, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| io_error("listing", dir, e))?;
            let name = entry.file_name();
            // What a file system puts at its root, and what a look at the directory leaves.
            if name != "lost+found" && name != LOCK_FILE {
                return Err(HomeError::NotEmpty {
                    dir: dir.into(),
                    what: name.to_string_lossy().into_owned(),
                });
            }
        }
        Ok(())
    }

    /// Takes the directory and marks it, with `shards` empty shards in it.
    pub fn begin(dir: &Path, shards: u16) -> Result<Restoring, HomeError> {
        make_dir(dir)?;
        let lock = lock(dir)?;
        Restoring::check(dir)?;
        let mark = dir.join(RESTORE_FILE);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        // IMPORTANT: the mark is durable before anything else is there.
        options
            .open(&mark)
            .and_then(|file| file.sync_all())
            .map_err(|e| io_error("writing", &mark, e))?;
        sync_dir(dir)?;
        clear(dir)?;
        for shard in 0..shards {
            make_dir(&shard_dir(dir, ShardId(shard)))?;
        }
        sync_dir(dir)?;
        Ok(Restoring {
            dir: dir.into(),
            _lock: lock,
        })
    }

    /// The directory of one shard.
    pub fn shard_dir(&self, shard: ShardId) -> PathBuf {
        shard_dir(&self.dir, shard)
    }

    /// Writes `store.json` and takes the mark away: from here on it is a store. Every file of
    /// every shard is durable by now.
    pub fn finish(self, facts: &StoreFacts) -> Result<(), HomeError> {
        write_facts(&self.dir, facts)?;
        mutations::point("restore.facts_written");
        // IMPORTANT: last; a directory with its mark and a `store.json` is refused, and redone.
        let mark = self.dir.join(RESTORE_FILE);
        fs::remove_file(&mark).map_err(|e| io_error("removing", &mark, e))?;
        sync_dir(&self.dir)
    }
}

/// Removes what a restore leaves. Only with the mark in place.
fn clear(dir: &Path) -> Result<(), HomeError> {
    let entries = fs::read_dir(dir).map_err(|e| io_error("listing", dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| io_error("listing", dir, e))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let removed = if name.starts_with("shard-") {
            fs::remove_dir_all(&path)
        } else if name.starts_with(STORE_FILE) {
            fs::remove_file(&path)
        } else {
            Ok(())
        };
        removed.map_err(|e| io_error("removing", &path, e))?;
    }
    sync_dir(dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{Home, HomeError, StoreOrigin};
    use super::*;

    fn facts() -> StoreFacts {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path(), 2, |b| b.fill(3)).unwrap();
        StoreFacts {
            origin: StoreOrigin::Restored,
            incarnation: 2,
            ..home.facts().clone()
        }
    }

    #[test]
    fn half_restored_directory_is_refused_and_begun_again_from_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let facts = facts();
        let half = Restoring::begin(&data, 2).unwrap();
        fs::write(half.shard_dir(ShardId(1)).join("slot-0000.wal"), b"half").unwrap();
        drop(half);
        let refused = Home::open(&data, 2, |_| {}).unwrap_err();
        assert!(matches!(refused, HomeError::HalfRestored { .. }));

        let again = Restoring::begin(&data, 2).unwrap();
        assert!(!again.shard_dir(ShardId(1)).join("slot-0000.wal").exists());
        again.finish(&facts).unwrap();
        assert_eq!(Home::open(&data, 2, |_| {}).unwrap().facts(), &facts);
        // Killed between `store.json` and the end.
        fs::write(data.join(RESTORE_FILE), b"").unwrap();
        assert!(Home::open(&data, 2, |_| {}).is_err());
        Restoring::begin(&data, 1).unwrap();
        assert!(!data.join(STORE_FILE).exists());
    }

    #[test]
    fn directory_with_anything_in_it_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        drop(Home::open(dir.path(), 1, |b| b.fill(1)).unwrap());
        let refused = Restoring::begin(dir.path(), 1).unwrap_err();
        assert!(matches!(refused, HomeError::NotEmpty { .. }), "{refused}");
        assert!(dir.path().join(STORE_FILE).exists());
        assert!(!dir.path().join(RESTORE_FILE).exists());
        let file = dir.path().join("notes");
        fs::write(&file, b"mine").unwrap();
        assert!(Restoring::begin(dir.path(), 1).is_err());
        assert!(file.exists());
    }
}
