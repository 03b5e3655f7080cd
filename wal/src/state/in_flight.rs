//! What was applied and is not durable yet: the few groups between `durable` and `applied`.
//!
//! Owns the answer to "which group holds this hook" while that matters, the moves of relocated
//! hooks (the index follows only a durable copy) and the dedupe rows that may not leave the
//! shard yet. Bounded by groups in flight times records in a group. Pure.

use std::collections::VecDeque;

use crate::ids::{Lsn, Seq};
use crate::record::{DedupeRow, Location};

use super::hooks::HookSlot;

/// What a group did to the table of hooks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// The hook came into the table.
    Came(HookSlot, Seq),
    /// A hook without rows and holds was seen: finished once durable.
    Passed(Seq),
    /// The hook, already in the table, was appended again.
    Copied(Seq, Location),
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) lsn: Lsn,
    pub(super) changes: Vec<Change>,
    pub(super) dedupe: Vec<DedupeRow>,
}

/// The groups in flight, rising.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    groups: VecDeque<Group>,
}

impl InFlight {
    /// The group `lsn`, begun if it is new.
    pub(super) fn group(&mut self, lsn: Lsn) -> &mut Group {
        let is_new = self.groups.back().is_none_or(|g| g.lsn < lsn);
        if is_new {
            self.groups.push_back(Group {
                lsn,
                changes: Vec::new(),
                dedupe: Vec::new(),
            });
        }
        match self.groups.back_mut() {
            Some(group) if group.lsn == lsn => group,
            _ => unreachable!("groups are applied in rising order"),
        }
    }

    /// The oldest group, if it is at or below `durable`.
    pub(super) fn pop_durable(&mut self, durable: Lsn) -> Option<Group> {
        let is_durable = self.groups.front().is_some_and(|g| g.lsn <= durable);
        if is_durable {
            self.groups.pop_front()
        } else {
            None
        }
    }

    /// The newest group, if there is any.
    pub(super) fn pop_newest(&mut self) -> Option<Group> {
        self.groups.pop_back()
    }

    /// The newest group in flight that brought or copied `seq`.
    pub(super) fn lsn_of(&self, seq: Seq) -> Option<Lsn> {
        let is_it = |change: &Change| match *change {
            Change::Came(_, s) | Change::Copied(s, _) | Change::Passed(s) => s == seq,
        };
        let holds_it = |g: &&Group| g.changes.iter().any(is_it);
        self.groups.iter().rev().find(holds_it).map(|g| g.lsn)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let one = |g: &Group| {
            g.changes.capacity() * size_of::<Change>()
                + g.dedupe.capacity() * size_of::<DedupeRow>()
        };
        self.groups.iter().map(one).sum()
    }
}
