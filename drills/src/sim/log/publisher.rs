//! A core's way into the simulated log.
//!
//! Invariants: those of the interface. An attempt is answered by its deadline ([`Publisher::tick`])
//! and at most once more, by a late confirm. Dropped with its core; what it handed over goes on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use ankusa_intake::{Answer, Class, Confirm, Failure, Outgoing, Publisher};

use super::{Fate, SimLog, Stored, failure};

/// Answers taken per poll.
const DRAIN_MAX: usize = 8;

struct Attempt {
    token: u64,
    floor: u64,
    deadline_us: u64,
    bytes: usize,
    is_expired: bool,
}

/// See the module.
pub struct SimPublisher {
    log: SimLog,
    open: RefCell<BTreeMap<u64, Attempt>>,
    next_key: Cell<u64>,
    arrived: RefCell<VecDeque<(u64, Result<u64, Failure>)>>,
    waker: RefCell<Option<Waker>>,
    head: Cell<u64>,
    itself: Weak<SimPublisher>,
}

impl SimPublisher {
    pub(super) fn new(log: &SimLog) -> Rc<SimPublisher> {
        Rc::new_cyclic(|itself| SimPublisher {
            log: log.clone(),
            open: RefCell::default(),
            next_key: Cell::new(0),
            arrived: RefCell::default(),
            waker: RefCell::default(),
            head: Cell::new(0),
            itself: itself.clone(),
        })
    }

    fn arrive(&self, key: u64, outcome: Result<u64, Failure>) {
        self.arrived.borrow_mut().push_back((key, outcome));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn settle(&self, key: u64, outcome: Result<u64, Failure>) -> Option<Answer> {
        let attempt = self.open.borrow_mut().remove(&key)?;
        let (token, late) = (attempt.token, attempt.is_expired);
        match outcome {
            Ok(position) => {
                self.head.set(self.head.get().max(position + 1));
                self.log.count(|c| c.late += u64::from(late));
                let confirm = Confirm {
                    position: Some(position),
                    floor: attempt.floor,
                };
                Some(Answer::Confirmed {
                    token,
                    confirm,
                    late,
                })
            }
            Err(failure) => (!late).then_some(Answer::Failed { token, failure }),
        }
    }

    fn hand_over(&self, key: u64, record: Stored) {
        let (log, world) = (self.log.clone(), self.log.0.world.clone());
        let identity = log.0.identity.get();
        let to = self.itself.clone();
        let tell = move |key, outcome| {
            if let Some(publisher) = to.upgrade() {
                publisher.arrive(key, outcome);
            }
        };
        log.count(|c| c.handed += 1);
        match log.fate(record.value.len()) {
            Fate::Confirm {
                land_us,
                answer_us,
                twice,
            } => {
                let back = world.clone();
                world.after(land_us, move || {
                    let landed = log.land(identity, record.clone());
                    if twice && landed.is_some() {
                        log.count(|c| c.doubled += 1);
                        let again = log.clone();
                        back.after(answer_us / 2, move || {
                            again.land(identity, record);
                        });
                    }
                    let outcome = landed.ok_or(failure(Class::NotFound));
                    back.after(answer_us, move || tell(key, outcome));
                });
            }
            Fate::LandFail {
                land_us,
                answer_us,
                failure,
            } => {
                log.count(|c| c.landed_failed += 1);
                world.after(land_us, move || {
                    log.land(identity, record);
                });
                world.after(answer_us, move || tell(key, Err(failure)));
            }
            Fate::Fail { answer_us, failure } => {
                log.count(|c| c.refused += 1);
                world.after(answer_us, move || tell(key, Err(failure)));
            }
            Fate::LandSilent { land_us } => {
                log.count(|c| c.landed_failed += 1);
                world.after(land_us, move || {
                    log.land(identity, record);
                });
            }
            Fate::Swallow => log.count(|c| c.swallowed += 1),
        }
    }
}

impl Publisher for SimPublisher {
    fn publish(
        &self,
        records: &mut dyn Iterator<Item = Outgoing<'_>>,
        _now_us: u64,
        deadline_us: u64,
    ) {
        for out in records {
            let key = self.next_key.get();
            self.next_key.set(key + 1);
            let attempt = Attempt {
                token: out.token,
                floor: self.head.get(),
                deadline_us,
                bytes: out.value.len(),
                is_expired: false,
            };
            self.open.borrow_mut().insert(key, attempt);
            let record = Stored {
                position: 0,
                shard: out.shard,
                seq: out.seq,
                id: out.id,
                incarnation: out.incarnation,
                value: out.value.clone(),
            };
            self.hand_over(key, record);
        }
    }

    fn poll_answers(&self, cx: &mut Context<'_>, out: &mut Vec<Answer>) -> Poll<()> {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        let before = out.len();
        for _ in 0..DRAIN_MAX {
            let Some((key, outcome)) = self.arrived.borrow_mut().pop_front() else {
                break;
            };
            out.extend(self.settle(key, outcome));
        }
        if !self.arrived.borrow().is_empty() {
            cx.waker().wake_by_ref();
        }
        match out.len() > before {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn tick(&self, now_us: u64, out: &mut Vec<Answer>) {
        for attempt in self.open.borrow_mut().values_mut() {
            if attempt.deadline_us <= now_us && !attempt.is_expired {
                attempt.is_expired = true;
                out.push(Answer::Failed {
                    token: attempt.token,
                    failure: failure(Class::Unavailable),
                });
            }
        }
    }

    fn outstanding(&self) -> (usize, usize) {
        let open = self.open.borrow();
        (open.len(), open.values().map(|a| a.bytes).sum())
    }

    fn note_head(&self, head: u64) {
        self.head.set(self.head.get().max(head));
    }

    fn forget_head(&self) {
        self.head.set(0);
    }
}
