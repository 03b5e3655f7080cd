//! Messages between cores: one bounded lock-free inbox per core, one wake per batch.
//!
//! The only message on the request path is a claim (and its answer, promotion or release) for a
//! key that another core owns. A message is never lost: what does not fit an inbox waits in the
//! sender's outbox, which is bounded by what that core may have open at once, and new claims are
//! refused while it is not empty.
//!
//! Runs on shard cores; the inbox may also be fed by other threads (signals).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

/// Messages that one inbox holds before senders keep them back.
const INBOX_MAX: usize = 16 * 1024;

/// Messages taken from an inbox before the core runs something else.
const BATCH_MAX: usize = 256;

/// The receiving end of one core, shared with every sender.
pub struct Inbox<M> {
    queue: ArrayQueue<M>,
    waker: AtomicWaker,
}

impl<M> Inbox<M> {
    /// Puts a message in and wakes the core; gives it back when the inbox is full.
    pub fn push(&self, message: M) -> Result<(), M> {
        let pushed = self.queue.push(message);
        self.waker.wake();
        pushed
    }
}

/// The inboxes of all cores of a node.
pub struct Mesh<M> {
    inboxes: Arc<[Inbox<M>]>,
}

impl<M> Clone for Mesh<M> {
    fn clone(&self) -> Self {
        Mesh {
            inboxes: self.inboxes.clone(),
        }
    }
}

impl<M> Mesh<M> {
    /// A mesh of `cores` cores.
    pub fn new(cores: usize) -> Mesh<M> {
        Mesh {
            inboxes: (0..cores)
                .map(|_| Inbox {
                    queue: ArrayQueue::new(INBOX_MAX),
                    waker: AtomicWaker::new(),
                })
                .collect(),
        }
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.inboxes.len()
    }

    /// The inbox of one core, for senders that are no core.
    pub fn inbox(&self, core: usize) -> &Inbox<M> {
        &self.inboxes[core]
    }
}

/// One core's place in the mesh.
pub struct Port<M> {
    mesh: Mesh<M>,
    core: usize,
    outboxes: RefCell<Vec<VecDeque<M>>>,
    held_back: Cell<usize>,
}

impl<M> Port<M> {
    /// The port of `core`.
    pub fn new(mesh: Mesh<M>, core: usize) -> Port<M> {
        let outboxes = (0..mesh.cores()).map(|_| VecDeque::new()).collect();
        Port {
            mesh,
            core,
            outboxes: RefCell::new(outboxes),
            held_back: Cell::new(0),
        }
    }

    /// This core's number.
    pub fn core(&self) -> usize {
        self.core
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.mesh.cores()
    }

    /// Sends; never loses. Order is kept per receiver.
    pub fn send(&self, to: usize, message: M) {
        let mut outboxes = self.outboxes.borrow_mut();
        let message = if outboxes[to].is_empty() {
            match self.mesh.inboxes[to].push(message) {
                Ok(()) => return,
                Err(message) => message,
            }
        } else {
            message
        };
        outboxes[to].push_back(message);
        self.held_back.set(self.held_back.get() + 1);
    }

    /// Messages that did not fit yet; while above zero, take on nothing new that would send.
    pub fn held_back(&self) -> usize {
        self.held_back.get()
    }

    /// Sends again what was held back. Called on every sweep and after every received batch.
    pub fn flush(&self) {
        if self.held_back.get() == 0 {
            return;
        }
        let mut outboxes = self.outboxes.borrow_mut();
        let mut left = 0;
        for (to, outbox) in outboxes.iter_mut().enumerate() {
            while let Some(message) = outbox.pop_front() {
                if let Err(message) = self.mesh.inboxes[to].push(message) {
                    outbox.push_front(message);
                    break;
                }
            }
            left += outbox.len();
        }
        self.held_back.set(left);
    }

    /// Waits for messages and moves at most a batch of them to `batch`.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: messages leave the inbox only when it completes.
    pub async fn receive(&self, batch: &mut Vec<M>) {
        let inbox = &self.mesh.inboxes[self.core];
        poll_fn(|cx| {
            // IMPORTANT: register, then look, else a wake between the two is lost.
            inbox.waker.register(cx.waker());
            let taken_from = batch.len();
            while batch.len() - taken_from < BATCH_MAX {
                match inbox.queue.pop() {
                    Some(message) => batch.push(message),
                    None => break,
                }
            }
            if batch.len() == taken_from {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_an_inbox_arrives_later_in_order() {
        let mesh = Mesh::new(2);
        let sender = Port::new(mesh.clone(), 0);
        let receiver = Port::new(mesh, 1);
        let total = INBOX_MAX + 1000;
        for n in 0..total {
            sender.send(1, n);
        }
        assert_eq!(sender.held_back(), 1000);
        let mut got = Vec::new();
        futures_lite::future::block_on(async {
            while got.len() < total {
                let mut batch = Vec::new();
                receiver.receive(&mut batch).await;
                got.extend(batch);
                sender.flush();
            }
        });
        assert_eq!(got, (0..total).collect::<Vec<_>>());
        assert_eq!(sender.held_back(), 0);
    }

    #[test]
    fn a_push_from_another_thread_wakes_the_receiver() {
        let mesh = Mesh::new(1);
        let port = Port::new(mesh.clone(), 0);
        let thread = std::thread::spawn(move || {
            for n in 0..1000 {
                while mesh.inbox(0).push(n).is_err() {}
            }
        });
        let mut got = Vec::new();
        futures_lite::future::block_on(async {
            while got.len() < 1000 {
                port.receive(&mut got).await;
            }
        });
        thread.join().expect("sender");
        assert_eq!(got.len(), 1000);
    }
}
