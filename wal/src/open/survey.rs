//! The first look at the directory: which slots there are and what their headers say.

use crate::config::StoreConfig;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::error::OpenError;
use crate::format::FORMAT_VERSION;
use crate::format::segment::{NEWER_VERSION, SegmentHeader};
use crate::open::decide::{Before, Decision, Piece, Place, decide};
use crate::slots::SlotNo;

/// What a slot's first block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotHead {
    /// A header of this shard.
    Header(SegmentHeader),
    /// Nothing but zeros.
    Blank,
    /// Anything else.
    Bad,
}

/// A slot that exists.
#[derive(Clone, Debug)]
pub(crate) struct FoundSlot {
    pub(crate) no: SlotNo,
    pub(crate) bytes: u64,
    pub(crate) head: SlotHead,
}

impl FoundSlot {
    pub(crate) fn header(&self) -> Option<&SegmentHeader> {
        match &self.head {
            SlotHead::Header(header) => Some(header),
            _ => None,
        }
    }
}

pub(crate) fn io_error(doing: &'static str) -> impl Fn(std::io::Error) -> OpenError {
    move |source| OpenError::Io { doing, source }
}

/// Removes the slots that were being made when the process ended.
pub(crate) async fn remove_half_made<D: Disk>(disk: &D) -> Result<(), OpenError> {
    let listed = disk.list().await;
    for entry in listed.map_err(io_error("listing the directory"))? {
        if entry.name.starts_with("slot-") && entry.name.ends_with(".tmp") {
            let removed = disk.remove(&entry.name).await;
            removed.map_err(io_error("removing a half-made slot"))?;
        }
    }
    Ok(())
}

/// Lists the slots, ascending by number. Writes nothing.
pub(crate) async fn survey<D: Disk>(
    disk: &D,
    config: &StoreConfig,
) -> Result<Vec<FoundSlot>, OpenError> {
    let mut found = Vec::new();
    for entry in disk
        .list()
        .await
        .map_err(io_error("listing the directory"))?
    {
        let Some(no) = SlotNo::parse(&entry.name) else {
            continue;
        };
        let head = read_head(disk, config, &entry.name).await?;
        found.push(FoundSlot {
            no,
            bytes: entry.bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            head,
        });
    }
    found.sort_by_key(|slot| slot.no);
    Ok(found)
}

async fn read_head<D: Disk>(
    disk: &D,
    config: &StoreConfig,
    name: &str,
) -> Result<SlotHead, OpenError> {
    let failed = io_error("reading a segment header");
    let file = disk.open(name).await.map_err(&failed)?;
    let read = disk.read_at(&file, 0, BLOCK_BYTES).await;
    disk.close(file).await;
    let (buf, got) = read.map_err(&failed)?;
    let block = buf.as_ref().get(..got).unwrap_or_default();
    let (piece, head) = match SegmentHeader::decode(block) {
        Ok(header) if header.store_uuid != config.store_uuid => {
            (Piece::ForeignStore, SlotHead::Header(header))
        }
        Ok(header) if header.shard != config.shard => (Piece::WrongShard, SlotHead::Header(header)),
        Ok(header) => (Piece::Intact, SlotHead::Header(header)),
        Err(error) if error.what == NEWER_VERSION => (Piece::Newer, SlotHead::Bad),
        Err(_) if block.iter().all(|byte| *byte == 0) => (Piece::Bad, SlotHead::Blank),
        Err(_) => (Piece::Bad, SlotHead::Bad),
    };
    // Whether a bad header matters shows only later: nothing is known of its place.
    let (decision, _) = decide(piece, Place::Unclaimed, Before::Whole);
    let file = name.to_owned();
    match (decision, &head) {
        (Decision::RefuseForeign, SlotHead::Header(header)) => Err(OpenError::ForeignStore {
            file,
            got: header.store_uuid,
            expected: config.store_uuid,
        }),
        (Decision::RefuseShard, SlotHead::Header(header)) => Err(OpenError::WrongShard {
            file,
            got: header.shard,
            expected: config.shard,
        }),
        (Decision::RefuseNewer, _) => {
            let version = block
                .get(8..12)
                .and_then(|v| v.try_into().ok())
                .unwrap_or_default();
            let got = u32::from_le_bytes(version);
            Err(OpenError::NewerFormat {
                file,
                got,
                known: FORMAT_VERSION,
            })
        }
        _ => Ok(head),
    }
}
