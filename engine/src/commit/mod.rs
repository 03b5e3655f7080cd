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

mod build;
pub mod driver;
mod item;
mod log_half;
mod own;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;

use ankusa_wal::{LogOffset, Lsn, Outcome, Seq, mutations};

pub use item::{Carried, Carry, InFlight, Item, LogOutcome, Open, Remains, Verdict};

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
    /// It was admitted to the log, and will be published.
    logged: bool,
}

struct Entry {
    item: Rc<dyn Item>,
    bytes: usize,
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
    /// Entries before it are confirmed, carried, or need no log.
    confirmed: usize,
    /// The highest seq in it or before it.
    last: Seq,
    floor: LogOffset,
    started_us: u64,
    has_failed: bool,
}

/// The queue and the groups in flight of one shard.
pub struct Committer {
    limits: QueueLimits,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    groups: VecDeque<Group>,
    last_local: Lsn,
    spare: Vec<Vec<Entry>>,
    /// What was admitted to the log and is settled for good: records, bytes.
    freed: (u64, u64),
    /// Undone by a fence whose cut is not durable yet: at most what was in flight.
    undone: Vec<Rc<dyn Item>>,
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

    /// The one taken last.
    fn last(&self) -> Option<&dyn Item> {
        self.entries.last().map(|e| e.item.as_ref())
    }

