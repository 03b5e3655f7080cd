//! The node's ceilings over records not confirmed in both places, leased to cores in chunks.
//!
//! A core takes from its own lease without touching shared memory, asks the node for another chunk
//! when that is used up, and gives back what it no longer needs, so that a busy core can use what
//! others leave. Invariant: what all cores have taken never exceeds the ceilings.
//! Runs on shard cores.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A chunk is this part of the ceiling.
const CHUNKS: u64 = 64;

/// What the node has left to lease.
#[derive(Debug)]
pub struct Ceiling {
    left: AtomicU64,
    chunk: u64,
}

impl Ceiling {
    /// A ceiling of `most`.
    pub fn new(most: u64) -> Ceiling {
        Ceiling {
            left: AtomicU64::new(most),
            chunk: (most / CHUNKS).max(1),
        }
    }

    /// Leases `least` or, when there is as much, a chunk; 0 when not even `least` is left.
    fn lease(&self, least: u64) -> u64 {
        let mut got = 0;
        let wanted = self.chunk.max(least);
        let take = |left: u64| {
            got = match left {
                _ if left >= wanted => wanted,
                _ if left >= least => left,
                _ => return None,
            };
            Some(left - got)
        };
        let taken = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        if taken.is_err() { 0 } else { got }
    }

    fn give_back(&self, amount: u64) {
        self.left.fetch_add(amount, Ordering::AcqRel);
    }
}

/// One core's lease of one ceiling.
#[derive(Debug, Default)]
struct Part {
    leased: Cell<u64>,
    used: Cell<u64>,
}

impl Part {
    fn take(&self, ceiling: &Ceiling, amount: u64) -> bool {
        let used = self.used.get() + amount;
        let leased = self.leased.get();
        if used > leased {
            let got = ceiling.lease(used - leased);
            if got == 0 {
                return false;
            }
            self.leased.set(leased + got);
        }
        self.used.set(used);
        true
    }

    fn give(&self, ceiling: &Ceiling, amount: u64) {
        let used = self.used.get();
        assert!(used >= amount, "more given back than taken");
        self.used.set(used - amount);
        if self.leased.get() > self.used.get() + 2 * ceiling.chunk {
            self.trim(ceiling, ceiling.chunk);
        }
    }

    /// Keeps no more than `slack` over what is used.
    fn trim(&self, ceiling: &Ceiling, slack: u64) {
        let keep = self.used.get() + slack;
        let over = self.leased.get().saturating_sub(keep);
        if over > 0 {
            self.leased.set(keep);
            ceiling.give_back(over);
        }
    }
}

/// The node's two ceilings.
#[derive(Debug)]
pub struct Ceilings {
    records: Ceiling,
    bytes: Ceiling,
}

impl Ceilings {
    /// Ceilings of so many records and bytes.
    pub fn new(records_max: u64, bytes_max: u64) -> Ceilings {
        Ceilings {
            records: Ceiling::new(records_max),
            bytes: Ceiling::new(bytes_max),
        }
    }
}

/// One core's share of the node's ceilings.
#[derive(Debug, Default)]
pub struct Lease {
    records: Part,
    bytes: Part,
}

impl Lease {
    /// Takes a record of `bytes`; false, and nothing taken, when a ceiling is reached.
    pub fn take(&self, of: &Ceilings, bytes: u64) -> bool {
        if !self.records.take(&of.records, 1) {
            return false;
        }
        if !self.bytes.take(&of.bytes, bytes) {
            self.records.give(&of.records, 1);
            return false;
        }
        true
    }

    /// Gives records back, of `bytes` together.
    pub fn give(&self, of: &Ceilings, records: u64, bytes: u64) {
        self.records.give(&of.records, records);
        self.bytes.give(&of.bytes, bytes);
    }

    /// Gives back all slack when nothing is taken. Now and then, so that an idle core holds none.
    pub fn rest(&self, of: &Ceilings) {
        if self.records.used.get() == 0 {
            self.records.trim(&of.records, 0);
            self.bytes.trim(&of.bytes, 0);
        }
    }

    /// Records and bytes taken.
    pub fn used(&self) -> (u64, u64) {
        (self.records.used.get(), self.bytes.used.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_reached_exactly_by_records_and_by_bytes() {
        let of = Ceilings::new(3, 1000);
        let lease = Lease::default();
        assert!(lease.take(&of, 400) && lease.take(&of, 400));
        assert!(!lease.take(&of, 300), "bytes");
        assert!(lease.take(&of, 200));
        assert!(!lease.take(&of, 0), "records");
        lease.give(&of, 1, 400);
        assert!(lease.take(&of, 400), "and what is given back can be taken");
        assert_eq!(lease.used(), (3, 1000));
    }

    #[test]
    fn a_busy_core_uses_what_the_others_leave_and_gets_it_back_from_them() {
        let of = Ceilings::new(640, 64_000);
        let (busy, other) = (Lease::default(), Lease::default());
        assert!(other.take(&of, 10));
        let mut taken = 0;
        while busy.take(&of, 100) {
            taken += 1;
        }
        // The other holds one chunk of each: a 64th.
        assert_eq!(taken, 630);
        other.give(&of, 1, 10);
        other.rest(&of);
        while busy.take(&of, 100) {
            taken += 1;
        }
        assert_eq!(taken, 640);
        assert!(!other.take(&of, 1));
        busy.give(&of, 640, 64_000);
        busy.rest(&of);
        assert!(other.take(&of, 64_000), "all of it");
    }
}
