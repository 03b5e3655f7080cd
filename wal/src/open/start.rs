//! The segment that an open starts: unproven frames first, synced, then its header, alone.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use crate::config::StoreConfig;
use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::error::OpenError;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::segment::{Cut, SEGMENT_DATA_OFFSET, SegmentHeader};
use crate::generation::{GenerationConfig, Generations};
use crate::host::Host;
use crate::ids::{Lsn, SegmentId, Seq};
use crate::mutations;
use crate::open::fold::apply_frame;
use crate::open::load::FromCheckpoint;
use crate::open::reader::SlotReader;
use crate::open::scan::{Scanned, TailFrame};
use crate::open::survey::{FoundSlot, SlotHead, io_error};
use crate::slots::{Slot, SlotNo, SlotUse, Slots};
use crate::state::State;
use crate::store::Inner;
use crate::store::checkpoint::Upkeep;
use crate::store::inner::{Current, LogEnd, Writer};
use crate::store::keeper::{create_slot, open_slot};
use crate::writer::io::{piece, sync, write_all};

/// Most bytes of rewritten frames gathered before they are written.
const GATHER_BYTES: usize = IO_BYTES_MAX;

/// Starts the new segment and builds the store around it.
pub(crate) async fn start<D: Disk>(
    disk: D,
    host: Rc<dyn Host>,
    config: StoreConfig,
    mut found: Vec<FoundSlot>,
    mut scanned: Scanned,
    loaded: FromCheckpoint,
) -> Result<Inner<D>, OpenError> {
    if mutations::is("trust_above_mark") {
        trust_tail(&mut scanned);
    }
    let segment = next_segment(&found);
    let no = choose_slot(&disk, &host, &config, &mut found, &scanned).await?;
    let capacity = found
        .iter()
        .find(|slot| slot.no == no)
        .map_or(0, |slot| slot.bytes);
    mutations::point("open.slot_chosen");
    let file = open_slot(&disk, no, config.sync)
        .await
        .map_err(io_error("opening a slot"))?;
    let salt = host.random();
    let pos = rewrite(&disk, &config, &file, segment, salt, &mut scanned).await?;
    mutations::point("open.rewritten");
    let next_seq = first_seq(&scanned);
    let first_lsn = scanned
        .unproven
        .first()
        .map_or(scanned.next_lsn, |f| f.header.lsn);
    let header = SegmentHeader {
        store_uuid: config.store_uuid,
        shard: config.shard,
        flags: 0,
        segment,
        first_lsn,
        salt,
        cut: Cut {
            segment: scanned.end.segment,
            offset: scanned.end.offset,
            lsn: scanned.end.lsn,
        },
        next_seq,
        made_at_ms: host.wall_ms(),
        slots: found.len() as u32,
    };
    // IMPORTANT: the header goes out last, in a write of its own, once every frame behind it is
    // on the medium; until it is durable the old tail stands.
    let mut block = disk.alloc(BLOCK_BYTES);
    header.encode(block.as_mut());
    let failed = io_error("writing the header of the new segment");
    write_all(&disk, &file, Rc::new(block), 0)
        .await
        .map_err(&failed)?;
    mutations::point("open.header_written");
    sync(&disk, &file, config.sync).await.map_err(&failed)?;
    mutations::point("open.header_synced");
    let end = match scanned.unproven.last() {
        Some(_) => LogEnd {
            segment,
            offset: pos,
            lsn: scanned.last_lsn,
        },
        None => scanned.end,
    };
    let slots = slots_of(found, &scanned, no, &header, &file);
    let current = Current {
        slot: no,
        file,
        segment,
        salt,
        pos,
        capacity,
        is_header_due: false,
    };
    let lsns = (scanned.last_lsn, scanned.next_lsn.prev());
    let writer = Writer::new(&config, current, end, lsns, header.cut.lsn);
    let upkeep = upkeep(&disk, &config, &mut scanned.state, loaded).await?;
    mutations::point("open.done");
    let state = scanned.state;
    Ok(Inner::new(
        disk, host, config, state, next_seq, slots, writer, upkeep,
    ))
}

/// The generations that the checkpoint lists, and the rows that the log brought after it.
async fn upkeep<D: Disk>(
    disk: &D,
    config: &StoreConfig,
    state: &mut State,
    loaded: FromCheckpoint,
) -> Result<Upkeep<D>, OpenError> {
    let generation = GenerationConfig::new(config.shard, config.store_uuid);
    let generations = Generations::open(disk.clone(), generation, &loaded.generations)
        .await
        .map_err(io_error("opening the dedupe generations"))?;
    let rows = state.take_dedupe_ready();
    Ok(Upkeep {
        next_number: loaded.next_number,
        kept: loaded.kept,
        newest: None,
        is_running: false,
        is_relocating: false,
        left_alone: BTreeMap::new(),
        bad_numbers: loaded.bad,
        boot_rows: Some((generations.rows(), rows.clone())),
        generations: Some(generations),
        dedupe_rows: rows,
        pins: Rc::default(),
    })
}

