//! Why the store refuses, one enum per activity; each error names what it is about.
//!
//! Three fates: a [`Refusal`] is answered to a client, a [`ReadError`] or [`CheckpointError`] may
//! be retried by the caller, an [`OpenError`] stops the boot. A failed write or sync is none of
//! them: it fences, and shows as [`crate::Outcome::Fenced`].

use std::io;

use thiserror::Error;

use crate::ids::{Lsn, SegmentId, Seq, ShardId};

/// Why nothing is admitted right now. The client may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A write or sync failed; a new segment is being started.
    #[error("the store is fenced after a failed write or sync")]
    Fenced,
    /// Too little space, or too many live hooks.
    #[error("the store is full")]
    Full,
    /// A write has been in flight for longer than `stall_ms`.
    #[error("a write is stalled")]
    Stalled,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Acked data that is damaged or absent: exactly what and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong, in a few words.
    pub what: &'static str,
    /// The file, when it is known.
    pub file: Option<String>,
    /// The segment, when it is known.
    pub segment: Option<SegmentId>,
    /// Byte offset in the file.
    pub offset: u64,
    /// LSNs that are missing, first and last.
    pub lsns: Option<(Lsn, Lsn)>,
    /// New seqs that were handed out in the missing frames: `first` and one past the last.
    pub seqs: Option<(Seq, Seq)>,
}

/// A range of numbers in words, both ends included: `seq 5`, `seqs 5 to 7`.
pub fn span(what: &str, first: u64, last: u64) -> String {
    if first == last {
        format!("{what} {first}")
    } else {
        format!("{what}s {first} to {last}")
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(file) = &self.file {
            write!(f, " in {file}")?;
        }
        if let Some(segment) = self.segment {
            write!(f, " (segment {segment})")?;
        }
        write!(f, " at offset {}", self.offset)?;
        if let Some((first, last)) = self.lsns {
            write!(f, ", {}", span("LSN", first.0, last.0))?;
        }
        match self.seqs {
            Some((first, Seq(u64::MAX))) => write!(f, ", seqs {first} and up"),
            Some((first, end)) if first < end => {
                write!(f, ", {}", span("seq", first.0, end.0 - 1))
            }
            Some((first, _)) => write!(f, ", no new seq (next {first})"),
            None => Ok(()),
        }
    }
}

/// Why a store does not open. Nothing was changed that was acked.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Acked data is damaged: `ankusa wal verify`, `ankusa wal repair`, or heal from the log.
    #[error("acked data is damaged: {0}")]
    Damaged(Damage),
    /// A segment belongs to another store.
    #[error("{file}: belongs to another store (uuid {got:02x?}, expected {expected:02x?})")]
    ForeignStore {
        /// The file.
        file: String,
        /// Its store.
        got: [u8; 16],
        /// Ours.
        expected: [u8; 16],
    },
    /// A segment belongs to another shard.
    #[error("{file}: belongs to shard {got}, expected {expected}")]
    WrongShard {
        /// The file.
        file: String,
        /// Its shard.
        got: ShardId,
        /// Ours.
        expected: ShardId,
    },
    /// Written by a newer release.
    #[error("{file}: format version {got} is newer than {known}")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its version.
        got: u32,
        /// The newest known here.
        known: u32,
    },
    /// A record of a kind or shape that this release does not know, in an intact frame.
    #[error("segment {segment} offset {offset}: unknown record: {what}")]
    UnknownRecord {
        /// The segment.
        segment: SegmentId,
        /// Where the record starts.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A setting is out of its range.
    #[error("setting {name}: {why}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The rule.
        why: &'static str,
    },
    /// An operation of the disk failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
    /// Not there yet.
    #[error("not available in this build: {0}")]
    NotReady(&'static str),
}

/// Why a hook could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// No live hook has this seq.
    #[error("seq {0} is not live")]
    NotFound(Seq),
    /// What lies there is not what was written.
    #[error("hook is damaged: {0}")]
    Damaged(Damage),
    /// The read failed.
    #[error("reading seq {seq}: {source}")]
    Io {
        /// The hook.
        seq: Seq,
        /// The error.
        source: io::Error,
    },
}

/// Why there is no new checkpoint. The older ones stand.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The shard was fenced while it was taken.
    #[error("the shard was fenced meanwhile")]
    Fenced,
    /// Another one is being taken.
    #[error("a checkpoint is already being taken")]
    Busy,
    /// An operation of the disk failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
    /// Not there yet.
    #[error("not available in this build: {0}")]
    NotReady(&'static str),
}

/// Why a close was not clean. What was durable stays durable.
#[derive(Debug, Error)]
pub enum CloseError {
    /// The shard is fenced: the last groups are not claimed.
    #[error("the shard is fenced")]
    Fenced,
    /// A group was begun and neither submitted nor dropped.
    #[error("a group is still being built")]
    GroupOpen,
    /// No slot for the last groups.
    #[error("no slot for the last groups: {0}")]
    NoSlot(io::Error),
    /// No final checkpoint.
    #[error("no final checkpoint: {0}")]
    Checkpoint(#[from] CheckpointError),
}
