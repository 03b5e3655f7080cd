//! One core's way into a Kafka partition: a client of its own, woken without a polling thread.
//!
//! Invariants: those of [`crate::log::Publisher`]. A value's bytes are held from the hand-over until
//! the client reports on it, also past its deadline and past the client's own end; at most a bounded
//! number of records and bytes are held. A confirm without an offset never moves the known head.
//! Deliberately absent: retries. Runs: the core that uses it; what blocks goes to the keeper.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use bytes::Bytes;

use super::codes::failure_of;
use super::keeper::{Chore, Grave, Replacement};
use super::raw::{RawClient, Says};
use crate::attempts::{Attempts, Key};
use crate::log::{Answer, Class, Confirm, Failure, Outgoing, Publisher, Readiness};
use crate::record::{HeaderRoom, RecordHead};

/// Records and bytes that may be handed over and not given back, per core.
pub(super) const HELD_RECORDS_MAX: usize = 50_000;
const HELD_BYTES_MAX: usize = 256 << 20;
/// Answers per poll: a bounded slice of the core's time.
const DRAIN_MAX: usize = 1024;
/// Unconfirmed for this long: the client is made to ask who leads, this often.
const NUDGE_US: u64 = 100_000;
/// Nothing confirmed for this long although the partition has a leader: a new client.
const REBUILD_US: u64 = 60_000_000;

/// A failure this old no longer counts.
const RECENT_US: u64 = 10_000_000;

const FATAL: i32 = -150;

const FULL: Failure = Failure {
    class: Class::Unavailable,
    reason: "queue full",
};
const REPLACED: Failure = Failure {
    class: Class::Unavailable,
    reason: "the client was replaced",
};

/// What a publisher shares with its log's side threads.
pub(super) struct Shared {
    pub(super) core: u16,
    pub(super) chores: SyncSender<Chore>,
    pub(super) ready: Arc<std::sync::atomic::AtomicU8>,
    /// Raised when a key or certificate file has changed.
    pub(super) files_changed: Arc<AtomicU64>,
    pub(super) wake: Arc<AtomicWaker>,
}

/// See [`super::KafkaLog::publisher`].
pub struct KafkaPublisher {
    shared: Shared,
    partition: i32,
    node: Bytes,
    client: RefCell<Option<Arc<RawClient>>>,
    attempts: RefCell<Attempts>,
    refused: RefCell<Vec<(u64, Failure)>>,
    head: Cell<u64>,
    nudged_us: Cell<u64>,
    nudging: Arc<AtomicBool>,
    failing_since_us: Cell<Option<u64>>,
    failed_last_us: Cell<u64>,
    /// A report said failure since the last tick.
    failed: Cell<bool>,
    fatal: Cell<bool>,
    /// Asked for at the next tick, until it could be passed on.
    wants_token: Cell<bool>,
    files_seen: Cell<u64>,
    replacement: Replacement,
    rebuilds: Cell<u64>,
}

impl KafkaPublisher {
    pub(super) fn new(
        shared: Shared,
        client: RawClient,
        partition: u32,
        node: &str,
    ) -> KafkaPublisher {
        KafkaPublisher {
            files_seen: Cell::new(shared.files_changed.load(Ordering::Acquire)),
            shared,
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
            node: Bytes::copy_from_slice(node.as_bytes()),
            client: RefCell::new(Some(Arc::new(client))),
            attempts: RefCell::default(),
            refused: RefCell::default(),
            head: Cell::new(0),
            nudged_us: Cell::new(0),
            nudging: Arc::new(AtomicBool::new(false)),
            failing_since_us: Cell::new(None),
            failed_last_us: Cell::new(0),
            failed: Cell::new(false),
            fatal: Cell::new(false),
            wants_token: Cell::new(false),
            replacement: Replacement::default(),
            rebuilds: Cell::new(0),
        }
    }

