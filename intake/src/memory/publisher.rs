//! One core's way into a memory log.
//!
//! Invariants: those of [`crate::log::Publisher`]. Holds at most a bounded number of attempts and
//! bytes; what is over it is answered as failed by the next poll. Runs: the core that made it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::MemoryLog;
use super::worker::{Mailbox, Op, Record};
use crate::ask::lock;
use crate::attempts::Attempts;
use crate::log::{Answer, Class, Confirm, Failure, Outgoing, Publisher};
use crate::record::{HeaderRoom, NAMES, RecordHead};

/// Records and bytes that may be handed over and not given back.
const HELD_RECORDS_MAX: usize = 50_000;
const HELD_BYTES_MAX: usize = 256 << 20;
/// Answers per poll: a bounded slice of the core's time.
const DRAIN_MAX: usize = 1024;

const FULL: Failure = Failure {
    class: Class::Unavailable,
    reason: "queue full",
};

/// See [`MemoryLog::publisher`].
pub struct MemoryPublisher {
    log: MemoryLog,
    partition: u32,
    node: Bytes,
    mailbox: Arc<Mailbox>,
    attempts: RefCell<Attempts>,
    refused: RefCell<Vec<u64>>,
    head: Cell<u64>,
}

impl MemoryPublisher {
    pub(super) fn new(log: MemoryLog, partition: u32, node: &str) -> MemoryPublisher {
        MemoryPublisher {
            log,
            partition,
            node: Bytes::copy_from_slice(node.as_bytes()),
            mailbox: Arc::new(Mailbox::default()),
            attempts: RefCell::default(),
            refused: RefCell::default(),
            head: Cell::new(0),
        }
    }

    fn op(&self, out: Outgoing<'_>, room: &mut HeaderRoom, now_us: u64, deadline_us: u64) -> Op {
        let head = RecordHead {
            node: &self.node,
            shard: out.shard,
            seq: out.seq,
            id: out.id,
            incarnation: out.incarnation,
            tenant: out.tenant,
            source: out.source,
        };
        let headers = NAMES
            .into_iter()
            .zip(head.headers(room))
            .map(|(name, value)| (name, Bytes::copy_from_slice(value)))
            .collect();
        let record = Record {
            partition: self.partition,
            headers,
            value: out.value.clone(),
        };
        let floor = self.head.get();
        let key = self
            .attempts
            .borrow_mut()
            .add(out.token, floor, now_us, deadline_us, out.value);
        Op::Publish(Arc::clone(&self.mailbox), key, record)
    }
}

impl Publisher for MemoryPublisher {
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        now_us: u64,
        deadline_us: u64,
    ) {
        let mut room = HeaderRoom::default();
        let mut ops = Vec::new();
        for out in records {
            let (held, bytes) = self.attempts.borrow().held();
            if held >= HELD_RECORDS_MAX || bytes.saturating_add(out.value.len()) > HELD_BYTES_MAX {
                self.refused.borrow_mut().push(out.token);
                self.mailbox.waker.wake();
                continue;
            }
            ops.push(self.op(out, &mut room, now_us, deadline_us));
        }
        self.log.shared.send(ops.into_iter());
    }

    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()> {
        self.mailbox.waker.register(cx.waker());
        let before = out.len();
        for token in self.refused.borrow_mut().drain(..) {
            out.push(Answer::Failed {
                token,
                failure: FULL,
            });
        }
        let mut answers = lock(&self.mailbox.answers);
        let take = answers.len().min(DRAIN_MAX);
        let arrived: Vec<_> = answers.drain(..take).collect();
        let more = !answers.is_empty();
        drop(answers);
        let mut attempts = self.attempts.borrow_mut();
        for (key, outcome) in arrived {
            let answer = attempts.settle(key, outcome);
            if let Some(Answer::Confirmed {
                confirm: Confirm {
                    position: Some(at), ..
                },
                ..
            }) = answer
            {
                self.head.set(self.head.get().max(at + 1));
            }
            out.extend(answer);
        }
        if more {
            cx.waker().wake_by_ref();
        }
        match out.len() > before {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn tick(&self, now_us: u64, out: &mut Vec<Answer>) {
        self.attempts.borrow_mut().expire(now_us, out);
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
