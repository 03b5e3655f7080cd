//! Taking checkpoints, and giving back the slots that nobody needs any more.
//!
//! One at a time. A checkpoint gets its name only once everything that its slices saw is
//! durable, and is thrown away when the shard was fenced meanwhile; two are kept, and a slot is
//! free when neither of them, nor a pin, needs its segment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::inner::Inner;
use super::{CheckpointReport, Store};
use crate::checkpoint::{self, CHECKPOINTS_KEPT, SegmentUse, Start, Unnamed};
use crate::disk::Disk;
use crate::error::CheckpointError;
use crate::format::segment::SEGMENT_DATA_OFFSET;
use crate::generation::{Generations, Rows};
use crate::host::TaskClass;
use crate::ids::{Lsn, SegmentId};
use crate::mutations;
use crate::record::DedupeRow;
use crate::relocate::{Needs, may_recycle};
use crate::slots::SlotUse;

/// Dedupe rows held in memory before they are written to their generation.
const DEDUPE_ROWS_MAX: usize = 1 << 16;

/// What the maintenance of one shard holds.
pub(crate) struct Upkeep<D: Disk> {
    pub(crate) next_number: u64,
    /// What the kept checkpoints need, newest first.
    pub(crate) kept: Vec<Needs>,
    /// The newest that was taken since the open.
    pub(crate) newest: Option<super::backup::Named>,
    pub(crate) is_running: bool,
    pub(crate) is_relocating: bool,
    /// Segments with hooks that could not be read, and until when they are left alone
    /// (monotonic microseconds). A segment that is gone may stay: as many as were ever damaged.
    pub(crate) left_alone: BTreeMap<SegmentId, u64>,
    /// Damaged ones that the open passed over: removed once a new one stands, so that they do
    /// not count among the two that are kept.
    pub(crate) bad_numbers: Vec<u64>,
    /// Taken out while it writes.
    pub(crate) generations: Option<Generations<D>>,
    /// Rows of durable groups not yet handed to the generations.
    pub(crate) dedupe_rows: Vec<DedupeRow>,
    /// The rows that the log brought at the open, for the engine's table.
    pub(crate) boot_rows: Option<(Rows<D>, Vec<DedupeRow>)>,
    pub(crate) pins: Rc<RefCell<Vec<Option<Needs>>>>,
}

/// While it lives, no segment that it names is used again. For a running backup.
#[derive(Debug)]
pub struct Pin {
    pins: Rc<RefCell<Vec<Option<Needs>>>>,
    at: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(pin) = self.pins.borrow_mut().get_mut(self.at) {
            *pin = None;
        }
    }
}

impl<D: Disk> Store<D> {
    /// Takes a checkpoint now, after one that is being taken. The older ones stand when it fails.
    ///
    /// # Cancel safety
    /// May be dropped: a temporary file is left, which the next one removes.
    pub async fn checkpoint(&self) -> Result<CheckpointReport, CheckpointError> {
        let inner = &self.inner;
        let is_free = || !inner.upkeep.borrow().is_running;
        inner.progress.until(|| is_free().then_some(())).await;
        inner.checkpoint().await
    }

    /// The segments of the log, rising.
    pub fn segments(&self) -> Vec<SegmentUse> {
        self.inner.slots.borrow().segments()
    }

    /// Keeps what `needs` names from being used again.
    pub fn pin(&self, needs: Needs) -> Pin {
        let pins = Rc::clone(&self.inner.upkeep.borrow().pins);
        let mut list = pins.borrow_mut();
        let free = list.iter().position(Option::is_none);
        let at = free.unwrap_or(list.len());
        match free {
            Some(at) => list[at] = Some(needs),
            None => list.push(Some(needs)),
        }
        drop(list);
        Pin { pins, at }
    }

    /// The dedupe rows that stand after the open: those of the generations, to be read block by
    /// block, then those that the log brought, in their order. Once; later rows are the
    /// caller's own.
    pub fn take_boot_dedupe(&self) -> Option<(Rows<D>, Vec<DedupeRow>)> {
        self.inner.upkeep.borrow_mut().boot_rows.take()
    }
}

