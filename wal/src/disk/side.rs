//! A thread of its own for the calls that io_uring (as glommio offers it) does not have:
//! directory sync, listing, renaming, space.
//!
//! Invariants: every job is answered, also when it panics or the thread cannot be started; at
//! most [`JOBS_MAX`] jobs wait. A job that hangs holds up only this disk's jobs. The answer wakes
//! its task through an atomic waker, which is safe from another thread.
//!
//! The jobs run on the side thread; the futures are polled anywhere.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

/// Most jobs that wait for the thread.
pub(super) const JOBS_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// Handle of a side thread; the thread ends when the last handle is gone.
#[derive(Clone)]
pub(super) struct SideThread {
    jobs: SyncSender<Job>,
}

struct Shared<T> {
    result: Mutex<Option<io::Result<T>>>,
    waker: AtomicWaker,
}

/// Answers "gone" if it is dropped without an answer.
struct Answer<T>(Arc<Shared<T>>);

impl<T> Answer<T> {
    fn give(&self, result: io::Result<T>) {
        let mut slot = self.0.result.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(result);
        }
        drop(slot);
        self.0.waker.wake();
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // Reading the slot tells whether it was answered; a taken answer is never replaced
        // because the waiting side is gone by then.
        self.give(Err(io::Error::other(
            "the disk's side thread did not answer",
        )));
    }
}

/// Waits for the answer of a job. Dropping it does not stop the job.
pub(super) struct Waiting<T>(Arc<Shared<T>>);

impl<T> Future for Waiting<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.0.waker.register(cx.waker());
        let mut slot = self.0.result.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.take() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl SideThread {
    /// Starts the thread.
    pub(super) fn start(name: &str) -> io::Result<SideThread> {
        let (jobs, queue) = sync_channel(JOBS_MAX);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(&queue))?;
        Ok(SideThread { jobs })
    }

    /// Runs `job` on the thread. Errors keep their errno; a panic is an error.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Waiting<T> {
        let shared = Arc::new(Shared {
            result: Mutex::new(None),
            waker: AtomicWaker::new(),
        });
        let answer = Answer(Arc::clone(&shared));
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(job));
            answer.give(result.unwrap_or_else(|_| Err(io::Error::other("a disk call panicked"))));
        });
        match self.jobs.try_send(job) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(job)) => {
                // The answer that the dropped job gives is replaced by a named refusal first.
                let full = io::Error::from_raw_os_error(libc::EBUSY);
                *shared.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(full));
                drop(job);
            }
        }
        Waiting(shared)
    }
}

fn serve(queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job();
    }
}
