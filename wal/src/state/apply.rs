//! What each record does to the state. One arm per record, each absolute.
//!
//! A record about something the state does not hold (a delivery of a finished hook, say) does
//! nothing: at boot the checkpoint may be newer than the record. Pure.

use crate::hook::{HookExtra, HookFacts};
use crate::ids::{Lsn, Seq};
use crate::record::{DedupeRow, Delivery, DeliveryState, Location, Record, Resequenced, Watermark};

use super::table::NewHook;
use super::{Holds, HookEnd, Inserted, RowState, State};

impl State {
    /// Applies a hook record that lies at `at`, in the order of LSNs. A hook that is already
    /// live moves there once the group is durable (a relocation, a second copy).
    pub fn apply_hook(
        &mut self,
        facts: &HookFacts,
        extra: &HookExtra<'_>,
        at: Location,
    ) -> Inserted {
        let mut holds = Holds::NONE;
        if extra.archive {
            holds = holds.and(Holds::ARCHIVE);
        }
        if extra.log && !self.meta.is_confirmed(facts.seq) {
            holds = holds.and(Holds::LOG);
        }
        let inserted = self.insert_hook(&NewHook {
            seq: facts.seq,
            id: facts.id,
            location: at,
            sinks: extra.sinks,
            holds,
        });
        self.meta.next_seq = self.meta.next_seq.max(facts.seq.next());
        if let Some(hash) = extra.dedupe_hash
            && !facts.relocated
            && !matches!(inserted, Inserted::Collision(_))
        {
            let expires_at_s = facts.received_at_ms / 1000 + u64::from(facts.dedupe_ttl_s);
            let row = DedupeRow {
                hash,
                id: facts.id,
                seq: facts.seq,
                expires_at_s,
            };
            self.note_dedupe(at.lsn, row);
        }
        inserted
    }

    /// Applies a record of the group `lsn`, in the order of LSNs.
    pub fn apply(&mut self, record: &Record, lsn: Lsn) {
        self.applied = self.applied.max(lsn);
        match record {
            Record::Delivery(delivery) => {
                self.apply_delivery(delivery);
            }
            Record::Finished { first, last } => self.finish_range(*first, *last),
            Record::Dedupe(row) => self.note_dedupe(lsn, *row),
            Record::DedupeGone { hash, id } => {
                let gone = DedupeRow {
                    hash: *hash,
                    id: *id,
                    seq: Seq(0),
                    expires_at_s: 0,
                };
                self.note_dedupe(lsn, gone);
            }
            Record::Archived(seq) => {
                if let Some(slot) = self.slot_of_seq(*seq) {
                    self.release(slot, Holds::ARCHIVE);
                }
            }
            Record::Watermark(mark) => self.apply_watermark(mark),
            Record::SinkName(name) => self.names.put(name),
            Record::GivenUp(seq) => self.give_up(*seq),
            other => self.meta.apply(other),
        }
    }

    /// The present value of what `record` would replace, for the rows that a fence takes back
    /// (offset, watermark); `None` for every other.
    pub fn before(&self, record: &Record) -> Option<Record> {
        match record {
            Record::Offset(_) => Some(Record::Offset(self.meta.offset)),
            Record::Watermark(_) => Some(Record::Watermark(self.meta.watermark.clone())),
            _ => None,
        }
    }

    /// Takes back a re-sequencing mark of a fenced group: its hook was undone, and a replay must
    /// not count it as present.
    pub fn forget_resequenced(&mut self, mark: &Resequenced) {
        self.meta.forget_resequenced(mark);
    }

    fn apply_delivery(&mut self, delivery: &Delivery) -> HookEnd {
        let Some(row) = self.row_of(delivery.seq, delivery.sink) else {
            return HookEnd::Lives;
        };
        // IMPORTANT: a finished row stays finished. An older record applied on top of a newer
        // checkpoint must not end the hook by way of a state that never was.
        if self.row(row).state == RowState::Finished {
            return HookEnd::Lives;
        }
        let state = match delivery.state {
            DeliveryState::Due => RowState::Due {
                due_ms: delivery.due_ms,
            },
            DeliveryState::Dead => RowState::Dead {
                at_s: u32::try_from(delivery.due_ms / 1000).unwrap_or(u32::MAX),
                reason: delivery.reason,
            },
            DeliveryState::Delivered | DeliveryState::Discarded => RowState::Finished,
        };
        self.set_row(row, delivery.attempts, state)
    }

    fn finish_range(&mut self, first: Seq, last: Seq) {
        // NOTE: a long range (a leap, at boot) is looked through by the table, not by seqs; that
        // holds the core for as long as the table is large.
        const LOOKUPS_MAX: u64 = 1 << 12;
        if last.0 - first.0 < LOOKUPS_MAX {
            for seq in first.0..=last.0 {
                self.finish_seq(Seq(seq));
            }
            return;
        }
        let entries = self.hooks().map(|slot| self.hooks.at(slot));
        let within = entries.filter(|e| (first..=last).contains(&e.seq()));
        let live: Vec<(Seq, bool)> = within.map(|e| (e.seq(), e.in_flight)).collect();
        for &(seq, _) in &live {
            self.finish_seq(seq);
        }
        self.finished.insert_range(first, last);
        for (seq, _) in live.into_iter().filter(|&(_, in_flight)| in_flight) {
            self.finished.remove(seq);
        }
    }

    fn apply_watermark(&mut self, mark: &Watermark) {
        self.meta.watermark = mark.clone();
        let passed = self.log_held.range(..=mark.seq).copied();
        let passed: Vec<_> = passed.filter(|&seq| self.meta.is_confirmed(seq)).collect();
        for seq in passed {
            if let Some(slot) = self.slot_of_seq(seq) {
                self.release(slot, Holds::LOG);
            }
        }
    }
}
