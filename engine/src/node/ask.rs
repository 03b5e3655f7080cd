//! Asking every core the same thing, and waiting for the answers for a bounded time.
//!
//! A question travels as a call through the mesh and is answered in the other core's dispatch
//! class; the answer comes back the same way, so that a waiting task is only ever woken by its
//! own core. A core that does not answer in time is named, never waited for: its late answer goes
//! nowhere. Off the request path. Runs on a shard core.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Host, TaskClass};
use futures_lite::FutureExt;

use super::core::Core;
use super::message::Message;

/// How long an answer is waited for, where nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A core did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("core {0} does not answer")]
pub struct NoAnswer(pub usize);

/// The questions of one core that wait for answers.
#[derive(Default)]
pub struct Asks {
    last_no: Cell<u64>,
    open: RefCell<HashMap<u64, Open>>,
}

struct Open {
    answers: Vec<Option<Box<dyn Any + Send>>>,
    waker: Option<Waker>,
}

impl Asks {
    fn begin(&self, cores: usize) -> u64 {
        let no = self.last_no.get() + 1;
        self.last_no.set(no);
        let open = Open {
            answers: (0..cores).map(|_| None).collect(),
            waker: None,
        };
        self.open.borrow_mut().insert(no, open);
        no
    }

    fn put(&self, no: u64, core: usize, answer: Box<dyn Any + Send>) {
        if let Some(open) = self.open.borrow_mut().get_mut(&no) {
            open.answers[core] = Some(answer);
            if let Some(waker) = open.waker.take() {
                waker.wake();
            }
        }
    }

    async fn all_there(&self, no: u64) {
        poll_fn(|cx| match self.open.borrow_mut().get_mut(&no) {
            Some(open) if open.answers.iter().any(Option::is_none) => {
                open.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }
}

/// Takes a question back when its asker goes away.
struct Guard<'a>(&'a Asks, u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.open.borrow_mut().remove(&self.1);
    }
}

/// Asks every core, this one included; the answers are in the order of the cores.
///
/// # Cancel safety
/// May be dropped; what the cores were asked to do they do all the same.
pub async fn every_core<T, Q>(
    core: &Rc<Core>,
    within: Duration,
    question: Q,
) -> Vec<Result<T, NoAnswer>>
where
    T: Send + 'static,
    Q: Fn(Rc<Core>) -> LocalFuture<T> + Clone + Send + 'static,
{
    let (cores, from) = (core.port.cores(), core.index);
    let no = core.asks.begin(cores);
    let guard = Guard(&core.asks, no);
    for to in 0..cores {
        let question = question.clone();
        core.port.send(
            to,
            Message::Call(Box::new(move |there: &Rc<Core>| {
                let (work, back) = (question(Rc::clone(there)), Rc::clone(there));
                there.host.start(TaskClass::Dispatch, async move {
                    let answer = work.await;
                    let put = move |here: &Rc<Core>| here.asks.put(no, to, Box::new(answer));
                    back.port.send(from, Message::Call(Box::new(put)));
                });
            })),
        );
    }
    core.asks.all_there(no).or(core.host.sleep(within)).await;
    let answers = core.asks.open.borrow_mut().remove(&no);
    drop(guard);
    let answers = answers.map_or_else(Vec::new, |open| open.answers);
    answers
        .into_iter()
        .enumerate()
        .map(|(to, answer)| {
            let answer = answer.and_then(|a| a.downcast::<T>().ok());
            answer.map(|a| *a).ok_or(NoAnswer(to))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn question_is_over_when_every_core_answered_and_late_answers_go_nowhere() {
        let asks = Asks::default();
        let no = asks.begin(2);
        let mut waiting = Box::pin(asks.all_there(no));
        futures_lite::future::block_on(async {
            assert!(
                futures_lite::future::poll_once(&mut waiting)
                    .await
                    .is_none()
            );
            asks.put(no, 1, Box::new(1u8));
            assert!(
                futures_lite::future::poll_once(&mut waiting)
                    .await
                    .is_none()
            );
            asks.put(no, 0, Box::new(0u8));
            waiting.await;
        });
        drop(Guard(&asks, no));
        asks.put(no, 0, Box::new(2u8));
        assert!(asks.open.borrow().is_empty());
    }
}
