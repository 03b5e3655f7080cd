//! What is in a dedupe generation, byte by byte.
//!
//! Sealed blocks ([`crate::checkpoint::block`]). Kind 1, the first: magic `ANKADDP1` (8), format
//! version (4), shard (2), zero (2), store uuid (16), number (8). Kind 2: rows of hash (16), id
//! (16), seq (8), expiry in seconds since 1970 (4; 0: this key no longer stands for this id).
//!
//! Pure.

use crate::disk::BLOCK_BYTES;
use crate::format::bytes::{Put, Take};
use crate::format::{FORMAT_VERSION, FormatError, bad};
use crate::ids::{HookId, Seq, ShardId};
use crate::record::DedupeRow;

/// First bytes of a generation's first payload.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ANKADDP1");

/// Bytes of a row on disk.
pub const ROW_BYTES: usize = 44;

pub(super) const HEAD_BYTES: usize = 40;
pub(super) const HEAD_BLOCK_BYTES: usize = BLOCK_BYTES;

const _: () = assert!(16 + 16 + 8 + 4 == ROW_BYTES);
const _: () = assert!(8 + 4 + 2 + 2 + 16 + 8 == HEAD_BYTES);

/// The kinds of block, as stored.
pub(super) mod kind {
    /// The first block.
    pub(crate) const HEAD: u8 = 1;
    /// Rows.
    pub(crate) const ROWS: u8 = 2;
}

/// Whether a row says that its key no longer stands for its id.
pub fn is_gone(row: &DedupeRow) -> bool {
    row.expires_at_s == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) shard: ShardId,
    pub(super) store_uuid: [u8; 16],
    pub(super) number: u64,
}

pub(super) fn encode_head(head: &Head, put: &mut Put<'_>) {
    put.u64(MAGIC);
    put.u32(FORMAT_VERSION);
    put.u16(head.shard.0);
    put.u16(0);
    put.bytes(&head.store_uuid);
    put.u64(head.number);
}

pub(super) fn decode_head(payload: &[u8]) -> Result<Head, FormatError> {
    let mut take = Take::new(payload);
    if take.u64()? != MAGIC {
        return Err(bad("not a dedupe generation"));
    }
    if take.u32()? > FORMAT_VERSION {
        return Err(bad("generation of a newer release"));
    }
    let shard = ShardId(take.u16()?);
    take.u16()?;
    let head = Head {
        shard,
        store_uuid: take.array()?,
        number: take.u64()?,
    };
    take.end()?;
    Ok(head)
}

pub(super) fn encode_row(row: &DedupeRow, put: &mut Put<'_>) {
    put.bytes(&row.hash);
    put.bytes(&row.id.0);
    put.u64(row.seq.0);
    put.u32(u32::try_from(row.expires_at_s).unwrap_or(u32::MAX));
}

pub(super) fn decode_row(take: &mut Take<'_>) -> Result<DedupeRow, FormatError> {
    Ok(DedupeRow {
        hash: take.array()?,
        id: HookId(take.array()?),
        seq: Seq(take.u64()?),
        expires_at_s: u64::from(take.u32()?),
    })
}
