//! What a shard has at a record's seq, and whether the record can be relied on.
//!
//! A record's bytes are outside data: nothing of them is trusted before it was read here. Also the
//! counting of a dry run, which looks and writes nothing. Pure.

use ankusa_intake::Replayed;
use ankusa_wal::format::envelope::ENVELOPE_VERSION;
use ankusa_wal::state::SeqSet;
use ankusa_wal::{Envelope, HookId, Seq, State, mutations};

use super::{Applied, Batch, Place, Readable, Row, Today, decide};

/// Seqs at or above it are not ours: no store comes there by leaps, and what counts in seqs must not
/// overflow.
const SEQ_END: u64 = 1 << 43;

/// The record read in place.
pub(super) struct Read<'a> {
    pub(super) seq: Seq,
    pub(super) id: HookId,
    pub(super) envelope: Envelope<'a>,
}

/// Reads a record. `Err`: it is not to be applied, and what it is instead.
pub(super) fn read(record: &Replayed) -> Result<Read<'_>, (Readable, &'static str)> {
    let envelope = match Envelope::parse(&record.value) {
        Ok(envelope) => envelope,
        Err(error) => {
            let version = record.value.first_chunk::<2>();
            let is_newer = version.is_some_and(|v| u16::from_le_bytes(*v) > ENVELOPE_VERSION);
            return Err(match is_newer {
                true => (Readable::Newer, "envelope version"),
                false => (Readable::Broken, error.what),
            });
        }
    };
    let (seq, id) = (Seq(record.seq), HookId(record.id));
    let what = if envelope.seq != seq {
        "its headers name another seq than its envelope"
    } else if envelope.id != id {
        "its headers name another hook than its envelope"
    } else if seq.0 == 0 || seq.0 >= SEQ_END {
        "a seq that no store hands out"
    } else {
        return Ok(Read { seq, id, envelope });
    };
    Err((Readable::Broken, what))
}

/// What the state has at `seq` for the hook `id` of this incarnation.
pub(super) fn place(
    state: &State,
    seq: Seq,
    id: HookId,
    incarnation: u32,
    is_damaged: bool,
) -> Place {
    if mutations::is("replay_trusts_order") && seq < state.next_seq() {
        return Place::SameHook;
    }
    if let Some(hook) = state.slot_of_seq(seq).and_then(|slot| state.hook(slot)) {
        return match (hook.id == id, is_damaged) {
            (true, false) => Place::SameHook,
            (true, true) => Place::SameDamaged,
            (false, _) => Place::OtherHook,
        };
    }
    if !state.finished().contains(seq) {
        return Place::Nothing;
    }
    let by = state.meta().incarnation_of(seq).unwrap_or(0);
    if by == incarnation && !mutations::is("replay_finished_as_new") {
        Place::FinishedHere
    } else {
        Place::FinishedElsewhere
    }
}

/// A shard that is only looked at.
pub struct DryShard {
    state: State,
    /// Seqs that a real run would have written by now.
    written: SeqSet,
    /// Seqs that the log was seen to hold.
    seen: SeqSet,
}

impl DryShard {
    /// Over a state that was read ([`ankusa_wal::open::read_only`]), or an empty one for a shard
    /// that would be added.
    pub fn new(state: State) -> DryShard {
        DryShard {
            state,
            written: SeqSet::new(),
            seen: SeqSet::new(),
        }
    }

    /// Live hooks that a real run would publish.
    pub fn unseen(&self) -> u64 {
        let state = &self.state;
        let hooks = state.hooks().filter_map(|slot| state.hook(slot));
        let is_due = |seq| !state.meta().is_confirmed(seq) && !self.seen.contains(seq);
        hooks.filter(|hook| is_due(hook.seq)).count() as u64
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Counts what a real run would do. Among records written by this very run, one of another
    /// hook under the same seq counts as present.
    pub fn count(&mut self, batch: &Batch, today: &dyn Today) -> Applied {
        let mut counts = Applied::default();
        for record in &batch.records {
            counts.records += 1;
            counts.incarnation = counts.incarnation.max(record.incarnation);
            let row = match read(record) {
                Err((readable, _)) => decide(readable, Place::Nothing, false, true).0,
                Ok(read) if self.written.contains(read.seq) => Row::Present,
                Ok(read) => {
                    let (tenant, source) = (read.envelope.tenant, read.envelope.source);
                    let place = place(&self.state, read.seq, read.id, record.incarnation, false);
                    let marked = self.state.meta().resequenced(read.seq, read.id).is_some();
                    let known = today.source(tenant, source).is_some();
                    let row = decide(Readable::Whole, place, marked, known).0;
                    if place == Place::SameHook {
                        self.seen.insert(read.seq);
                    }
                    if matches!(row, Row::Apply | Row::Unroutable) {
                        self.written.insert(read.seq);
                    }
                    row
                }
            };
            count(&mut counts, row, record.position);
        }
        counts
    }
}

/// Adds one record's row to the counts.
pub(super) fn count(counts: &mut Applied, row: Row, position: u64) {
    match row {
        Row::Apply => counts.applied += 1,
        Row::Unroutable => counts.unroutable += 1,
        Row::Present => counts.present += 1,
        Row::Restore => counts.restored += 1,
        Row::Resequence => counts.collided += 1,
        Row::ResequenceUnroutable => {
            counts.collided += 1;
            counts.unroutable += 1;
        }
        Row::Hold => {
            counts.held += 1;
            counts.hold = super::lower(counts.hold, Some(position));
        }
        Row::Reject => counts.malformed += 1,
    }
}
