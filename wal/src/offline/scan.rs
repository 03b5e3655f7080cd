//! Reads every slot of a shard and says what lies where. No judgement: that is [`super::judge`].
//!
//! Looks for frames at every 4 KiB, whatever the header of the slot says, so that intact frames
//! of a slot with a bad header are found too. Offline.

use crate::disk::{BLOCK_BYTES, DirEntry, Disk, IO_BYTES_MAX};
use crate::format::frame::{FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader};
use crate::format::record::{check_payload, kind, records};
use crate::format::segment::{SEGMENT_DATA_OFFSET, SegmentHeader};
use crate::format::{Envelope, FormatError};
use crate::generation;
use crate::ids::Seq;

use super::{OfflineError, io_error};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A frame whose header is intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameScan {
    /// Where it starts in the slot.
    pub offset: u64,
    /// Its header.
    pub header: FrameHeader,
    /// What is wrong with its records; `None`: every checksum holds.
    pub fault: Option<FormatError>,
    /// The lowest seq of a hook in it that is not a relocation.
    pub first_new_seq: Option<Seq>,
    /// Hooks in it, relocated ones too.
    pub hooks: u32,
}

impl FrameScan {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.header.frame_bytes()
    }

    /// True when every checksum holds.
    pub fn is_intact(&self) -> bool {
        self.fault.is_none()
    }
}

/// One slot.
#[derive(Clone, Debug)]
pub struct SlotScan {
    /// Its file.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its header; an error when there is none that holds.
    pub header: Result<SegmentHeader, FormatError>,
    /// True when its first block is all zeros: never used, or made ready again.
    pub is_blank: bool,
    /// Frames whose header holds, in order of offset; those of an earlier use of the slot too.
    pub frames: Vec<FrameScan>,
    /// Blocks that cannot be read, by offset.
    pub unreadable: Vec<u64>,
}

impl SlotScan {
    /// The frames that belong to the slot's present use.
    pub fn own_frames(&self) -> impl Iterator<Item = &FrameScan> {
        let salt = self.header.as_ref().ok().map(|h| h.salt);
        self.frames
            .iter()
            .filter(move |f| Some(f.header.salt) == salt)
    }
}

/// One shard's directory.
#[derive(Clone, Debug, Default)]
pub struct ShardScan {
    /// Slots, by name.
    pub slots: Vec<SlotScan>,
    /// Every other file.
    pub others: Vec<DirEntry>,
    /// Bytes read.
    pub bytes: u64,
    /// Dedupe generations that cannot be read, and where the first bad block is.
    pub unreadable_generations: Vec<(String, u64)>,
}

/// True for the name of a slot.
pub fn is_slot(name: &str) -> bool {
    name.ends_with(".wal")
}

/// Reads the directory; `progress` is told how many bytes are read, of how many.
pub async fn scan<D: Disk>(
    disk: &D,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ShardScan, OfflineError> {
    let mut entries = disk.list().await.map_err(io_error("listing", ""))?;
    entries.sort();
    let total = entries
        .iter()
        .filter(|e| is_slot(&e.name))
        .map(|e| e.bytes)
        .sum();
    let mut shard = ShardScan::default();
    for entry in entries {
        if generation::parse_name(&entry.name).is_some() {
            let (_, unreadable) = read_slot(disk, &entry, |_| {}).await?;
            if let Some(first) = unreadable.first() {
                let bad = (entry.name.clone(), *first);
                shard.unreadable_generations.push(bad);
            }
        }
        if !is_slot(&entry.name) {
            shard.others.push(entry);
            continue;
        }
        let (content, unreadable) = read_slot(disk, &entry, |bytes| {
            shard.bytes += bytes;
            progress(shard.bytes, total);
        })
        .await?;
        shard.slots.push(look(entry, &content, unreadable));
    }
    Ok(shard)
}

/// Reads a file whole. Blocks that cannot be read come back as zeros and are listed.
pub(crate) async fn read_slot<D: Disk>(
    disk: &D,
    entry: &DirEntry,
    mut progress: impl FnMut(u64),
) -> Result<(Vec<u8>, Vec<u64>), OfflineError> {
    let name = &entry.name;
    let file = disk.open(name).await.map_err(io_error("opening", name))?;
    let mut content = Vec::with_capacity(entry.bytes as usize);
    let mut unreadable = Vec::new();
    while (content.len() as u64) < entry.bytes {
        let pos = content.len() as u64;
        let left = (entry.bytes - pos) as usize;
        let want = left.next_multiple_of(BLOCK_BYTES).min(IO_BYTES_MAX);
        match disk.read_at(&file, pos, want).await {
            Ok((_, 0)) => break,
            Ok((buf, filled)) => content.extend_from_slice(&buf.as_ref()[..filled]),
            Err(_) => read_blocks(disk, &file, pos, want, &mut content, &mut unreadable).await,
        }
        progress(content.len() as u64 - pos);
    }
    disk.close(file).await;
    content.truncate(entry.bytes as usize);
    Ok((content, unreadable))
}

/// Block by block, where a larger read failed.
async fn read_blocks<D: Disk>(
    disk: &D,
    file: &D::File,
    pos: u64,
    bytes: usize,
    content: &mut Vec<u8>,
    unreadable: &mut Vec<u64>,
) {
    for at in (pos..pos + bytes as u64).step_by(BLOCK_BYTES) {
        let start = content.len();
        content.resize(start + BLOCK_BYTES, 0);
        match disk.read_at(file, at, BLOCK_BYTES).await {
            Ok((buf, filled)) => {
                content[start..start + filled].copy_from_slice(&buf.as_ref()[..filled]);
            }
            Err(_) => unreadable.push(at),
        }
    }
}

/// Finds the header and the frames of a slot's content.
pub(crate) fn look(entry: DirEntry, content: &[u8], unreadable: Vec<u64>) -> SlotScan {
    let head = content.get(..BLOCK_BYTES).unwrap_or(content);
    let mut slot = SlotScan {
        header: SegmentHeader::decode(head),
        is_blank: head.iter().all(|b| *b == 0) && !unreadable.contains(&0),
        name: entry.name,
        bytes: entry.bytes,
        frames: Vec::new(),
        unreadable,
    };
    let mut at = SEGMENT_DATA_OFFSET;
    while at + FRAME_HEADER_BYTES as u64 <= content.len() as u64 {
        let frame = frame_at(content, at);
        // An intact frame is skipped whole: what lies in it are records.
        at = match &frame {
            Some(frame) if frame.is_intact() => frame.end(),
            _ => at + BLOCK,
        };
        slot.frames.extend(frame);
    }
    slot
}

fn frame_at(content: &[u8], at: u64) -> Option<FrameScan> {
    let bytes = content.get(at as usize..)?;
    if bytes.get(..8)? != FRAME_MAGIC.to_le_bytes() {
        return None;
    }
    let header = FrameHeader::decode(bytes).ok()?;
    let payload = bytes.get(FRAME_HEADER_BYTES..)?;
    let fault = check_payload(&header, payload).err();
    let mut frame = FrameScan {
        offset: at,
        header,
        fault,
        first_new_seq: None,
        hooks: 0,
    };
    if frame.is_intact() {
        for record in records(&payload[..header.payload_bytes as usize]) {
            if record.kind != kind::HOOK {
                continue;
            }
            frame.hooks += 1;
            let seq = Envelope::parse(record.body).ok().map(|e| e.seq);
            if record.flags == 0 && seq.is_some() {
                frame.first_new_seq = frame.first_new_seq.min(seq).or(seq);
            }
        }
    }
    Some(frame)
}
