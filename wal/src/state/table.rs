//! The table of live hooks and rows: how hooks come, change and leave.
//!
//! The only place that touches slabs, look-ups, counts and live bytes together. Pure; runs where
//! the state does.

use std::hash::BuildHasher;

use crate::ids::{HookId, Lsn, Seq, SinkNo};
use crate::mutations;
use crate::record::{DedupeRow, Location};

use super::dead::{DeadCursor, DeadPlace};
use super::hooks::{HookEntry, HookSlot};
use super::in_flight::Change;
use super::rows::{ATTEMPTS_MAX, RowFields, RowId, RowTag};
use super::{Counts, State, Undone};
use super::{Holds, Hook, HookEnd, Inserted, Row, RowState};

/// Due times are kept as milliseconds since this one, 2026-01-01T00:00Z, in 40 bits.
const DUE_EPOCH_MS: u64 = 1_767_225_600_000;

const VALUE_MAX: u64 = (1 << 40) - 1;

/// A hook as the table takes it in.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewHook<'a> {
    pub(super) seq: Seq,
    pub(super) id: HookId,
    pub(super) location: Location,
    pub(super) sinks: &'a [SinkNo],
    pub(super) holds: Holds,
}

impl State {
    /// Brings a hook, or moves it when it is live. `at.lsn` may be at or below `durable` (at
    /// boot), then that takes effect at once.
    pub(super) fn insert_hook(&mut self, hook: &NewHook<'_>) -> Inserted {
        let lsn = hook.location.lsn;
        self.applied = self.applied.max(lsn);
        let is_durable = lsn <= self.durable;
        if let Some(slot) = self.slot_of_seq(hook.seq) {
            if self.hooks.at(slot).id != hook.id {
                return Inserted::Collision(slot);
            }
            if is_durable || mutations::is("move_before_durable") {
                self.move_hook(slot, hook.location);
            } else {
                let change = Change::Copied(hook.seq, hook.location);
                self.in_flight.group(lsn).changes.push(change);
            }
            return Inserted::Again(slot);
        }
        if self.finished.contains(hook.seq) {
            return Inserted::Finished;
        }
        if hook.sinks.is_empty() && hook.holds.is_none() {
            if is_durable {
                self.finished.insert(hook.seq);
            } else {
                self.in_flight
                    .group(lsn)
                    .changes
                    .push(Change::Passed(hook.seq));
            }
            return Inserted::Passed;
        }
        let slot = self.add_hook(hook, is_durable);
        if !is_durable {
            self.in_flight
                .group(lsn)
                .changes
                .push(Change::Came(slot, hook.seq));
        }
        Inserted::New(slot)
    }

    fn add_hook(&mut self, hook: &NewHook<'_>, is_durable: bool) -> HookSlot {
        let slot = self.place_hook(hook, is_durable);
        let (hooks, hasher) = (&self.hooks, &self.hasher);
        self.by_seq.insert(hash_seq(hasher, hook.seq), slot.0, |s| {
            hash_seq(hasher, hooks.at(HookSlot(s)).seq())
        });
        self.by_id.insert(hash_id(hasher, hook.id), slot.0, |s| {
            hash_id(hasher, hooks.at(HookSlot(s)).id)
        });
        slot
    }

    /// All of [`State::add_hook`] but the look-ups.
    pub(super) fn place_hook(&mut self, hook: &NewHook<'_>, is_durable: bool) -> HookSlot {
        let mut entry = HookEntry::new(hook.seq, hook.id, hook.location, hook.holds);
        entry.in_flight = !is_durable;
        entry.rows = hook.sinks.len() as u16;
        entry.rows_open = entry.rows;
        if !hook.sinks.is_empty() {
            entry.first_row = self.rows.alloc(hook.sinks.len());
        }
        let slot = self.hooks.insert(entry);
        for (i, &sink) in hook.sinks.iter().enumerate() {
            let row = RowId(entry.first_row + i as u32);
            let fields = RowFields {
                slot,
                sink,
                attempts: 0,
                tag: RowTag::Due,
                value: 0,
            };
            self.rows.set(row, fields);
        }
        self.live_bytes.add(hook.location);
        self.counts.hooks += 1;
        self.counts.rows_pending += u64::from(entry.rows);
        self.counts.held_by_archive += u64::from(hook.holds.has(Holds::ARCHIVE));
        if hook.holds.has(Holds::LOG) {
            self.counts.held_by_log += 1;
            self.log_held.insert(hook.seq);
        }
        slot
    }

