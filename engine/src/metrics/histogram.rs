//! Buckets of the histograms: log-linear, four to an octave, the same for every family.
//!
//! A bucket's bounds are at most 25 % apart, from 16 to 2^27 of the family's unit (for
//! microseconds: 16 µs to 134 s), so a p99.9 read off them is at most 25 % too high. Fixed, so
//! that cores, nodes and versions can be added up. Pure.

/// Sub-buckets of an octave, as a power of two.
const SUB_BITS: u32 = 2;
const SUBS: u32 = 1 << SUB_BITS;
/// Everything up to here is in the first bucket.
const FIRST_BITS: u32 = 4;
/// From here on everything is in the last one.
const LAST_BITS: u32 = 27;

/// Buckets, the last one (`+Inf`) included.
pub const BUCKETS_COUNT: usize = (1 + (LAST_BITS - FIRST_BITS) * SUBS + 1) as usize;

/// The bucket that counts `value`: the first whose upper bound is at or above it.
pub fn bucket_of(value: u64) -> usize {
    if value <= 1 << FIRST_BITS {
        return 0;
    }
    // Bounds are inclusive at the top, so count the value before.
    let below = value - 1;
    let octave = 63 - below.leading_zeros();
    if octave >= LAST_BITS {
        return BUCKETS_COUNT - 1;
    }
    let sub = (below >> (octave - SUB_BITS)) as u32 & (SUBS - 1);
    (1 + (octave - FIRST_BITS) * SUBS + sub) as usize
}

/// The upper bound of a bucket, inclusive; `None` for the last.
pub fn upper_bound(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS_COUNT - 1 {
        return None;
    }
    if bucket == 0 {
        return Some(1 << FIRST_BITS);
    }
    let (octave, sub) = (
        (bucket as u32 - 1) / SUBS + FIRST_BITS,
        (bucket as u32 - 1) % SUBS,
    );
    Some((1u64 << octave) + (u64::from(sub) + 1) * (1 << (octave - SUB_BITS)))
}
