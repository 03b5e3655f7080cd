//! The sealed block: what checkpoints and dedupe generations are made of.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32 of bytes 4 to the end of the payload |
//! | 4 | 4 | payload bytes |
//! | 8 | 8 | salt of the file |
//! | 16 | 4 | number of the block in the file, from 0 |
//! | 20 | 1 | kind |
//! | 21 | 3 | zero |
//! | 24 | 4 | items in the payload |
//! | 28 | 4 | zero |
//! | 32 | | payload, then zeros up to a multiple of 4 KiB |
//!
//! The salt and the number tell a block from what an earlier file left at its place. Pure.

use crate::disk::IO_BYTES_MAX;
use crate::format::bytes::{Put, Take, len32};
use crate::format::{FormatError, bad, padded};

/// Bytes before the payload.
pub const BLOCK_HEAD_BYTES: usize = 32;

/// Largest payload, so that a block is one I/O.
pub const PAYLOAD_BYTES_MAX: usize = IO_BYTES_MAX - BLOCK_HEAD_BYTES;

const _: () = assert!(4 + 4 + 8 + 4 + 1 + 3 + 4 + 4 == BLOCK_HEAD_BYTES);

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Salt of the file.
    pub salt: u64,
    /// Place in the file, from 0.
    pub number: u32,
    /// What the payload is.
    pub kind: u8,
    /// Items in the payload.
    pub items: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
}

impl BlockHead {
    /// Bytes of the block on disk.
    pub fn block_bytes(&self) -> usize {
        padded(BLOCK_HEAD_BYTES + self.payload_bytes as usize)
    }
}

/// Completes a block whose payload is at `out[32..]` and returns its length on disk.
///
/// # Panics
/// When `out` is shorter than the block on disk.
pub fn seal(head: &BlockHead, out: &mut [u8]) -> usize {
    let end = BLOCK_HEAD_BYTES + head.payload_bytes as usize;
    let mut put = Put::new(&mut out[4..BLOCK_HEAD_BYTES]);
    put.u32(head.payload_bytes);
    put.u64(head.salt);
    put.u32(head.number);
    put.u8(head.kind);
    put.bytes(&[0; 3]);
    put.u32(head.items);
    put.u32(0);
    let crc = crc32fast::hash(&out[4..end]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out[end..head.block_bytes()].fill(0);
    head.block_bytes()
}

/// Reads a block's head, not verified yet: only its length is used, to read the rest.
pub fn peek(bytes: &[u8]) -> Result<BlockHead, FormatError> {
    let mut take = Take::new(bytes);
    take.u32()?;
    let payload_bytes = take.u32()?;
    if payload_bytes as usize > PAYLOAD_BYTES_MAX {
        return Err(bad("block length"));
    }
    let (salt, number, kind) = (take.u64()?, take.u32()?, take.u8()?);
    take.array::<3>()?;
    let items = take.u32()?;
    Ok(BlockHead {
        salt,
        number,
        kind,
        items,
        payload_bytes,
    })
}

/// Verifies the block at the start of `bytes`, which must be block `number` of the file with
/// `salt` (`None`: whatever it says, for the first block).
pub fn open(
    bytes: &[u8],
    salt: Option<u64>,
    number: u32,
) -> Result<(BlockHead, &[u8]), FormatError> {
    let head = peek(bytes)?;
    let end = BLOCK_HEAD_BYTES + head.payload_bytes as usize;
    if bytes.len() < end {
        return Err(bad("block cut short"));
    }
    if crc32fast::hash(&bytes[4..end]).to_le_bytes() != bytes[..4] {
        return Err(bad("block checksum"));
    }
    if salt.is_some_and(|salt| salt != head.salt) {
        return Err(bad("block of another file"));
    }
    if head.number != number {
        return Err(bad("block out of order"));
    }
    Ok((head, &bytes[BLOCK_HEAD_BYTES..end]))
}

/// A payload being filled in place; what does not fit is left to the next block.
pub(crate) struct Payload<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Payload<'a> {
    /// Goes on at `at` in the payload area of a block buffer.
    pub(crate) fn new(block: &'a mut [u8], at: usize) -> Payload<'a> {
        let end = block.len().min(BLOCK_HEAD_BYTES + PAYLOAD_BYTES_MAX);
        Payload {
            out: &mut block[BLOCK_HEAD_BYTES..end],
            at,
        }
    }

    pub(crate) fn room(&self) -> usize {
        self.out.len() - self.at
    }

    /// A writer for the next `bytes`, or `None` when they do not fit.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Put<'_>> {
        if self.room() < bytes {
            return None;
        }
        let place = &mut self.out[self.at..self.at + bytes];
        self.at += bytes;
        Some(Put::new(place))
    }

    pub(crate) fn at(&self) -> u32 {
        len32(self.at)
    }
}
