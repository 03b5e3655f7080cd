//! The buffers of recent groups, kept for reads right after an ack. Nothing is copied.
//!
//! Bounded by bytes; a group that is not durable yet is never dropped, since nothing else can
//! answer for it, so that the bound may be passed by what is in flight.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::disk::Disk;
use crate::ids::{Lsn, SegmentId};

/// The bytes of a group as it was written, frame header first.
pub(crate) enum GroupBytes<D: Disk> {
    /// The write's own buffer; the frame starts at the offset.
    Aligned(Rc<D::Buf>, usize),
    /// A group of one large record, gathered apart from its pieces of 1 MiB.
    Large(Rc<Vec<u8>>, usize),
}

impl<D: Disk> Clone for GroupBytes<D> {
    fn clone(&self) -> Self {
        match self {
            GroupBytes::Aligned(buf, at) => GroupBytes::Aligned(Rc::clone(buf), *at),
            GroupBytes::Large(bytes, at) => GroupBytes::Large(Rc::clone(bytes), *at),
        }
    }
}

impl<D: Disk> GroupBytes<D> {
    /// The frame.
    pub(crate) fn frame(&self) -> &[u8] {
        match self {
            GroupBytes::Aligned(buf, at) => &(**buf).as_ref()[*at..],
            GroupBytes::Large(bytes, at) => &bytes[*at..],
        }
    }
}

struct Cached<D: Disk> {
    segment: SegmentId,
    offset: u64,
    lsn: Lsn,
    bytes: GroupBytes<D>,
}

/// Recent groups, oldest first.
pub(crate) struct Cache<D: Disk> {
    groups: VecDeque<Cached<D>>,
    bytes: usize,
    bytes_max: usize,
}

impl<D: Disk> Cache<D> {
    pub(crate) fn new(bytes_max: usize) -> Cache<D> {
        Cache {
            groups: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the newest group.
    pub(crate) fn push(&mut self, segment: SegmentId, offset: u64, lsn: Lsn, bytes: GroupBytes<D>) {
        self.bytes += bytes.frame().len();
        self.groups.push_back(Cached {
            segment,
            offset,
            lsn,
            bytes,
        });
    }

    /// Drops the oldest durable groups beyond the bound.
    pub(crate) fn trim(&mut self, durable: Lsn) {
        while self.bytes > self.bytes_max {
            match self.groups.front() {
                Some(oldest) if oldest.lsn <= durable => {
                    self.bytes -= oldest.bytes.frame().len();
                    self.groups.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Drops every group above the frozen mark.
    pub(crate) fn drop_above(&mut self, durable: Lsn) {
        while let Some(newest) = self.groups.back() {
            if newest.lsn <= durable {
                break;
            }
            self.bytes -= newest.bytes.frame().len();
            self.groups.pop_back();
        }
    }

    /// The group that holds this place, and the place's offset in its frame.
    pub(crate) fn find(&self, segment: SegmentId, offset: u64) -> Option<(GroupBytes<D>, usize)> {
        let after = self
            .groups
            .partition_point(|group| (group.segment, group.offset) <= (segment, offset));
        let group = self.groups.get(after.checked_sub(1)?)?;
        let at = usize::try_from(offset - group.offset).ok()?;
        (group.segment == segment && at < group.bytes.frame().len())
            .then(|| (group.bytes.clone(), at))
    }
}
