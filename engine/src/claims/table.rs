//! Promoted keys in 48 bytes each at the table's worst load: rows of 36 bytes in arrival order
//! in a chunked ring, and a hash index of four-byte positions.
//!
//! Arrival order is eviction order. A row that expires before older ones is a hole until the
//! front of the ring passes it; the sweep and every lookup see it as absent. Rows that outlive
//! those behind them (times to live differ between sources) would keep holes for as long as they
//! live, so once holes outnumber rows the front row is moved to the end: memory follows the live
//! rows. Pure.

use std::collections::VecDeque;

use ankusa_wal::HookId;
use hashbrown::HashTable;

use super::KeyHash;

/// Bytes of one row; the index adds 5 bytes per bucket at a load between 7/16 and 7/8.
pub const ROW_BYTES: usize = 36;

/// Rows of one chunk of the ring.
const CHUNK_ROWS: usize = 1024;

/// Holes at the front that one insert or one step of the sweep steps over.
const TRIM_STEP: usize = 64;

/// One row, packed to [`ROW_BYTES`]. `expiry_s == 0` is a hole.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Row {
    key: [u8; 16],
    id: [u8; 16],
    expiry_s: u32,
}

const _: () = assert!(size_of::<Row>() == ROW_BYTES);

/// Promoted keys.
#[derive(Debug)]
pub struct KeyTable {
    chunks: VecDeque<Box<[Row; CHUNK_ROWS]>>,
    /// Position of the first row of the first chunk; positions count up and wrap in a `u32`
    /// (the ring never holds anywhere near 2^32 rows).
    base: u32,
    /// Rows before the first live one in the first chunk.
    front: usize,
    /// Rows in the ring, holes included, counted from `front`.
    rows: usize,
    index: HashTable<u32>,
    keys_max: usize,
    evicted_count: u64,
    sweep_at: usize,
}

impl KeyTable {
    /// An empty table for at most `keys_max` keys.
    pub fn new(keys_max: usize) -> KeyTable {
        KeyTable {
            chunks: VecDeque::new(),
            base: 0,
            front: 0,
            rows: 0,
            index: HashTable::new(),
            keys_max: keys_max.clamp(1, u32::MAX as usize / 2),
            evicted_count: 0,
            sweep_at: 0,
        }
    }

    /// The hook that holds `key` at `now_s`.
    pub fn get(&self, key: KeyHash, now_s: u32) -> Option<HookId> {
        let position = *self.find(key)?;
        let row = self.row(position)?;
        (row.expiry_s > now_s).then_some(HookId(row.id))
    }

    /// Writes `key`; an older row of it is replaced. At the ceiling the oldest row goes.
    pub fn insert(&mut self, key: KeyHash, id: HookId, expiry_s: u32, now_s: u32) {
        self.remove(key);
        while self.index.len() >= self.keys_max {
            self.evict_oldest(now_s);
        }
        self.append(key, id, expiry_s);
        self.trim_front(TRIM_STEP);
        self.compact();
    }

    fn append(&mut self, key: KeyHash, id: HookId, expiry_s: u32) {
        let offset = self.front + self.rows;
        if offset == self.chunks.len() * CHUNK_ROWS {
            const HOLE: Row = Row {
                key: [0; 16],
                id: [0; 16],
                expiry_s: 0,
            };
            self.chunks.push_back(Box::new([HOLE; CHUNK_ROWS]));
        }
        let position = self.base.wrapping_add(offset as u32);
        self.chunks[offset / CHUNK_ROWS][offset % CHUNK_ROWS] = Row {
            key: key.0,
            id: id.0,
            expiry_s: expiry_s.max(1),
        };
        self.rows += 1;
        let (chunks, base) = (&self.chunks, self.base);
        self.index.insert_unique(key.table_hash(), position, |&p| {
            let offset = p.wrapping_sub(base) as usize;
            KeyHash(chunks[offset / CHUNK_ROWS][offset % CHUNK_ROWS].key).table_hash()
        });
    }

    /// Drops expired rows among the next `rows_max`, and the holes at the front.
    pub fn sweep(&mut self, now_s: u32, rows_max: usize) {
        for _ in 0..rows_max.min(self.rows) {
            if self.sweep_at >= self.rows {
                self.sweep_at = 0;
            }
            let offset = self.front + self.sweep_at;
            let row = self.chunks[offset / CHUNK_ROWS][offset % CHUNK_ROWS];
            if row.expiry_s != 0 && row.expiry_s <= now_s {
                self.remove(KeyHash(row.key));
            }
            self.sweep_at += 1;
        }
        self.trim_front(rows_max.saturating_mul(TRIM_STEP));
        for _ in 0..rows_max {
            self.compact();
        }
    }

    /// Moves the front row to the end while holes outnumber rows.
    fn compact(&mut self) {
        if self.rows <= 2 * self.index.len() + 2 * CHUNK_ROWS {
            return;
        }
        let row = self.chunks[self.front / CHUNK_ROWS][self.front % CHUNK_ROWS];
        if row.expiry_s != 0 {
            let key = KeyHash(row.key);
            self.remove(key);
            self.append(key, HookId(row.id), row.expiry_s);
        }
        self.trim_front(TRIM_STEP);
    }

    /// Keys in the index.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Keys dropped at the ceiling while still live.
    pub fn evicted_count(&self) -> u64 {
        self.evicted_count
    }

    /// Heap bytes of rows and index.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ROWS * ROW_BYTES + self.index.allocation_size()
    }

    fn find(&self, key: KeyHash) -> Option<&u32> {
        self.index.find(key.table_hash(), |&p| {
            self.row(p).is_some_and(|r| r.key == key.0)
        })
    }

    fn row(&self, position: u32) -> Option<&Row> {
        let offset = position.wrapping_sub(self.base) as usize;
        self.chunks
            .get(offset / CHUNK_ROWS)
            .map(|c| &c[offset % CHUNK_ROWS])
    }

    pub(super) fn remove(&mut self, key: KeyHash) {
        let (chunks, base) = (&mut self.chunks, self.base);
        let found = self.index.find_entry(key.table_hash(), |&p| {
            let offset = p.wrapping_sub(base) as usize;
            chunks[offset / CHUNK_ROWS][offset % CHUNK_ROWS].key == key.0
        });
        if let Ok(entry) = found {
            let (position, _) = entry.remove();
            let offset = position.wrapping_sub(base) as usize;
            chunks[offset / CHUNK_ROWS][offset % CHUNK_ROWS].expiry_s = 0;
        }
    }

    fn evict_oldest(&mut self, now_s: u32) {
        self.trim_front(usize::MAX);
        if self.rows == 0 {
            return;
        }
        let row = self.chunks[self.front / CHUNK_ROWS][self.front % CHUNK_ROWS];
        if row.expiry_s > now_s {
            self.evicted_count += 1;
        }
        self.remove(KeyHash(row.key));
        self.trim_front(TRIM_STEP);
    }

    /// Steps over at most `most` holes at the front.
    fn trim_front(&mut self, most: usize) {
        for _ in 0..most.min(self.rows) {
            if self.chunks[0][self.front].expiry_s != 0 {
                break;
            }
            self.front += 1;
            self.rows -= 1;
            self.sweep_at = self.sweep_at.saturating_sub(1);
            if self.front == CHUNK_ROWS {
                self.chunks.pop_front();
                self.base = self.base.wrapping_add(CHUNK_ROWS as u32);
                self.front = 0;
            }
        }
    }
}
