//! What only a checkpoint's reader does to a state: entries as they stood, without an LSN.
//!
//! Runs at boot and offline; nothing here yields.

use crate::ids::{HookId, Seq, SinkNo};
use crate::record::Location;

use super::table::NewHook;
use super::{Holds, Inserted, RowState, State};

impl State {
    /// Takes in a hook entry. False, and nothing useful was done, when the seq is there already
    /// or the entry has nothing left to do: no writer makes such entries.
    pub(crate) fn load_hook(
        &mut self,
        seq: Seq,
        id: HookId,
        location: Location,
        holds: Holds,
        rows: &[(SinkNo, u16, RowState)],
        sinks: &mut Vec<SinkNo>,
    ) -> bool {
        let is_open = rows
            .iter()
            .any(|(_, _, state)| *state != RowState::Finished);
        if !is_open && holds.is_none() {
            return false;
        }
        sinks.clear();
        sinks.extend(rows.iter().map(|&(sink, _, _)| sink));
        let hook = NewHook {
            seq,
            id,
            location,
            sinks,
            holds,
        };
        let Inserted::New(slot) = self.insert_hook(&hook) else {
            return false;
        };
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
