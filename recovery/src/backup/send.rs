//! Sending a backup: objects first, their directories synced, the manifest last.
//!
//! Invariants: nothing that a kept manifest names is ever written over or removed; the manifest
//! gets its name only once everything it names is durable, so that a crash at any point leaves the
//! backups before it whole; the owner row is looked at before every write. What is there already
//! is not sent again: a segment's later part goes into an object of its own.
//!
//! It decides neither when nor how fast ([`Meter`]). One buffer, whatever the store's size.
//! Blocking; runs on a side thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ankusa_wal::format::segment::{SEGMENT_DATA_OFFSET, store_tag};
use ankusa_wal::home::StoreFacts;
use ankusa_wal::{BackupSource, FileSource, SegmentSource, ShardId, mutations};
use aws_lc_rs::digest;
use thiserror::Error;

use super::folder::ReadFile;
use super::frames::FrameCheck;
use super::layout::{self, MANIFESTS, PIECE_BYTES};
use super::manifest::{FileEntry, MANIFEST_FORMAT, Manifest, ManifestError, Part, ShardEntry, hex};
use super::prefix::{Known, Prefix};
use super::source::ShardFiles;
use super::{owner, prune};

/// Why a backup was not taken. The ones before it stand.
#[derive(Debug, Error)]
pub enum SendError {
    /// The prefix holds another node's or another store's backups.
    #[error("foreign_backup: {prefix}: {what}")]
    Foreign {
        /// The prefix.
        prefix: String,
        /// Whose it is.
        what: String,
    },
    /// Another live copy of this store writes there.
    #[error(
        "prefix_shared: {prefix}: {what}. Nothing more is written there until this node is restarted; stop the other one first"
    )]
    Shared {
        /// The prefix.
        prefix: String,
        /// Which.
        what: String,
    },
    /// The owner row that this process wrote is not there.
    #[error("prefix_gone: {0}: the owner row is gone; is the folder mounted?")]
    Gone(String),
    /// The newest backup holds more than this store.
    #[error(
        "backup_ahead: shard {shard}: backup {number} goes up to LSN {theirs}, and this store ends at \
         LSN {ours}: it is an older copy of itself, or was repaired. Restore the backup, or move the \
         prefix away"
    )]
    Ahead {
        /// The shard.
        shard: u16,
        /// The backup.
        number: u64,
        /// How far it goes.
        theirs: u64,
        /// How far the store goes.
        ours: u64,
    },
    /// A file of the store is not what was written.
    #[error("source_damaged: shard {shard}: {file} from offset {from}: {what}")]
    Damaged {
        /// The shard.
        shard: u16,
        /// The file.
        file: String,
        /// Where what was read began.
        from: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The manifest could not be put together.
    #[error("the manifest: {0}")]
    Manifest(#[from] ManifestError),
    /// It was told to stop.
    #[error("stopped: the node is on its way down")]
    Stopped,
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

impl SendError {
    pub(super) fn io(doing: &'static str, path: &str, source: io::Error) -> SendError {
        SendError::Io {
            doing,
            path: path.into(),
            source,
        }
    }

    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            SendError::Foreign { .. } => "foreign_backup",
            SendError::Shared { .. } => "prefix_shared",
            SendError::Gone(_) => "prefix_gone",
            SendError::Ahead { .. } => "backup_ahead",
            SendError::Damaged { .. } => "source_damaged",
            SendError::Manifest(error) => error.word(),
            SendError::Stopped => "stopped",
            SendError::Io { .. } => "io",
        }
    }
}

/// How fast, and whether at all.
pub trait Meter {
    /// So many bytes were read and written. May take its time; false: stop.
    fn spend(&mut self, bytes: u64) -> bool;
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The manifest's number.
    pub number: u64,
    /// Objects sent.
    pub objects: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes of the whole backup.
    pub bytes_whole: u64,
    /// Objects that nothing needed any more.
    pub removed: u64,
}

/// A backup under way. Dropped, it leaves objects that the next one uses or clears away.
pub struct Run<'a> {
    pub(super) prefix: &'a mut Prefix,
    pub(super) known: Known,
    pub(super) began_at_ms: u64,
    pub(super) entries: BTreeMap<u16, ShardEntry>,
    pub(super) dirty: BTreeSet<String>,
    pub(super) sent: Sent,
    pub(super) buffer: Vec<u8>,
}

