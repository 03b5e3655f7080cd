//! The dead letters of a shard in the order in which they died, 8 bytes each.
//!
//! Owns the order and the time of death; the reason lives in the row. Entries sit in chunks; a
//! chunk that empties is given back, neighbours that fit into one are merged (the later into the
//! earlier). A listing goes from newest to oldest by a cursor that stays good while rows die and
//! leave: it may show a row twice, it never skips one that stays dead. Runs on a shard core.

use super::rows::RowId;

const CHUNK_ENTRIES: usize = 256;
const NO_ROW: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    row: u32,
    died_at_s: u32,
}

struct Chunk {
    /// Rises along the order; never changes and is never used again.
    ordinal: u64,
    entries: Vec<Entry>,
    live: usize,
}

/// Where a listing goes on: below this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadCursor(pub u64);

impl DeadCursor {
    /// Before the newest one.
    pub const NEWEST: DeadCursor = DeadCursor(u64::MAX);
}

/// A place in the log: chunk number and index. Fits 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeadPlace(pub(super) u32);

#[derive(Default)]
pub(super) struct DeadLog {
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// Chunk numbers from oldest to newest.
    order: Vec<u32>,
    next_ordinal: u64,
}

impl DeadLog {
    pub(super) fn push(&mut self, row: RowId, died_at_s: u32) -> DeadPlace {
        let number = match self.order.last() {
            Some(&n) if self.chunk(n).entries.len() < CHUNK_ENTRIES => n,
            _ => self.add_chunk(),
        };
        let chunk = self.chunk_mut(number);
        chunk.entries.push(Entry {
            row: row.0,
            died_at_s,
        });
        chunk.live += 1;
        place(number, chunk.entries.len() - 1)
    }

    /// Takes an entry out. `moved` is told the new place of every entry that a merge moved.
    pub(super) fn remove(&mut self, at: DeadPlace, moved: impl FnMut(RowId, DeadPlace)) {
        let number = at.0 / CHUNK_ENTRIES as u32;
        let chunk = self.chunk_mut(number);
        let entry = &mut chunk.entries[at.0 as usize % CHUNK_ENTRIES];
        assert!(entry.row != NO_ROW, "a dead letter is taken out once");
        entry.row = NO_ROW;
        chunk.live -= 1;
        let (ordinal, live) = (chunk.ordinal, chunk.live);
        let Ok(position) = self
            .order
            .binary_search_by_key(&ordinal, |&n| self.chunk(n).ordinal)
        else {
            unreachable!("a chunk with entries is in the order");
        };
        if live == 0 {
            self.drop_chunk(position);
        } else if position + 1 < self.order.len() && self.fits(position) {
            self.merge(position, moved);
        } else if position > 0 && self.fits(position - 1) {
            self.merge(position - 1, moved);
        }
    }

    pub(super) fn died_at_s(&self, at: DeadPlace) -> u32 {
        let chunk = self.chunk(at.0 / CHUNK_ENTRIES as u32);
        chunk.entries[at.0 as usize % CHUNK_ENTRIES].died_at_s
    }

    /// Up to `limit` rows that died before `cursor`, newest first, and where to go on.
    pub(super) fn newest(&self, cursor: DeadCursor, limit: usize) -> (Vec<RowId>, DeadCursor) {
        let mut rows = Vec::new();
        let (top, below) = (
            cursor.0 / CHUNK_ENTRIES as u64,
            cursor.0 as usize % CHUNK_ENTRIES,
        );
        let after = self
            .order
            .partition_point(|&n| self.chunk(n).ordinal <= top);
        let mut next = DeadCursor(0);
        for &number in self.order[..after].iter().rev() {
            let chunk = self.chunk(number);
            let end = if chunk.ordinal == top {
                below
            } else {
                CHUNK_ENTRIES
            };
            let end = end.min(chunk.entries.len());
            for (i, entry) in chunk.entries[..end].iter().enumerate().rev() {
                if entry.row == NO_ROW {
                    continue;
                }
                if rows.len() == limit {
                    return (rows, next);
                }
                rows.push(RowId(entry.row));
                next = DeadCursor(chunk.ordinal * CHUNK_ENTRIES as u64 + i as u64);
            }
        }
        (rows, next)
    }

    /// Puts the log in the order of death again after rows were loaded in another order.
    pub(super) fn sort(&mut self, mut moved: impl FnMut(RowId, DeadPlace)) {
        let chunks = std::mem::take(self).chunks.into_iter().flatten();
        let mut all: Vec<Entry> = chunks.flat_map(|c| c.entries).collect();
        all.retain(|e| e.row != NO_ROW);
        all.sort_by_key(|e| e.died_at_s);
        for entry in all {
            let place = self.push(RowId(entry.row), entry.died_at_s);
            moved(RowId(entry.row), place);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let entries: usize = self
            .chunks
            .iter()
            .flatten()
            .map(|c| c.entries.capacity())
            .sum();
        entries * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Option<Chunk>>()
            + (self.vacant.capacity() + self.order.capacity()) * size_of::<u32>()
    }

    fn add_chunk(&mut self) -> u32 {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let chunk = Chunk {
            ordinal,
            entries: Vec::with_capacity(CHUNK_ENTRIES),
            live: 0,
        };
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
        self.order.push(number);
        number
    }

    fn drop_chunk(&mut self, position: usize) {
        let number = self.order.remove(position);
        self.chunks[number as usize] = None;
        self.vacant.push(number);
    }

    fn fits(&self, position: usize) -> bool {
        let live = |at: usize| self.chunk(self.order[at]).live;
        live(position) + live(position + 1) <= CHUNK_ENTRIES
    }

    /// Merges the chunk after `position` into the one there.
    // NOTE: never the other way: a cursor into the later chunk must not end up below entries
    // that it has not shown yet.
    fn merge(&mut self, position: usize, mut moved: impl FnMut(RowId, DeadPlace)) {
        let (number, later) = (self.order[position], self.order[position + 1]);
        let added = std::mem::take(&mut self.chunk_mut(later).entries);
        self.drop_chunk(position + 1);
        let chunk = self.chunk_mut(number);
        let mut merged: Vec<Entry> = Vec::with_capacity(CHUNK_ENTRIES);
        merged.extend(
            chunk
                .entries
                .iter()
                .chain(&added)
                .filter(|e| e.row != NO_ROW),
        );
        chunk.live = merged.len();
        for (i, entry) in merged.iter().enumerate() {
            moved(RowId(entry.row), place(number, i));
        }
        chunk.entries = merged;
    }

    fn chunk(&self, number: u32) -> &Chunk {
        match &self.chunks[number as usize] {
            Some(chunk) => chunk,
            None => unreachable!("dead chunk {number} holds entries"),
        }
    }

    fn chunk_mut(&mut self, number: u32) -> &mut Chunk {
        match &mut self.chunks[number as usize] {
            Some(chunk) => chunk,
            None => unreachable!("dead chunk {number} holds entries"),
        }
    }
}

fn place(number: u32, index: usize) -> DeadPlace {
    assert!(
        number < u32::MAX / CHUNK_ENTRIES as u32,
        "the log of dead letters is full"
    );
    DeadPlace(number * CHUNK_ENTRIES as u32 + index as u32)
}
