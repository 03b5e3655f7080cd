//! Which backups go, and which objects nobody needs any more.
//!
//! Invariants: the newest `keep` manifests that can be restored stay, and everything any manifest
//! names stays as long as that manifest does; while one that stays cannot be read, no object is
//! removed. A manifest is durably gone before the first object that only it named.

use std::collections::BTreeSet;

use ankusa_wal::mutations;

use super::folder::Folder;
use super::layout::{self, MANIFESTS};
use super::manifest::Manifest;
use super::owner::{self, Owner};
use super::{SendError, SigningKey, catalog};

/// Clears away; answers how many objects went.
pub(super) fn prune(
    folder: &dyn Folder,
    key: &SigningKey,
    me: &Owner,
    keep: usize,
    shards: u16,
) -> Result<u64, SendError> {
    let listing = |e| SendError::io("listing", MANIFESTS, e);
    let numbers = catalog::numbers(folder).map_err(listing)?;
    let (mut good, mut stay) = (0, Vec::new());
    let mut go = Vec::new();
    for number in numbers {
        if good < keep {
            good += usize::from(catalog::read(folder, key, number).is_ok());
            stay.push(number);
        } else {
            go.push(number);
        }
    }
    owner::check(folder, me)?;
    for number in &go {
        let path = layout::manifest_path(*number);
        let removed = folder.remove(&path);
        removed.map_err(|e| SendError::io("removing", &path, e))?;
    }
    mutations::point("backup.manifests_removed");
    // IMPORTANT: before any of their objects: a manifest that came back after a power cut would
    // name what is gone.
    let synced = folder.sync_dir(MANIFESTS);
    synced.map_err(|e| SendError::io("syncing", MANIFESTS, e))?;
    let Some(needed) = needed(folder, &stay)? else {
        tracing::warn!("a manifest cannot be read: no old object is removed while it is there");
        return Ok(0);
    };
    let dirs = (0..shards).map(layout::shard_dir);
    let dirs = dirs.chain([MANIFESTS.to_owned(), String::new()]).collect();
    let removed = clear(folder, me, dirs, &|path| {
        path.starts_with("shard-") && !needed.contains(path)
    });
    mutations::point("backup.pruned");
    removed
}

/// Before a run, where the last one did not come to its end: what never got its name, and the
/// checkpoints that no manifest names. The segments of such a run stay: the next one needs them.
pub(super) fn tidy(folder: &dyn Folder, me: &Owner) -> Result<(), SendError> {
    let listing = |e| SendError::io("listing", MANIFESTS, e);
    let numbers = catalog::numbers(folder).map_err(listing)?;
    let needed = needed(folder, &numbers)?;
    let is_old = |path: &str| {
        let is_checkpoint = path.contains("/checkpoint-");
        is_checkpoint && needed.as_ref().is_some_and(|n| !n.contains(path))
    };
    let mut dirs = vec![MANIFESTS.to_owned(), String::new()];
    // Shards are numbered from 0 without a gap.
    for shard in 0..u16::MAX {
        let dir = layout::shard_dir(shard);
        let listed = folder.list(&dir);
        let listed = listed.map_err(|e| SendError::io("listing", &dir, e))?;
        if listed.is_empty() {
            break;
        }
        dirs.push(dir);
    }
    clear(folder, me, dirs, &is_old).map(|_| ())
}

/// Every object that a manifest names; `None` when one of them cannot be read.
fn needed(folder: &dyn Folder, numbers: &[u64]) -> Result<Option<BTreeSet<String>>, SendError> {
    let mut needed = BTreeSet::new();
    for number in numbers {
        let path = layout::manifest_path(*number);
        let bytes = catalog::bytes(folder, *number);
        let bytes = bytes.map_err(|e| SendError::io("reading", &path, e))?;
        match Manifest::unverified(&bytes) {
            Ok(manifest) => needed.extend(manifest.parts().map(|part| part.object.clone())),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(needed))
}

/// Removes what never got its name, and what is old; answers how many files went.
fn clear(
    folder: &dyn Folder,
    me: &Owner,
    dirs: Vec<String>,
    is_old: &dyn Fn(&str) -> bool,
) -> Result<u64, SendError> {
    let mut removed = 0;
    for dir in dirs {
        let listed = folder.list(&dir);
        for (name, _) in listed.map_err(|e| SendError::io("listing", &dir, e))? {
            let path = match dir.as_str() {
                "" => name.clone(),
                dir => format!("{dir}/{name}"),
            };
            if !layout::is_unnamed(&name) && !is_old(&path) {
                continue;
            }
            owner::check(folder, me)?;
            let gone = folder.remove(&path);
            gone.map_err(|e| SendError::io("removing", &path, e))?;
            removed += 1;
        }
    }
    Ok(removed)
}