/// Ends the run of a checkpoint, however it ends.
struct Running<'a, D: Disk>(&'a Inner<D>);

impl<D: Disk> Drop for Running<'_, D> {
    fn drop(&mut self) {
        self.0.upkeep.borrow_mut().is_running = false;
        self.0.progress.signal();
    }
}

/// The generations while they are written; they come back however that ends.
struct Taken<'a, D: Disk>(&'a Inner<D>, Option<Generations<D>>);

impl<D: Disk> Drop for Taken<'_, D> {
    fn drop(&mut self) {
        self.0.upkeep.borrow_mut().generations = self.1.take();
        self.0.progress.signal();
    }
}

impl<D: Disk> Inner<D> {
    /// Starts a checkpoint when enough was written since the last, or when space is short and
    /// one may free something.
    pub(crate) fn checkpoint_if_due(self: &Rc<Self>) {
        let since = self.writer.borrow().since_checkpoint;
        let is_long = since.0 >= self.config.checkpoint_log_bytes
            || since.1 >= self.config.checkpoint_segments;
        let is_short = self.is_short_of_space.get() || self.is_slotless.get();
        let is_due = is_long || is_short && self.has_dead_segment();
        let has_rows = self.upkeep.borrow().dedupe_rows.len() >= DEDUPE_ROWS_MAX;
        if self.upkeep.borrow().is_running || !is_due && !has_rows {
            return;
        }
        let inner = Rc::clone(self);
        let task = async move {
            let result = if is_due {
                inner.checkpoint().await.map(|_| ())
            } else {
                inner.flush_dedupe().await.map(|_| ())
            };
            if let Err(error) = result {
                tracing::warn!(shard = %inner.config.shard, %error, "no checkpoint");
            }
            inner.keeper.signal();
        };
        self.host.spawn(TaskClass::Maintenance, Box::pin(task));
    }

    /// A sealed segment without a live hook: two checkpoints in a row free its slot.
    fn has_dead_segment(&self) -> bool {
        let state = self.state.borrow();
        let segments = self.slots.borrow().segments();
        segments.iter().any(|segment| {
            segment.last_lsn.is_some_and(|last| last <= state.durable())
                && state.live_in(segment.segment).hooks == 0
                && !self.is_end(segment.segment)
        })
    }

    pub(crate) fn is_end(&self, segment: SegmentId) -> bool {
        let writer = self.writer.borrow();
        segment == writer.durable_end.segment || segment == writer.current.segment
    }

    async fn checkpoint(&self) -> Result<CheckpointReport, CheckpointError> {
        let number = {
            let mut upkeep = self.upkeep.borrow_mut();
            if std::mem::replace(&mut upkeep.is_running, true) {
                return Err(CheckpointError::Busy);
            }
            upkeep.next_number += 1;
            upkeep.next_number - 1
        };
        let running = Running(self);
        let fences = {
            let mut writer = self.writer.borrow_mut();
            writer.since_checkpoint = (0, 0);
            writer.stats.fences
        };
        let start = Start {
            store_uuid: self.config.store_uuid,
            shard: self.config.shard,
            number,
            start_lsn: Lsn(0),
            hooks_expected: 0,
            wall_ms: self.host.wall_ms(),
        };
        let rest = async |_: Lsn| {
            let generations = self.flush_dedupe().await?;
            let slots = self.slots.borrow();
            Ok((self.segments_now(), slots.numbers(), generations))
        };
        let unnamed = checkpoint::write(&self.disk, &*self.host, &self.state, start, rest).await?;
        let bytes = unnamed.bytes();
        let (start, end) = self.name(unnamed, fences).await?;
        mutations::point("checkpoint.named");
        let bad = std::mem::take(&mut self.upkeep.borrow_mut().bad_numbers);
        for number in bad {
            let _ = self.disk.remove(&checkpoint::file_name(number)).await;
        }
        // Removing the oldest is not part of the promise; what is kept is known either way.
        if let Err(error) = checkpoint::prune(&self.disk).await {
            tracing::warn!(shard = %self.config.shard, %error, "old checkpoints stay");
        }
        mutations::point("checkpoint.pruned");
        let slots_freed = {
            let mut upkeep = self.upkeep.borrow_mut();
            upkeep.kept.insert(0, Needs::of(start.start_lsn, &end));
            upkeep.kept.truncate(CHECKPOINTS_KEPT);
            upkeep.newest = Some(super::backup::Named { start, end, bytes });
            drop(upkeep);
            self.recycle()
        };
        drop(running);
        self.keeper.signal();
        Ok(CheckpointReport {
            lsn: start.start_lsn,
            bytes,
            slots_freed,
        })
    }

