//! Which rows are due again because of a replay: their deliveries say so.
//!
//! Kept in memory and bounded: after a restart, or beyond the bound, a delivery of such a row is
//! made all the same and does not name its replay. Runs on the shard's core.

use std::cell::RefCell;
use std::collections::HashMap;

use ankusa_wal::{Seq, SinkNo};

use crate::replay::ReplayId;

/// Most rows remembered.
const ROWS_MAX: usize = 1 << 16;

/// The rows.
#[derive(Debug, Default)]
pub(super) struct Replayed(RefCell<HashMap<(Seq, SinkNo), ReplayId>>);

impl Replayed {
    /// The row was made due again by this replay.
    pub(super) fn note(&self, seq: Seq, sink: SinkNo, replay: ReplayId) {
        let mut rows = self.0.borrow_mut();
        if rows.len() < ROWS_MAX || rows.contains_key(&(seq, sink)) {
            rows.insert((seq, sink), replay);
        }
    }

    /// The replay that made the row due again.
    pub(super) fn of(&self, seq: Seq, sink: SinkNo) -> Option<ReplayId> {
        let rows = self.0.borrow();
        // Nearly always empty, and asked for each delivery.
        (!rows.is_empty()).then(|| rows.get(&(seq, sink)).copied())?
    }

    /// The row has come to its end.
    pub(super) fn forget(&self, seq: Seq, sink: SinkNo) {
        let mut rows = self.0.borrow_mut();
        if !rows.is_empty() {
            rows.remove(&(seq, sink));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_the_bound_are_not_remembered_and_make_room_when_they_end() {
        let replayed = Replayed::default();
        for seq in 0..=ROWS_MAX as u64 {
            replayed.note(Seq(seq), SinkNo(1), ReplayId(7));
        }
        assert_eq!(replayed.of(Seq(0), SinkNo(1)), Some(ReplayId(7)));
        assert_eq!(replayed.of(Seq(0), SinkNo(2)), None);
        assert_eq!(replayed.of(Seq(ROWS_MAX as u64), SinkNo(1)), None);
        replayed.forget(Seq(0), SinkNo(1));
        assert_eq!(replayed.of(Seq(0), SinkNo(1)), None);
        replayed.note(Seq(ROWS_MAX as u64), SinkNo(1), ReplayId(8));
        assert_eq!(
            replayed.of(Seq(ROWS_MAX as u64), SinkNo(1)),
            Some(ReplayId(8))
        );
    }
}
