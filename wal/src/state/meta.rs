//! The small tables of a shard: marks, offsets, incarnations, re-sequenced hooks, trails,
//! counters. Each is set absolutely and bounded. Pure.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::ids::{HookId, Seq};
use crate::record::{
    Counter, Incarnation, IntakeIdentity, IntakeOffset, Record, Resequenced, TrailRow, Watermark,
};

use super::names::SinkNames;

/// Most rows kept of each trail; the oldest go first.
pub const TRAIL_ROWS_MAX: usize = 1 << 14;

/// Most re-sequenced marks kept; the lowest old seq goes first, which can cost a second copy of
/// a hook in a later replay, never a hook.
pub const RESEQUENCED_MAX: usize = 1 << 20;

/// The small tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The next seq to hand out; never falls.
    pub next_seq: Seq,
    /// What the intake log has confirmed.
    pub watermark: Watermark,
    /// How far the intake log is in this store.
    pub offset: IntakeOffset,
    /// The node, partition and log that this shard belongs to.
    pub intake: Option<IntakeIdentity>,
    incarnations: BTreeMap<u32, Seq>,
    resequenced: BTreeMap<(Seq, HookId), Seq>,
    audit: BTreeMap<u64, TrailRow>,
    audit_trimmed: u64,
    lifecycle: BTreeMap<u64, TrailRow>,
    counters: BTreeMap<u16, u64>,
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            next_seq: Seq(1),
            watermark: Watermark::default(),
            offset: IntakeOffset::default(),
            intake: None,
            incarnations: BTreeMap::new(),
            resequenced: BTreeMap::new(),
            audit: BTreeMap::new(),
            audit_trimmed: 0,
            lifecycle: BTreeMap::new(),
            counters: BTreeMap::new(),
        }
    }
}

impl Meta {
    /// Whether the intake log is known to hold `seq` (or needs none for it).
    pub fn is_confirmed(&self, seq: Seq) -> bool {
        seq <= self.watermark.seq && self.watermark.exceptions.binary_search(&seq).is_err()
    }

    /// The incarnation that handed out `seq`; `None` before the first row.
    pub fn incarnation_of(&self, seq: Seq) -> Option<u32> {
        // First seqs rise with the number; there are as many rows as there were restores.
        let mut before = self.incarnations.iter().filter(|&(_, &first)| first <= seq);
        before.next_back().map(|(&number, _)| number)
    }