    /// Waits until everything that the checkpoint saw is durable, then names it. `fences` is
    /// their number when it began.
    async fn name(
        &self,
        unnamed: Unnamed,
        fences: u64,
    ) -> Result<(Start, checkpoint::End), CheckpointError> {
        let end_lsn = unnamed.end_lsn();
        let durable = self
            .progress
            .until(|| {
                let writer = self.writer.borrow();
                let durable = writer.pipeline.durable();
                let is_over = durable >= end_lsn || writer.stats.fences != fences;
                (is_over || mutations::is("checkpoint_named_early")).then_some(durable)
            })
            .await;
        if durable < end_lsn && !mutations::is("checkpoint_named_early") {
            checkpoint::discard(&self.disk, unnamed).await;
            return Err(CheckpointError::Fenced);
        }
        checkpoint::name(&self.disk, &self.state, durable, unnamed).await
    }

    /// The segments, the current one with the end of what is durable in it.
    pub(super) fn segments_now(&self) -> Vec<SegmentUse> {
        let writer = self.writer.borrow();
        let mut segments = self.slots.borrow().segments();
        for segment in &mut segments {
            if segment.segment == writer.current.segment {
                // IMPORTANT: not what is in flight: when that fails the segment is abandoned and
                // its slot used again, and no checkpoint may ask for it.
                segment.end = if writer.durable_end.segment == segment.segment {
                    writer.durable_end.offset
                } else {
                    SEGMENT_DATA_OFFSET
                };
            }
        }
        segments
    }

    /// Writes the dedupe rows at hand to their generation and says what is synced.
    async fn flush_dedupe(&self) -> Result<Vec<checkpoint::GenerationRef>, CheckpointError> {
        let failed = |doing| move |source| CheckpointError::Io { doing, source };
        // Another flush may have it: wait until it is back.
        let taken = self
            .progress
            .until(|| self.upkeep.borrow_mut().generations.take());
        let mut taken = Taken(self, Some(taken.await));
        let Some(generations) = &mut taken.1 else {
            unreachable!("given back only when dropped");
        };
        generations.push(std::mem::take(&mut self.upkeep.borrow_mut().dedupe_rows));
        let flushed = generations.flush(&*self.host).await;
        let dropped = generations.drop_expired(self.host.wall_ms() / 1000).await;
        let listing = generations.listing();
        drop(taken);
        flushed.map_err(failed("writing dedupe rows"))?;
        dropped.map_err(failed("removing expired dedupe rows"))?;
        Ok(listing)
    }

    /// Frees the slots whose segments neither kept checkpoint nor a pin needs.
    fn recycle(&self) -> u32 {
        let state = self.state.borrow();
        let upkeep = self.upkeep.borrow();
        let mut needs = upkeep.kept.clone();
        if needs.len() < CHECKPOINTS_KEPT && !mutations::is("recycle_early") {
            return 0;
        }
        if !needs.is_empty() {
            needs.extend(upkeep.pins.borrow().iter().flatten().cloned());
        }
        let segments = self.slots.borrow().segments();
        let mut freed = 0;
        for segment in segments {
            if self.is_end(segment.segment) || !may_recycle(&segment, &needs, &state) {
                continue;
            }
            let mut slots = self.slots.borrow_mut();
            if let Some(slot) = slots.get_mut(crate::slots::SlotNo(segment.slot)) {
                slot.use_ = if slot.is_tainted {
                    SlotUse::Suspect
                } else {
                    SlotUse::Free
                };
                freed += 1;
            }
        }
        freed
    }
}