impl Run<'_> {
    /// Takes a shard over from the last backup, when it ended at this LSN and all of it is there.
    pub fn same_as_last(&mut self, shard: ShardId, durable_lsn: u64) -> bool {
        let base = self.known.base.as_ref();
        let is_mine = |base: &&Manifest| base.writer == self.prefix.me.writer;
        let entry = base.filter(is_mine).and_then(|base| {
            let mut shards = base.shards.iter();
            shards.find(|e| e.shard == shard.0 && e.durable_lsn == durable_lsn)
        });
        let Some(entry) = entry else { return false };
        let entry = entry.clone();
        if self.known.look(&*self.prefix.folder, shard.0).is_err() {
            return false;
        }
        let mut parts = entry.files.iter().flat_map(|file| &file.parts);
        if !parts.all(|part| self.known.has(part)) {
            return false;
        }
        self.entries.insert(shard.0, entry);
        true
    }

    /// Sends what is not there of a shard.
    pub fn shard(
        &mut self,
        files: &dyn ShardFiles,
        source: &BackupSource,
        meter: &mut dyn Meter,
    ) -> Result<(), SendError> {
        let sent = self.shard_files(files, source, meter);
        if matches!(sent, Err(SendError::Shared { .. })) {
            self.prefix.lost = true;
        }
        sent
    }

    fn shard_files(
        &mut self,
        files: &dyn ShardFiles,
        source: &BackupSource,
        meter: &mut dyn Meter,
    ) -> Result<(), SendError> {
        self.check_not_behind(source)?;
        let shard = source.shard.0;
        let dir = layout::shard_dir(shard);
        let made = self.prefix.folder.make_dir(&dir);
        made.map_err(|e| SendError::io("creating", &dir, e))?;
        self.known.look(&*self.prefix.folder, shard)?;
        let mut entries = Vec::new();
        // Small and soon gone from the store: first.
        entries.push(self.checkpoint(files, source, meter)?);
        for generation in &source.generations {
            if let Some(entry) = self.generation(files, shard, generation, meter)? {
                entries.push(entry);
            }
        }
        for segment in &source.segments {
            entries.push(self.segment(files, shard, segment, meter)?);
        }
        entries.extend(source.empty_slots.iter().map(|file| FileEntry {
            file: file.clone(),
            stem: String::new(),
            bytes: 0,
            parts: Vec::new(),
        }));
        let marks = &source.marks;
        let entry = ShardEntry {
            shard,
            checkpoint: source.checkpoint_number,
            checkpoint_lsn: source.start_lsn.0,
            durable_lsn: source.durable_lsn.0,
            next_seq: marks.next_seq.0,
            hooks: marks.hooks,
            watermark: marks.watermark.seq.0,
            watermark_exceptions: marks.watermark.exceptions.len() as u64,
            offset: marks.offset.offset.map(|offset| offset.0),
            hold: marks.offset.hold.map(|hold| hold.0),
            files: entries,
        };
        self.entries.insert(shard, entry);
        Ok(())
    }

    /// A store whose own backup goes further is an older copy of itself: it must not push the
    /// newer one out.
    fn check_not_behind(&self, source: &BackupSource) -> Result<(), SendError> {
        let me = &self.prefix.me;
        let base = self.known.base.as_ref();
        let base = base.filter(|base| base.store.incarnation >= me.incarnation);
        let shard = base.and_then(|base| {
            let mut shards = base.shards.iter();
            let entry = shards.find(|entry| entry.shard == source.shard.0)?;
            Some((base.number, entry.durable_lsn))
        });
        match shard {
            Some((number, theirs)) if theirs > source.durable_lsn.0 => Err(SendError::Ahead {
                shard: source.shard.0,
                number,
                theirs,
                ours: source.durable_lsn.0,
            }),
            _ => Ok(()),
        }
    }

    fn checkpoint(
        &mut self,
        files: &dyn ShardFiles,
        source: &BackupSource,
        meter: &mut dyn Meter,
    ) -> Result<FileEntry, SendError> {
        // NOTE: a number may come twice, in two lives of one store; the writer tells them apart.
        let writer = u64::from_str_radix(&self.prefix.me.writer, 16).unwrap_or_default();
        let stem = layout::stem("checkpoint", source.checkpoint_number, writer);
        self.file(files, source.shard.0, &source.checkpoint, stem, meter)
    }

    fn generation(
        &mut self,
        files: &dyn ShardFiles,
        shard: u16,
        generation: &FileSource,
        meter: &mut dyn Meter,
    ) -> Result<Option<FileEntry>, SendError> {
        let number = ankusa_wal::generation::parse_name(&generation.file).unwrap_or_default();
        let stem = layout::stem("dedupe", number, generation.salt);
        match self.file(files, shard, generation, stem, meter) {
            Ok(entry) => Ok(Some(entry)),
            // Its last row has expired: the store removed it, and the open does without.
            Err(SendError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound
                    && generation
                        .expires_at_s
                        .is_some_and(|at| at <= self.began_at_ms / 1000 + 1) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn file(
        &mut self,
        files: &dyn ShardFiles,
        shard: u16,
        file: &FileSource,
        stem: String,
        meter: &mut dyn Meter,
    ) -> Result<FileEntry, SendError> {
        let mut parts = self.known.parts(shard, &stem, file.bytes);
        let from: u64 = parts.iter().map(|part| part.bytes).sum();
        if from < file.bytes {
            let object = layout::object_path(shard, &stem, from, file.bytes);
            let piece = Piece {
                shard,
                file: &file.file,
                from,
                to: file.bytes,
                check: None,
            };
            parts.push(self.send(files, piece, object, meter)?);
        }
        Ok(FileEntry {
            file: file.file.clone(),
            stem,
            bytes: file.bytes,
            parts,
        })
    }

    fn segment(
        &mut self,
        files: &dyn ShardFiles,
        shard: u16,
        segment: &SegmentSource,
        meter: &mut dyn Meter,
    ) -> Result<FileEntry, SendError> {
        let stem = layout::stem("segment", segment.segment.0, segment.salt);
        let mut parts = self.known.parts(shard, &stem, segment.end);
        let from: u64 = parts.iter().map(|part| part.bytes).sum();
        if from < segment.end {
            let object = layout::object_path(shard, &stem, from, segment.end);
            let tag = store_tag(&self.prefix.me.store.0, ShardId(shard));
            let piece = Piece {
                shard,
                file: &segment.file,
                from,
                to: segment.end,
                check: Some(FrameCheck::new(segment.salt, tag)),
            };
            parts.push(self.send(files, piece, object, meter)?);
        }
        Ok(FileEntry {
            file: segment.file.clone(),
            stem,
            bytes: segment.end,
            parts,
        })
    }

    /// Sends a range of a file under a name of its own. Durable once its directory is synced.
    fn send(
        &mut self,
        files: &dyn ShardFiles,
        mut piece: Piece<'_>,
        object: String,
        meter: &mut dyn Meter,
    ) -> Result<Part, SendError> {
        let prefix = &*self.prefix;
        let folder = &*prefix.folder;
        let reading = |e| SendError::io("reading", piece.file, e);
        let mut file = files.open(piece.file).map_err(reading)?;
        owner::check(folder, &prefix.me)?;
        let dir = layout::shard_dir(piece.shard);
        let unnamed = layout::unnamed_path(&dir, &prefix.me.writer);
        let writing = |e| SendError::io("writing", &unnamed, e);
        let bytes = piece.to - piece.from;
        // Sent by a run that did not come to its end: its name says what it holds, and it got
        // that name only once all of it was synced.
        let is_there = self.known.lengths.get(&object) == Some(&bytes);
        let mut out = match is_there {
            true => None,
            false => Some(folder.create(&unnamed).map_err(writing)?),
        };
        let mut hash = digest::Context::new(&digest::SHA256);
        let mut pos = piece.from;
        while pos < piece.to {
            let wanted = (piece.to - pos).min(PIECE_BYTES as u64) as usize;
            let got = piece.read(&mut *file, pos, &mut self.buffer[..wanted])?;
            hash.update(got);
            if let Some(out) = &mut out {
                out.write(got).map_err(writing)?;
            }
            pos += wanted as u64;
            if !meter.spend(wanted as u64) {
                return Err(SendError::Stopped);
            }
        }
        piece.ends()?;
        if let Some(mut out) = out {
            out.sync().map_err(writing)?;
            drop(out);
            mutations::point("backup.object_written");
            owner::check(folder, &prefix.me)?;
            let renamed = folder.rename(&unnamed, &object);
            renamed.map_err(|e| SendError::io("naming", &object, e))?;
            mutations::point("backup.object_named");
            self.sent.objects += 1;
            self.sent.bytes += bytes;
        }
        self.dirty.insert(dir);
        Ok(Part {
            object,
            bytes,
            sha256: hex(hash.finish().as_ref()),
        })
    }

    /// Writes the manifest, then clears away what no kept one needs. `facts` are the store's now.
    pub fn finish(mut self, facts: &StoreFacts, made_at_ms: u64) -> Result<Sent, SendError> {
        let done = self.write_manifest(facts, made_at_ms);
        if matches!(done, Err(SendError::Shared { .. })) {
            self.prefix.lost = true;
        }
        done
    }

    fn write_manifest(&mut self, facts: &StoreFacts, made_at_ms: u64) -> Result<Sent, SendError> {
        let prefix = &*self.prefix;
        let folder = &*prefix.folder;
        let manifest = Manifest {
            format: MANIFEST_FORMAT,
            number: self.known.last_number + 1,
            began_at_ms: self.began_at_ms,
            made_at_ms,
            release: prefix.release.clone(),
            node: prefix.me.node.clone(),
            writer: prefix.me.writer.clone(),
            wal_format: ankusa_wal::format::FORMAT_VERSION,
            store: facts.clone(),
            shards: std::mem::take(&mut self.entries).into_values().collect(),
        };
        assert!(
            manifest.shards.len() == usize::from(facts.shards),
            "a backup holds every shard"
        );
        // IMPORTANT: objects and their names are durable before the manifest is written, and it
        // before anything old is removed.
        for dir in &self.dirty {
            let synced = folder.sync_dir(dir);
            synced.map_err(|e| SendError::io("syncing", dir, e))?;
        }
        let bytes = manifest.sign(&prefix.key)?;
        let path = layout::manifest_path(manifest.number);
        let unnamed = layout::unnamed_path(MANIFESTS, &prefix.me.writer);
        owner::check(folder, &prefix.me)?;
        let mut out = folder
            .create(&unnamed)
            .map_err(|e| SendError::io("creating", &unnamed, e))?;
        out.write(&bytes)
            .and_then(|()| out.sync())
            .map_err(|e| SendError::io("writing", &unnamed, e))?;
        drop(out);
        mutations::point("backup.manifest_written");
        owner::check(folder, &prefix.me)?;
        folder
            .rename(&unnamed, &path)
            .and_then(|()| folder.sync_dir(MANIFESTS))
            .map_err(|e| SendError::io("naming", &path, e))?;
        mutations::point("backup.manifest_named");
        self.sent.number = manifest.number;
        self.sent.bytes_whole = manifest.bytes();
        self.prefix.is_tidy = true;
        let prefix = &*self.prefix;
        let folder = &*prefix.folder;
        // The backup stands: what is left over now is cleared away by the next one.
        match prune::prune(folder, &prefix.key, &prefix.me, prefix.keep, facts.shards) {
            Ok(removed) => self.sent.removed = removed,
            Err(error @ SendError::Shared { .. }) => return Err(error),
            Err(error) => tracing::warn!(%error, "old backups stay"),
        }
        Ok(self.sent)
    }
}

/// A range of a file of a shard.
struct Piece<'a> {
    shard: u16,
    file: &'a str,
    from: u64,
    to: u64,
    /// Looks at the frames of a segment.
    check: Option<FrameCheck>,
}

impl Piece<'_> {
    fn read<'b>(
        &mut self,
        file: &mut dyn ReadFile,
        pos: u64,
        out: &'b mut [u8],
    ) -> Result<&'b [u8], SendError> {
        let got = file
            .read_at(pos, out)
            .map_err(|e| SendError::io("reading", self.file, e))?;
        if got < out.len() {
            return Err(self.damaged("it is shorter than it was"));
        }
        if let Some(check) = &mut self.check {
            let head = SEGMENT_DATA_OFFSET
                .saturating_sub(pos)
                .min(out.len() as u64) as usize;
            let checked = check.feed(&out[head..]);
            checked.map_err(|what| self.damaged(what))?;
        }
        Ok(out)
    }

    fn ends(&self) -> Result<(), SendError> {
        let checked = self.check.as_ref().map_or(Ok(()), FrameCheck::end);
        checked.map_err(|what| self.damaged(what))
    }

    fn damaged(&self, what: &'static str) -> SendError {
        SendError::Damaged {
            shard: self.shard,
            file: self.file.into(),
            from: self.from,
            what,
        }
    }
}
