//! Group commit: what becomes of every admitted hook, decided as functions of state and time.
//!
//! A hook waits here until a group starts, is written with its group, and is settled when every
//! half of its commit is known. A group has a local half (the store) and, in a mode that asks for
//! it, a log half per record behind a seam; without one the join is the local half alone.
//!
//! Invariants, asserted:
//! * a hook is settled exactly once, and [`Verdict::Committed`] only after its group settled
//!   durable and, where there is a log half, its record was confirmed;
//! * local halves arrive in LSN order;
//! * nothing that was issued is forgotten: a record with one half missing is handed on as
//!   *carried* with the halves it has.
//!
//! This file is pure and runs anywhere; [`driver`] obeys it on a shard core.

pub mod driver;
mod own;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;

use ankusa_wal::hook::HookDraft;
use ankusa_wal::{Lsn, Outcome, Seq};

/// What a hook's request is told, and so what becomes of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Durable in every place the mode promises.
    Committed,
    /// Nothing was written: it waited too long, or the queue is full.
    Overload,
    /// The local half failed; in a dual mode the record is carried.
    StoreUnavailable,
    /// The local half is durable, the log half is not known to be: the record is carried.
    IntakeUnavailable,
}

/// What is left of a record when its request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// It is complete.
    Complete,
    /// It is nowhere: the claim is released and a retry stores it.
    Nothing,
    /// At least one half was issued and one is missing: to be carried to completion.
    Carried {
        /// The local half is durable.
        local: bool,
        /// The log has confirmed it.
        log: bool,
    },
}

/// A hook on its way through the commit. One allocation per request, shared with its request.
pub trait Item {
    /// Calls `f` with the draft to encode.
    fn draft(&self, f: &mut dyn FnMut(&HookDraft<'_>));

    /// Upper bound of the bytes its record takes in a group.
    fn record_bytes(&self) -> usize;

    /// Whether it is published to the log where there is one (a hook that nobody waits for is
    /// not).
    fn wants_log(&self) -> bool {
        true
    }

    /// Told once. Wakes the request; never blocks.
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains);

    /// The request's deadline passed while its commit goes on: the request is answered, the claim
    /// stays, [`Item::settle`] still comes.
    fn abandon(&self);
}

/// Ceilings of one shard's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Most hooks waiting for a group.
    pub records_max: usize,
    /// Most bytes of hooks waiting for a group.
    pub bytes_max: usize,
    /// From a whole request to its answer. A hook that still waits then is refused; one whose group
    /// is in flight is answered while the commit goes on.
    pub deadline_us: u64,
}

/// One half of a record's commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    /// The mode has no such half.
    Absent,
    /// Issued, not known yet.
    Open,
    Done,
    Failed,
}

struct Waiting {
    item: Rc<dyn Item>,
    bytes: usize,
    since_us: u64,
}

struct Entry {
    item: Rc<dyn Item>,
    since_us: u64,
    seq: Seq,
    log: Half,
    settled: bool,
    abandoned: bool,
}

struct Group {
    lsn: Lsn,
    local: Half,
    unsettled: usize,
    entries: Vec<Entry>,
}

/// The queue and the groups in flight of one shard.
pub struct Committer {
    limits: QueueLimits,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    groups: VecDeque<Group>,
    last_local: Lsn,
    spare: Vec<Vec<Entry>>,
}

/// A group that is being put together: the hooks taken from the queue, with their seqs.
#[derive(Default)]
pub struct Taken {
    entries: Vec<Entry>,
}

impl Taken {
    /// Hooks in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Their seqs, ascending.
    pub fn seqs(&self) -> impl Iterator<Item = Seq> + '_ {
        self.entries.iter().map(|e| e.seq)
    }

    /// Settles all of it as committed. Only for the negative control of the drills.
    #[cfg(feature = "mutations")]
    pub fn lie(&mut self) {
        for entry in &mut self.entries {
            entry
                .item
                .settle(entry.seq, Verdict::Committed, Remains::Complete);
            entry.settled = true;
        }
    }
}

impl Committer {
    /// An empty one.
    pub fn new(limits: QueueLimits) -> Committer {
        Committer {
            limits,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            groups: VecDeque::new(),
            last_local: Lsn(0),
            spare: Vec::new(),
        }
    }

    /// Queues a hook whose request was whole at `since_us`: what it waited for elsewhere counts
    /// against its deadline. `Err`: the queue is full by count or bytes; nothing is kept.
    pub fn offer(&mut self, item: Rc<dyn Item>, since_us: u64) -> Result<(), Rc<dyn Item>> {
        let bytes = item.record_bytes();
        let over = self.waiting.len() >= self.limits.records_max
            || (self.waiting_bytes + bytes > self.limits.bytes_max && !self.waiting.is_empty());
        if over {
            return Err(item);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting {
            item,
            bytes,
            since_us,
        });
        Ok(())
    }

    /// Hooks waiting for a group.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of hooks waiting for a group.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Groups not settled in both halves.
    pub fn inflight(&self) -> usize {
        self.groups.len()
    }

    /// How many bytes the next group would take if it took all it may.
    pub fn next_group_bytes(&self, bytes_max: usize, records_max: usize) -> usize {
        let mut total = 0;
        for waiting in self.waiting.iter().take(records_max) {
            if total > 0 && total + waiting.bytes > bytes_max {
                break;
            }
            total += waiting.bytes;
        }
        total
    }

    /// A place to collect the next group's hooks in.
    pub fn begin(&mut self) -> Taken {
        Taken {
            entries: self.spare.pop().unwrap_or_default(),
        }
    }

    /// Upper bound of the bytes that the next waiting hook takes.
    pub fn next_bytes(&self) -> Option<usize> {
        self.waiting.front().map(|next| next.bytes)
    }