/// The mutation: what lies above D is taken as it is.
fn trust_tail(scanned: &mut Scanned) {
    if let Some(last) = scanned.unproven.pop() {
        let (no, header) = match scanned.chain.last() {
            Some(last) => *last,
            None => return,
        };
        debug_assert_eq!(Some(no), scanned.unproven_slot);
        scanned.end = LogEnd {
            segment: header.segment,
            offset: last.pos + last.header.frame_bytes(),
            lsn: last.header.lsn,
        };
        scanned.unproven.clear();
    }
}

/// A number that no attempt has used: a bad header may have borne the next one.
fn next_segment(found: &[FoundSlot]) -> SegmentId {
    let newest = found
        .iter()
        .filter_map(FoundSlot::header)
        .map(|h| h.segment)
        .max();
    let headless = found.iter().filter(|slot| slot.header().is_none()).count() as u64;
    SegmentId(newest.unwrap_or_default().0 + headless + 1)
}

/// The first seq that may be handed out: a leap beyond everything seen, none for a fresh store.
pub(super) fn first_seq(scanned: &Scanned) -> Seq {
    let seen = scanned.state.next_seq().max(scanned.next_seq);
    if scanned.chain.is_empty() && scanned.last_lsn.0 == 0 {
        seen.max(Seq(1))
    } else {
        seen.leap()
    }
}

/// A slot that holds nothing of the log: an old segment's or a blank one, else a new one.
async fn choose_slot<D: Disk>(
    disk: &D,
    host: &Rc<dyn Host>,
    config: &StoreConfig,
    found: &mut Vec<FoundSlot>,
    scanned: &Scanned,
) -> Result<SlotNo, OpenError> {
    let tail: u64 = scanned
        .unproven
        .iter()
        .map(|frame| frame.header.frame_bytes())
        .sum();
    let need = SEGMENT_DATA_OFFSET + tail;
    // A shorter one (cut, or made under a smaller setting) is first brought to its length.
    let need = need.max(config.segment_bytes);
    let is_free = |slot: &&FoundSlot| {
        slot.bytes >= need
            && !scanned.log().any(|(no, _)| *no == slot.no)
            && !is_needed(scanned, slot)
            && !scanned.set_aside.contains(&slot.no)
    };
    let by_preference = [
        |head: &SlotHead| matches!(head, SlotHead::Blank),
        |head: &SlotHead| matches!(head, SlotHead::Header(_)),
        |head: &SlotHead| matches!(head, SlotHead::Bad),
    ];
    for preferred in by_preference {
        let free = found
            .iter()
            .filter(is_free)
            .find(|slot| preferred(&slot.head));
        if let Some(slot) = free {
            return Ok(slot.no);
        }
    }
    let mut no = SlotNo(0);
    while found.iter().any(|slot| slot.no == no) {
        no = SlotNo(no.0 + 1);
    }
    let bytes = need;
    create_slot(disk, no, bytes, || host.yield_now())
        .await
        .map_err(io_error("making a new slot"))?;
    found.push(FoundSlot {
        no,
        bytes,
        head: SlotHead::Blank,
    });
    Ok(no)
}

/// Whether a kept checkpoint needs what the slot holds.
fn is_needed(scanned: &Scanned, slot: &FoundSlot) -> bool {
    let header = slot.header();
    scanned
        .needed
        .iter()
        .any(|need| header.is_some_and(|h| (h.segment, h.salt) == (need.segment, need.salt)))
}

