//! Live hooks and bytes per segment, kept exact as hooks come, move and leave. Pure.

use std::collections::BTreeMap;

use crate::ids::SegmentId;
use crate::record::Location;

/// What lives in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentLive {
    /// Live hooks whose record is there.
    pub hooks: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// [`SegmentLive`] by segment; a segment without a live hook has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveBytes {
    by_segment: BTreeMap<SegmentId, SegmentLive>,
    bytes: u64,
}

impl LiveBytes {
    pub(super) fn add(&mut self, at: Location) {
        let live = self.by_segment.entry(at.segment).or_default();
        live.hooks += 1;
        live.bytes += u64::from(at.len);
        self.bytes += u64::from(at.len);
    }

    pub(super) fn sub(&mut self, at: Location) {
        let Some(live) = self.by_segment.get_mut(&at.segment) else {
            unreachable!("segment {} has no live hook to take out", at.segment);
        };
        live.hooks -= 1;
        live.bytes -= u64::from(at.len);
        self.bytes -= u64::from(at.len);
        if live.hooks == 0 {
            self.by_segment.remove(&at.segment);
        }
    }

    pub(super) fn of(&self, segment: SegmentId) -> SegmentLive {
        self.by_segment.get(&segment).copied().unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SegmentId, SegmentLive)> + '_ {
        self.by_segment
            .iter()
            .map(|(&segment, &live)| (segment, live))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