    /// The hook in `slot`, if it is live.
    pub fn hook(&self, slot: HookSlot) -> Option<Hook> {
        self.hooks.get(slot).map(|entry| Hook {
            seq: entry.seq(),
            id: entry.id,
            location: self.located(entry),
            holds: entry.holds,
            rows: entry.rows,
            rows_open: entry.rows_open,
            is_durable: !entry.in_flight,
        })
    }

    /// Where a live hook lies. The `lsn` is that of its group until that is durable, then 0.
    pub fn location(&self, seq: Seq) -> Option<Location> {
        let slot = self.slot_of_seq(seq)?;
        Some(self.located(self.hooks.at(slot)))
    }

    fn located(&self, entry: &HookEntry) -> Location {
        let mut location = entry.location();
        if entry.in_flight {
            location.lsn = self.in_flight.lsn_of(entry.seq()).unwrap_or(self.applied);
        }
        location
    }

    /// The live hook at `seq`.
    pub fn slot_of_seq(&self, seq: Seq) -> Option<HookSlot> {
        let hash = hash_seq(&self.hasher, seq);
        let slot = self
            .by_seq
            .find(hash, |s| self.hooks.at(HookSlot(s)).seq() == seq);
        slot.map(HookSlot)
    }

    /// A live hook with this id. Two seqs may hold one id (a re-sequenced copy): then either.
    pub fn slot_of_id(&self, id: HookId) -> Option<HookSlot> {
        let hash = hash_id(&self.hasher, id);
        let slot = self
            .by_id
            .find(hash, |s| self.hooks.at(HookSlot(s)).id == id);
        slot.map(HookSlot)
    }

    /// The rows of the hook in `slot`, finished ones included.
    pub fn rows(&self, slot: HookSlot) -> impl Iterator<Item = RowId> + use<> {
        let (first, count) = match self.hooks.get(slot) {
            Some(entry) if entry.rows > 0 => (entry.first_row, u32::from(entry.rows)),
            _ => (0, 0),
        };
        (first..first + count).map(RowId)
    }

    /// The row of `seq` for `sink`, if the hook is live and has one.
    pub fn row_of(&self, seq: Seq, sink: SinkNo) -> Option<RowId> {
        let slot = self.slot_of_seq(seq)?;
        self.rows(slot).find(|&row| self.rows.get(row).sink == sink)
    }

    /// One past the highest row id in use: the length of an array kept in parallel.
    pub fn row_ids_end(&self) -> u32 {
        self.rows.ids_end()
    }

    /// A row of a live hook. Any other id reads as a finished row of no hook.
    pub fn row(&self, row: RowId) -> Row {
        let fields = self.rows.get(row);
        let state = match fields.tag {
            RowTag::Due if fields.value == 0 => RowState::Due { due_ms: 0 },
            RowTag::Due => RowState::Due {
                due_ms: DUE_EPOCH_MS + fields.value,
            },
            RowTag::Dead => RowState::Dead {
                at_s: self.dead.died_at_s(DeadPlace(fields.value as u32)),
                reason: (fields.value >> 32) as u8,
            },
            RowTag::Finished => RowState::Finished,
        };
        Row {
            slot: fields.slot,
            sink: fields.sink,
            attempts: fields.attempts,
            state,
        }
    }

    /// Sets how a row of a live hook stands, absolutely. Finishing the last one may end the
    /// hook.
    pub fn set_row(&mut self, row: RowId, attempts: u16, state: RowState) -> HookEnd {
        let old = self.rows.get(row);
        let attempts = attempts.min(ATTEMPTS_MAX);
        self.uncount(old);
        if old.tag == RowTag::Dead && !matches!(state, RowState::Dead { .. }) {
            self.leave_dead(old);
        }
        let (tag, value) = match state {
            RowState::Due { due_ms } => (RowTag::Due, pack_due(due_ms)),
            RowState::Dead { at_s, reason } => {
                let place = self.enter_dead(row, old, at_s);
                (RowTag::Dead, u64::from(reason) << 32 | u64::from(place.0))
            }
            RowState::Finished => (RowTag::Finished, 0),
        };
        let new = RowFields {
            slot: old.slot,
            sink: old.sink,
            attempts,
            tag,
            value,
        };
        self.rows.set(row, new);
        self.count(new);
        let entry = self.hooks.at_mut(old.slot);
        let was_open = u16::from(old.tag != RowTag::Finished);
        entry.rows_open = entry.rows_open + u16::from(tag != RowTag::Finished) - was_open;
        self.end_if_done(old.slot)
    }

    /// Finishes a row of a live hook: delivered, purged, or given up for good.
    pub fn finish_row(&mut self, row: RowId) -> HookEnd {
        self.set_row(row, self.rows.get(row).attempts, RowState::Finished)
    }