    /// All incarnations, by number.
    pub fn incarnations(&self) -> impl Iterator<Item = Incarnation> + '_ {
        let row = |(&incarnation, &first_seq)| Incarnation {
            incarnation,
            first_seq,
        };
        self.incarnations.iter().map(row)
    }

    /// The seq that a re-sequenced hook has here.
    pub fn resequenced(&self, old: Seq, id: HookId) -> Option<Seq> {
        self.resequenced.get(&(old, id)).copied()
    }

    pub(super) fn forget_resequenced(&mut self, mark: &Resequenced) {
        self.resequenced.remove(&(mark.old, mark.id));
    }

    /// A counter; 0 when it was never set.
    pub fn counter(&self, counter: u16) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }

    /// Every counter that was set.
    pub fn counters(&self) -> impl Iterator<Item = Counter> + '_ {
        self.counters
            .iter()
            .map(|(&counter, &value)| Counter { counter, value })
    }

    /// Audit rows with a number below `before`, newest first.
    pub fn audit_before(&self, before: u64) -> impl Iterator<Item = &TrailRow> {
        self.audit.range(..before).rev().map(|(_, row)| row)
    }

    /// Lifecycle rows with a number above `after`, oldest first.
    pub fn lifecycle_after(&self, after: u64) -> impl Iterator<Item = &TrailRow> {
        let from = after.saturating_add(1);
        self.lifecycle.range(from..).map(|(_, row)| row)
    }

    /// The highest number in the audit trail so far; 0 for none.
    pub fn audit_last(&self) -> u64 {
        let last = self.audit.last_key_value().map_or(0, |(&no, _)| no);
        last.max(self.audit_trimmed)
    }

    /// The highest number in the lifecycle trail so far; 0 for none.
    pub fn lifecycle_last(&self) -> u64 {
        self.lifecycle.last_key_value().map_or(0, |(&no, _)| no)
    }

    /// The marks, offsets, incarnations and counters as records.
    pub fn marks(&self) -> Vec<Record> {
        let counters: Vec<Counter> = self.counters().collect();
        let mut marks = vec![
            Record::NextSeq(self.next_seq),
            Record::Watermark(self.watermark.clone()),
            Record::Offset(self.offset),
            Record::AuditTrim(self.audit_trimmed),
        ];
        if !counters.is_empty() {
            marks.push(Record::Counters(counters));
        }
        marks.extend(self.intake.clone().map(Record::IntakeIdentity));
        marks.extend(self.incarnations().map(Record::Incarnation));
        marks
    }

    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::NextSeq(seq) => self.next_seq = self.next_seq.max(*seq),
            Record::Watermark(mark) => self.watermark = mark.clone(),
            Record::Offset(offset) => self.offset = *offset,
            Record::IntakeIdentity(identity) => self.intake = Some(identity.clone()),
            Record::Incarnation(row) => {
                self.incarnations.insert(row.incarnation, row.first_seq);
            }
            Record::Resequenced(mark) => {
                self.resequenced.insert((mark.old, mark.id), mark.new);
                if self.resequenced.len() > RESEQUENCED_MAX {
                    self.resequenced.pop_first();
                }
            }
            Record::Counters(counters) => {
                self.counters
                    .extend(counters.iter().map(|c| (c.counter, c.value)));
            }
            Record::Audit(row) if row.no > self.audit_trimmed => put(&mut self.audit, row),
            Record::Audit(_) => {}
            Record::Lifecycle(row) => put(&mut self.lifecycle, row),
            Record::AuditTrim(no) => {
                self.audit_trimmed = self.audit_trimmed.max(*no);
                self.audit = self
                    .audit
                    .split_off(&(self.audit_trimmed.saturating_add(1)));
            }
            Record::Delivery(_)
            | Record::Finished { .. }
            | Record::Dedupe(_)
            | Record::DedupeGone { .. }
            | Record::SinkName(_)
            | Record::GivenUp(_)
            | Record::Archived(_) => unreachable!("not a record of the small tables"),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let trail = |rows: &BTreeMap<u64, TrailRow>| -> usize {
            rows.values().map(|row| row.body.len() + 64).sum()
        };
        trail(&self.audit)
            + trail(&self.lifecycle)
            + self.resequenced.len() * 64
            + (self.counters.len() + self.incarnations.len()) * 32
            + self.watermark.exceptions.capacity() * 8
    }
}

/// Where a walk over names, re-sequenced marks and trails goes on; stays good while they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordCursor(At);

/// The next key of the table the walk is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Names(u32),
    Resequenced(Option<(Seq, HookId)>),
    Audit(u64),
    Lifecycle(u64),
    Done,
}

impl Default for RecordCursor {
    fn default() -> RecordCursor {
        RecordCursor(At::Names(0))
    }
}

impl RecordCursor {
    pub(super) fn next(&mut self, names: &SinkNames, meta: &Meta) -> Option<Record> {
        loop {
            self.0 = match self.0 {
                At::Names(from) => match names.at_or_after(from) {
                    Some(name) => {
                        self.0 = At::Names(u32::from(name.sink.0) + 1);
                        return Some(Record::SinkName(name.clone()));
                    }
                    None => At::Resequenced(None),
                },
                At::Resequenced(after) => {
                    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                    match meta.resequenced.range((from, Bound::Unbounded)).next() {
                        Some((&(old, id), &new)) => {
                            self.0 = At::Resequenced(Some((old, id)));
                            return Some(Record::Resequenced(Resequenced { old, id, new }));
                        }
                        None => At::Audit(0),
                    }
                }
                At::Audit(from) => match meta.audit.range(from..).next() {
                    Some((&no, row)) => {
                        self.0 = no.checked_add(1).map_or(At::Lifecycle(0), At::Audit);
                        return Some(Record::Audit(row.clone()));
                    }
                    None => At::Lifecycle(0),
                },
                At::Lifecycle(from) => match meta.lifecycle.range(from..).next() {
                    Some((&no, row)) => {
                        self.0 = no.checked_add(1).map_or(At::Done, At::Lifecycle);
                        return Some(Record::Lifecycle(row.clone()));
                    }
                    None => At::Done,
                },
                At::Done => return None,
            };
        }
    }
}

fn put(trail: &mut BTreeMap<u64, TrailRow>, row: &TrailRow) {
    trail.insert(row.no, row.clone());
    if trail.len() > TRAIL_ROWS_MAX {
        trail.pop_first();
    }
}
