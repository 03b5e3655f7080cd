//! Relocation: the few live hooks of an old segment are appended again, so that its slot can be
//! used again. Same seqs; the index follows once the copies are durable.
//!
//! One segment at a time, in the background, within a byte rate, in groups of the store's own
//! that the caller never hears of.

use std::rc::Rc;
use std::time::Duration;

use super::inner::Inner;
use super::submit::Purpose;
use super::{Store, StoredHook};
use crate::disk::Disk;
use crate::error::ReadError;
use crate::hook::HookExtra;
use crate::host::TaskClass;
use crate::ids::{SegmentId, Seq, SinkNo};
use crate::mutations;
use crate::relocate::{Pace, Stragglers, pick};
use crate::state::{Holds, RowState};

/// Bytes gathered for one group, unless one hook is larger.
const GROUP_BYTES: usize = 128 << 10;

/// Between two attempts to begin a group.
const BEGIN_PAUSE: Duration = Duration::from_millis(2);

/// A segment with hooks that cannot be read is looked at again after this time.
const UNREAD_AGAIN: Duration = Duration::from_secs(60);

/// Hooks of it that are named each time.
const UNREAD_LINES: u64 = 100;

/// With no spare slot, this part of the current segment is left to the outcomes of deliveries.
const OUTCOMES_SHARE: u64 = 6;

struct Straggler<D: Disk> {
    seq: Seq,
    envelope: StoredHook<D>,
    sinks: Vec<SinkNo>,
    holds: Holds,
}

impl<D: Disk> Straggler<D> {
    fn extra(&self) -> HookExtra<'_> {
        HookExtra {
            sinks: &self.sinks,
            dedupe_hash: None,
            archive: self.holds.has(Holds::ARCHIVE),
            log: self.holds.has(Holds::LOG),
        }
    }

    fn record_bytes(&self) -> usize {
        crate::format::record::hook_len(&self.extra(), self.envelope.len())
    }
}

impl<D: Disk> Inner<D> {
    /// Starts relocating the emptiest segment, when one is empty enough.
    pub(crate) fn relocate_if_due(self: &Rc<Self>) {
        let is_idle = !self.upkeep.borrow().is_relocating;
        if !is_idle || self.admit_own().is_err() {
            return;
        }
        let mut segments = self.slots.borrow().segments();
        segments.retain(|s| !self.is_end(s.segment) && !self.is_left_alone(s.segment));
        let percent = self.config.relocate_below_percent;
        let state = self.state.borrow();
        let Some(segment) = pick(&segments, &state, self.config.segment_bytes, percent) else {
            return;
        };
        drop(state);
        self.upkeep.borrow_mut().is_relocating = true;
        let inner = Rc::clone(self);
        let task = async move {
            let mut unread = 0;
            inner.relocate(segment, &mut unread).await;
            inner.upkeep.borrow_mut().left_alone.remove(&segment);
            if unread > 0 {
                inner.leave_alone(segment, unread);
            }
            inner.upkeep.borrow_mut().is_relocating = false;
            inner.keeper.signal();
        };
        self.host.spawn(TaskClass::Maintenance, Box::pin(task));
    }

    /// Whether the store's own groups may be written.
    fn admit_own(&self) -> Result<(), ()> {
        let is_off = self.is_closed.get() || self.writer.borrow().pipeline.is_frozen();
        if is_off { Err(()) } else { Ok(()) }
    }

    /// Whether a group of this size leaves the outcomes of deliveries their room: while there is no
    /// spare slot they alone free space for sure.
    fn leaves_reserve(&self, planned: u64) -> bool {
        let current = &self.writer.borrow().current;
        let reserve = current.capacity / OUTCOMES_SHARE;
        self.slots.borrow().spares() > 0 || current.room() as u64 >= planned + reserve
    }

    /// Hooks of the segment could not be read: they are counted, and the segment is left alone for
    /// a while. The others were moved; these hold the slot until a repair gives them up.
    fn leave_alone(&self, segment: SegmentId, unread: u64) {
        let shard = self.config.shard;
        if let Some(more @ 1..) = unread.checked_sub(UNREAD_LINES) {
            tracing::error!(%shard, %segment, more, "not relocated: more hooks cannot be read");
        }
        self.writer.borrow_mut().stats.read_failures += unread;
        let until_us = self.host.mono_us() + UNREAD_AGAIN.as_micros() as u64;
        let mut upkeep = self.upkeep.borrow_mut();
        upkeep.left_alone.insert(segment, until_us);
    }

