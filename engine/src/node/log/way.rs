//! A core's publisher before there is one: the partition may not be known yet, and the client is
//! made on a side thread. Shards open meanwhile.
//!
//! Invariants: those of a publisher; until it is opened every record is answered as failed, by the
//! next poll. Runs on a shard core.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ankusa_intake::{Answer, Class, Failure, Outgoing, Publisher};

const CLOSED: Failure = Failure {
    class: Class::Unavailable,
    reason: "the way into the log is not open yet",
};

/// The way, open or not.
#[derive(Default)]
pub struct Way {
    publisher: OnceCell<Rc<dyn Publisher>>,
    refused: RefCell<Vec<u64>>,
    waker: RefCell<Option<Waker>>,
}

impl Way {
    /// From now on records go through this publisher. Once.
    pub fn open(&self, publisher: Rc<dyn Publisher>) {
        // A second one would leave the answers of the first unheard.
        assert!(self.publisher.set(publisher).is_ok(), "opened twice");
        self.wake();
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.publisher.get().is_some()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn refuse(&self, out: &mut Vec<Answer>) {
        let tokens = self.refused.borrow_mut().split_off(0);
        out.extend(tokens.into_iter().map(|token| Answer::Failed {
            token,
            failure: CLOSED,
        }));
    }
}

impl Publisher for Way {
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        now_us: u64,
        deadline_us: u64,
    ) {
        match self.publisher.get() {
            Some(publisher) => publisher.publish(records, now_us, deadline_us),
            None => {
                let tokens = records.map(|record| record.token);
                self.refused.borrow_mut().extend(tokens);
                self.wake();
            }
        }
    }

    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()> {
        if !self.refused.borrow().is_empty() {
            self.refuse(out);
            return Poll::Ready(());
        }
        match self.publisher.get() {
            Some(publisher) => publisher.poll_answers(cx, out),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn tick(&self, now_us: u64, out: &mut Vec<Answer>) {
        if let Some(publisher) = self.publisher.get() {
            publisher.tick(now_us, out);
        }
    }

    fn outstanding(&self) -> (usize, usize) {
        self.publisher.get().map_or((0, 0), |p| p.outstanding())
    }

    fn note_head(&self, head: u64) {
        if let Some(publisher) = self.publisher.get() {
            publisher.note_head(head);
        }
    }

    fn forget_head(&self) {
        if let Some(publisher) = self.publisher.get() {
            publisher.forget_head();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ankusa_intake::memory::{MemoryLog, MemoryOptions};
    use ankusa_intake::wait_for;
    use bytes::Bytes;
    use std::future::poll_fn;

    fn publish(way: &Way, token: u64) {
        let mut records = std::iter::once(Outgoing {
            token,
            shard: 0,
            seq: token,
            id: [0; 16],
            incarnation: 1,
            tenant: b"t",
            source: b"s",
            value: Bytes::from_static(b"v"),
        });
        way.publish(&mut records, 0, 60_000_000);
    }

    #[test]
    fn a_record_before_the_opening_fails_and_one_after_it_is_confirmed() {
        let dir = tempfile::tempdir().unwrap();
        let way = Way::default();
        let answer = || {
            let mut out = Vec::new();
            wait_for(poll_fn(|cx| way.poll_answers(cx, &mut out)));
            out.remove(0)
        };
        publish(&way, 1);
        assert!(matches!(answer(), Answer::Failed { token: 1, .. }));
        let log = MemoryLog::open(MemoryOptions {
            dir: dir.path().into(),
            partitions: 1,
            sync: false,
            retention_bytes: None,
        })
        .unwrap();
        way.open(Rc::new(log.publisher(0, "n")));
        publish(&way, 2);
        assert!(matches!(answer(), Answer::Confirmed { token: 2, .. }));
    }
}
