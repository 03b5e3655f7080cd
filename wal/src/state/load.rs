//! What only a checkpoint's reader does to a state: entries as they stood, without an LSN.
//!
//! Runs at boot and offline; nothing here yields.

use crate::ids::{HookId, Seq, SinkNo};
use crate::record::Location;

use super::hooks::HookSlot;
use super::table::{NewHook, hash_id, hash_seq};
use super::{Holds, RowState, State};

/// Entries that a batch indexes at once: enough for many in each table, 8 MiB.
const BATCH_HOOKS: usize = 1 << 18;

/// Hook entries on their way into the look-ups.
#[derive(Default)]
pub(crate) struct LoadBatch {
    seqs: Vec<(u64, u32)>,
    ids: Vec<(u64, u32)>,
    sinks: Vec<SinkNo>,
}

impl LoadBatch {
    /// Whether it is time for [`State::load_index`].
    pub(crate) fn is_full(&self) -> bool {
        self.seqs.len() >= BATCH_HOOKS
    }
}

impl State {
    /// Takes in a hook entry, which is not found by seq or id before the next
    /// [`State::load_index`]. False, and nothing was done, when the entry has nothing left to do:
    /// no writer makes such entries.
    pub(crate) fn load_hook(
        &mut self,
        seq: Seq,
        id: HookId,
        location: Location,
        holds: Holds,
        rows: &[(SinkNo, u16, RowState)],
        batch: &mut LoadBatch,
    ) -> bool {
        let is_open = rows
            .iter()
            .any(|(_, _, state)| *state != RowState::Finished);
        if !is_open && holds.is_none() {
            return false;
        }
        batch.sinks.clear();
        batch.sinks.extend(rows.iter().map(|&(sink, _, _)| sink));
        let hook = NewHook {
            seq,
            id,
            location,
            sinks: &batch.sinks,
            holds,
        };
        let slot = self.place_hook(&hook, true);
        batch.seqs.push((hash_seq(&self.hasher, seq), slot.0));
        batch.ids.push((hash_id(&self.hasher, id), slot.0));
        let fresh = (0, RowState::Due { due_ms: 0 });
        // Open rows first: a hook must not end while its finished rows are set.
        for (row, &(_, attempts, state)) in self.rows(slot).zip(rows) {
            if (attempts, state) != fresh && state != RowState::Finished {
                self.set_row(row, attempts, state);
            }
        }
        for (row, &(_, attempts, state)) in self.rows(slot).zip(rows) {
            if state == RowState::Finished {
                self.set_row(row, attempts, state);
            }
        }
        true
    }

    /// Makes the entries of the batch findable. False when a seq came twice; then the state is
    /// of no use.
    pub(crate) fn load_index(&mut self, batch: &mut LoadBatch) -> bool {
        let (hooks, hasher) = (&self.hooks, &self.hasher);
        let seq = |slot| hooks.at(HookSlot(slot)).seq();
        let is_new = self.by_seq.insert_all(
            &mut batch.seqs,
            |a, b| seq(a) == seq(b),
            |slot| hash_seq(hasher, seq(slot)),
        );
        let id = |slot| hooks.at(HookSlot(slot)).id;
        self.by_id.insert_all(
            &mut batch.ids,
            |_, _| false,
            |slot| hash_id(hasher, id(slot)),
        );
        batch.seqs.clear();
        batch.ids.clear();
        is_new
    }

    pub(crate) fn load_finished(&mut self, first: Seq, last: Seq) {
        self.finished.insert_range(first, last);
    }

    /// A hook whose entry was written and that finished afterwards.
    pub(crate) fn load_gone(&mut self, seq: Seq) {
        self.finish_seq(seq);
    }

    /// Puts the dead letters in the order of death after they were loaded in another one. At
    /// boot only: it does not yield.
    pub fn sort_dead_letters(&mut self) {
        let rows = &mut self.rows;
        self.dead
            .sort(|row, place| rows.set_dead_place(row, place.0));
    }
}
