//! A side thread that answers blocking questions one after the other.
//!
//! Invariants: at most a fixed number of questions wait; one more is answered `Busy` at once. The
//! thread ends when its last handle is gone.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crate::ask::{Asked, question};
use crate::log::AskError;

/// Questions that may wait.
const WAITING_MAX: usize = 64;

pub(crate) type Job<C> = Box<dyn FnOnce(&mut C) + Send>;

/// A side thread that answers questions one after the other, with a context of its own.
pub(crate) struct SideThread<C> {
    jobs: SyncSender<Job<C>>,
}

impl<C: 'static> SideThread<C> {
    /// Starts the thread; it ends when the last handle is gone. `make` runs on it.
    pub(crate) fn start(
        name: &str,
        make: impl FnOnce() -> C + Send + 'static,
    ) -> std::io::Result<SideThread<C>> {
        let (jobs, queue): (SyncSender<Job<C>>, Receiver<Job<C>>) = sync_channel(WAITING_MAX);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut context = make();
                while let Ok(job) = queue.recv() {
                    job(&mut context);
                }
            })?;
        Ok(SideThread { jobs })
    }

    /// Asks; `Busy` when too many are waiting.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut C) -> Result<T, AskError> + Send + 'static,
    ) -> Asked<T> {
        let (answering, asked) = question();
        let job: Job<C> = Box::new(move |context| answering.answer(work(context)));
        match self.jobs.try_send(job) {
            Ok(()) => asked,
            Err(TrySendError::Full(_)) => Asked::known(Err(AskError::Busy)),
            Err(TrySendError::Disconnected(_)) => Asked::known(Err(AskError::Closed)),
        }
    }
}
