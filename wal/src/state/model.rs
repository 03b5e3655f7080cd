//! A naive model of the state and a generator of logs, for the property tests of the state and
//! of the checkpoint. Tests only.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::hook::{HookExtra, HookFacts};
use crate::ids::{HookId, LogOffset, Lsn, SegmentId, Seq, SinkNo};
use crate::record::*;

use super::{Counts, DeadCursor, Holds, Meta, RowState, SegmentLive, SinkNames, State};

/// What one step of a generated history does; small numbers pick among what exists.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Hook {
        sinks: u8,
        archive: bool,
        log: bool,
        dedupe: bool,
    },
    Again {
        pick: u16,
    },
    Deliver {
        pick: u16,
        row: u8,
        attempts: u8,
        to: u8,
    },
    Archive {
        pick: u16,
    },
    Watermark {
        back: u8,
    },
    Finish {
        pick: u16,
        span: u8,
    },
    Other {
        what: u8,
        value: u8,
    },
    /// The group under way ends.
    EndGroup,
    /// Some of the groups in flight become durable.
    Settle {
        count: u8,
    },
    /// Every group in flight fails; `carry`: its hooks come again, as in the dual mode.
    Fence {
        carry: bool,
    },
    Leap,
}

pub(crate) fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..4u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(sinks, archive, log, dedupe)| Op::Hook { sinks, archive: archive && log, log, dedupe }
        ),
        2 => any::<u16>().prop_map(|pick| Op::Again { pick }),
        12 => (any::<u16>(), 0..4u8, 0..9u8, 0..6u8)
            .prop_map(|(pick, row, attempts, to)| Op::Deliver { pick, row, attempts, to }),
        4 => any::<u16>().prop_map(|pick| Op::Archive { pick }),
        2 => (0..6u8).prop_map(|back| Op::Watermark { back }),
        1 => (any::<u16>(), 0..3u8).prop_map(|(pick, span)| Op::Finish { pick, span }),
        2 => (0..9u8, any::<u8>()).prop_map(|(what, value)| Op::Other { what, value }),
        6 => Just(Op::EndGroup),
        4 => (1..4u8).prop_map(|count| Op::Settle { count }),
        1 => any::<bool>().prop_map(|carry| Op::Fence { carry }),
        1 => Just(Op::Leap),
    ];
    prop::collection::vec(op, 1..count)
}

/// A hook as the log holds it.
#[derive(Clone, Debug)]
pub(crate) struct LoggedHook {
    pub(crate) seq: Seq,
    pub(crate) sinks: Vec<SinkNo>,
    pub(crate) archive: bool,
    pub(crate) log: bool,
    pub(crate) dedupe: bool,
    pub(crate) relocated: bool,
    pub(crate) offset: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Hook(LoggedHook),
    Record(Record),
}

pub(crate) type Group = (Lsn, Vec<Entry>);

pub(crate) fn id_of(seq: Seq) -> HookId {
    let mut bytes = [7; 16];
    bytes[8..].copy_from_slice(&seq.0.to_be_bytes());
    HookId(bytes)
}

fn segment_of(lsn: Lsn) -> SegmentId {
    SegmentId(1 + lsn.0 / 5)
}

fn location(hook: &LoggedHook, lsn: Lsn) -> Location {
    let len = 100 + (hook.seq.0 % 50) as u32;
    Location {
        segment: segment_of(lsn),
        offset: hook.offset,
        len,
        lsn,
    }
}

pub(crate) fn apply_entry(state: &mut State, lsn: Lsn, entry: &Entry) {
    match entry {
        Entry::Record(record) => state.apply(record, lsn),
        Entry::Hook(hook) => {
            let facts = HookFacts {
                id: id_of(hook.seq),
                seq: hook.seq,
                received_at_ms: 1_800_000_000_000,
                dedupe_ttl_s: 60,
                relocated: hook.relocated,
            };
            let extra = HookExtra {
                sinks: &hook.sinks,
                dedupe_hash: hook.dedupe.then_some([hook.seq.0 as u8; 16]),
                archive: hook.archive,
                log: hook.log,
            };
            state.apply_hook(&facts, &extra, location(hook, lsn));
        }
    }
}

/// Applies durable groups as a boot does.
pub(crate) fn replay(state: &mut State, log: &[Group], above: Lsn) {
    for (lsn, entries) in log.iter().filter(|(lsn, _)| *lsn > above) {
        state.settle(state.durable().max(*lsn));
        for entry in entries {
            apply_entry(state, *lsn, entry);
        }
    }
}

