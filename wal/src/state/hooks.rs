//! The slab of live hooks: 48 bytes each, in chunks that never move and are given back when empty.
//!
//! Owns the slots ([`HookSlot`]) and the oldest live seq. A slot is stable while its hook lives
//! and is taken again afterwards. Growing costs one chunk, never a copy, so no insert ever holds
//! the core. Knows nothing of rows, ids or look-ups. Runs on a shard core and offline.

use crate::ids::{HookId, Lsn, SegmentId, Seq};
use crate::record::Location;

use super::Holds;

/// The place of a live hook in the table; stable while the hook lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookSlot(pub u32);

/// Most hooks one shard can hold: a row names its hook in 26 bits.
pub const HOOKS_MAX: u32 = 1 << 26;

const CHUNK_BITS: u32 = 10;
const CHUNK_HOOKS: u32 = 1 << CHUNK_BITS;
const NONE: u32 = u32::MAX;

/// How many chunks an `oldest` look-up brings up to date before it settles for a lower bound.
const OLDEST_REFRESH_MAX: usize = 16;

/// One live hook. `len == 0` marks a free slot, whose `first_row` links to the next free one.
#[derive(Clone, Copy)]
pub(super) struct HookEntry {
    pub(super) id: HookId,
    seq: u64,
    segment: u32,
    offset: u32,
    len: u32,
    pub(super) first_row: u32,
    pub(super) rows: u16,
    pub(super) rows_open: u16,
    pub(super) holds: Holds,
    /// The hook's group is not durable yet.
    pub(super) in_flight: bool,
}

const _: () = assert!(size_of::<HookEntry>() == 48);

impl HookEntry {
    const FREE: HookEntry = HookEntry {
        id: HookId([0; 16]),
        seq: 0,
        segment: 0,
        offset: 0,
        len: 0,
        first_row: NONE,
        rows: 0,
        rows_open: 0,
        holds: Holds::NONE,
        in_flight: false,
    };

    pub(super) fn new(seq: Seq, id: HookId, location: Location, holds: Holds) -> HookEntry {
        let mut entry = HookEntry {
            id,
            seq: seq.0,
            holds,
            ..HookEntry::FREE
        };
        entry.set_location(location);
        entry
    }

    pub(super) fn seq(&self) -> Seq {
        Seq(self.seq)
    }

    pub(super) fn location(&self) -> Location {
        Location {
            segment: SegmentId(u64::from(self.segment)),
            offset: u64::from(self.offset),
            len: self.len,
            lsn: Lsn(0),
        }
    }

    pub(super) fn set_location(&mut self, location: Location) {
        assert!(location.len > 0, "a hook record has a length");
        assert!(
            location.segment.0 <= u64::from(u32::MAX),
            "a segment number fits 32 bits"
        );
        assert!(
            location.offset <= u64::from(u32::MAX),
            "a segment is smaller than 4 GiB"
        );
        self.segment = location.segment.0 as u32;
        self.offset = location.offset as u32;
        self.len = location.len;
    }

    fn is_live(&self) -> bool {
        self.len > 0
    }
}

struct Chunk {
    entries: Box<[HookEntry]>,
    live: u32,
    free_head: u32,
    /// A lower bound of the seqs here; exact unless `min_stale`.
    min_seq: u64,
    min_stale: bool,
    has_room_listed: bool,
}

impl Chunk {
    fn new() -> Chunk {
        let mut entries = vec![HookEntry::FREE; CHUNK_HOOKS as usize].into_boxed_slice();
        for (i, entry) in entries.iter_mut().enumerate() {
            let next = i as u32 + 1;
            entry.first_row = if next < CHUNK_HOOKS { next } else { NONE };
        }
        Chunk {
            entries,
            live: 0,
            free_head: 0,
            min_seq: u64::MAX,
            min_stale: false,
            has_room_listed: false,
        }
    }

    fn refresh_min(&mut self) {
        let live = self.entries.iter().filter(|e| e.is_live());
        self.min_seq = live.map(|e| e.seq).min().unwrap_or(u64::MAX);
        self.min_stale = false;
    }
}

/// All live hooks of a shard.
#[derive(Default)]
pub(super) struct HookSlab {
    chunks: Vec<Option<Chunk>>,
    /// Numbers of chunks that hold no memory.
    vacant: Vec<u32>,
    /// Chunks that may have a free slot; each at most once.
    with_room: Vec<u32>,
    live: u32,
}

impl HookSlab {
    pub(super) fn insert(&mut self, entry: HookEntry) -> HookSlot {
        assert!(self.live < HOOKS_MAX, "the table of live hooks is full");
        let number = self.chunk_with_room();
        let Some(chunk) = self.chunks[number as usize].as_mut() else {
            unreachable!("a chunk with room has memory");
        };
        let at = chunk.free_head;
        let place = &mut chunk.entries[at as usize];
        chunk.free_head = place.first_row;
        *place = entry;
        chunk.live += 1;
        chunk.min_seq = chunk.min_seq.min(entry.seq);
        self.live += 1;
        HookSlot((number << CHUNK_BITS) | at)
    }

