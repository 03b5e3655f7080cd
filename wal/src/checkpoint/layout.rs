//! What is in a checkpoint, byte by byte. Encode and decode are pure functions over slices.
//!
//! A checkpoint is a run of sealed blocks ([`super::block`]):
//!
//! | kind | block | payload |
//! |---|---|---|
//! | 1 | start, one, the first | the table below |
//! | 2 | hooks | hook entries |
//! | 3 | finished | ranges: first seq (8), last seq (8) |
//! | 4 | records | records in the encoding of the log, a stream that may span blocks |
//! | 5 | gone | seqs (8) of hooks in blocks of kind 2 that finished later |
//! | 6 | end, the last ones | the table below, which may span blocks |
//!
//! Start: magic `ANKACKP1` (8), format version (4), shard (2), zero (2), store uuid (16), number
//! (8), start LSN (8), hooks expected (8), wall clock in ms (8).
//!
//! Hook entry: seq (8), id (16), segment (4), offset (4), length (4), holds (1), zero (1), rows
//! (2), then per row: sink (2), attempts and state (2: 12 bits and 4), value (8). The state is 0
//! due, 1 dead, 2 finished; the value is the due time in ms since 1970 (0: at once), or for a
//! dead row the second it died (low 32 bits) and the reason (next 8).
//!
//! End: end LSN (8), hooks (8), ranges (8), gone (8), then counted lists (4): segments (number 8,
//! salt 8, slot 4, flags 4 where 1 = has a live hook and 2 = has records newer than the start,
//! end 8), slots (4), generations (number 8, salt 8, bytes 8, last expiry 8).

use crate::format::bytes::{Put, Take, len32};
use crate::format::{FORMAT_VERSION, FormatError, bad};
use crate::ids::{HookId, Lsn, SegmentId, Seq, ShardId, SinkNo};
use crate::state::{Holds, Hook, Row, RowState, SINKS_PER_HOOK_MAX};

/// First bytes of a checkpoint's first payload.
pub const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"ANKACKP1");

/// The kinds of block, as stored.
pub mod kind {
    /// The first block.
    pub const START: u8 = 1;
    /// Hook entries.
    pub const HOOKS: u8 = 2;
    /// Finished ranges.
    pub const FINISHED: u8 = 3;
    /// Records.
    pub const RECORDS: u8 = 4;
    /// Seqs finished after their entry was written.
    pub const GONE: u8 = 5;
    /// The last ones.
    pub const END: u8 = 6;
}

/// Bytes of a hook entry without its rows.
pub const HOOK_ENTRY_BYTES: usize = 40;
/// Bytes of a row in it.
pub const ROW_ENTRY_BYTES: usize = 12;
/// Bytes of a finished range.
pub const RANGE_BYTES: usize = 16;

const START_BYTES: usize = 64;
const _: () = assert!(8 + 4 + 2 + 2 + 16 + 8 + 8 + 8 + 8 == START_BYTES);
const _: () = assert!(8 + 16 + 4 + 4 + 4 + 1 + 1 + 2 == HOOK_ENTRY_BYTES);

const SEGMENT_LIVE: u32 = 1;
const SEGMENT_TAIL: u32 = 2;

/// The first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The store.
    pub store_uuid: [u8; 16],
    /// The shard.
    pub shard: ShardId,
    /// The checkpoint's number; rises.
    pub number: u64,
    /// Records above it are applied again on top of the checkpoint.
    pub start_lsn: Lsn,
    /// About how many hooks follow.
    pub hooks_expected: u64,
    /// When it was begun (for people).
    pub wall_ms: u64,
}

/// A segment that a checkpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentNeed {
    /// The segment.
    pub segment: SegmentId,
    /// The salt of this use of its slot.
    pub salt: u64,
    /// The slot.
    pub slot: u32,
    /// One past its last byte; where it had got to, for the one being written.
    pub end: u64,
    /// A hook of the checkpoint is in it.
    pub has_live: bool,
    /// It has records newer than the checkpoint's start.
    pub has_tail: bool,
}

/// A dedupe generation that a checkpoint lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationRef {
    /// Its number.
    pub number: u64,
    /// Its salt.
    pub salt: u64,
    /// Synced bytes: everything up to here is whole.
    pub bytes: u64,
    /// When its last row expires, seconds since 1970: it may be absent from then on.
    pub last_expiry_s: u64,
}

/// What ends a checkpoint: it is whole only with this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The newest group that any slice has seen.
    pub end_lsn: Lsn,
    /// Hook entries.
    pub hooks: u64,
    /// Finished ranges.
    pub ranges: u64,
    /// Seqs in blocks of kind 5.
    pub gone: u64,
    /// Segments it needs, rising.
    pub segments: Vec<SegmentNeed>,
    /// Slots that exist.
    pub slots: Vec<u32>,
    /// Dedupe generations, rising.
    pub generations: Vec<GenerationRef>,
}

pub(super) fn encode_start(start: &Start, put: &mut Put<'_>) {
    put.u64(CHECKPOINT_MAGIC);
    put.u32(FORMAT_VERSION);
    put.u16(start.shard.0);
    put.u16(0);
    put.bytes(&start.store_uuid);
    put.u64(start.number);
    put.u64(start.start_lsn.0);
    put.u64(start.hooks_expected);
    put.u64(start.wall_ms);
}

pub(super) fn start_bytes() -> usize {
    START_BYTES
}