type ModelRow = (SinkNo, u16, RowState);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelHook {
    pub(crate) id: HookId,
    pub(crate) location: (SegmentId, u64, u32),
    pub(crate) holds: Holds,
    pub(crate) rows: Vec<ModelRow>,
}

/// Everything that two equal states agree on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) hooks: BTreeMap<Seq, ModelHook>,
    pub(crate) finished: Vec<(Seq, Seq)>,
    pub(crate) meta: Meta,
    pub(crate) names: SinkNames,
}

/// Reads a state out through its public face, checking on the way that its look-ups, counts,
/// live bytes and dead letters agree with its table.
pub(crate) fn snapshot(state: &State) -> Snapshot {
    let mut hooks = BTreeMap::new();
    let mut counts = Counts::default();
    let mut dead = BTreeSet::new();
    let mut live: BTreeMap<SegmentId, SegmentLive> = BTreeMap::new();
    for slot in state.hooks() {
        let hook = state.hook(slot).expect("live");
        assert_eq!(state.slot_of_seq(hook.seq), Some(slot));
        assert_eq!(state.slot_of_id(hook.id), Some(slot));
        assert!(!state.finished().contains(hook.seq), "{} is both", hook.seq);
        counts.hooks += 1;
        counts.held_by_archive += u64::from(hook.holds.has(Holds::ARCHIVE));
        counts.held_by_log += u64::from(hook.holds.has(Holds::LOG));
        let in_segment = live.entry(hook.location.segment).or_default();
        in_segment.hooks += 1;
        in_segment.bytes += u64::from(hook.location.len);
        let mut rows = Vec::new();
        for id in state.rows(slot) {
            let row = state.row(id);
            assert_eq!(row.slot, slot);
            assert!(id.0 < state.row_ids_end());
            match row.state {
                RowState::Due { .. } if row.attempts == 0 => counts.rows_pending += 1,
                RowState::Due { .. } => counts.rows_scheduled += 1,
                RowState::Dead { .. } => {
                    counts.rows_dead += 1;
                    dead.insert(id);
                }
                RowState::Finished => {}
            }
            rows.push((row.sink, row.attempts, row.state));
        }
        let at = hook.location;
        let location = (at.segment, at.offset, at.len);
        let hook_row = ModelHook {
            id: hook.id,
            location,
            holds: hook.holds,
            rows,
        };
        assert!(hooks.insert(hook.seq, hook_row).is_none());
    }
    assert_eq!(counts, state.counts());
    assert_eq!(live, state.segments_live().collect());
    let (listed, _) = state.dead_letters(DeadCursor::NEWEST, usize::MAX);
    assert_eq!(listed.len(), dead.len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), dead);
    Snapshot {
        hooks,
        finished: state.finished().ranges().collect(),
        meta: state.meta().clone(),
        names: state.names().clone(),
    }
}

/// A history under way: the state, the naive model and the log that a disk would hold.
pub(crate) struct History {
    pub(crate) state: State,
    /// Durable groups, in order.
    pub(crate) log: Vec<Group>,
    in_flight: Vec<Group>,
    open: Vec<Entry>,
    lsn: Lsn,
    next_seq: Seq,
    seqs: Vec<LoggedHook>,
    trail_no: u64,
    wrote: u64,
}

impl History {
    pub(crate) fn new() -> History {
        History {
            state: State::new(42),
            log: Vec::new(),
            in_flight: Vec::new(),
            open: Vec::new(),
            lsn: Lsn(1),
            next_seq: Seq(1),
            seqs: Vec::new(),
            trail_no: 0,
            wrote: 0,
        }
    }

    fn put(&mut self, entry: Entry) {
        apply_entry(&mut self.state, self.lsn, &entry);
        self.open.push(entry);
    }

    fn picked(&self, pick: u16) -> Option<LoggedHook> {
        let len = self.seqs.len();
        (len > 0).then(|| self.seqs[pick as usize % len].clone())
    }

    pub(crate) fn end_group(&mut self) {
        self.in_flight
            .push((self.lsn, std::mem::take(&mut self.open)));
        self.lsn = self.lsn.next();
    }

    pub(crate) fn settle(&mut self, count: usize) {
        let count = count.min(self.in_flight.len());
        if count > 0 {
            self.log.extend(self.in_flight.drain(..count));
            self.state.settle(self.log.last().expect("just added").0);
        }
    }

