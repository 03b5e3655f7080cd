//! The simulation in CI, and that it can fail: determinism, controls, enumerations, regressions.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..6 {
        let (first, second) = (run_seed(&Plan::of(seed)), run_seed(&Plan::of(seed)));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counters, second.counters, "seed {seed}");
    }
    assert_ne!(run_seed(&Plan::of(1)).hash, run_seed(&Plan::of(2)).hash);
}
