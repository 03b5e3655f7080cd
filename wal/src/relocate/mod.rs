//! Which segment to relocate, how fast, and which slots may be used again. Decisions only.
//!
//! A few live hooks do not hold a segment: they are appended again under their seqs, and the
//! index follows once the copies are durable ([`crate::state::State::settle`]). The segment is
//! free when no kept checkpoint needs it any more. It does no I/O and reads no clock. Runs on a
//! shard core.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::checkpoint::{End, SegmentUse};
use crate::ids::{Lsn, SegmentId};
use crate::mutations;
use crate::state::{HookSlot, State};

/// Slots looked at in one call of [`Stragglers::next`], about.
const SLOTS_PER_CALL: usize = 4096;

/// The segment to relocate next: sealed, durable throughout, its live share below
/// `below_percent`; the emptiest first, since it frees most per byte copied. One without a live
/// hook needs no relocation.
pub fn pick(
    segments: &[SegmentUse],
    state: &State,
    segment_bytes: u64,
    below_percent: u8,
) -> Option<SegmentId> {
    let sealed = segments
        .iter()
        .filter(|s| s.last_lsn.is_some_and(|last| last <= state.durable()));
    let live = sealed.map(|s| (state.live_in(s.segment).bytes, s.segment));
    let limit = segment_bytes * u64::from(below_percent) / 100;
    live.filter(|&(bytes, _)| bytes > 0 && bytes < limit)
        .min()
        .map(|(_, segment)| segment)
}

/// The live hooks of one segment, found in slices. Hooks come and go meanwhile; one that stays
/// is found.
#[derive(Clone, Copy, Debug)]
pub struct Stragglers {
    segment: SegmentId,
    from: u32,
}

impl Stragglers {
    /// A walk over the live hooks of `segment`.
    pub fn of(segment: SegmentId) -> Stragglers {
        Stragglers { segment, from: 0 }
    }

    /// The next one: `Err(())` when a slice is over without one and the walk should go on after
    /// a yield; `Ok(None)` at the end.
    #[allow(clippy::result_unit_err)]
    pub fn next(&mut self, state: &State) -> Result<Option<HookSlot>, ()> {
        for _ in 0..SLOTS_PER_CALL {
            match state.next_hook(self.from) {
                Ok(None) => return Ok(None),
                Err(next) => {
                    self.from = next;
                    return Err(());
                }
                Ok(Some(slot)) => {
                    self.from = slot.0 + 1;
                    let hook = state.hook(slot);
                    if hook.is_some_and(|h| h.location.segment == self.segment && h.is_durable) {
                        return Ok(Some(slot));
                    }
                }
            }
        }
        Err(())
    }
}

/// A byte rate: work is done ahead of the clock by at most one burst.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    bytes_per_s: u64,
    /// The time up to which the work done so far fills the rate.
    paid_until_us: u64,
}

/// How far work may run ahead of its rate.
const BURST_US: u64 = 50_000;

impl Pace {
    /// This many bytes a second, at least one.
    pub fn new(bytes_per_s: u64) -> Pace {
        Pace {
            bytes_per_s: bytes_per_s.max(1),
            paid_until_us: 0,
        }
    }

    /// Counts `bytes` of work; the answer is how long to wait before the next, in microseconds.
    pub fn spend(&mut self, now_us: u64, bytes: u64) -> u64 {
        let cost_us = u128::from(bytes) * 1_000_000 / u128::from(self.bytes_per_s);
        let cost_us = u64::try_from(cost_us).unwrap_or(u64::MAX);
        self.paid_until_us = self.paid_until_us.max(now_us).saturating_add(cost_us);
        self.paid_until_us
            .saturating_sub(now_us)
            .saturating_sub(BURST_US)
    }
}

/// What one checkpoint, or a running backup, keeps from being used again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    listed: BTreeSet<SegmentId>,
    /// Everything with records above it is needed too: segments begun after the checkpoint.
    start_lsn: Lsn,
}

impl Needs {
    /// What the checkpoint that ends so needs.
    pub fn of(start_lsn: Lsn, end: &End) -> Needs {
        Needs {
            listed: end.segments.iter().map(|s| s.segment).collect(),
            start_lsn,
        }
    }

    /// Whether `segment` must stay as it is.
    pub fn has(&self, segment: &SegmentUse) -> bool {
        self.listed.contains(&segment.segment)
            || segment.last_lsn.is_none_or(|last| last > self.start_lsn)
    }
}

/// Whether the slot of `segment` may be used again: no kept checkpoint and no running backup
/// needs it. Without a checkpoint nothing may.
///
/// # Panics
/// When a live hook is in a segment that nobody needs: then a checkpoint is wrong.
pub fn may_recycle(segment: &SegmentUse, kept: &[Needs], state: &State) -> bool {
    if mutations::is("recycle_early") {
        return state.live_in(segment.segment).hooks == 0 && segment.last_lsn.is_some();
    }
    if kept.is_empty() || kept.iter().any(|needs| needs.has(segment)) {
        return false;
    }
    assert_eq!(
        state.live_in(segment.segment).hooks,
        0,
        "segment {} holds live hooks and no checkpoint needs it",
        segment.segment
    );
    true
}
