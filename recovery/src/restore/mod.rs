//! Restoring a store from a backup, into an empty data directory.
//!
//! Invariants: the signature and every hash are checked before anything is written, and every hash
//! again while it is; the directory is a store only once all of it is durable
//! ([`ankusa_wal::home::Restoring`]), so that a restore may be killed anywhere and begun again; a
//! restored store has an incarnation of its own and is stamped as restored.
//!
//! Blocking, offline; [`stamp`] runs on whatever the disk of its store runs on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;

use ankusa_wal::home::{HomeError, Restoring, StoreFacts, StoreOrigin};
use ankusa_wal::{
    CloseError, Disk, Host, Incarnation, OpenError, Record, ShardId, Store, StoreConfig, TrailRow,
    mutations,
};
use thiserror::Error;

use crate::backup::catalog::{self, CatalogError, Progress};
use crate::backup::folder::Folder;
use crate::backup::manifest::{FileEntry, Manifest, SigningKey};
use crate::backup::owner;

/// Why nothing was restored, or not all of it. What is left in the directory is refused by a boot
/// and cleared by the next restore.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The backup cannot be used.
    #[error(transparent)]
    Backup(#[from] CatalogError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// What is in it is of a newer release.
    #[error(
        "newer_format: backup {number} holds format {got}; {known} is the newest this release knows"
    )]
    Newer {
        /// The backup.
        number: u64,
        /// Its format.
        got: u32,
        /// The newest known.
        known: u32,
    },
    /// A shard does not open.
    #[error("shard {shard} of the backup does not open: {source}")]
    Open {
        /// The shard.
        shard: ShardId,
        /// Why.
        source: OpenError,
    },
    /// A shard does not take its stamp.
    #[error("shard {shard} does not take its incarnation: {why}")]
    Stamp {
        /// The shard.
        shard: ShardId,
        /// Why.
        why: String,
    },
    /// An operation failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: String,
        /// The error.
        source: io::Error,
    },
}

/// A backup that can be restored, and what the store will be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The backup.
    pub manifest: Manifest,
    /// `store.json` of the restored store.
    pub facts: StoreFacts,
}

/// Finds the backup and reads all of it. Writes nothing.
pub fn plan(
    folder: &dyn Folder,
    key: &SigningKey,
    node: &str,
    asked: Option<u64>,
    progress: Progress<'_>,
) -> Result<Plan, RestoreError> {
    let manifest = catalog::pick(folder, key, asked)?;
    if manifest.node != node {
        return Err(RestoreError::Backup(CatalogError::Foreign {
            number: manifest.number,
            theirs: manifest.node,
            ours: node.into(),
        }));
    }
    for (got, known) in [
        (manifest.store.format, ankusa_wal::home::STORE_FORMAT),
        (manifest.wal_format, ankusa_wal::format::FORMAT_VERSION),
    ] {
        if got > known {
            let number = manifest.number;
            return Err(RestoreError::Newer { number, got, known });
        }
    }
    catalog::check_objects(folder, &manifest, progress)?;
    let facts = StoreFacts {
        incarnation: next_incarnation(folder, key, &manifest)?,
        origin: StoreOrigin::Restored,
        ..manifest.store.clone()
    };
    Ok(Plan { manifest, facts })
}

/// Above every incarnation that the prefix knows of.
fn next_incarnation(
    folder: &dyn Folder,
    key: &SigningKey,
    manifest: &Manifest,
) -> Result<u32, RestoreError> {
    let mut highest = manifest.store.incarnation;
    for listed in catalog::list(folder, key)? {
        if let Ok(other) = listed.manifest
            && other.store.uuid == manifest.store.uuid
        {
            highest = highest.max(other.store.incarnation);
        }
    }
    if let Ok(Some(owner)) = owner::read(folder)
        && owner.store == manifest.store.uuid
    {
        highest = highest.max(owner.incarnation);
    }
    Ok(highest.saturating_add(1))
}

/// Writes the files of every shard into a directory that is being restored; durable when it
/// returns. Not a store yet: [`stamp`] each shard, then [`Restoring::finish`].
pub fn unpack(
    folder: &dyn Folder,
    manifest: &Manifest,
    into: &Restoring,
    progress: Progress<'_>,
) -> Result<(), RestoreError> {
    let (mut done, of) = (0, manifest.bytes());
    for shard in &manifest.shards {
        let dir = into.shard_dir(ShardId(shard.shard));
        for file in &shard.files {
            write_file(folder, &dir, file, &mut |bytes| {
                done += bytes;
                progress(done, of);
            })?;
            mutations::point("restore.file_written");
        }
        let synced = File::open(&dir).and_then(|dir| dir.sync_all());
        synced.map_err(|source| io_error("syncing", &dir, source))?;
    }
    Ok(())
}

fn write_file(
    folder: &dyn Folder,
    dir: &Path,
    file: &FileEntry,
    wrote: &mut dyn FnMut(u64),
) -> Result<(), RestoreError> {
    let path = dir.join(&file.file);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let created = options.open(&path);
    let mut out = created.map_err(|source| io_error("creating", &path, source))?;
    for part in &file.parts {
        let mut failed = None;
        catalog::stream(folder, part, &mut |bytes| {
            if failed.is_none() {
                failed = out.write_all(bytes).err();
                wrote(bytes.len() as u64);
            }
            Ok(())
        })?;
        if let Some(source) = failed {
            return Err(io_error("writing", &path, source));
        }
    }
    out.sync_all()
        .map_err(|source| io_error("syncing", &path, source))
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> RestoreError {
    RestoreError::Io {
        doing,
        path: path.display().to_string(),
        source,
    }
}

/// Opens a shard that was unpacked, writes its incarnation down, durably, with a lifecycle row
/// where one is given, and closes it with a checkpoint. A replay that follows moves the first seq
/// of the incarnation up.
pub async fn stamp<D: Disk>(
    disk: D,
    host: Rc<dyn Host>,
    config: StoreConfig,
    incarnation: u32,
    event: Option<Box<[u8]>>,
) -> Result<(), RestoreError> {
    let shard = config.shard;
    let at_ms = host.wall_ms();
    let opened = Store::open(disk, host, config).await;
    let (store, _) = opened.map_err(|source| RestoreError::Open { shard, source })?;
    let no = store.state().meta().lifecycle_last() + 1;
    let row = event.map(|body| Record::Lifecycle(TrailRow { no, at_ms, body }));
    let stamp = Record::Incarnation(Incarnation {
        incarnation,
        first_seq: store.next_seq(),
    });
    let failed = |why: String| RestoreError::Stamp { shard, why };
    for record in [Some(stamp), row].into_iter().flatten() {
        if !store.enqueue(record) {
            return Err(failed("its queue is full".into()));
        }
    }
    let closed: Result<(), CloseError> = store.close().await;
    closed.map_err(|error| failed(error.to_string()))?;
    let is_there = {
        let state = store.state();
        state
            .meta()
            .incarnations()
            .any(|row| row.incarnation == incarnation)
    };
    mutations::point("restore.shard_stamped");
    if !is_there || store.durable_lsn() < store.applied_lsn() {
        return Err(failed("it was not written".into()));
    }
    Ok(())
}