    pub(crate) fn settle_all(&mut self) {
        self.end_group();
        self.settle(usize::MAX);
    }

    fn fence(&mut self, carry: bool) {
        self.end_group();
        let lost: Vec<Group> = self.in_flight.drain(..).collect();
        let undone = self.state.undo_above(self.state.durable());
        // The seqs of undone hooks are not handed out again, which the next segment says.
        self.put(Entry::Record(Record::NextSeq(self.next_seq)));
        let came: BTreeSet<Seq> = undone.iter().map(|u| u.seq).collect();
        for (_, entries) in lost {
            for entry in entries {
                match entry {
                    Entry::Record(_) => self.put(entry),
                    Entry::Hook(ref hook) if carry && came.contains(&hook.seq) => {
                        if !hook.relocated {
                            self.put(entry);
                        }
                    }
                    Entry::Hook(hook) if !hook.relocated => {
                        self.seqs.retain(|h| h.seq != hook.seq);
                    }
                    Entry::Hook(_) => {}
                }
            }
        }
        self.end_group();
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            Op::Hook {
                sinks,
                archive,
                log,
                dedupe,
            } => {
                self.wrote += 4096;
                let hook = LoggedHook {
                    seq: self.next_seq,
                    sinks: (0..*sinks).map(|n| SinkNo(u16::from(n) * 3)).collect(),
                    archive: *archive,
                    log: *log,
                    dedupe: *dedupe,
                    relocated: false,
                    offset: self.wrote,
                };
                self.next_seq = self.next_seq.next();
                self.seqs.push(hook.clone());
                self.put(Entry::Hook(hook));
            }
            Op::Again { pick } => {
                if let Some(mut hook) = self.picked(*pick)
                    && self.state.slot_of_seq(hook.seq).is_some()
                {
                    self.wrote += 4096;
                    hook.offset = self.wrote;
                    hook.relocated = true;
                    self.put(Entry::Hook(hook));
                }
            }
            Op::Deliver {
                pick,
                row,
                attempts,
                to,
            } => {
                if let Some(hook) = self.picked(*pick) {
                    let due_ms = 1_800_000_000_000 + u64::from(*attempts) * 1_000;
                    let delivery = Delivery {
                        seq: hook.seq,
                        sink: SinkNo(u16::from(*row) * 3),
                        attempts: u16::from(*attempts),
                        due_ms,
                        state: match to {
                            0 | 1 => DeliveryState::Due,
                            2 => DeliveryState::Dead,
                            3 => DeliveryState::Discarded,
                            _ => DeliveryState::Delivered,
                        },
                        reason: u8::from(*to == 2) * attempts,
                    };
                    self.put(Entry::Record(Record::Delivery(delivery)));
                }
            }
            Op::Archive { pick } => {
                if let Some(hook) = self.picked(*pick) {
                    self.put(Entry::Record(Record::Archived(hook.seq)));
                }
            }
            Op::Watermark { back } => {
                let seq = Seq(self.next_seq.0.saturating_sub(1 + u64::from(*back)));
                let exceptions = if seq.0 > 3 {
                    vec![Seq(seq.0 - 2)]
                } else {
                    vec![]
                };
                let mark = Watermark { seq, exceptions };
                if seq > self.state.meta().watermark.seq {
                    self.put(Entry::Record(Record::Watermark(mark)));
                }
            }
            Op::Finish { pick, span } => {
                if let Some(hook) = self.picked(*pick) {
                    let last = Seq(hook.seq.0 + u64::from(*span)).min(Seq(self.next_seq.0 - 1));
                    // Only what is durable is finished by a range.
                    let durable =
                        (hook.seq.0..=last.0).all(|s| self.state.lsn_in_flight(Seq(s)).is_none());
                    if durable {
                        self.put(Entry::Record(Record::Finished {
                            first: hook.seq,
                            last,
                        }));
                    }
                }
            }
            Op::Other { what, value } => self.other(*what, *value),
            Op::EndGroup => self.end_group(),
            Op::Settle { count } => self.settle(usize::from(*count)),
            Op::Fence { carry } => self.fence(*carry),
            Op::Leap => {
                self.next_seq = self.next_seq.leap();
                self.put(Entry::Record(Record::NextSeq(self.next_seq)));
            }
        }
    }

    fn other(&mut self, what: u8, value: u8) {
        self.trail_no += 1;
        let n = u64::from(value);
        let row = TrailRow {
            no: self.trail_no,
            at_ms: n,
            body: vec![value; 300].into(),
        };
        let record = match what {
            0 => Record::Counters(vec![Counter {
                counter: u16::from(value % 5),
                value: n,
            }]),
            1 => Record::SinkName(SinkName {
                sink: SinkNo(u16::from(value)),
                tenant: Box::from(*b"t"),
                source: vec![value].into(),
                name: Box::from(*b"n"),
            }),
            2 => Record::Offset(IntakeOffset {
                offset: Some(LogOffset(n)),
                hold: None,
            }),
            3 => Record::Incarnation(Incarnation {
                incarnation: u32::from(value % 4),
                first_seq: Seq(u64::from(value % 4) * 100),
            }),
            4 => Record::Resequenced(Resequenced {
                old: Seq(n),
                id: id_of(Seq(n)),
                new: Seq(n + 1),
            }),
            5 => Record::Audit(row),
            6 => Record::Lifecycle(row),
            7 => Record::AuditTrim(self.trail_no.saturating_sub(n % 4)),
            _ => Record::IntakeIdentity(IntakeIdentity {
                node: Box::from(*b"node"),
                partition: u32::from(value),
                log: Box::from(*b"log"),
            }),
        };
        self.put(Entry::Record(record));
    }

    /// The fold of the durable log by the naive model.
    pub(crate) fn naive(&self) -> (BTreeMap<Seq, ModelHook>, BTreeSet<Seq>) {
        let mut hooks: BTreeMap<Seq, ModelHook> = BTreeMap::new();
        let mut finished = BTreeSet::new();
        let mut mark = Watermark::default();
        let confirmed =
            |mark: &Watermark, seq: &Seq| *seq <= mark.seq && !mark.exceptions.contains(seq);
        for (lsn, entry) in self
            .log
            .iter()
            .flat_map(|(l, es)| es.iter().map(move |e| (*l, e)))
        {
            match entry {
                Entry::Hook(hook) if finished.contains(&hook.seq) => {}
                Entry::Hook(hook) => {
                    let at = location(hook, lsn);
                    let at = (at.segment, at.offset, at.len);
                    let due = RowState::Due { due_ms: 0 };
                    let mut holds = if hook.archive {
                        Holds::ARCHIVE
                    } else {
                        Holds::NONE
                    };
                    if hook.log && !confirmed(&mark, &hook.seq) {
                        holds = holds.and(Holds::LOG);
                    }
                    let fresh = || ModelHook {
                        id: id_of(hook.seq),
                        location: at,
                        holds,
                        rows: hook.sinks.iter().map(|&s| (s, 0, due)).collect(),
                    };
                    hooks.entry(hook.seq).or_insert_with(fresh).location = at;
                }
                Entry::Record(Record::Delivery(d)) => {
                    let row = hooks.get_mut(&d.seq).map(|h| &mut h.rows);
                    let row = row.and_then(|rows| rows.iter_mut().find(|r| r.0 == d.sink));
                    if let Some(row) = row.filter(|r| r.2 != RowState::Finished) {
                        row.1 = d.attempts;
                        row.2 = match d.state {
                            DeliveryState::Due => RowState::Due { due_ms: d.due_ms },
                            DeliveryState::Dead => RowState::Dead {
                                at_s: (d.due_ms / 1000) as u32,
                                reason: d.reason,
                            },
                            _ => RowState::Finished,
                        };
                    }
                }
                Entry::Record(Record::Archived(seq)) => {
                    if let Some(hook) = hooks.get_mut(seq) {
                        hook.holds = hook.holds.without(Holds::ARCHIVE);
                    }
                }
                Entry::Record(Record::Watermark(new)) => {
                    mark = new.clone();
                    for (_, hook) in hooks.iter_mut().filter(|(seq, _)| confirmed(&mark, seq)) {
                        hook.holds = hook.holds.without(Holds::LOG);
                    }
                }
                Entry::Record(Record::Finished { first, last }) => {
                    for seq in first.0..=last.0 {
                        hooks.remove(&Seq(seq));
                        finished.insert(Seq(seq));
                    }
                }
                Entry::Record(_) => {}
            }
            let done = |hook: &ModelHook| {
                hook.holds.is_none() && hook.rows.iter().all(|r| r.2 == RowState::Finished)
            };
            let over: Vec<Seq> = hooks
                .iter()
                .filter(|(_, h)| done(h))
                .map(|(&seq, _)| seq)
                .collect();
            for seq in over {
                hooks.remove(&seq);
                finished.insert(seq);
            }
        }
        (hooks, finished)
    }
}
