//! A power cut: which part of the writes that no flush covered is found on the medium.
//!
//! Pure and seeded. The unit is a sector of 512 bytes.

use std::time::Instant;

use super::device::{Marks, SECTOR_BYTES, Write};
use super::pages::Pages;
use crate::rng::Rng;

/// Which of the sectors that no flush covered survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CutKind {
    /// None.
    None,
    /// All.
    All,
    /// Each with a chance of a half, the writes in any order.
    Half,
    /// Those before one sector.
    Prefix,
    /// Those from one sector on: the newest without the older.
    Suffix,
    /// All but one write.
    AllButOne,
    /// Only the last write.
    OnlyLast,
    /// The first or the second half of each write.
    Halves,
}

impl CutKind {
    /// All kinds.
    pub const EVERY: [CutKind; 8] = [
        CutKind::None,
        CutKind::Half,
        CutKind::Suffix,
        CutKind::Halves,
        CutKind::OnlyLast,
        CutKind::Prefix,
        CutKind::AllButOne,
        CutKind::All,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CutKind::None => "none",
            CutKind::All => "all",
            CutKind::Half => "half",
            CutKind::Prefix => "prefix",
            CutKind::Suffix => "suffix",
            CutKind::AllButOne => "all-but-one",
            CutKind::OnlyLast => "only-last",
            CutKind::Halves => "halves",
        }
    }
}

/// When to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A write has arrived and is not answered.
    Write,
    /// A flush has arrived.
    FlushArrived,
    /// A flush is about to take effect: the last moment at which everything since the flush
    /// before may be lost.
    FlushEnding,
}

impl Moment {
    /// All moments.
    pub const EVERY: [Moment; 3] = [Moment::FlushEnding, Moment::Write, Moment::FlushArrived];
}

/// A cut to be made.
#[derive(Clone, Debug)]
pub struct CutOrder {
    /// What survives.
    pub kind: CutKind,
    /// When.
    pub moment: Moment,
    /// Seed of the choice of sectors.
    pub seed: u64,
    /// At least so many groups must be in the cache.
    pub groups_min: usize,
    /// After this the next such moment is taken, with whatever is in the cache.
    pub not_after: Instant,
}

/// A cut that was made.
pub struct Cut {
    /// What survived.
    pub kind: CutKind,
    /// When.
    pub moment: Moment,
    /// The ledgers at that moment.
    pub marks: Marks,
    /// What the medium holds.
    pub image: Pages,
    /// Groups that no flush covered.
    pub groups: usize,
    /// Writes that no flush covered.
    pub writes: usize,
    /// Their sectors.
    pub sectors: usize,
    /// Sectors lost.
    pub sectors_lost: usize,
}

/// The medium after a cut, sectors lost, sectors at stake.
pub fn crash_image(
    stable: &Pages,
    unflushed: &[Write],
    kind: CutKind,
    rng: &mut Rng,
) -> (Pages, usize, usize) {
    let mut image = stable.clone();
    let total: usize = unflushed.iter().map(sectors_of).sum();
    let edge = rng.range(0, total as u64) as usize;
    let odd = rng.range(0, unflushed.len().saturating_sub(1) as u64) as usize;
    let mut order: Vec<usize> = (0..unflushed.len()).collect();
    if kind == CutKind::Half {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.range(0, i as u64) as usize);
        }
    }
    let firsts: Vec<usize> = unflushed
        .iter()
        .scan(0, |at, write| {
            let first = *at;
            *at += sectors_of(write);
            Some(first)
        })
        .collect();
    let mut kept = 0;
    for at in order {
        let write = &unflushed[at];
        let (first, sectors) = (firsts[at], sectors_of(write));
        let upper = rng.one_in(2);
        for (i, data) in write.data.chunks(SECTOR_BYTES).enumerate() {
            let survives = match kind {
                CutKind::None => false,
                CutKind::All => true,
                CutKind::Half => rng.one_in(2),
                CutKind::Prefix => first + i < edge,
                CutKind::Suffix => first + i >= edge,
                CutKind::AllButOne => at != odd,
                CutKind::OnlyLast => at + 1 == unflushed.len(),
                CutKind::Halves => (i >= sectors / 2) == upper,
            };
            if survives {
                image.write(write.offset + (i * SECTOR_BYTES) as u64, data);
                kept += 1;
            }
        }
    }
    (image, total - kept, total)
}

fn sectors_of(write: &Write) -> usize {
    write.data.len().div_ceil(SECTOR_BYTES)
}
