//! What a backup of a shard consists of: a checkpoint, the segments that it needs and those begun
//! since, up to the durable mark, and the dedupe generations that it lists.
//!
//! Invariants: everything named is durable; nothing named is changed or used again while the
//! [`Pin`] lives (a generation may be removed once its last row has expired); a store opened from
//! copies of it holds every group up to [`BackupSource::durable_lsn`]. The marks are those of the
//! checkpoint or older: a position in the intake log never claims what the copies do not hold.
//!
//! It copies nothing. Runs on the shard core.

use super::Store;
use super::checkpoint::Pin;
use crate::checkpoint::{self, End, SegmentUse, Start};
use crate::disk::Disk;
use crate::error::CheckpointError;
use crate::format::segment::SEGMENT_DATA_OFFSET;
use crate::generation;
use crate::ids::{Lsn, Seq, ShardId};
use crate::record::{IntakeOffset, Watermark};
use crate::relocate::Needs;
use crate::slots::SlotNo;
use crate::state::State;

/// The newest checkpoint that has its name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) start: Start,
    pub(crate) end: End,
    pub(crate) bytes: u64,
}

/// A segment to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSource {
    /// The slot's file.
    pub file: String,
    /// The segment.
    pub segment: crate::ids::SegmentId,
    /// The salt of this use of the slot.
    pub salt: u64,
    /// Everything below is durable and stays as it is.
    pub end: u64,
}

/// A file that only grows, or never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSource {
    /// Its name.
    pub file: String,
    /// Tells it from another file of that name.
    pub salt: u64,
    /// Everything below is synced and stays as it is.
    pub bytes: u64,
    /// It may be absent from this second on (since 1970); `None`: never while pinned.
    pub expires_at_s: Option<u64>,
}

/// What the store knows about the shard's past and its intake log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupMarks {
    /// At least the next seq to hand out.
    pub next_seq: Seq,
    /// What the intake log has confirmed.
    pub watermark: Watermark,
    /// How far the intake log is in this store.
    pub offset: IntakeOffset,
    /// Live hooks, about.
    pub hooks: u64,
}

/// What a backup copies of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSource {
    /// The shard.
    pub shard: ShardId,
    /// The checkpoint's number.
    pub checkpoint_number: u64,
    /// The checkpoint.
    pub checkpoint: FileSource,
    /// Records above it are applied again on top of the checkpoint.
    pub start_lsn: Lsn,
    /// The copies hold every group up to here.
    pub durable_lsn: Lsn,
    /// The segments, rising.
    pub segments: Vec<SegmentSource>,
    /// The dedupe generations.
    pub generations: Vec<FileSource>,
    /// Files of slots that must exist and of which nothing is needed.
    pub empty_slots: Vec<String>,
    /// The marks.
    pub marks: BackupMarks,
}

impl<D: Disk> Store<D> {
    /// Takes a checkpoint, pins what it needs and says what to copy. After [`Store::close`] the
    /// last checkpoint is the one.
    ///
    /// # Cancel safety
    /// As [`Store::checkpoint`].
    pub async fn backup_source(&self) -> Result<(BackupSource, Pin), CheckpointError> {
        let inner = &self.inner;
        let before = marks(&inner.state.borrow());
        let has_last = inner.is_closed.get() && inner.upkeep.borrow().newest.is_some();
        if !has_last {
            self.checkpoint().await?;
        }
        // IMPORTANT: no await from here to the pin: what the checkpoint needs stands until then.
        let Some(named) = inner.upkeep.borrow().newest.clone() else {
            return Err(CheckpointError::Busy);
        };
        let needs = Needs::of(named.start.start_lsn, &named.end);
        let segments = self.segments_of(&needs);
        let pin = self.pin(needs);
        let source = BackupSource {
            shard: inner.config.shard,
            checkpoint_number: named.start.number,
            checkpoint: FileSource {
                file: checkpoint::file_name(named.start.number),
                salt: named.start.wall_ms,
                bytes: named.bytes,
                expires_at_s: None,
            },
            start_lsn: named.start.start_lsn,
            durable_lsn: inner.writer.borrow().durable_end.lsn,
            empty_slots: empty_slots(&named.end, &segments),
            segments,
            generations: generations(&named.end),
            marks: lower(before, marks(&inner.state.borrow())),
        };
        Ok((source, pin))
    }

    fn segments_of(&self, needs: &Needs) -> Vec<SegmentSource> {
        let inner = &self.inner;
        let current = inner.writer.borrow().current.segment;
        let of = |segment: SegmentUse| SegmentSource {
            file: SlotNo(segment.slot).file_name(),
            segment: segment.segment,
            salt: segment.salt,
            end: segment.end,
        };
        let all = inner.segments_now().into_iter();
        // The current one counts once something durable is in it: until then its slot may yet be
        // given up for another.
        all.filter(|s| s.segment != current || s.end > SEGMENT_DATA_OFFSET)
            .filter(|segment| needs.has(segment))
            .map(of)
            .collect()
    }
}

fn generations(end: &End) -> Vec<FileSource> {
    let listed = end.generations.iter();
    listed
        .map(|g| FileSource {
            file: generation::file_name(g.number),
            salt: g.salt,
            bytes: g.bytes,
            expires_at_s: Some(g.last_expiry_s),
        })
        .collect()
}

fn empty_slots(end: &End, segments: &[SegmentSource]) -> Vec<String> {
    let listed = end.slots.iter().map(|no| SlotNo(*no).file_name());
    listed
        .filter(|file| segments.iter().all(|segment| segment.file != *file))
        .collect()
}

fn marks(state: &State) -> BackupMarks {
    let meta = state.meta();
    BackupMarks {
        next_seq: meta.next_seq,
        watermark: meta.watermark.clone(),
        offset: meta.offset,
        hooks: state.live_hooks(),
    }
}

/// What both say: marks that moved while the checkpoint was taken may not be in it, and marks
/// that were put back must not be claimed.
fn lower(before: BackupMarks, after: BackupMarks) -> BackupMarks {
    let watermark = if after.watermark.seq < before.watermark.seq {
        after.watermark
    } else {
        before.watermark
    };
    BackupMarks {
        next_seq: before.next_seq,
        watermark,
        offset: IntakeOffset {
            // `None` is the lowest: from the start.
            offset: before.offset.offset.min(after.offset.offset),
            hold: before.offset.hold.or(after.offset.hold),
        },
        hooks: after.hooks,
    }
}
