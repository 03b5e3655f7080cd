//! Reading ahead: hooks that lie side by side are read from the disk together.
//!
//! A backlog that is delivered in the order of its seqs goes through its segments from front to
//! end, and a direct read for each hook would cost a request to the device each. A read that
//! goes on where an earlier one ended takes [`SPAN_BYTES`] at once, and its neighbours find
//! theirs in there.
//!
//! Invariant: a span holds only what was durable when its read began. That never changes: a slot
//! that is used again is another segment. Bounds: [`SPANS_MAX`] spans, and those that hooks being
//! delivered still point into. Runs on the shard core.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::inner::Inner;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::ids::SegmentId;
use crate::writer::notify::Progress;

/// Bytes read at once when reads go on in order.
const SPAN_BYTES: usize = 128 << 10;

/// Spans kept.
const SPANS_MAX: usize = 4;

/// Runs of reads that are told apart: sinks deliver a backlog at different places.
const RUNS_MAX: usize = 4;

/// A read that begins so close behind where the last of a run ended belongs to the run.
const NEAR_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Range {
    segment: SegmentId,
    start: u64,
    end: u64,
}

impl Range {
    fn holds(&self, other: &Range) -> bool {
        self.segment == other.segment && self.start <= other.start && other.end <= self.end
    }
}

/// What was read lately, and what is being read.
pub(crate) struct Spans<D: Disk> {
    ready: RefCell<VecDeque<(Range, Rc<D::Buf>)>>,
    reading: RefCell<Vec<Range>>,
    /// Where runs of reads ended, the latest last.
    runs: RefCell<VecDeque<(SegmentId, u64)>>,
    changed: Progress,
}

impl<D: Disk> Default for Spans<D> {
    fn default() -> Self {
        Spans {
            ready: RefCell::default(),
            reading: RefCell::default(),
            runs: RefCell::default(),
            changed: Progress::default(),
        }
    }
}

impl<D: Disk> Spans<D> {
    fn find(&self, wanted: &Range) -> Option<(Rc<D::Buf>, u64)> {
        let ready = self.ready.borrow();
        let (range, buf) = ready.iter().find(|(range, _)| range.holds(wanted))?;
        Some((Rc::clone(buf), range.start))
    }

    /// Drops what holds this place; false when nothing did.
    pub(crate) fn forget(&self, segment: SegmentId, offset: u64) -> bool {
        let mut ready = self.ready.borrow_mut();
        let before = ready.len();
        ready.retain(|(r, _)| r.segment != segment || offset < r.start || offset >= r.end);
        ready.len() < before
    }

    fn is_reading(&self, wanted: &Range) -> bool {
        self.reading.borrow().iter().any(|r| r.holds(wanted))
    }

    /// Notes a read; true when it goes on where an earlier one ended.
    fn goes_on(&self, wanted: &Range) -> bool {
        let mut runs = self.runs.borrow_mut();
        let near = |&(segment, end): &(SegmentId, u64)| {
            // Neighbours share a block.
            let is_behind = wanted.start + BLOCK_BYTES as u64 >= end;
            segment == wanted.segment && is_behind && wanted.start <= end + NEAR_BYTES
        };
        let run = runs.iter().position(near).and_then(|at| runs.remove(at));
        if run.is_none() && runs.len() >= RUNS_MAX {
            runs.pop_front();
        }
        runs.push_back((wanted.segment, wanted.end));
        run.is_some()
    }
}

/// A read under way; ends when dropped.
struct Reading<'a, D: Disk> {
    spans: &'a Spans<D>,
    range: Range,
}

impl<D: Disk> Drop for Reading<'_, D> {
    fn drop(&mut self) {
        let mut reading = self.spans.reading.borrow_mut();
        if let Some(at) = reading.iter().position(|r| *r == self.range) {
            reading.swap_remove(at);
        }
        drop(reading);
        self.spans.changed.signal();
    }
}

impl<D: Disk> Inner<D> {
    /// The `bytes` (whole blocks) at `start` of a durable part of the segment, out of a span: the
    /// span and its own start. `None`: they are to be read alone.
    ///
    /// # Cancel safety
    /// May be dropped; whoever waited for this read then reads alone.
    pub(crate) async fn read_ahead(
        &self,
        file: &D::File,
        segment: SegmentId,
        start: u64,
        bytes: usize,
    ) -> Option<(Rc<D::Buf>, u64)> {
        let spans = &self.spans;
        let end = start + bytes as u64;
        let wanted = Range {
            segment,
            start,
            end,
        };
        if let Some(found) = spans.find(&wanted) {
            return Some(found);
        }
        if spans.is_reading(&wanted) {
            let is_over = || !spans.is_reading(&wanted);
            spans.changed.until(|| is_over().then_some(())).await;
            return spans.find(&wanted);
        }
        if !spans.goes_on(&wanted) {
            return None;
        }
        let until = self.durable_until(segment)?.min(start + SPAN_BYTES as u64);
        let until = until / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if until <= end {
            return None;
        }
        let range = Range {
            segment,
            start,
            end: until,
        };
        spans.reading.borrow_mut().push(range);
        let _reading = Reading { spans, range };
        let read = self.disk.read_at(file, start, (until - start) as usize);
        // NOTE: a block that cannot be read may be a neighbour's: the hook is then read alone.
        let (buf, got) = read.await.ok()?;
        if (got as u64) < until - start {
            return None;
        }
        let buf = Rc::new(buf);
        let mut ready = spans.ready.borrow_mut();
        if ready.len() >= SPANS_MAX {
            ready.pop_front();
        }
        ready.push_back((range, Rc::clone(&buf)));
        Some((buf, start))
    }

    /// Where the part of the segment that never changes ends.
    fn durable_until(&self, segment: SegmentId) -> Option<u64> {
        let durable = self.writer.borrow().durable_end;
        if segment == durable.segment {
            return Some(durable.offset);
        }
        let slots = self.slots.borrow();
        let slot = slots.of_segment(segment)?;
        (segment < durable.segment).then_some(slot.bytes)
    }
}