    /// How often the client was replaced by a new one.
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds.get()
    }

    fn refuse(&self, token: u64, failure: Failure) {
        self.refused.borrow_mut().push((token, failure));
        self.shared.wake.wake();
    }

    fn hand_over(
        &self,
        client: &RawClient,
        out: Outgoing<'_>,
        room: &mut HeaderRoom,
        now_us: u64,
        deadline_us: u64,
    ) {
        let head = RecordHead {
            node: &self.node,
            shard: out.shard,
            seq: out.seq,
            id: out.id,
            incarnation: out.incarnation,
            tenant: out.tenant,
            source: out.source,
        };
        let value = out.value.clone();
        let mut attempts = self.attempts.borrow_mut();
        let key = attempts.add(out.token, self.head.get(), now_us, deadline_us, out.value);
        #[expect(unsafe_code, reason = "the payload is not copied")]
        // SAFETY: `attempts` holds the bytes until the report of `key` is drained and settled, or
        // moves with the client into its grave, which waits for the reports. `Bytes` never moves or
        // changes what it points at.
        let handed = unsafe {
            client.produce(
                self.partition,
                &self.node,
                head.headers(room),
                &value,
                key.0,
            )
        };
        if let Err(code) = handed {
            attempts.settle(key, Err(failure_of(code)));
            drop(attempts);
            self.fatal.set(self.fatal.get() || code == FATAL);
            self.note_failure(now_us);
            self.refuse(out.token, failure_of(code));
            // A topic that was refused or gone stays so for the client until it asks again.
            self.nudge(now_us);
        }
    }

    fn note_failure(&self, now_us: u64) {
        self.failed_last_us.set(now_us);
        if self.failing_since_us.get().is_none() {
            self.failing_since_us.set(Some(now_us));
        }
    }

    /// Has the keeper ask the brokers about the topic, at most one question at a time.
    fn nudge(&self, now_us: u64) {
        if now_us.saturating_sub(self.nudged_us.get()) < NUDGE_US && self.nudged_us.get() != 0 {
            return;
        }
        let Some(client) = self.client.borrow().clone() else {
            return;
        };
        if self.nudging.swap(true, Ordering::AcqRel) {
            return;
        }
        self.nudged_us.set(now_us);
        let nudging = Arc::clone(&self.nudging);
        if self
            .shared
            .chores
            .try_send(Chore::Refresh(client, nudging))
            .is_err()
        {
            self.nudging.store(false, Ordering::Release);
        }
    }

    /// A token is in a file: the keeper reads it.
    fn fetch_token(&self) {
        if !self.wants_token.get() {
            return;
        }
        let Some(client) = self.client.borrow().clone() else {
            return;
        };
        let sent = self.shared.chores.try_send(Chore::Token(client));
        self.wants_token.set(sent.is_err());
    }

    /// Asks for a new client when this one is of no more use, and takes it over when it is there.
    fn replace(&self, now_us: u64, out: &mut Vec<Answer>) {
        if let Some(client) = self.replacement.take() {
            let mut attempts = self.attempts.borrow_mut();
            attempts.give_up(REPLACED, out);
            let attempts = std::mem::take(&mut *attempts);
            if let Some(old) = self.client.replace(Some(Arc::new(client))) {
                Grave {
                    client: old,
                    attempts,
                }
                .bury(&self.shared.chores);
            }
            self.fatal.set(false);
            self.failing_since_us.set(None);
            self.rebuilds.set(self.rebuilds.get() + 1);
            return;
        }
        let files = self.shared.files_changed.load(Ordering::Acquire);
        let has_leader = self.shared.ready.load(Ordering::Acquire) == Readiness::Up as u8;
        let failing_us = match self.failing_since_us.get() {
            Some(since) if now_us.saturating_sub(self.failed_last_us.get()) < RECENT_US => {
                now_us.saturating_sub(since)
            }
            _ => 0,
        };
        let useless = self.fatal.get() || (failing_us >= REBUILD_US && has_leader);
        if (useless || files != self.files_seen.get())
            && self
                .replacement
                .order(&self.shared.chores, self.shared.core, &self.shared.wake)
        {
            self.files_seen.set(files);
            // Not again before another minute of failures.
            self.failing_since_us.set(useless.then_some(now_us));
        }
    }
}

impl Publisher for KafkaPublisher {
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        now_us: u64,
        deadline_us: u64,
    ) {
        let client = self.client.borrow().clone();
        let mut room = HeaderRoom::default();
        for out in records {
            let (held, bytes) = self.attempts.borrow().held();
            if held >= HELD_RECORDS_MAX || bytes.saturating_add(out.value.len()) > HELD_BYTES_MAX {
                self.refuse(out.token, FULL);
                continue;
            }
            match &client {
                Some(client) => self.hand_over(client, out, &mut room, now_us, deadline_us),
                None => self.refuse(out.token, REPLACED),
            }
        }
    }

    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()> {
        // IMPORTANT: the waker first, then the queue: the library wakes once per empty-to-not.
        self.shared.wake.register(cx.waker());
        let before = out.len();
        for (token, failure) in self.refused.borrow_mut().drain(..) {
            out.push(Answer::Failed { token, failure });
        }
        let client = self.client.borrow().clone();
        let mut attempts = self.attempts.borrow_mut();
        let more = client.is_some_and(|client| {
            client.drain(
                DRAIN_MAX,
                |report| {
                    let outcome = match report.code {
                        0 => Ok(report.position),
                        code => Err(failure_of(code)),
                    };
                    match outcome {
                        Ok(_) => self.failing_since_us.set(None),
                        Err(_) => {
                            self.failed.set(true);
                            self.fatal.set(self.fatal.get() || report.code == FATAL);
                        }
                    }
                    let answer = attempts.settle(Key(report.opaque), outcome);
                    if let Some(Answer::Confirmed {
                        confirm:
                            Confirm {
                                position: Some(at), ..
                            },
                        ..
                    }) = answer
                    {
                        self.head.set(self.head.get().max(at + 1));
                    }
                    out.extend(answer);
                },
                |says| match says {
                    Says::Error(code) => {
                        self.fatal.set(self.fatal.get() || code == FATAL);
                        tracing::debug!(
                            reason = failure_of(code).reason,
                            "the Kafka client reports"
                        );
                    }
                    Says::WantsToken => self.wants_token.set(true),
                },
            )
        });
        if more {
            cx.waker().wake_by_ref();
        }
        match out.len() > before {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn tick(&self, now_us: u64, out: &mut Vec<Answer>) {
        let oldest = self.attempts.borrow().oldest_open_us();
        let before = out.len();
        self.attempts.borrow_mut().expire(now_us, out);
        let failed = self.failed.replace(false) || out.len() > before;
        if failed {
            self.note_failure(now_us);
        }
        if failed || oldest.is_some_and(|at| now_us.saturating_sub(at) >= NUDGE_US) {
            self.nudge(now_us);
        }
        self.fetch_token();
        self.replace(now_us, out);
    }

    fn outstanding(&self) -> (usize, usize) {
        self.attempts.borrow().held()
    }

    fn note_head(&self, head: u64) {
        self.head.set(self.head.get().max(head));
    }

    fn forget_head(&self) {
        self.head.set(0);
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        let attempts = std::mem::take(&mut *self.attempts.borrow_mut());
        if let Some(client) = self.client.take() {
            Grave { client, attempts }.bury(&self.shared.chores);
        }
    }
}
