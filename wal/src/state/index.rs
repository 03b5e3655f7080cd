//! A hash index from a key's hash to hook slots that never stalls the core: extendible hashing.
//!
//! One big table would rehash millions of entries in a single insert when it doubles. Here a
//! directory points at small tables of at most [`TABLE_ENTRIES_MAX`] entries, and a full one is
//! split alone, so that no insert moves more than that many. The keys themselves live in the
//! hook slab; the caller passes the comparison. Worst load, just after every table has grown:
//! 7/16 of the buckets in use, 5 bytes a bucket, 11.5 bytes an entry. Runs on a shard core and
//! offline.

use hashbrown::HashTable;

/// A table of 2,048 buckets is full with this many entries.
const TABLE_ENTRIES_MAX: usize = 1792;

/// A full table with fewer entries than this is full of deletion marks and is rebuilt instead of
/// split; the gap to `TABLE_ENTRIES_MAX` is what pays for a rebuild.
const SPLIT_ENTRIES_MIN: usize = TABLE_ENTRIES_MAX / 16 * 15;

/// The directory uses bits from here up: the tables use the low ones for the bucket and the top
/// seven for the tag.
const DIRECTORY_SHIFT: u32 = 16;

struct Table {
    /// How many directory bits all hashes in here share.
    depth: u32,
    slots: HashTable<u32>,
}

/// Slots by hash.
pub(super) struct Index {
    depth: u32,
    directory: Vec<u32>,
    tables: Vec<Table>,
}

impl Index {
    /// An index made for `entries`, so that loading them splits nothing.
    pub(super) fn with_expected(entries: usize) -> Index {
        let tables = (entries / (TABLE_ENTRIES_MAX * 3 / 4) + 1).next_power_of_two();
        let depth = tables.trailing_zeros();
        // With a quarter of room, so that hardly a table is rebuilt on the way.
        let capacity = if tables > 1 { TABLE_ENTRIES_MAX } else { 0 };
        Index {
            depth,
            directory: (0..tables as u32).collect(),
            tables: (0..tables)
                .map(|_| Table {
                    depth,
                    slots: HashTable::with_capacity(capacity),
                })
                .collect(),
        }
    }

    fn table_number(&self, hash: u64) -> usize {
        let at = (hash >> DIRECTORY_SHIFT) as usize & ((1 << self.depth) - 1);
        self.directory[at] as usize
    }

    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let table = &self.tables[self.table_number(hash)];
        table.slots.find(hash, |&slot| is_it(slot)).copied()
    }

    /// Adds a slot. `hash_of` gives the hash of a slot already in the index.
    pub(super) fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        let mut number = self.table_number(hash);
        loop {
            let slots = &self.tables[number].slots;
            if slots.len() < slots.capacity() {
                break;
            }
            if slots.len() >= SPLIT_ENTRIES_MIN {
                self.split(number, hash, &hash_of);
                number = self.table_number(hash);
            } else {
                let want = (slots.len() + slots.len() / 8 + 1).min(TABLE_ENTRIES_MAX);
                self.rebuild(number, want, &hash_of);
            }
        }
        self.tables[number]
            .slots
            .insert_unique(hash, slot, |&s| hash_of(s));
    }

    /// Adds many slots, table by table, so that each table is in the cache while it is filled.
    /// False when `is_same` finds an entry that has the key of a new one; then the rest is left.
    pub(super) fn insert_all(
        &mut self,
        entries: &mut [(u64, u32)],
        is_same: impl Fn(u32, u32) -> bool,
        hash_of: impl Fn(u32) -> u64,
    ) -> bool {
        let mask = (1usize << self.depth) - 1;
        entries.sort_unstable_by_key(|&(hash, _)| (hash >> DIRECTORY_SHIFT) as usize & mask);
        for &(hash, slot) in entries.iter() {
            if self.find(hash, |there| is_same(there, slot)).is_some() {
                return false;
            }
            self.insert(hash, slot, &hash_of);
        }
        true
    }

    /// Takes a slot out; true when it was there.
    pub(super) fn remove(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) -> bool {
        let number = self.table_number(hash);
        let slots = &mut self.tables[number].slots;
        let Ok(entry) = slots.find_entry(hash, |&s| s == slot) else {
            return false;
        };
        entry.remove();
        let (len, capacity) = (slots.len(), slots.capacity());
        if len == 0 && capacity > 28 {
            *slots = HashTable::new();
        } else if capacity > 28 && len * 8 < capacity {
            self.rebuild(number, len * 2, hash_of);
        }
        true
    }

    fn rebuild(&mut self, number: usize, capacity: usize, hash_of: impl Fn(u32) -> u64) {
        let mut fresh = HashTable::with_capacity(capacity);
        for &slot in &self.tables[number].slots {
            fresh.insert_unique(hash_of(slot), slot, |&s| hash_of(s));
        }
        self.tables[number].slots = fresh;
    }

    fn split(&mut self, number: usize, hash: u64, hash_of: impl Fn(u32) -> u64) {
        let depth = self.tables[number].depth;
        if depth == self.depth {
            self.directory.extend_from_within(..);
            self.depth += 1;
        }
        assert!(depth < 31, "equal hashes without end");
        let full = std::mem::take(&mut self.tables[number].slots);
        let is_upper = |hash: u64| (hash >> (DIRECTORY_SHIFT + depth)) & 1 == 1;
        // Both get the room of a full one: they will need it by the next split.
        let mut lower = HashTable::with_capacity(TABLE_ENTRIES_MAX);
        let mut upper = HashTable::with_capacity(TABLE_ENTRIES_MAX);
        for slot in full {
            let hash = hash_of(slot);
            let half = if is_upper(hash) {
                &mut upper
            } else {
                &mut lower
            };
            half.insert_unique(hash, slot, |&s| hash_of(s));
        }
        let new_number = self.tables.len() as u32;
        self.tables[number] = Table {
            depth: depth + 1,
            slots: lower,
        };
        self.tables.push(Table {
            depth: depth + 1,
            slots: upper,
        });
        let shared = (hash >> DIRECTORY_SHIFT) as usize & ((1 << depth) - 1);
        let first_upper = shared | 1 << depth;
        for at in (first_upper..self.directory.len()).step_by(2 << depth) {
            self.directory[at] = new_number;
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let slots: usize = self.tables.iter().map(|t| t.slots.allocation_size()).sum();
        slots
            + self.tables.capacity() * size_of::<Table>()
            + self.directory.capacity() * size_of::<u32>()
    }
}
