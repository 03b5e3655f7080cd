//! The timer wheel: rows that are due later, on lists by when.
//!
//! Six levels of 512 slots. A slot of level `l` is `16 ms · 8^l` wide; a row goes to the lowest
//! level that reaches its due time, into the slot that ends at or after it, and stays there until
//! the slot's time has come: rows never move between levels, so the wheel need not know a row's
//! due time again, and the memory of a waiting row is its link. The price is lateness: at most
//! one slot width, which is about 1/60 of the delay (16 ms up to 8 s, 128 ms up to a minute,
//! 1 s up to nine minutes, 8.2 s up to an hour and more). Never early.
//!
//! Time is the caller's monotonic clock; a jump of the wall clock does not reach the wheel.
//! Runs on the shard's core.

use super::links::{Links, Stack};

/// Width of a slot of the finest level, milliseconds.
pub(super) const TICK_MS: u64 = 16;
const LEVELS: usize = 6;
const SLOTS: u64 = 512;
const WORDS: usize = SLOTS as usize / 64;
/// Each level is eight times as coarse as the one below.
const LEVEL_SHIFT: u32 = 3;
/// The longest delay the wheel can hold: over six days.
pub(super) const DELAY_MS_MAX: u64 = ((SLOTS - 2) << (LEVEL_SHIFT * (LEVELS as u32 - 1))) * TICK_MS;

struct Level {
    slots: [Stack; SLOTS as usize],
    occupied: [u64; WORDS],
}

/// Rows waiting for their due time.
pub(super) struct Wheel {
    levels: Box<[Level]>,
    /// Everything due at a tick before this one has been taken out.
    tick: u64,
    count: u32,
}

impl Wheel {
    /// An empty wheel whose time starts at `now_ms`.
    pub(super) fn new(now_ms: u64) -> Wheel {
        let levels = (0..LEVELS)
            .map(|_| Level {
                slots: [Stack::default(); SLOTS as usize],
                occupied: [0; WORDS],
            })
            .collect();
        Wheel {
            levels,
            tick: now_ms / TICK_MS,
            count: 0,
        }
    }

    /// Rows waiting.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the slots.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.levels)
    }

    /// Puts `row` away until `due_ms`; returns false, and does nothing, when that is not in the
    /// future. A due time beyond [`DELAY_MS_MAX`] is taken as that.
    pub(super) fn insert(&mut self, links: &mut Links, row: u32, due_ms: u64, now_ms: u64) -> bool {
        if due_ms <= now_ms {
            return false;
        }
        self.catch_up(now_ms);
        let due_tick = due_ms.min(now_ms + DELAY_MS_MAX).div_ceil(TICK_MS);
        if due_tick <= self.tick {
            return false;
        }
        for (l, level) in self.levels.iter_mut().enumerate() {
            let shift = LEVEL_SHIFT * l as u32;
            let from = self.tick >> shift;
            let mut slot_tick = due_tick.div_ceil(1 << shift);
            if l == LEVELS - 1 {
                // Only reached by the longest delays, while rows that are due wait to be taken.
                slot_tick = slot_tick.min(from + SLOTS - 1);
            }
            if slot_tick - from < SLOTS {
                let slot = (slot_tick % SLOTS) as usize;
                level.slots[slot].push(links, row);
                level.occupied[slot / 64] |= 1 << (slot % 64);
                self.count += 1;
                return true;
            }
        }
        false
    }

    /// Takes out one row whose time has come.
    pub(super) fn pop_due(&mut self, links: &mut Links, now_ms: u64) -> Option<u32> {
        let (tick, l) = self.catch_up(now_ms)?;
        let slot = ((tick >> (LEVEL_SHIFT * l as u32)) % SLOTS) as usize;
        let level = &mut self.levels[l];
        let row = level.slots[slot].pop(links);
        if level.slots[slot].is_empty() {
            level.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        self.count -= u32::from(row.is_some());
        row
    }

    /// When the next slot is due, on the clock of `insert`.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.next_slot().map(|(tick, _)| tick * TICK_MS)
    }

    /// Moves the wheel's own time towards `now_ms`, and says which slot is due, if one is.
    ///
    /// IMPORTANT: it never moves past a slot that is not empty: such a slot must not come round
    /// again, and its number must not be given to a later time.
    fn catch_up(&mut self, now_ms: u64) -> Option<(u64, usize)> {
        let now_tick = now_ms / TICK_MS;
        let due = self.next_slot().filter(|(tick, _)| *tick <= now_tick);
        self.tick = self.tick.max(due.map_or(now_tick, |(tick, _)| tick));
        due
    }

    /// The tick and level of the earliest slot that is not empty.
    fn next_slot(&self) -> Option<(u64, usize)> {
        if self.count == 0 {
            return None;
        }
        let mut best: Option<(u64, usize)> = None;
        for (l, level) in self.levels.iter().enumerate() {
            let shift = LEVEL_SHIFT * l as u32;
            let from = self.tick >> shift;
            if let Some(ahead) = first_occupied(&level.occupied, (from % SLOTS) as usize) {
                let tick = (from + ahead) << shift;
                if best.is_none_or(|(t, _)| tick < t) {
                    best = Some((tick, l));
                }
            }
        }
        best
    }
}

/// How many slots after `from`, going round, the first occupied one is.
fn first_occupied(occupied: &[u64; WORDS], from: usize) -> Option<u64> {
    for step in 0..=WORDS {
        let word_at = (from / 64 + step) % WORDS;
        let mut word = occupied[word_at];
        if step == 0 {
            word &= u64::MAX << (from % 64);
        } else if step == WORDS {
            word &= !(u64::MAX << (from % 64));
        }
        if word != 0 {
            let slot = word_at * 64 + word.trailing_zeros() as usize;
            return Some(((slot + SLOTS as usize - from) % SLOTS as usize) as u64);
        }
    }
    None
}
