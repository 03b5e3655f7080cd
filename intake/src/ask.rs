//! Questions from a core to a side thread, and their answers: a one-shot future and a bounded
//! stream of chunks, both executor-neutral.
//!
//! Invariants: a question that its thread drops answers `Closed`; the feeding side of a stream
//! never holds more than its bound and ends when the reading side is gone. A lock is held only to
//! move a value, never over I/O. Runs: reading side on a core, the other on a side thread.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::log::{AskError, Chunk, Replay};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Slot<T> {
    Waiting(Option<Waker>),
    Done(Result<T, AskError>),
    Taken,
}

/// The answer to a question, once it is there.
///
/// # Cancel safety
/// Dropping it drops the answer; the question is still worked on.
pub struct Asked<T>(Arc<Mutex<Slot<T>>>);

/// The side that answers.
pub struct Answering<T>(Option<Arc<Mutex<Slot<T>>>>);

/// A question and its answer, for adapters and doubles.
pub fn question<T>() -> (Answering<T>, Asked<T>) {
    let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
    (Answering(Some(Arc::clone(&slot))), Asked(slot))
}

impl<T> Asked<T> {
    /// An answer that is known at once.
    pub fn known(answer: Result<T, AskError>) -> Asked<T> {
        Asked(Arc::new(Mutex::new(Slot::Done(answer))))
    }
}

impl<T> Answering<T> {
    /// Answers and wakes.
    pub fn answer(mut self, answer: Result<T, AskError>) {
        self.put(answer);
    }

    fn put(&mut self, answer: Result<T, AskError>) {
        if let Some(slot) = self.0.take() {
            let before = std::mem::replace(&mut *lock(&slot), Slot::Done(answer));
            if let Slot::Waiting(Some(waker)) = before {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        self.put(Err(AskError::Closed));
    }
}

impl<T> Future for Asked<T> {
    type Output = Result<T, AskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        match &mut *slot {
            Slot::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Slot::Taken => Poll::Ready(Err(AskError::Closed)),
            Slot::Done(_) => match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(answer) => Poll::Ready(answer),
                _ => Poll::Ready(Err(AskError::Closed)),
            },
        }
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on a plain thread. Blocking.
pub fn wait_for<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct StreamState {
    chunks: VecDeque<Result<Chunk, AskError>>,
    reader: Option<Waker>,
    feeding: bool,
    reading: bool,
}

struct Stream {
    state: Mutex<StreamState>,
    room: Condvar,
    bound: usize,
}

/// The reading side of a replay that a side thread feeds.
pub(crate) struct FedReplay(Arc<Stream>);

/// The feeding side.
pub(crate) struct Feed(Arc<Stream>);

/// A stream that holds at most `bound` chunks.
pub(crate) fn stream(bound: usize) -> (Feed, FedReplay) {
    let stream = Arc::new(Stream {
        state: Mutex::new(StreamState {
            chunks: VecDeque::with_capacity(bound),
            reader: None,
            feeding: true,
            reading: true,
        }),
        room: Condvar::new(),
        bound,
    });
    (Feed(Arc::clone(&stream)), FedReplay(stream))
}

impl Feed {
    /// Waits for room; false when nobody reads any more.
    pub(crate) fn send(&self, chunk: Result<Chunk, AskError>) -> bool {
        let mut state = lock(&self.0.state);
        while state.reading && state.chunks.len() >= self.0.bound {
            state = self
                .0
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if !state.reading {
            return false;
        }
        state.chunks.push_back(chunk);
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
        true
    }

    /// False when nobody reads any more.
    #[cfg(feature = "kafka")]
    pub(crate) fn is_read(&self) -> bool {
        lock(&self.0.state).reading
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.feeding = false;
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
    }
}

impl Replay for FedReplay {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, AskError>>> {
        let mut state = lock(&self.0.state);
        if let Some(chunk) = state.chunks.pop_front() {
            self.0.room.notify_one();
            return Poll::Ready(Some(chunk));
        }
        if !state.feeding {
            return Poll::Ready(None);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for FedReplay {
    fn drop(&mut self) {
        lock(&self.0.state).reading = false;
        self.0.room.notify_all();
    }
}
