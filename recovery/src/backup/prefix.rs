//! The prefix of a node, for the process that writes there: whose it is, and what it holds already.
//!
//! Invariant: a prefix that was lost to another process is not taken again by this one; two live
//! copies would take it from each other for ever. Blocking; runs on a side thread.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::folder::Folder;
use super::layout::{self, MANIFESTS, PARTS_MAX, PIECE_BYTES};
use super::manifest::{FileEntry, Manifest, Part};
use super::owner::{self, Owner};
use super::send::{Run, SendError, Sent};
use super::{SigningKey, catalog, prune};

/// The prefix of a node, for the process that writes there.
pub struct Prefix {
    pub(super) folder: Box<dyn Folder>,
    pub(super) key: SigningKey,
    pub(super) me: Owner,
    pub(super) release: String,
    pub(super) keep: usize,
    pub(super) claimed: bool,
    /// The last run came to its end: nothing half sent lies about.
    pub(super) is_tidy: bool,
    /// Once lost it is not taken again: two copies would take it from each other for ever.
    pub(super) lost: bool,
}

impl Prefix {
    /// The prefix in `folder`; `me` will be its owner. The newest `keep` backups are kept.
    pub fn new(folder: Box<dyn Folder>, key: SigningKey, me: Owner, keep: usize) -> Prefix {
        Prefix {
            folder,
            key,
            me,
            release: env!("CARGO_PKG_VERSION").into(),
            keep: keep.max(1),
            claimed: false,
            is_tidy: false,
            lost: false,
        }
    }

    /// Where it is, for people.
    pub fn describe(&self) -> String {
        self.folder.describe()
    }

    /// The newest backup of this store there is, whoever wrote it.
    pub fn newest(&self) -> Result<Option<Manifest>, SendError> {
        let found = catalog::numbers(&*self.folder)
            .map_err(|error| SendError::io("listing", MANIFESTS, error))?;
        for number in found {
            match catalog::read(&*self.folder, &self.key, number) {
                Ok(manifest) if manifest.store.uuid == self.me.store => return Ok(Some(manifest)),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Begins a backup: sees that the prefix is ours and what is there.
    pub fn begin(&mut self, began_at_ms: u64) -> Result<Run<'_>, SendError> {
        let known = self.take().inspect_err(|error| {
            self.lost |= matches!(error, SendError::Shared { .. });
        })?;
        Ok(Run {
            known,
            began_at_ms,
            entries: BTreeMap::new(),
            dirty: BTreeSet::new(),
            sent: Sent::default(),
            buffer: vec![0; PIECE_BYTES],
            prefix: self,
        })
    }

    fn take(&mut self) -> Result<Known, SendError> {
        let folder = &*self.folder;
        if self.lost {
            return Err(SendError::Shared {
                prefix: folder.describe(),
                what: "this process has lost it".into(),
            });
        }
        let io = |doing| move |error| SendError::io(doing, "", error);
        if self.claimed {
            owner::check(folder, &self.me)?;
        } else if let Some(found) = owner::read(folder)? {
            owner::may_claim(&folder.describe(), &found, &self.me)?;
        }
        let known = Known::read(folder, &self.key, &self.me)?;
        if !self.claimed {
            folder.make_dir("").map_err(io("creating"))?;
            owner::claim(folder, &self.me)?;
            folder.make_dir(MANIFESTS).map_err(io("creating"))?;
            self.claimed = true;
        }
        if !std::mem::replace(&mut self.is_tidy, false) {
            prune::tidy(folder, &self.me)?;
        }
        Ok(known)
    }
}

/// What the prefix holds already.
pub(super) struct Known {
    /// The highest number of a manifest, readable or not.
    pub(super) last_number: u64,
    /// The newest that is ours and fits its signature.
    pub(super) base: Option<Manifest>,
    /// Files that a signed manifest lists, by shard and stem; the newest's.
    pub(super) files: BTreeMap<(u16, String), FileEntry>,
    /// What lies there, by path.
    pub(super) lengths: BTreeMap<String, u64>,
}

impl Known {
    fn read(folder: &dyn Folder, key: &SigningKey, me: &Owner) -> Result<Known, SendError> {
        let io = |error| SendError::io("listing", MANIFESTS, error);
        let numbers = catalog::numbers(folder).map_err(io)?;
        let mut known = Known {
            last_number: numbers.first().copied().unwrap_or(0),
            base: None,
            files: BTreeMap::new(),
            lengths: BTreeMap::new(),
        };
        for number in numbers {
            let manifest = match catalog::read(folder, key, number) {
                Ok(manifest) => manifest,
                Err(error) => {
                    let bytes = catalog::bytes(folder, number).map_err(io)?;
                    if let Ok(other) = Manifest::unverified(&bytes) {
                        ours(folder, &other, me)?;
                    }
                    tracing::warn!(number, %error, "a manifest is passed over");
                    continue;
                }
            };
            ours(folder, &manifest, me)?;
            for shard in &manifest.shards {
                for file in &shard.files {
                    let at = (shard.shard, file.stem.clone());
                    known.files.entry(at).or_insert_with(|| file.clone());
                }
            }
            known.base.get_or_insert(manifest);
        }
        Ok(known)
    }

    /// Sees what lies there of a shard.
    pub(super) fn look(&mut self, folder: &dyn Folder, shard: u16) -> Result<(), SendError> {
        let dir = layout::shard_dir(shard);
        let listed = folder.list(&dir);
        for (name, bytes) in listed.map_err(|e| SendError::io("listing", &dir, e))? {
            self.lengths.insert(format!("{dir}/{name}"), bytes);
        }
        Ok(())
    }

    pub(super) fn has(&self, part: &Part) -> bool {
        self.lengths.get(&part.object) == Some(&part.bytes)
    }

    /// The parts of a file that are there, from its start without a gap.
    pub(super) fn parts(&self, shard: u16, stem: &str, end: u64) -> Vec<Part> {
        let Some(file) = self.files.get(&(shard, stem.to_owned())) else {
            return Vec::new();
        };
        let mut at = 0;
        let there = file.parts.iter().take_while(|part| {
            at += part.bytes;
            at <= end && self.has(part)
        });
        let parts: Vec<Part> = there.cloned().collect();
        let is_whole = parts.iter().map(|part| part.bytes).sum::<u64>() == end;
        if parts.len() >= PARTS_MAX && !is_whole {
            return Vec::new();
        }
        parts
    }
}

/// A backup of another store, in a prefix whose owner row was removed or rewritten.
fn ours(folder: &dyn Folder, manifest: &Manifest, me: &Owner) -> Result<(), SendError> {
    if manifest.store.uuid == me.store && manifest.node == me.node {
        return Ok(());
    }
    Err(SendError::Foreign {
        prefix: folder.describe(),
        what: format!(
            "backup {} is of node {} or of another store of it",
            manifest.number, manifest.node
        ),
    })
}
