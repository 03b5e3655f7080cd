//! The slab of delivery rows: 12 bytes each, the rows of one hook side by side.
//!
//! Owns [`RowId`]s, stable while their hook lives, and the packing of a row. A chunk serves runs
//! of one length only, so that freed runs always fit the next hook with as many sinks; an empty
//! chunk is given back and may then serve another length. Runs on a shard core and offline.

use crate::ids::SinkNo;

use super::hooks::HookSlot;

/// The place of a delivery row; stable while its hook lives. Dense enough to index arrays kept
/// in parallel, see [`super::State::row_ids_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub u32);

/// Most sinks of one hook.
pub const SINKS_PER_HOOK_MAX: usize = 1024;

/// Attempts are counted up to here.
pub const ATTEMPTS_MAX: u16 = 0x0fff;

const CHUNK_BITS: u32 = 12;
const CHUNK_ROWS: u32 = 1 << CHUNK_BITS;
const NONE: u32 = u32::MAX;

/// What a packed row's 40 bit `value` means depends on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowTag {
    /// `value` is the due time.
    Due = 0,
    /// `value` is the place in the dead log and the reason.
    Dead = 1,
    /// `value` means nothing.
    Finished = 2,
}

/// Twelve bytes: slot 26 bits, tag 2, attempts 12, sink 16, value 40.
#[derive(Clone, Copy)]
pub(super) struct PackedRow([u32; 3]);

const _: () = assert!(size_of::<PackedRow>() == 12);

/// A packed row's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowFields {
    pub(super) slot: HookSlot,
    pub(super) sink: SinkNo,
    pub(super) attempts: u16,
    pub(super) tag: RowTag,
    /// 40 bits.
    pub(super) value: u64,
}

const SLOT_MASK: u32 = (1 << 26) - 1;

impl PackedRow {
    /// A row of no hook; the first one of a free run links to the next free run. It reads as
    /// finished, so that an id kept for too long does no harm.
    fn free(link: u32) -> PackedRow {
        PackedRow([SLOT_MASK | (RowTag::Finished as u32) << 26, 0, link])
    }

    fn link(self) -> u32 {
        self.0[2]
    }

    pub(super) fn pack(fields: RowFields) -> PackedRow {
        let attempts = u32::from(fields.attempts.min(ATTEMPTS_MAX));
        debug_assert!(fields.slot.0 < 1 << 26 && fields.value < 1 << 40);
        PackedRow([
            fields.slot.0 | (fields.tag as u32) << 26 | (attempts >> 8) << 28,
            u32::from(fields.sink.0)
                | (attempts & 0xff) << 16
                | ((fields.value >> 32) as u32) << 24,
            fields.value as u32,
        ])
    }

    pub(super) fn unpack(self) -> RowFields {
        let [a, b, c] = self.0;
        RowFields {
            slot: HookSlot(a & SLOT_MASK),
            sink: SinkNo(b as u16),
            attempts: ((a >> 28) << 8 | (b >> 16) & 0xff) as u16,
            tag: match (a >> 26) & 3 {
                0 => RowTag::Due,
                1 => RowTag::Dead,
                _ => RowTag::Finished,
            },
            value: u64::from(b >> 24) << 32 | u64::from(c),
        }
    }
}

struct Chunk {
    rows: Box<[PackedRow]>,
    run_rows: u32,
    live_runs: u32,
    /// First row of a free run; its first word links to the next one.
    free_head: u32,
    has_room_listed: bool,
}

impl Chunk {
    fn new(run_rows: u32) -> Chunk {
        let mut rows = vec![PackedRow::free(NONE); CHUNK_ROWS as usize].into_boxed_slice();
        let runs = CHUNK_ROWS / run_rows;
        for run in 0..runs {
            let next = if run + 1 < runs {
                (run + 1) * run_rows
            } else {
                NONE
            };
            rows[(run * run_rows) as usize] = PackedRow::free(next);
        }
        Chunk {
            rows,
            run_rows,
            live_runs: 0,
            free_head: 0,
            has_room_listed: true,
        }
    }
}

/// All delivery rows of a shard.
#[derive(Default)]
pub(super) struct RowSlab {
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// By run length: chunks that may have a free run.
    with_room: Vec<Vec<u32>>,
}