    /// Their seqs, ascending.
    pub fn seqs(&self) -> impl Iterator<Item = Seq> + '_ {
        self.entries.iter().map(|e| e.seq)
    }

    /// For each of them, whether it is published.
    pub fn logged(&self) -> impl Iterator<Item = bool> + '_ {
        self.entries.iter().map(|e| e.log == Half::Open)
    }

    /// Settles all of it as committed. Only for the negative control of the drills.
    #[cfg(feature = "mutations")]
    pub fn lie(&mut self) {
        for entry in self.entries.iter_mut().filter(|e| !e.settled) {
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
            freed: (0, 0),
            undone: Vec::new(),
        }
    }

    /// Queues a hook whose request was whole at `since_us`: what it waited for elsewhere counts
    /// against its deadline. `logged`: it was admitted to the log. `Err`: the queue is full by
    /// count or bytes; nothing is kept.
    pub fn offer(
        &mut self,
        item: Rc<dyn Item>,
        since_us: u64,
        logged: bool,
    ) -> Result<(), Rc<dyn Item>> {
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
            logged,
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
    pub fn take(&mut self, taken: &mut Taken, encode: impl FnOnce(&dyn Item) -> Seq) {
        let Some(next) = self.waiting.pop_front() else {
            return;
        };
        self.waiting_bytes -= next.bytes;
        let seq = encode(next.item.as_ref());
        assert!(
            taken.entries.last().is_none_or(|last| last.seq < seq),
            "seqs of a group are increasing"
        );
        let log = match next.logged {
            true => Half::Open,
            false => Half::Absent,
        };
        taken.entries.push(Entry {
            item: next.item,
            bytes: next.bytes,
            since_us: next.since_us,
            seq,
            log,
            settled: false,
            abandoned: false,
        });
    }

    /// A group was overtaken by a fence before it was handed over: nothing of it was issued.
    pub fn refuse_taken(&mut self, mut taken: Taken, verdict: Verdict) {
        for entry in taken.entries.drain(..) {
            free(&mut self.freed, entry.log != Half::Absent, entry.bytes);
            entry.item.settle(Seq(0), verdict, Remains::Nothing);
        }
        self.keep_spare(taken.entries);
    }

    /// Answers the requests past their deadline in a group that is being built; their commit goes
    /// on.
    pub fn expire_taken(&self, taken: &mut Taken, now_us: u64) {
        for entry in &mut taken.entries {
            abandon_if_late(entry, &self.limits, now_us, Verdict::StoreUnavailable);
        }
    }

    /// The group was handed to the store under `lsn`, and to the log when its head was known to be
    /// `floor`.
    pub fn started(&mut self, lsn: Lsn, taken: Taken, floor: LogOffset, now_us: u64) {
        assert!(
            self.groups.back().is_none_or(|g| g.lsn < lsn) && self.last_local < lsn,
            "groups start in LSN order"
        );
        let unsettled = taken.entries.iter().filter(|e| !e.settled).count();
        let before = self.groups.back().map_or(Seq(0), |g| g.last);
        self.groups.push_back(Group {
            lsn,
            local: Half::Open,
            unsettled,
            last: taken.entries.last().map_or(before, |e| e.seq),
            entries: taken.entries,
            confirmed: 0,
            floor,
            started_us: now_us,
            has_failed: false,
        });
    }

    /// The store settled the group `lsn`. `durable` is called with the group's seqs when it is
    /// durable: from now on they may be delivered.
    pub fn local(
        &mut self,
        lsn: Lsn,
        outcome: Outcome,
        durable: &mut dyn FnMut(Seq),
        carry: Carry<'_>,
    ) {
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
        for entry in &mut group.entries {
            if group.local == Half::Done {
                durable(entry.seq);
            }
            if join(entry, group.local, group.floor, &mut self.freed, carry) {
                group.unsettled -= 1;
                if entry.is_undone(group.local) {
                    self.undone.push(Rc::clone(&entry.item));
                }
            }
        }
        self.drop_settled();
    }

    /// The store is not fenced, so whatever was undone is behind a durable cut.
    pub fn cut(&mut self) {
        for item in self.undone.drain(..) {
            item.cut();
        }
    }

    /// The log's answer for one record. What the group learns from it, when it was one that the
    /// group waits for: an answer for a record that is settled (a late confirm, the answer to a
    /// republish) is not. A confirm that comes after a failure, while the local half is open, counts.
    pub fn log(&mut self, seq: Seq, outcome: LogOutcome, carry: Carry<'_>) -> Option<InFlight> {
        let at = self.groups.partition_point(|group| group.last < seq);
        let group = self.groups.get_mut(at)?;
        let at = group.entries.binary_search_by_key(&seq, |e| e.seq).ok()?;
        let entry = &mut group.entries[at];
        let (is_confirmed, is_own) = match outcome {
            LogOutcome::Confirmed => (true, false),
            LogOutcome::Failed { is_own } => (false, is_own),
        };
        let is_awaited = entry.log == Half::Open || (entry.log == Half::Failed && is_confirmed);
        if entry.settled || !is_awaited {
            return None;
        }
        entry.log = match is_confirmed {
            true => Half::Done,
            false => Half::Failed,
        };
        let counts = !is_confirmed && !is_own;
        let in_flight = InFlight {
            started_us: group.started_us,
            is_first_failure: counts && !std::mem::replace(&mut group.has_failed, counts),
        };
        if join(entry, group.local, group.floor, &mut self.freed, carry) {
            group.unsettled -= 1;
        }
        self.drop_settled();
        Some(in_flight)
    }

    /// What is not settled of the groups in flight.
    pub fn open(&mut self) -> Open {
        let mut open = Open::default();
        for group in &mut self.groups {
            let is_settled = |e: &Entry| e.settled || matches!(e.log, Half::Done | Half::Absent);
            while group.entries.get(group.confirmed).is_some_and(is_settled) {
                group.confirmed += 1;
            }
            if open.unconfirmed.is_none() {
                open.unconfirmed = group.entries.get(group.confirmed).map(|e| e.seq);
            }
            // NOTE: floors rise from group to group, so the first is the lowest.
            let is_local_open = group.local != Half::Done && group.unsettled > 0;
            if is_local_open && open.floor.is_none() {
                open.floor = Some(group.floor);
            }
            if open.unconfirmed.is_some() && open.floor.is_some() {
                break;
            }
        }
        open
    }

    /// Records and bytes that were admitted to the log and are settled for good since the last
    /// call; what is carried is not among them.
    pub fn take_freed(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.freed)
    }

    /// Refuses what waits past its deadline, and answers the requests past it whose group is in
    /// flight; those go on.
    pub fn expire(&mut self, now_us: u64) {
        let deadline_us = self.limits.deadline_us;
        let is_late = |since_us: u64| now_us.saturating_sub(since_us) >= deadline_us;
        // Not in the order of their requests: one may have waited for a claim before it came here.
        if self.waiting.iter().any(|w| is_late(w.since_us)) {
            let (bytes, freed) = (&mut self.waiting_bytes, &mut self.freed);
            self.waiting.retain(|waiting| {
                let late = is_late(waiting.since_us);
                if late {
                    *bytes -= waiting.bytes;
                    free(freed, waiting.logged, waiting.bytes);
                    waiting
                        .item
                        .settle(Seq(0), Verdict::Overload, Remains::Nothing);
                }
                !late
            });
        }
        for group in &mut self.groups {
            let verdict = match group.local {
                Half::Done => Verdict::IntakeUnavailable,
                _ => Verdict::StoreUnavailable,
            };
            for entry in &mut group.entries {
                abandon_if_late(entry, &self.limits, now_us, verdict);
            }
        }
    }

    fn keep_spare(&mut self, mut entries: Vec<Entry>) {
        entries.clear();
        if self.spare.len() < 4 {
            self.spare.push(entries);
        }
    }

    /// Refuses everything that waits (the store is fenced or closed): nothing of it was issued.
    pub fn refuse_waiting(&mut self, verdict: Verdict) {
        self.waiting_bytes = 0;
        for waiting in self.waiting.drain(..) {
            free(&mut self.freed, waiting.logged, waiting.bytes);
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
            if let Some(done) = self.groups.pop_front() {
                self.keep_spare(done.entries);
            }
        }
    }
}

