//! The fold of the shard's records in memory: what is live, where it lies, what is left to do.
//!
//! Applying a record twice changes nothing. Pure; runs on the shard core, at boot and offline.

use std::collections::BTreeMap;

use crate::hook::{HookExtra, HookFacts};
use crate::ids::{Lsn, Seq};
use crate::record::{IntakeOffset, Location, Record, Watermark};

/// The state of one shard.
#[derive(Debug, Default)]
pub struct State {
    hooks: BTreeMap<u64, Location>,
    next_seq: Seq,
    offset: IntakeOffset,
    watermark: Watermark,
}

impl State {
    /// Applies a hook record that lies at `at`; false when nothing changed because the seq is
    /// finished. A hook that is already live moves to `at` (relocation, a second copy).
    pub fn apply_hook(
        &mut self,
        facts: &HookFacts<'_>,
        _extra: &HookExtra<'_>,
        at: Location,
    ) -> bool {
        self.hooks.insert(facts.seq.0, at);
        self.next_seq = self.next_seq.max(facts.seq.next());
        true
    }

    /// Applies a record of the frame `lsn`.
    pub fn apply(&mut self, record: &Record, _lsn: Lsn) {
        match record {
            Record::NextSeq(seq) => self.next_seq = self.next_seq.max(*seq),
            Record::Offset(offset) => self.offset = *offset,
            Record::Watermark(mark) => self.watermark = mark.clone(),
            _ => {}
        }
    }

    /// Takes back a hook of a fenced group: its rows, its dedupe row, its counts.
    pub fn undo_hook(&mut self, seq: Seq) {
        self.hooks.remove(&seq.0);
    }

    /// The present value of what `record` would replace, for the rows that a fence takes back
    /// (offset, watermark); `None` for every other.
    pub fn before(&self, record: &Record) -> Option<Record> {
        match record {
            Record::Offset(_) => Some(Record::Offset(self.offset)),
            Record::Watermark(_) => Some(Record::Watermark(self.watermark.clone())),
            _ => None,
        }
    }

    /// Where a live hook lies.
    pub fn location(&self, seq: Seq) -> Option<Location> {
        self.hooks.get(&seq.0).copied()
    }

    /// The next seq to hand out.
    pub fn next_seq(&self) -> Seq {
        self.next_seq.max(Seq(1))
    }

    /// Live hooks.
    pub fn live_hooks(&self) -> u64 {
        self.hooks.len() as u64
    }
}
