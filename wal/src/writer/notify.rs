//! How a task of this core tells others that something changed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A signal for one waiting task. A signal sent while nobody waits is kept.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    signalled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Notify {
    /// Wakes the waiter.
    pub(crate) fn signal(&self) {
        self.signalled.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for a signal. Cancel safe.
    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            if self.signalled.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Woken whenever something changed; each waiter asks for itself whether it is enough.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    wakers: RefCell<Vec<Waker>>,
}

impl Progress {
    /// Something changed.
    pub(crate) fn signal(&self) {
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Waits until `reached` answers. Cancel safe.
    pub(crate) async fn until<T>(&self, mut reached: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match reached() {
            Some(value) => Poll::Ready(value),
            None => {
                self.wakers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}
