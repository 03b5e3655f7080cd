//! Hook ids: UUIDv7 (RFC 9562, section 5.7), increasing per core also within a millisecond and
//! when the clock steps back.
//!
//! 48 bits of milliseconds, 12 bits of a counter within the millisecond, then the core's number
//! (8 bits) and 54 random bits, so that two cores cannot mint the same id. Pure.

use std::cell::Cell;

use ankusa_wal::HookId;

/// Mints ids for one core.
#[derive(Debug)]
pub struct Minter {
    core: u8,
    last_ms: Cell<u64>,
    counter: Cell<u16>,
}

impl Minter {
    /// A minter for the core with this number.
    pub fn new(core: u8) -> Minter {
        Minter {
            core,
            last_ms: Cell::new(0),
            counter: Cell::new(0),
        }
    }

    /// The next id. `random` is 64 fresh random bits.
    pub fn mint(&self, now_ms: u64, random: u64) -> HookId {
        let mut ms = now_ms.max(self.last_ms.get());
        let mut counter = if ms == self.last_ms.get() {
            self.counter.get() + 1
        } else {
            (random >> 56) as u16
        };
        if counter > 0x0FFF {
            ms += 1;
            counter = 0;
        }
        self.last_ms.set(ms);
        self.counter.set(counter);
        let mut id = [0u8; 16];
        id[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        id[6..8].copy_from_slice(&(0x7000 | counter).to_be_bytes());
        id[8..].copy_from_slice(&random.to_be_bytes());
        id[8] = 0x80 | (id[8] & 0x3F);
        id[9] = self.core;
        HookId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_increase_within_a_millisecond_and_over_a_clock_that_steps_back() {
        let minter = Minter::new(3);
        let mut last = HookId::default();
        for n in 0..20_000u64 {
            let now = if n < 10_000 { 1_000 } else { 500 };
            let id = minter.mint(now, n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }

    #[test]
    fn the_version_and_variant_are_those_of_uuid_7_and_the_core_is_in_it() {
        let id = Minter::new(9).mint(0x0123_4567_89AB, u64::MAX);
        let text = id.to_string();
        assert_eq!(&text[..15], "01234567-89ab-7");
        assert_eq!(id.0[8] & 0xC0, 0x80);
        assert_eq!(id.0[9], 9);
    }
}