impl RowSlab {
    /// A run of `count` rows; the caller writes each of them.
    pub(super) fn alloc(&mut self, count: usize) -> u32 {
        assert!(
            (1..=SINKS_PER_HOOK_MAX).contains(&count),
            "sinks of one hook"
        );
        let number = self.chunk_with_room(count);
        let Some(chunk) = self.chunks[number as usize].as_mut() else {
            unreachable!("a chunk with room has memory");
        };
        let at = chunk.free_head;
        chunk.free_head = chunk.rows[at as usize].link();
        chunk.live_runs += 1;
        number << CHUNK_BITS | at
    }

    fn chunk_with_room(&mut self, count: usize) -> u32 {
        if self.with_room.len() <= count {
            self.with_room.resize_with(count + 1, Vec::new);
        }
        while let Some(&number) = self.with_room[count].last() {
            match self.chunks[number as usize].as_mut() {
                Some(chunk) if chunk.free_head != NONE => return number,
                Some(chunk) => chunk.has_room_listed = false,
                None => {}
            }
            self.with_room[count].pop();
        }
        let chunk = Some(Chunk::new(count as u32));
        let number = match self.vacant.pop() {
            Some(number) => {
                self.chunks[number as usize] = chunk;
                number
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        };
        assert!(
            number < 1 << (32 - CHUNK_BITS),
            "the table of delivery rows is full"
        );
        self.with_room[count].push(number);
        number
    }

    /// Gives a run back.
    pub(super) fn free(&mut self, first_row: u32) {
        let number = first_row >> CHUNK_BITS;
        let at = first_row & (CHUNK_ROWS - 1);
        let Some(chunk) = self.chunks[number as usize].as_mut() else {
            unreachable!("a live run is in a chunk with memory");
        };
        let run = &mut chunk.rows[at as usize..(at + chunk.run_rows) as usize];
        run.fill(PackedRow::free(NONE));
        run[0] = PackedRow::free(chunk.free_head);
        chunk.free_head = at;
        chunk.live_runs -= 1;
        let class = &mut self.with_room[chunk.run_rows as usize];
        if chunk.live_runs == 0 && class.len() > 1 {
            self.chunks[number as usize] = None;
            self.vacant.push(number);
            class.retain(|&n| n != number);
        } else if !chunk.has_room_listed {
            chunk.has_room_listed = true;
            class.push(number);
        }
    }

    pub(super) fn get(&self, row: RowId) -> RowFields {
        let chunk = self.chunks.get((row.0 >> CHUNK_BITS) as usize);
        match chunk.and_then(Option::as_ref) {
            Some(chunk) => chunk.rows[(row.0 & (CHUNK_ROWS - 1)) as usize].unpack(),
            None => PackedRow::free(NONE).unpack(),
        }
    }

    pub(super) fn set(&mut self, row: RowId, fields: RowFields) {
        match &mut self.chunks[(row.0 >> CHUNK_BITS) as usize] {
            Some(chunk) => {
                chunk.rows[(row.0 & (CHUNK_ROWS - 1)) as usize] = PackedRow::pack(fields);
            }
            None => unreachable!("row {} is not live", row.0),
        }
    }

    /// The entry of a dead row in the log of dead letters moved.
    pub(super) fn set_dead_place(&mut self, row: RowId, place: u32) {
        let mut fields = self.get(row);
        debug_assert_eq!(fields.tag, RowTag::Dead);
        fields.value = fields.value >> 32 << 32 | u64::from(place);
        self.set(row, fields);
    }

    /// One past the highest row id that may be live.
    pub(super) fn ids_end(&self) -> u32 {
        (self.chunks.len() as u32) << CHUNK_BITS
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let held = self.chunks.iter().flatten().count();
        let listed: usize = self.with_room.iter().map(Vec::capacity).sum();
        held * CHUNK_ROWS as usize * size_of::<PackedRow>()
            + self.chunks.capacity() * size_of::<Option<Chunk>>()
            + (self.vacant.capacity() + listed) * size_of::<u32>()
            + self.with_room.capacity() * size_of::<Vec<u32>>()
    }
}