    /// Ends a hold on a live hook.
    pub fn release(&mut self, slot: HookSlot, hold: Holds) -> HookEnd {
        let entry = self.hooks.at_mut(slot);
        let ended = entry.holds.without(entry.holds.without(hold));
        entry.holds = entry.holds.without(hold);
        let seq = entry.seq();
        self.uncount_holds(seq, ended);
        self.end_if_done(slot)
    }

    /// Marks a seq finished whatever the table holds of it.
    pub(super) fn finish_seq(&mut self, seq: Seq) {
        let Some(slot) = self.slot_of_seq(seq) else {
            self.finished.insert(seq);
            return;
        };
        // The last of these ends the hook.
        let rows: Vec<RowId> = self.rows(slot).collect();
        let holds = self.hooks.at(slot).holds;
        let mut end = HookEnd::Lives;
        for row in rows {
            if self.rows.get(row).tag != RowTag::Finished {
                end = self.finish_row(row);
            }
        }
        if end == HookEnd::Lives {
            self.release(slot, holds);
        }
    }

    /// Takes a hook out as if it had never been applied; its seq is not finished. False, and
    /// nothing happens, when it is not live or its group is durable.
    pub fn undo_hook(&mut self, seq: Seq) -> bool {
        match self.slot_of_seq(seq) {
            Some(slot) if self.hooks.at(slot).in_flight => {
                self.fences += 1;
                self.take_out(slot);
                true
            }
            _ => false,
        }
    }

    /// Takes a hook out that a repair gave up; its seq is not finished.
    pub(super) fn give_up(&mut self, seq: Seq) {
        if let Some(slot) = self.slot_of_seq(seq) {
            self.take_out(slot);
        }
    }

    /// Up to `limit` dead letters from newest to oldest, and the cursor of the next page.
    pub fn dead_letters(&self, cursor: DeadCursor, limit: usize) -> (Vec<RowId>, DeadCursor) {
        self.dead.newest(cursor, limit)
    }

    /// The first live hook at or after the slot number `from`: `Err(next)` when a stretch of
    /// free slots was passed and the look-up should go on there, perhaps after a yield.
    pub fn next_hook(&self, from: u32) -> Result<Option<HookSlot>, u32> {
        self.hooks.next_live(from)
    }

