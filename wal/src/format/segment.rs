//! The header block of a segment: which store, which segment, where the log before it ends.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `ANKASEG1` |
//! | 8 | 4 | format version |
//! | 12 | 2 | shard |
//! | 14 | 2 | flags: 1 = the LSNs between the cut and `first_lsn` were given up by a repair |
//! | 16 | 16 | store uuid |
//! | 32 | 8 | segment number |
//! | 40 | 8 | first LSN |
//! | 48 | 8 | salt, unique to this use of the slot |
//! | 56 | 8 | cut: number of the segment before (0: none) |
//! | 64 | 8 | cut: offset where it ends |
//! | 72 | 8 | cut: last LSN it keeps; everything up to it is durable |
//! | 80 | 8 | next seq when the header was made |
//! | 88 | 8 | wall clock, milliseconds (for people) |
//! | 96 | 4 | slots that exist |
//! | 100 | 24 | zero |
//! | 124 | 4 | CRC-32 of bytes 0..124 |
//!
//! The rest of the block is zero and not looked at.

use super::bytes::{Put, Take};
use super::{FORMAT_VERSION, FormatError, bad};
use crate::ids::{Lsn, SegmentId, Seq, ShardId};

/// First bytes of a segment.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"ANKASEG1");
/// Bytes of the header that carry something.
pub const SEGMENT_HEADER_BYTES: usize = 128;
/// Where the first frame of a segment starts.
pub const SEGMENT_DATA_OFFSET: u64 = crate::disk::BLOCK_BYTES as u64;
/// Flag: LSNs between the cut and `first_lsn` were given up.
pub const SEGMENT_FLAG_GAP: u16 = 1;

const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;
const _: () = assert!(SEGMENT_HEADER_BYTES <= crate::disk::BLOCK_BYTES);
const _: () = assert!(8 + 4 + 2 + 2 + 16 + 8 * 8 + 4 + 24 == CRC_AT);

/// Where the segment before ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Its number; 0 when this is the first.
    pub segment: SegmentId,
    /// One past its last kept byte.
    pub offset: u64,
    /// The last LSN it keeps. Everything up to it is durable.
    pub lsn: Lsn,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store.
    pub store_uuid: [u8; 16],
    /// The shard.
    pub shard: ShardId,
    /// See the table.
    pub flags: u16,
    /// The segment's number.
    pub segment: SegmentId,
    /// The LSN of its first frame.
    pub first_lsn: Lsn,
    /// Unique to this use of the slot.
    pub salt: u64,
    /// Where the log before it ends.
    pub cut: Cut,
    /// The next seq when the header was made.
    pub next_seq: Seq,
    /// Wall clock.
    pub made_at_ms: u64,
    /// Slots that exist.
    pub slots: u32,
}

impl SegmentHeader {
    /// Writes the header into the first bytes of a block and zeroes the rest of it.
    ///
    /// # Panics
    /// When `block` is shorter than [`SEGMENT_HEADER_BYTES`].
    pub fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        let mut put = Put::new(&mut block[..SEGMENT_HEADER_BYTES]);
        put.u64(SEGMENT_MAGIC);
        put.u32(FORMAT_VERSION);
        put.u16(self.shard.0);
        put.u16(self.flags);
        put.bytes(&self.store_uuid);
        put.u64(self.segment.0);
        put.u64(self.first_lsn.0);
        put.u64(self.salt);
        put.u64(self.cut.segment.0);
        put.u64(self.cut.offset);
        put.u64(self.cut.lsn.0);
        put.u64(self.next_seq.0);
        put.u64(self.made_at_ms);
        put.u32(self.slots);
        put.bytes(&[0; 24]);
        let crc = crc32fast::hash(&block[..CRC_AT]);
        block[CRC_AT..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header block.
    pub fn decode(block: &[u8]) -> Result<SegmentHeader, FormatError> {
        let head = block
            .get(..SEGMENT_HEADER_BYTES)
            .ok_or(bad("segment header too short"))?;
        let mut take = Take::new(head);
        if take.u64()? != SEGMENT_MAGIC {
            return Err(bad("no segment header"));
        }
        let version = take.u32()?;
        let header = SegmentHeader {
            shard: ShardId(take.u16()?),
            flags: take.u16()?,
            store_uuid: take.array()?,
            segment: SegmentId(take.u64()?),
            first_lsn: Lsn(take.u64()?),
            salt: take.u64()?,
            cut: Cut {
                segment: SegmentId(take.u64()?),
                offset: take.u64()?,
                lsn: Lsn(take.u64()?),
            },
            next_seq: Seq(take.u64()?),
            made_at_ms: take.u64()?,
            slots: take.u32()?,
        };
        take.bytes(24)?;
        if take.u32()? != crc32fast::hash(&head[..CRC_AT]) {
            return Err(bad("segment header checksum"));
        }
        if version > FORMAT_VERSION {
            return Err(bad(NEWER_VERSION));
        }
        if header.segment.0 == 0 || header.first_lsn <= header.cut.lsn {
            return Err(bad("segment header fields"));
        }
        Ok(header)
    }

    /// True when the LSNs between the cut and the first frame were given up by a repair.
    pub fn has_gap(&self) -> bool {
        self.flags & SEGMENT_FLAG_GAP != 0
    }
}

/// What [`SegmentHeader::decode`] says of an intact header of a newer release.
pub const NEWER_VERSION: &str = "newer format version";

/// The tag that binds a frame to its store and shard.
pub fn store_tag(store_uuid: &[u8; 16], shard: ShardId) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(store_uuid);
    hasher.update(&shard.0.to_le_bytes());
    hasher.finalize()
}