/// Copies the frames above D behind the place of the new header and syncs them. Answers where
/// the next frame goes.
async fn rewrite<D: Disk>(
    disk: &D,
    config: &StoreConfig,
    file: &D::File,
    segment: SegmentId,
    salt: u64,
    scanned: &mut Scanned,
) -> Result<u64, OpenError> {
    let mut pos = SEGMENT_DATA_OFFSET;
    let Some(from) = scanned
        .unproven_slot
        .filter(|_| !scanned.unproven.is_empty())
    else {
        return Ok(pos);
    };
    let failed = io_error("writing unproven frames again");
    let old = disk.open(&from.file_name()).await.map_err(&failed)?;
    let bytes = scanned
        .unproven
        .last()
        .map_or(0, |last| last.pos + last.header.frame_bytes());
    let mut reader = SlotReader::new(disk, &old, bytes);
    let mut gathered: Vec<u8> = Vec::new();
    let frames: Vec<TailFrame> = scanned.unproven.clone();
    let mut result = Ok(());
    for frame in frames {
        let at = pos + gathered.len() as u64;
        result = copy_frame(
            &mut reader,
            frame,
            salt,
            segment,
            at,
            &mut gathered,
            scanned,
        )
        .await;
        if result.is_ok() && gathered.len() >= GATHER_BYTES {
            result = flush(disk, file, &mut gathered, &mut pos)
                .await
                .map_err(&failed);
        }
        if result.is_err() {
            break;
        }
    }
    drop(reader);
    disk.close(old).await;
    result?;
    flush(disk, file, &mut gathered, &mut pos)
        .await
        .map_err(&failed)?;
    sync(disk, file, config.sync).await.map_err(&failed)?;
    Ok(pos)
}

async fn copy_frame<D: Disk>(
    reader: &mut SlotReader<D>,
    frame: TailFrame,
    salt: u64,
    segment: SegmentId,
    at: u64,
    gathered: &mut Vec<u8>,
    scanned: &mut Scanned,
) -> Result<(), OpenError> {
    let read = reader.payload(frame.pos, &frame.header).await;
    let payload = read.map_err(io_error("reading unproven frames"))?;
    // The index follows the copies.
    apply_frame(&mut scanned.state, &frame.header, payload, segment, at)?;
    let header = FrameHeader {
        salt,
        ..frame.header
    };
    let start = gathered.len();
    gathered.resize(start + FRAME_HEADER_BYTES, 0);
    header.encode(&mut gathered[start..]);
    gathered.extend_from_slice(payload);
    gathered.resize(start + header.frame_bytes() as usize, 0);
    Ok(())
}

async fn flush<D: Disk>(
    disk: &D,
    file: &D::File,
    gathered: &mut Vec<u8>,
    pos: &mut u64,
) -> io::Result<()> {
    for bytes in gathered.chunks(IO_BYTES_MAX) {
        write_all(disk, file, piece(disk, bytes), *pos).await?;
        *pos += bytes.len() as u64;
    }
    gathered.clear();
    Ok(())
}

/// What each slot is from now on.
fn slots_of<D: Disk>(
    found: Vec<FoundSlot>,
    scanned: &Scanned,
    current: SlotNo,
    header: &SegmentHeader,
    file: &D::File,
) -> Slots<D> {
    let mut slots = Slots::default();
    for slot in found {
        let is_current = slot.no == current;
        let held = slot.header().and_then(|held| ended_at(scanned, held));
        let use_ = match (is_current, held, slot.head) {
            (true, ..) => SlotUse::Segment(header.segment),
            (false, Some(held), _) => SlotUse::Segment(held.segment),
            (false, None, SlotHead::Bad) => SlotUse::Suspect,
            (false, None, _) => SlotUse::Free,
        };
        let held = held.filter(|_| !is_current);
        slots.push(Slot {
            no: slot.no,
            use_,
            bytes: slot.bytes,
            file: is_current.then(|| file.clone()),
            is_tainted: false,
            salt: held.map_or(header.salt, |held| held.salt),
            end: held.map_or(SEGMENT_DATA_OFFSET, |held| held.end),
            last_lsn: held.map(|held| held.last_lsn),
        });
    }
    slots
}

#[derive(Clone, Copy)]
struct Held {
    segment: SegmentId,
    salt: u64,
    end: u64,
    last_lsn: Lsn,
}

/// How far a segment goes, when it is part of the log or needed by a kept checkpoint.
fn ended_at(scanned: &Scanned, held: &SegmentHeader) -> Option<Held> {
    let of = |end, last_lsn| Held {
        segment: held.segment,
        salt: held.salt,
        end,
        last_lsn,
    };
    let at = scanned
        .log()
        .position(|(_, header)| header.segment == held.segment);
    // The last segment drops out of the log when the new cut does not name it.
    if let Some(at) = at
        && held.segment.0 <= scanned.end.segment.0
    {
        return Some(match scanned.log().nth(at + 1) {
            Some((_, next)) if held.segment != scanned.end.segment => {
                of(next.cut.offset, next.cut.lsn)
            }
            _ => of(scanned.end.offset, scanned.end.lsn),
        });
    }
    let need = scanned
        .needed
        .iter()
        .find(|need| (need.segment, need.salt) == (held.segment, held.salt))?;
    // Its last LSN is not known; it is not above where the checkpoint began.
    Some(of(need.end, scanned.start_lsn))
}
