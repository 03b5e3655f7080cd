//! Groups of a caller's own: records that no request waits for in the queue of hooks, written
//! through the same driver so that one place begins, orders and settles every group of a shard.
//!
//! A group is encoded only when its turn has come, from the state as it is then, so that "is it
//! there already" is asked in the same slice that writes. Hooks and groups of this kind take
//! turns. Runs on the shard core.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ankusa_wal::{Disk, GroupBuilder, Lsn, Outcome, Seq};

type Encode<D> = Box<dyn FnOnce(&mut GroupBuilder<D>)>;

/// One that waits for its turn.
pub(super) struct Waiting<D: Disk> {
    pub(super) bytes: usize,
    pub(super) first_bytes: usize,
    encode: Encode<D>,
    told: Rc<Told>,
}

struct Flying {
    lsn: Lsn,
    hooks: Vec<Seq>,
    told: Rc<Told>,
}

#[derive(Default)]
struct Told {
    outcome: Cell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

impl Told {
    fn tell(&self, outcome: Outcome) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Completes when the group is settled.
///
/// # Cancel safety
/// Dropping it stops the waiting, not the writing.
pub struct Written(Rc<Told>);

impl Future for Written {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.0.outcome.get() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                *self.0.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Those that wait and those in flight. As many as there are callers, who each wait for one
/// before they hand over the next.
pub(super) struct OwnGroups<D: Disk> {
    waiting: VecDeque<Waiting<D>>,
    flying: VecDeque<Flying>,
    was_last: bool,
}

impl<D: Disk> Default for OwnGroups<D> {
    fn default() -> Self {
        OwnGroups {
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            was_last: false,
        }
    }
}

impl<D: Disk> OwnGroups<D> {
    pub(super) fn push(&mut self, bytes: usize, first_bytes: usize, encode: Encode<D>) -> Written {
        let told = Rc::new(Told::default());
        self.waiting.push_back(Waiting {
            bytes,
            first_bytes,
            encode,
            told: Rc::clone(&told),
        });
        Written(told)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }

    /// Whether the next group is one of these, when hooks (`others`) may be waiting as well.
    pub(super) fn is_due(&self, others: bool) -> bool {
        let is_others_turn = others && self.was_last;
        !self.waiting.is_empty() && !is_others_turn
    }

    /// A group of hooks was started.
    pub(super) fn others_went(&mut self) {
        self.was_last = false;
    }

    /// What the first one asks for: bytes in all, bytes of its first record.
    pub(super) fn next_bytes(&self) -> Option<(usize, usize)> {
        self.waiting.front().map(|w| (w.bytes, w.first_bytes))
    }

    pub(super) fn take(&mut self) -> Option<Waiting<D>> {
        self.was_last = true;
        self.waiting.pop_front()
    }

    pub(super) fn started(&mut self, lsn: Lsn, ticket: Ticket) {
        self.flying.push_back(Flying {
            lsn,
            hooks: ticket.hooks,
            told: ticket.told,
        });
    }

    /// The store settled `lsn`. `durable` is called with the hooks of the group when it was one of
    /// these and is durable.
    pub(super) fn settled(
        &mut self,
        lsn: Lsn,
        outcome: Outcome,
        durable: &mut dyn FnMut(Seq),
    ) -> bool {
        if self.flying.front().is_none_or(|first| first.lsn != lsn) {
            return false;
        }
        if let Some(done) = self.flying.pop_front() {
            if outcome == Outcome::Durable {
                done.hooks.into_iter().for_each(durable);
            }
            done.told.tell(outcome);
        }
        true
    }

    /// Nothing of what waits was applied, and nothing will be: the store is fenced or closed.
    pub(super) fn refuse_waiting(&mut self) {
        for waiting in self.waiting.drain(..) {
            waiting.told.tell(Outcome::Fenced);
        }
    }
}

/// A group that was encoded: who waits for it, and its hooks.
pub(super) struct Ticket {
    hooks: Vec<Seq>,
    told: Rc<Told>,
}

impl Ticket {
    /// Nothing was written: there was nothing to write.
    pub(super) fn nothing(self) {
        self.told.tell(Outcome::Durable);
    }
}

impl<D: Disk> Waiting<D> {
    /// Encodes it. No cell may be borrowed: the caller's closure looks at the state.
    pub(super) fn encode(self, builder: &mut GroupBuilder<D>) -> Ticket {
        (self.encode)(builder);
        Ticket {
            hooks: builder.hooks().map(|(seq, _)| seq).collect(),
            told: self.told,
        }
    }
}