    /// Whether a segment was looked at a moment ago and could not be read.
    fn is_left_alone(&self, segment: SegmentId) -> bool {
        let until_us = self.upkeep.borrow().left_alone.get(&segment).copied();
        until_us.is_some_and(|until_us| self.host.mono_us() < until_us)
    }

    /// Counts the hooks that cannot be read in `unread`.
    async fn relocate(self: &Rc<Self>, segment: SegmentId, unread: &mut u64) {
        let store = Store {
            inner: Rc::clone(self),
        };
        let mut walk = Stragglers::of(segment);
        let mut pace = Pace::new(self.config.relocate_bytes_per_s);
        let mut gathered: Vec<Straggler<D>> = Vec::new();
        let mut bytes = 0;
        loop {
            let found = walk.next(&self.state.borrow());
            let is_end = matches!(found, Ok(None));
            match found {
                Err(()) => self.host.yield_now().await,
                Ok(None) => {}
                Ok(Some(slot)) => {
                    let Some((seq, sinks, holds)) = self.what_is_left(slot) else {
                        continue;
                    };
                    let envelope = match store.read(seq).await {
                        Ok(envelope) => envelope,
                        Err(ReadError::NotFound(_)) => continue,
                        Err(error) => {
                            *unread += 1;
                            if *unread <= UNREAD_LINES {
                                let shard = self.config.shard;
                                tracing::error!(
                                    %shard, %segment, %seq, %error,
                                    "not relocated: a hook cannot be read"
                                );
                            }
                            continue;
                        }
                    };
                    bytes += envelope.len();
                    gathered.push(Straggler {
                        seq,
                        envelope,
                        sinks,
                        holds,
                    });
                }
            }
            if bytes >= GROUP_BYTES || is_end && bytes > 0 {
                if !self.append(&gathered, bytes).await {
                    return;
                }
                let wait_us = pace.spend(self.host.mono_us(), bytes as u64);
                gathered.clear();
                bytes = 0;
                self.host.sleep(Duration::from_micros(wait_us)).await;
            }
            if is_end || self.admit_own().is_err() {
                return;
            }
        }
    }

    /// Seq, unfinished sinks and holds of a live hook.
    fn what_is_left(&self, slot: crate::state::HookSlot) -> Option<(Seq, Vec<SinkNo>, Holds)> {
        let state = self.state.borrow();
        let hook = state.hook(slot)?;
        let rows = state.rows(slot).map(|row| state.row(row));
        let open = rows
            .filter(|row| row.state != RowState::Finished)
            .map(|row| row.sink);
        Some((hook.seq, open.collect(), hook.holds))
    }

    /// Appends what was gathered, in as many groups as it takes. False when the store is closed
    /// or fenced meanwhile: the segment is looked at again later.
    async fn append(self: &Rc<Self>, gathered: &[Straggler<D>], bytes: usize) -> bool {
        let mut left = gathered;
        while !left.is_empty() {
            if self.admit_own().is_err() {
                return false;
            }
            let planned = bytes.min(GROUP_BYTES).max(left[0].record_bytes()) + 256;
            if !self.leaves_reserve(planned as u64) {
                return false;
            }
            let Some(mut group) = self.begin(planned, planned, Purpose::Relocation) else {
                self.host.sleep(BEGIN_PAUSE).await;
                continue;
            };
            while let Some(one) = left.first() {
                let (extra, record) = (one.extra(), one.record_bytes());
                let is_live = self.is_live(one.seq);
                if is_live && !group.fits(record) {
                    break;
                }
                if is_live {
                    group.hook_again(one.seq, &one.envelope, &extra);
                }
                left = &left[1..];
            }
            if group.records() > 0 {
                mutations::point("relocate.built");
                self.submit(group, true);
                mutations::point("relocate.submitted");
            } else if !left.is_empty() {
                // Larger than the room that is left: the next attempt switches the segment.
                drop(group);
                self.host.sleep(BEGIN_PAUSE).await;
            }
        }
        true
    }
}