    fn chunk_with_room(&mut self) -> u32 {
        while let Some(&number) = self.with_room.last() {
            match self.chunks[number as usize].as_mut() {
                Some(chunk) if chunk.free_head != NONE => return number,
                Some(chunk) => chunk.has_room_listed = false,
                None => {}
            }
            self.with_room.pop();
        }
        let mut chunk = Chunk::new();
        chunk.has_room_listed = true;
        let number = match self.vacant.pop() {
            Some(number) => {
                self.chunks[number as usize] = Some(chunk);
                number
            }
            None => {
                self.chunks.push(Some(chunk));
                self.chunks.len() as u32 - 1
            }
        };
        assert!(
            number < HOOKS_MAX >> CHUNK_BITS,
            "the table of live hooks is full"
        );
        self.with_room.push(number);
        number
    }

    pub(super) fn remove(&mut self, slot: HookSlot) -> HookEntry {
        let number = slot.0 >> CHUNK_BITS;
        let at = slot.0 & (CHUNK_HOOKS - 1);
        let Some(chunk) = self.chunks[number as usize].as_mut() else {
            unreachable!("a live slot is in a chunk with memory");
        };
        let place = &mut chunk.entries[at as usize];
        assert!(place.is_live(), "only a live hook is removed");
        let entry = *place;
        *place = HookEntry {
            first_row: chunk.free_head,
            ..HookEntry::FREE
        };
        chunk.free_head = at;
        chunk.live -= 1;
        chunk.min_stale |= entry.seq == chunk.min_seq;
        self.live -= 1;
        if chunk.live == 0 && self.with_room.len() > 1 {
            // One chunk with room is kept, so that a table around a chunk's edge does not
            // allocate and free with every hook.
            self.chunks[number as usize] = None;
            self.vacant.push(number);
            self.with_room.retain(|&n| n != number);
        } else if !chunk.has_room_listed {
            chunk.has_room_listed = true;
            self.with_room.push(number);
        }
        entry
    }

    pub(super) fn get(&self, slot: HookSlot) -> Option<&HookEntry> {
        let chunk = self.chunks.get((slot.0 >> CHUNK_BITS) as usize)?.as_ref()?;
        let entry = &chunk.entries[(slot.0 & (CHUNK_HOOKS - 1)) as usize];
        entry.is_live().then_some(entry)
    }

    /// The entry of a slot that the caller knows to be live.
    pub(super) fn at(&self, slot: HookSlot) -> &HookEntry {
        match self.get(slot) {
            Some(entry) => entry,
            None => unreachable!("slot {} is not live", slot.0),
        }
    }

    pub(super) fn at_mut(&mut self, slot: HookSlot) -> &mut HookEntry {
        let chunk = self.chunks.get_mut((slot.0 >> CHUNK_BITS) as usize);
        match chunk.and_then(Option::as_mut) {
            Some(chunk) => &mut chunk.entries[(slot.0 & (CHUNK_HOOKS - 1)) as usize],
            None => unreachable!("slot {} is not live", slot.0),
        }
    }

    /// The first live slot at or after `from`, looking at no more than one chunk's worth of
    /// slots: `Err(next)` says where to go on.
    pub(super) fn next_live(&self, from: u32) -> Result<Option<HookSlot>, u32> {
        let number = (from >> CHUNK_BITS) as usize;
        if number >= self.chunks.len() {
            return Ok(None);
        }
        if let Some(chunk) = &self.chunks[number] {
            let first = (from & (CHUNK_HOOKS - 1)) as usize;
            if let Some(i) = chunk.entries[first..].iter().position(HookEntry::is_live) {
                return Ok(Some(HookSlot(from + i as u32)));
            }
        }
        Err((number as u32 + 1) << CHUNK_BITS)
    }

    /// The oldest live seq; a lower bound of it when many chunks changed since the last look.
    pub(super) fn oldest(&mut self) -> Option<Seq> {
        for _ in 0..OLDEST_REFRESH_MAX {
            let chunks = self.chunks.iter_mut().flatten().filter(|c| c.live > 0);
            let oldest = chunks.min_by_key(|c| c.min_seq)?;
            if !oldest.min_stale {
                return Some(Seq(oldest.min_seq));
            }
            oldest.refresh_min();
        }
        let chunks = self.chunks.iter().flatten().filter(|c| c.live > 0);
        chunks.map(|c| Seq(c.min_seq)).min()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let held = self.chunks.iter().flatten().count();
        held * CHUNK_HOOKS as usize * size_of::<HookEntry>()
            + self.chunks.capacity() * size_of::<Option<Chunk>>()
            + (self.vacant.capacity() + self.with_room.capacity()) * size_of::<u32>()
    }
}
