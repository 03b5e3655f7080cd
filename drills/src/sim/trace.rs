//! What happened, in order: a hash of it always, the lines themselves on request.

use std::cell::Cell;
use std::fmt;

use ankusa_wal::sim::SimWorld;

/// The trace of one run.
pub struct Trace {
    world: SimWorld,
    hash: Cell<u64>,
    is_printed: bool,
}

impl Trace {
    /// An empty one.
    pub fn new(world: &SimWorld, is_printed: bool) -> Trace {
        Trace {
            world: world.clone(),
            hash: Cell::new(0xCBF2_9CE4_8422_2325),
            is_printed,
        }
    }

    /// Notes a line.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        let now_us = self.world.now_us();
        let mut hash = Hash(self.hash.get());
        hash.add(&now_us.to_le_bytes());
        // Writing to a hash does not fail.
        let _ = fmt::Write::write_fmt(&mut hash, line);
        self.hash.set(hash.0);
        if self.is_printed {
            println!("{:>12.3} ms  {line}", now_us as f64 / 1000.0);
        }
    }

    /// The hash of all lines so far (FNV-1a).
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }
}

struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}