    /// Takes the next hook, encodes it with `encode` and notes its seq. Nothing when none waits.
    pub fn take(
        &mut self,
        taken: &mut Taken,
        with_log: bool,
        encode: impl FnOnce(&dyn Item) -> Seq,
    ) {
        let Some(next) = self.waiting.pop_front() else {
            return;
        };
        self.waiting_bytes -= next.bytes;
        let seq = encode(next.item.as_ref());
        assert!(
            taken.entries.last().is_none_or(|last| last.seq < seq),
            "seqs of a group are increasing"
        );
        let log = if with_log && next.item.wants_log() {
            Half::Open
        } else {
            Half::Absent
        };
        taken.entries.push(Entry {
            item: next.item,
            since_us: next.since_us,
            seq,
            log,
            settled: false,
            abandoned: false,
        });
    }

    /// The group was handed to the store under `lsn`.
    pub fn started(&mut self, lsn: Lsn, taken: Taken) {
        assert!(
            self.groups.back().is_none_or(|g| g.lsn < lsn) && self.last_local < lsn,
            "groups start in LSN order"
        );
        let unsettled = taken.entries.iter().filter(|e| !e.settled).count();
        self.groups.push_back(Group {
            lsn,
            local: Half::Open,
            unsettled,
            entries: taken.entries,
        });
    }

    /// The store settled the group `lsn`. `durable` is called with the group's seqs when it is
    /// durable: from now on they may be delivered.
    pub fn local(&mut self, lsn: Lsn, outcome: Outcome, durable: &mut dyn FnMut(Seq)) {
        assert!(
            self.last_local < lsn,
            "the local half completes in LSN order"
        );
        self.last_local = lsn;
        let Some(group) = self.groups.iter_mut().find(|g| g.lsn == lsn) else {
            return;
        };
        assert_eq!(group.local, Half::Open, "a group settles once");
        group.local = match outcome {
            Outcome::Durable => Half::Done,
            Outcome::Fenced => Half::Failed,
        };
        let local = group.local;
        for entry in &mut group.entries {
            if local == Half::Done {
                durable(entry.seq);
            }
            if join(entry, local) {
                group.unsettled -= 1;
            }
        }
        self.drop_settled();
    }

    /// The log's answer for one record: confirmed, or failed (also: timed out, outcome unknown).
    /// A late answer for a record that is settled changes nothing here.
    pub fn log(&mut self, seq: Seq, confirmed: bool) {
        for group in &mut self.groups {
            let Ok(at) = group.entries.binary_search_by_key(&seq, |e| e.seq) else {
                continue;
            };
            let entry = &mut group.entries[at];
            if entry.log == Half::Open {
                entry.log = if confirmed { Half::Done } else { Half::Failed };
                if join(entry, group.local) {
                    group.unsettled -= 1;
                }
            }
            break;
        }
        self.drop_settled();
    }

    /// Refuses what waits past its deadline, and answers the requests past it whose group is in
    /// flight; those go on.
    pub fn expire(&mut self, now_us: u64) {
        let deadline_us = self.limits.deadline_us;
        let is_late = |since_us: u64| now_us.saturating_sub(since_us) >= deadline_us;
        // Not in the order of their requests: one may have waited for a claim before it came here.
        if self.waiting.iter().any(|w| is_late(w.since_us)) {
            let bytes = &mut self.waiting_bytes;
            self.waiting.retain(|waiting| {
                let late = is_late(waiting.since_us);
                if late {
                    *bytes -= waiting.bytes;
                    waiting
                        .item
                        .settle(Seq(0), Verdict::Overload, Remains::Nothing);
                }
                !late
            });
        }
        for entry in self.groups.iter_mut().flat_map(|g| &mut g.entries) {
            if is_late(entry.since_us) && !entry.settled && !entry.abandoned {
                entry.abandoned = true;
                entry.item.abandon();
            }
        }
    }

    /// Refuses everything that waits (the store is fenced or closed): nothing of it was issued.
    pub fn refuse_waiting(&mut self, verdict: Verdict) {
        self.waiting_bytes = 0;
        for waiting in self.waiting.drain(..) {
            waiting.item.settle(Seq(0), verdict, Remains::Nothing);
        }
    }

    fn drop_settled(&mut self) {
        // A group leaves once its local half is known and every record is settled; groups behind
        // it may be complete already and wait here for their turn, which costs nothing.
        while let Some(first) = self.groups.front() {
            if first.local == Half::Open || first.unsettled > 0 {
                break;
            }
            if let Some(mut done) = self.groups.pop_front() {
                done.entries.clear();
                if self.spare.len() < 4 {
                    self.spare.push(done.entries);
                }
            }
        }
    }
}

/// Settles the record if both its halves are known. True when it was settled by this call.
fn join(entry: &mut Entry, local: Half) -> bool {
    if entry.settled || local == Half::Open || entry.log == Half::Open {
        return false;
    }
    let (verdict, remains) = decide(local, entry.log);
    entry.settled = true;
    entry.item.settle(entry.seq, verdict, remains);
    true
}

/// The four outcomes, and the two of a mode without a log half.
fn decide(local: Half, log: Half) -> (Verdict, Remains) {
    let carried = |local, log| Remains::Carried { local, log };
    match (local, log) {
        (Half::Done, Half::Done | Half::Absent) => (Verdict::Committed, Remains::Complete),
        (Half::Done, _) => (Verdict::IntakeUnavailable, carried(true, false)),
        (_, Half::Absent) => (Verdict::StoreUnavailable, Remains::Nothing),
        (_, Half::Done) => (Verdict::StoreUnavailable, carried(false, true)),
        (_, _) => (Verdict::StoreUnavailable, carried(false, false)),
    }
}