impl Entry {
    /// Without a log half nothing carries what a fence undid.
    fn is_undone(&self, local: Half) -> bool {
        local == Half::Failed && self.log == Half::Absent
    }
}

fn abandon_if_late(entry: &mut Entry, limits: &QueueLimits, now_us: u64, verdict: Verdict) {
    let is_late = now_us.saturating_sub(entry.since_us) >= limits.deadline_us;
    if is_late && !entry.settled && !entry.abandoned {
        entry.abandoned = true;
        entry.item.abandon(verdict);
    }
}

fn free(freed: &mut (u64, u64), logged: bool, bytes: usize) {
    freed.0 += u64::from(logged);
    freed.1 += if logged { bytes as u64 } else { 0 };
}

/// Settles the record if both its halves are known. True when it was settled by this call.
fn join(
    entry: &mut Entry,
    local: Half,
    floor: LogOffset,
    freed: &mut (u64, u64),
    carry: Carry<'_>,
) -> bool {
    if mutations::is("ack_before_confirm") && local == Half::Done && entry.log == Half::Open {
        entry.log = Half::Done;
    }
    if entry.settled || local == Half::Open || entry.log == Half::Open {
        return false;
    }
    let (verdict, remains) = decide(local, entry.log);
    entry.settled = true;
    match remains {
        // IMPORTANT: carried first, then settled: the item hands its claim to what carries it.
        Remains::Carried { local, log } => carry(&Carried {
            item: entry.item.as_ref(),
            seq: entry.seq,
            local,
            log,
            since_us: entry.since_us,
            floor,
            bytes: entry.bytes,
        }),
        Remains::Complete | Remains::Undone | Remains::Nothing => {
            free(freed, entry.log != Half::Absent, entry.bytes);
        }
    }
    entry.item.settle(entry.seq, verdict, remains);
    true
}

/// The four outcomes, and the two of a mode without a log half.
fn decide(local: Half, log: Half) -> (Verdict, Remains) {
    let carried = |local, log| Remains::Carried { local, log };
    match (local, log) {
        (Half::Done, Half::Done | Half::Absent) => (Verdict::Committed, Remains::Complete),
        (Half::Done, _) => (Verdict::IntakeUnavailable, carried(true, false)),
        (_, Half::Absent) => (Verdict::StoreUnavailable, Remains::Undone),
        (_, Half::Done) => (Verdict::StoreUnavailable, carried(false, true)),
        (_, _) if mutations::is("assume_failed_absent") => {
            (Verdict::StoreUnavailable, Remains::Nothing)
        }
        (_, _) => (Verdict::StoreUnavailable, carried(false, false)),
    }
}
