//! Seeded randomness of the simulation (splitmix64). Not for secrets; runs in tests and drills.

/// A small seeded generator.
#[derive(Clone, Debug)]
pub struct SimRng {
    state: u64,
}

impl SimRng {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> SimRng {
        SimRng {
            state: seed ^ 0x6a09_e667_f3bc_c909,
        }
    }

    /// A generator of its own stream for `label`, so that draws of one do not shift the other.
    pub fn stream(seed: u64, label: u64) -> SimRng {
        let mut rng = SimRng::new(seed.wrapping_add(label.wrapping_mul(0xd134_2543_de82_ef95)));
        rng.next_u64();
        rng
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True `per_10k` times in 10,000.
    pub fn chance(&mut self, per_10k: u32) -> bool {
        per_10k > 0 && self.below(10_000) < u64::from(per_10k)
    }

    /// True half the time.
    pub fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }
}
