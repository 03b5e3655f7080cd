//! The memory log's own thread: takes records in batches, writes and syncs each batch once, and
//! hands out the answers when they are due.
//!
//! Invariants: a record is confirmed only after the sync that covers it; the queue to the thread is
//! bounded by what the publishers may hold. Runs: one plain side thread per log.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atomic_waker::AtomicWaker;
use bytes::Bytes;

use super::fault::{Fault, Plan, failure};
use super::file::PartitionFile;
use crate::ask::lock;
use crate::attempts::Key;
use crate::log::{Class, Failure};

/// When an attempt that is never answered is given back to its publisher.
const BACKSTOP: Duration = Duration::from_secs(5);

pub(super) type Outcome = Result<Option<u64>, Failure>;

/// Where a publisher's answers arrive.
#[derive(Default)]
pub(super) struct Mailbox {
    pub(super) answers: Mutex<VecDeque<(Key, Outcome)>>,
    pub(super) waker: AtomicWaker,
}

/// One record with its headers as they will be stored.
pub(super) struct Record {
    pub(super) partition: u32,
    pub(super) headers: Vec<(&'static str, Bytes)>,
    pub(super) value: Bytes,
}

pub(super) type Job = Box<dyn FnOnce(&mut Store) + Send>;

pub(super) enum Op {
    Publish(Arc<Mailbox>, Key, Record),
    Ask(Job),
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    closed: bool,
}

/// What the handles and the thread share.
#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    pub(super) plan: Mutex<Plan>,
}

impl Shared {
    /// Puts operations in; the thread takes all of them at once.
    pub(super) fn send(&self, ops: impl Iterator<Item = Op>) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.ops.extend(ops);
        }
        drop(queue);
        self.arrived.notify_one();
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_one();
    }
}

/// The log's files.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    pub(super) identity: String,
    pub(super) partitions: Vec<PartitionFile>,
    pub(super) sync: bool,
    pub(super) retention_bytes: Option<u64>,
    pub(super) broken: Option<String>,
}

impl Store {
    fn flush(&mut self) -> std::io::Result<()> {
        for partition in &mut self.partitions {
            partition.flush(self.sync)?;
            if let Some(most) = self.retention_bytes
                && partition.bytes() > most.saturating_mul(2)
            {
                let held = partition.head() - partition.first();
                let keep = held.saturating_mul(most) / partition.bytes().max(1);
                partition.drop_below(partition.head() - keep)?;
            }
        }
        Ok(())
    }
}

struct Due {
    mailbox: Arc<Mailbox>,
    key: Key,
    outcome: Outcome,
}

#[derive(Default)]
struct Answers {
    order: BinaryHeap<Reverse<(Instant, u64)>>,
    due: BTreeMap<u64, Due>,
    next: u64,
    /// Held back until so many others were answered.
    after: Vec<(u32, Due)>,
}

impl Answers {
    fn at(&mut self, when: Instant, due: Due) {
        self.order.push(Reverse((when, self.next)));
        self.due.insert(self.next, due);
        self.next += 1;
    }

