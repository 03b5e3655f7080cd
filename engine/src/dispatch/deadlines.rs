//! Deadlines of attempts, swept together: no timer per attempt.
//!
//! Owns one small slot per attempt in flight. An attempt that is over its deadline when the sweep
//! passes is woken and finds that its time is up; so a deadline is exact to the sweep's interval,
//! and costs two stores. Runs on the shard's core.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

#[derive(Default)]
struct Slot {
    at_ms: u64,
    is_over: bool,
    waker: Option<Waker>,
}

/// The deadlines of one shard's attempts.
#[derive(Default)]
pub(super) struct Deadlines {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
}

impl Deadlines {
    /// Runs `work` until it is done, or the sweep has passed `at_ms`: then `None`, and the work is
    /// dropped.
    pub(super) async fn bound<T>(&self, at_ms: u64, work: impl Future<Output = T>) -> Option<T> {
        let place = Place {
            deadlines: self,
            slot: self.take(at_ms),
        };
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let slot = &mut self.slots.borrow_mut()[place.slot];
            if slot.is_over {
                return Poll::Ready(None);
            }
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => slot.waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes every attempt whose deadline has come.
    pub(super) fn sweep(&self, now_ms: u64) {
        for slot in self.slots.borrow_mut().iter_mut() {
            if slot.at_ms <= now_ms {
                slot.is_over = true;
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            }
        }
    }

    fn take(&self, at_ms: u64) -> usize {
        let mut slots = self.slots.borrow_mut();
        let at = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::default());
            slots.len() - 1
        });
        slots[at] = Slot {
            at_ms,
            is_over: false,
            waker: None,
        };
        at
    }
}

struct Place<'a> {
    deadlines: &'a Deadlines,
    slot: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.deadlines.slots.borrow_mut()[self.slot] = Slot {
            at_ms: u64::MAX,
            is_over: false,
            waker: None,
        };
        self.deadlines.free.borrow_mut().push(self.slot);
    }
}