/// Reads the first block's payload.
pub fn decode_start(payload: &[u8]) -> Result<Start, FormatError> {
    let mut take = Take::new(payload);
    if take.u64()? != CHECKPOINT_MAGIC {
        return Err(bad("not a checkpoint"));
    }
    if take.u32()? > FORMAT_VERSION {
        return Err(bad("checkpoint of a newer release"));
    }
    let shard = ShardId(take.u16()?);
    take.u16()?;
    let start = Start {
        store_uuid: take.array()?,
        shard,
        number: take.u64()?,
        start_lsn: Lsn(take.u64()?),
        hooks_expected: take.u64()?,
        wall_ms: take.u64()?,
    };
    take.end()?;
    Ok(start)
}

/// A hook entry without its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookHead {
    /// Its place in the shard.
    pub seq: Seq,
    /// Its id.
    pub id: HookId,
    /// The segment that holds it.
    pub segment: SegmentId,
    /// Offset there.
    pub offset: u32,
    /// Length there.
    pub len: u32,
    /// What holds it.
    pub holds: Holds,
}

pub(super) fn hook_bytes(hook: &Hook) -> usize {
    HOOK_ENTRY_BYTES + usize::from(hook.rows) * ROW_ENTRY_BYTES
}

pub(super) fn encode_hook(hook: &Hook, rows: impl Iterator<Item = Row>, put: &mut Put<'_>) {
    put.u64(hook.seq.0);
    put.bytes(&hook.id.0);
    put.u32(hook.location.segment.0 as u32);
    put.u32(hook.location.offset as u32);
    put.u32(hook.location.len);
    put.u8(hook.holds.to_bits());
    put.u8(0);
    put.u16(hook.rows);
    for row in rows {
        let (state, value) = match row.state {
            RowState::Due { due_ms } => (0, due_ms),
            RowState::Dead { at_s, reason } => (1, u64::from(reason) << 32 | u64::from(at_s)),
            RowState::Finished => (2, 0),
        };
        put.u16(row.sink.0);
        put.u16(row.attempts | state << 12);
        put.u64(value);
    }
}

/// Reads one hook entry; its rows go to `rows`.
pub(super) fn decode_hook(
    take: &mut Take<'_>,
    rows: &mut Vec<(SinkNo, u16, RowState)>,
) -> Result<HookHead, FormatError> {
    let head = HookHead {
        seq: Seq(take.u64()?),
        id: HookId(take.array()?),
        segment: SegmentId(u64::from(take.u32()?)),
        offset: take.u32()?,
        len: take.u32()?,
        holds: Holds::from_bits(take.u8()?),
    };
    take.u8()?;
    let count = usize::from(take.u16()?);
    if head.len == 0 || count > SINKS_PER_HOOK_MAX || head.seq.0 == u64::MAX {
        return Err(bad("hook entry"));
    }
    rows.clear();
    for _ in 0..count {
        let (sink, packed, value) = (SinkNo(take.u16()?), take.u16()?, take.u64()?);
        let state = match packed >> 12 {
            0 => RowState::Due { due_ms: value },
            1 => RowState::Dead {
                at_s: value as u32,
                reason: (value >> 32) as u8,
            },
            2 => RowState::Finished,
            _ => return Err(bad("row state")),
        };
        rows.push((sink, packed & 0x0fff, state));
    }
    Ok(head)
}

pub(super) fn end_bytes(end: &End) -> usize {
    4 * 8 + 12 + 32 * end.segments.len() + 4 * end.slots.len() + 32 * end.generations.len()
}

pub(super) fn encode_end(end: &End, put: &mut Put<'_>) {
    put.u64(end.end_lsn.0);
    put.u64(end.hooks);
    put.u64(end.ranges);
    put.u64(end.gone);
    put.u32(len32(end.segments.len()));
    for need in &end.segments {
        put.u64(need.segment.0);
        put.u64(need.salt);
        put.u32(need.slot);
        let live = if need.has_live { SEGMENT_LIVE } else { 0 };
        put.u32(live | if need.has_tail { SEGMENT_TAIL } else { 0 });
        put.u64(need.end);
    }
    put.u32(len32(end.slots.len()));
    for &slot in &end.slots {
        put.u32(slot);
    }
    put.u32(len32(end.generations.len()));
    for generation in &end.generations {
        put.u64(generation.number);
        put.u64(generation.salt);
        put.u64(generation.bytes);
        put.u64(generation.last_expiry_s);
    }
}

/// Reads the payload of the last blocks, put together.
pub fn decode_end(payload: &[u8]) -> Result<End, FormatError> {
    let mut take = Take::new(payload);
    let mut end = End {
        end_lsn: Lsn(take.u64()?),
        hooks: take.u64()?,
        ranges: take.u64()?,
        gone: take.u64()?,
        ..End::default()
    };
    for _ in 0..take.u32()? {
        let (segment, salt, slot) = (SegmentId(take.u64()?), take.u64()?, take.u32()?);
        let flags = take.u32()?;
        end.segments.push(SegmentNeed {
            segment,
            salt,
            slot,
            end: take.u64()?,
            has_live: flags & SEGMENT_LIVE != 0,
            has_tail: flags & SEGMENT_TAIL != 0,
        });
    }
    for _ in 0..take.u32()? {
        end.slots.push(take.u32()?);
    }
    for _ in 0..take.u32()? {
        end.generations.push(GenerationRef {
            number: take.u64()?,
            salt: take.u64()?,
            bytes: take.u64()?,
            last_expiry_s: take.u64()?,
        });
    }
    take.end()?;
    Ok(end)
}
