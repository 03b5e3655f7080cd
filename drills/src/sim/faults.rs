//! What the disk does to a run: one fault at a time, drawn.

use ankusa_wal::disk::sim::{FaultPlan, FaultRates, SimDiskConfig};
use ankusa_wal::sim::SimRng;

/// In 10,000: half of the operations of the kind, until the fault was met.
const SOON: u32 = 5_000;

/// A plan that meets a fault of one drawn kind, once to three times, soon.
pub fn draw(rng: &mut SimRng) -> FaultPlan {
    let rates = match rng.below(16) {
        0 | 1 => FaultRates {
            write_eio: SOON,
            ..FaultRates::default()
        },
        2 => FaultRates {
            enospc: SOON,
            ..FaultRates::default()
        },
        3 | 4 => FaultRates {
            short: SOON,
            ..FaultRates::default()
        },
        5..8 => FaultRates {
            sync_eio: SOON,
            ..FaultRates::default()
        },
        8 => FaultRates {
            late: SOON,
            ..FaultRates::default()
        },
        9 => FaultRates {
            name_eio: SOON,
            ..FaultRates::default()
        },
        10 => FaultRates {
            read_eio: SOON,
            ..FaultRates::default()
        },
        11 => FaultRates {
            read_flip: SOON,
            ..FaultRates::default()
        },
        12 => FaultRates {
            delay: SOON,
            ..FaultRates::default()
        },
        13 => FaultRates {
            long_delay: SOON / 10,
            ..FaultRates::default()
        },
        14 => FaultRates {
            hang: SOON / 10,
            ..FaultRates::default()
        },
        _ => FaultRates::mixed(300),
    };
    let count = if rng.coin() { 1 } else { rng.between(1, 3) };
    FaultPlan::none().rates(rates).drawn_max(count)
}

/// Faults of a boot: everything but content that reads differ about.
pub fn draw_for_boot(rng: &mut SimRng) -> FaultPlan {
    let rates = FaultRates {
        read_eio: 100,
        hang: 20,
        ..FaultRates::mixed(200)
    };
    FaultPlan::none().rates(rates).drawn_max(rng.between(1, 2))
}

/// A disk with latencies of its own.
pub fn disk_config(rng: &mut SimRng) -> SimDiskConfig {
    SimDiskConfig::new(rng.next_u64())
}