    fn deliver_due(&mut self, now: Instant) {
        let mut woken: Vec<Arc<Mailbox>> = Vec::new();
        let mut put = |due: Due| {
            lock(&due.mailbox.answers).push_back((due.key, due.outcome));
            if !woken.iter().any(|m| Arc::ptr_eq(m, &due.mailbox)) {
                woken.push(due.mailbox);
            }
        };
        while let Some(Reverse((when, _))) = self.order.peek() {
            if *when > now {
                break;
            }
            let Some(Reverse((_, name))) = self.order.pop() else {
                break;
            };
            let Some(due) = self.due.remove(&name) else {
                continue;
            };
            put(due);
            let mut at = 0;
            while at < self.after.len() {
                self.after[at].0 -= 1;
                if self.after[at].0 == 0 {
                    put(self.after.remove(at).1);
                } else {
                    at += 1;
                }
            }
        }
        for mailbox in woken {
            mailbox.waker.wake();
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse((when, _))| *when)
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// The thread's body: returns once the log is closed.
pub(super) fn run(shared: &Shared, mut store: Store) {
    let mut answers = Answers::default();
    loop {
        let Some(ops) = wait(shared, answers.next_due()) else {
            return;
        };
        let arrived = Instant::now();
        let mut batch = Vec::with_capacity(ops.len());
        for op in ops {
            match op {
                Op::Publish(mailbox, key, record) => {
                    let fault = lock(&shared.plan).take();
                    let position = land(&mut store, &record, fault);
                    batch.push((mailbox, key, fault, position));
                }
                Op::Ask(job) => {
                    // What was handed over before the question is on the medium when it is answered.
                    settle(&mut store, shared, &mut answers, &mut batch, arrived);
                    job(&mut store);
                }
            }
        }
        settle(&mut store, shared, &mut answers, &mut batch, arrived);
        answers.deliver_due(Instant::now());
    }
}

fn wait(shared: &Shared, due: Option<Instant>) -> Option<VecDeque<Op>> {
    let mut queue = lock(&shared.queue);
    loop {
        if !queue.ops.is_empty() {
            return Some(std::mem::take(&mut queue.ops));
        }
        if queue.closed {
            return None;
        }
        queue = match due.map(|due| due.saturating_duration_since(Instant::now())) {
            Some(left) if left.is_zero() => return Some(VecDeque::new()),
            Some(left) => {
                shared
                    .arrived
                    .wait_timeout(queue, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => shared
                .arrived
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

fn land(store: &mut Store, record: &Record, fault: Option<Fault>) -> Option<u64> {
    if fault.is_some_and(|fault| !fault.lands()) || store.broken.is_some() {
        return None;
    }
    let partition = store.partitions.get_mut(record.partition as usize)?;
    let headers = || {
        record
            .headers
            .iter()
            .map(|(name, value)| (*name, &value[..]))
    };
    let position = partition.append(headers(), &record.value, now_ms());
    if fault == Some(Fault::Twice) {
        partition.append(headers(), &record.value, now_ms());
    }
    Some(position)
}

type Landed = (Arc<Mailbox>, Key, Option<Fault>, Option<u64>);

/// Syncs the batch and schedules its answers.
fn settle(
    store: &mut Store,
    shared: &Shared,
    answers: &mut Answers,
    batch: &mut Vec<Landed>,
    arrived: Instant,
) {
    if batch.is_empty() {
        return;
    }
    if let Err(error) = store.flush() {
        // Nobody knows what of it is on the medium: this log takes nothing more.
        tracing::error!(%error, dir = %store.dir.display(), "the memory log cannot be written");
        store.broken = Some(error.to_string());
    }
    let latency = lock(&shared.plan).latency;
    let now = Instant::now();
    for (mailbox, key, fault, position) in batch.drain(..) {
        let mut due = Due {
            mailbox,
            key,
            outcome: Ok(position),
        };
        let mut when = (arrived + latency).max(now);
        let unavailable = failure(Class::Unavailable);
        match fault {
            Some(Fault::Fail(class)) => {
                due.outcome = Err(failure(class));
                when = now;
            }
            Some(Fault::Lost | Fault::Never) => {
                due.outcome = Err(unavailable);
                when = now + BACKSTOP;
            }
            _ if store.broken.is_some() => {
                due.outcome = Err(Failure {
                    class: Class::Unavailable,
                    reason: "the log's file cannot be written",
                });
            }
            _ if position.is_none() => {
                due.outcome = Err(Failure {
                    class: Class::NotFound,
                    reason: "no such partition",
                });
            }
            Some(Fault::LandedButFailed(class)) => due.outcome = Err(failure(class)),
            Some(Fault::NoPosition) => due.outcome = Ok(None),
            Some(Fault::Late(more)) => when += more,
            Some(Fault::AfterNext(others)) if others > 0 => {
                answers.after.push((others, due));
                continue;
            }
            Some(Fault::Twice) => answers.at(
                when,
                Due {
                    mailbox: Arc::clone(&due.mailbox),
                    key,
                    outcome: due.outcome,
                },
            ),
            Some(Fault::AfterNext(_)) | None => {}
        }
        answers.at(when, due);
    }
}