    /// Every live hook, in no order of seqs. For tests and offline use: it does not yield.
    pub fn hooks(&self) -> impl Iterator<Item = HookSlot> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                match self.next_hook(from) {
                    Ok(found) => {
                        from = found?.0 + 1;
                        return found;
                    }
                    Err(next) => from = next,
                }
            }
        })
    }

    /// A row of the dedupe table that the group `lsn` brings; see [`State::take_dedupe_ready`].
    pub(super) fn note_dedupe(&mut self, lsn: Lsn, row: DedupeRow) {
        if lsn <= self.durable {
            self.dedupe_ready.push(row);
        } else {
            self.in_flight.group(lsn).dedupe.push(row);
        }
    }

    /// Dedupe rows of groups that became durable since the last call.
    pub fn take_dedupe_ready(&mut self) -> Vec<DedupeRow> {
        std::mem::take(&mut self.dedupe_ready)
    }

    /// Everything up to `durable` is on the medium.
    pub fn settle(&mut self, durable: Lsn) {
        assert!(durable >= self.durable, "durable never falls");
        self.durable = durable;
        self.applied = self.applied.max(durable);
        while let Some(group) = self.in_flight.pop_durable(durable) {
            for change in group.changes {
                match change {
                    Change::Came(slot, seq) => {
                        if self.holds(slot, seq) {
                            self.hooks.at_mut(slot).in_flight = false;
                            self.end_if_done(slot);
                        }
                    }
                    Change::Passed(seq) => {
                        self.finished.insert(seq);
                    }
                    Change::Copied(seq, location) => {
                        if let Some(slot) = self.slot_of_seq(seq) {
                            self.move_hook(slot, location);
                        }
                    }
                }
            }
            self.dedupe_ready.extend(group.dedupe);
        }
    }

    /// Undoes every hook that a group above `durable` brought, and forgets the copies and dedupe
    /// rows of those groups. Other records of those groups stay applied. The mark is the one at
    /// the moment of the failure: what it covers is settled first and never undone.
    pub fn undo_above(&mut self, durable: Lsn) -> Vec<Undone> {
        self.settle(durable);
        self.fences += 1;
        let mut undone = Vec::new();
        while let Some(group) = self.in_flight.pop_newest() {
            assert!(group.lsn > self.durable, "a durable group is never undone");
            for change in group.changes.iter().rev() {
                if let Change::Came(slot, seq) = *change
                    && self.holds(slot, seq)
                {
                    undone.push(Undone {
                        seq,
                        id: self.hooks.at(slot).id,
                    });
                    self.take_out(slot);
                }
            }
        }
        // Their LSNs are never given again: nobody may wait for them.
        self.applied = self.durable;
        undone.reverse();
        undone
    }

    /// The group that holds the hook at `seq`, while that group is not durable.
    pub fn lsn_in_flight(&self, seq: Seq) -> Option<Lsn> {
        self.in_flight.lsn_of(seq)
    }

    fn holds(&self, slot: HookSlot, seq: Seq) -> bool {
        self.hooks.get(slot).is_some_and(|entry| entry.seq() == seq)
    }

    fn move_hook(&mut self, slot: HookSlot, location: Location) {
        let entry = self.hooks.at_mut(slot);
        self.live_bytes.sub(entry.location());
        entry.set_location(location);
        self.live_bytes.add(location);
    }

    fn end_if_done(&mut self, slot: HookSlot) -> HookEnd {
        let entry = self.hooks.at(slot);
        // IMPORTANT: a hook whose group is not durable is not finished: if the group fails it
        // must be able to come again under its seq. `settle` ends it.
        if entry.rows_open > 0 || !entry.holds.is_none() || entry.in_flight {
            return HookEnd::Lives;
        }
        let seq = entry.seq();
        self.take_out(slot);
        self.finished.insert(seq);
        if let Some(watch) = self.watch.as_mut().filter(|w| slot.0 < w.cursor) {
            watch.gone.push(seq);
        }
        HookEnd::Gone(seq)
    }

    fn take_out(&mut self, slot: HookSlot) {
        for row in self.rows(slot) {
            let fields = self.rows.get(row);
            self.uncount(fields);
            if fields.tag == RowTag::Dead {
                self.leave_dead(fields);
            }
        }
        let entry = *self.hooks.at(slot);
        let (hooks, hasher) = (&self.hooks, &self.hasher);
        let seq_hash = hash_seq(hasher, entry.seq());
        let was = self.by_seq.remove(seq_hash, slot.0, |s| {
            hash_seq(hasher, hooks.at(HookSlot(s)).seq())
        });
        let id_hash = hash_id(hasher, entry.id);
        let was_too = self.by_id.remove(id_hash, slot.0, |s| {
            hash_id(hasher, hooks.at(HookSlot(s)).id)
        });
        assert!(was && was_too, "a live hook is found by its seq and its id");
        self.hooks.remove(slot);
        if entry.rows > 0 {
            self.rows.free(entry.first_row);
        }
        self.live_bytes.sub(entry.location());
        self.uncount_holds(entry.seq(), entry.holds);
        self.counts.hooks -= 1;
    }

    fn enter_dead(&mut self, row: RowId, old: RowFields, at_s: u32) -> DeadPlace {
        if old.tag == RowTag::Dead {
            let place = DeadPlace(old.value as u32);
            if self.dead.died_at_s(place) == at_s {
                return place;
            }
            self.leave_dead(old);
        }
        self.dead.push(row, at_s)
    }

    fn leave_dead(&mut self, old: RowFields) {
        let rows = &mut self.rows;
        self.dead.remove(DeadPlace(old.value as u32), |row, place| {
            rows.set_dead_place(row, place.0);
        });
    }

    fn count(&mut self, row: RowFields) {
        if let Some(count) = count_of(&mut self.counts, row) {
            *count += 1;
        }
    }

    fn uncount(&mut self, row: RowFields) {
        if let Some(count) = count_of(&mut self.counts, row) {
            *count -= 1;
        }
    }

    fn uncount_holds(&mut self, seq: Seq, ended: Holds) {
        self.counts.held_by_archive -= u64::from(ended.has(Holds::ARCHIVE));
        if ended.has(Holds::LOG) {
            self.counts.held_by_log -= 1;
            self.log_held.remove(&seq);
        }
    }
}

fn count_of(counts: &mut Counts, row: RowFields) -> Option<&mut u64> {
    match row.tag {
        RowTag::Due if row.attempts == 0 => Some(&mut counts.rows_pending),
        RowTag::Due => Some(&mut counts.rows_scheduled),
        RowTag::Dead => Some(&mut counts.rows_dead),
        RowTag::Finished => None,
    }
}

fn pack_due(due_ms: u64) -> u64 {
    match due_ms.checked_sub(DUE_EPOCH_MS) {
        Some(since) if since <= VALUE_MAX => since,
        _ => 0,
    }
}

pub(super) fn hash_seq(hasher: &impl BuildHasher, seq: Seq) -> u64 {
    hasher.hash_one(seq.0)
}

pub(super) fn hash_id(hasher: &impl BuildHasher, id: HookId) -> u64 {
    hasher.hash_one(u128::from_le_bytes(id.0))
}
