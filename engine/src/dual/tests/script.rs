//! A log that does what a test says: confirms after a while, fails with a class, lands a record and
//! reports a failure, or says nothing until it is let go.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ankusa_intake::{Answer, Class, Confirm, Failure, Outgoing, PermanentAbout, Publisher};
use ankusa_wal::HookId;
use ankusa_wal::sim::SimWorld;

/// What becomes of the records of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They land, and are confirmed after so many milliseconds.
    Confirm(u64),
    /// They do not land, and fail after so many milliseconds.
    Fail(Class, u64),
    /// They land, and fail all the same.
    LandAndFail(Class, u64),
    /// They land; nothing is said before [`Script::let_go`].
    Silent,
    /// They are lost without a word.
    Lost,
}

/// A record in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landed {
    pub seq: u64,
    pub id: HookId,
    pub value: Vec<u8>,
}

struct Attempt {
    token: u64,
    floor: u64,
    deadline_us: u64,
    expired: bool,
    /// Where it landed.
    position: Option<u64>,
}

/// The log and the one publisher of it.
pub struct Script {
    world: SimWorld,
    mode: Cell<Mode>,
    /// Calls that hold one of these fail for good.
    pub refuses: RefCell<BTreeSet<HookId>>,
    pub landed: RefCell<Vec<Landed>>,
    /// Records of each call.
    pub calls: RefCell<Vec<Vec<u64>>>,
    attempts: RefCell<BTreeMap<u64, Attempt>>,
    next_attempt: Cell<u64>,
    ready: RefCell<VecDeque<Answer>>,
    waker: RefCell<Option<Waker>>,
    known_head: Cell<u64>,
}

impl Script {
    pub fn new(world: &SimWorld) -> Rc<Script> {
        Rc::new(Script {
            world: world.clone(),
            mode: Cell::new(Mode::Confirm(1)),
            refuses: RefCell::default(),
            landed: RefCell::default(),
            calls: RefCell::default(),
            attempts: RefCell::default(),
            next_attempt: Cell::new(0),
            ready: RefCell::default(),
            waker: RefCell::new(None),
            known_head: Cell::new(0),
        })
    }

    /// What later calls meet.
    pub fn set(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// The head.
    pub fn head(&self) -> u64 {
        self.landed.borrow().len() as u64
    }

    /// How often a hook is in the log.
    pub fn count(&self, id: HookId) -> usize {
        self.landed.borrow().iter().filter(|r| r.id == id).count()
    }

    /// The log is emptied, as if its topic had been made anew.
    pub fn lose_all(&self) {
        self.landed.borrow_mut().clear();
    }

    /// Confirms everything that landed and is open, late where its deadline has passed.
    pub fn let_go(&self) {
        let attempts = self.attempts.borrow();
        let landed = attempts.iter().filter(|(_, a)| a.position.is_some());
        let open: Vec<u64> = landed.map(|(number, _)| *number).collect();
        drop(attempts);
        for attempt in open {
            self.finish(attempt, Ok(()));
        }
    }

    fn finish(&self, attempt: u64, result: Result<(), Class>) {
        let Some(attempt) = self.attempts.borrow_mut().remove(&attempt) else {
            return;
        };
        let token = attempt.token;
        let answer = match result {
            Ok(()) => Answer::Confirmed {
                token,
                confirm: Confirm {
                    position: attempt.position,
                    floor: attempt.floor,
                },
                late: attempt.expired,
            },
            Err(_) if attempt.expired => return,
            Err(class) => Answer::Failed {
                token,
                failure: Failure {
                    class,
                    reason: "scripted",
                },
            },
        };
        self.known_head.set(
            self.known_head
                .get()
                .max(attempt.position.map_or(0, |p| p + 1)),
        );
        self.ready.borrow_mut().push_back(answer);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The publisher: a handle, so that an event can reach the log later.
pub struct ScriptPublisher(pub Rc<Script>);

impl Publisher for ScriptPublisher {
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        _now_us: u64,
        deadline_us: u64,
    ) {
        let script = &self.0;
        let records: Vec<_> = records
            .map(|r| (r.token, r.seq, HookId(r.id), r.value.to_vec()))
            .collect();
        let seqs = records.iter().map(|(_, seq, _, _)| *seq).collect();
        script.calls.borrow_mut().push(seqs);
        let refuses = script.refuses.borrow();
        let own = Class::Permanent(PermanentAbout::Record);
        let mode = match records.iter().any(|(_, _, id, _)| refuses.contains(id)) {
            true => Mode::Fail(own, 1),
            false => script.mode.get(),
        };
        for (token, seq, id, value) in records {
            let lands = !matches!(mode, Mode::Fail(..) | Mode::Lost);
            let position = lands.then(|| {
                let mut landed = script.landed.borrow_mut();
                landed.push(Landed { seq, id, value });
                landed.len() as u64 - 1
            });
            let number = script.next_attempt.get();
            script.next_attempt.set(number + 1);
            let attempt = Attempt {
                token,
                floor: script.known_head.get(),
                deadline_us,
                expired: false,
                position,
            };
            script.attempts.borrow_mut().insert(number, attempt);
            let (result, after_ms) = match mode {
                Mode::Confirm(ms) => (Ok(()), ms),
                Mode::Fail(class, ms) | Mode::LandAndFail(class, ms) => (Err(class), ms),
                Mode::Silent | Mode::Lost => continue,
            };
            let log = Rc::clone(script);
            script
                .world
                .after(after_ms * 1000, move || log.finish(number, result));
        }
    }

    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()> {
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        let mut ready = self.0.ready.borrow_mut();
        if ready.is_empty() {
            return Poll::Pending;
        }
        out.extend(ready.drain(..));
        Poll::Ready(())
    }

    fn tick(&self, now_us: u64, out: &mut Vec<Answer>) {
        for attempt in self.0.attempts.borrow_mut().values_mut() {
            if !attempt.expired && attempt.deadline_us <= now_us {
                attempt.expired = true;
                out.push(Answer::Failed {
                    token: attempt.token,
                    failure: Failure {
                        class: Class::Unavailable,
                        reason: "deadline",
                    },
                });
            }
        }
    }

    fn outstanding(&self) -> (usize, usize) {
        (self.0.attempts.borrow().len(), 0)
    }

    fn note_head(&self, head: u64) {
        self.0.known_head.set(self.0.known_head.get().max(head));
    }

    fn forget_head(&self) {
        self.0.known_head.set(0);
    }
}
