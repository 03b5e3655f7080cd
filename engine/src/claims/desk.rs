//! One core's way to the claims: its own keys at once, another core's by message.
//!
//! Every claim that is granted is settled exactly once: promoted, released or carried. A grant
//! that arrives for a question nobody asks any more (its deadline passed) is released here.
//!
//! Runs on a shard core. Names neither the mesh nor a clock: the sender and the time are given.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ankusa_wal::HookId;

use super::{Answer, Claims, KeyHash, Reply, Ticket};

/// What cores tell each other about claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMessage {
    /// May the hook have the key?
    Claim(KeyHash, HookId, Ticket),
    /// The answer, to the core of the ticket.
    Answer(KeyHash, Reply),
    /// Nobody waits for the answer any more.
    Cancel(KeyHash, Ticket),
    /// The hook is committed everywhere; the key is its until then (unix seconds).
    Promote(KeyHash, HookId, u32),
    /// The hook left nothing behind.
    Release(KeyHash, HookId),
    /// The hook is no longer known to be in every place.
    GiveUp(KeyHash, HookId),
    /// One half of the hook's commit is missing.
    Carry(KeyHash, HookId),
    /// A durable row read at boot.
    Row(KeyHash, HookId, u32),
    /// The core with this number has sent all its rows.
    RowsDone(u16),
}

/// A granted claim: what to settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: KeyHash,
    /// The hook that holds it.
    pub id: HookId,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// Commit, then settle it.
    Granted(Claim),
    /// Committed before, under this id.
    Duplicate(HookId),
    /// The original has one half.
    Carried,
    /// Too many wait for it, or the way to its owner is congested.
    Crowded,
    /// No answer within the request's deadline.
    TimedOut,
}

struct Question {
    key: KeyHash,
    asked_us: u64,
    answer: Cell<Option<Answer>>,
    timed_out: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// One core's desk.
pub struct Desk {
    core: u16,
    cores: usize,
    claims: RefCell<Claims>,
    questions: RefCell<HashMap<u64, Rc<Question>, foldhash::fast::RandomState>>,
    next_number: Cell<u64>,
    rows_done: RefCell<Vec<bool>>,
    deadline_us: u64,
    send: Box<dyn Fn(usize, ClaimMessage)>,
}

impl Desk {
    /// The desk of `core` of `cores`; `send` must deliver in order and never lose.
    pub fn new(
        core: u16,
        cores: usize,
        keys_max: usize,
        deadline_us: u64,
        send: Box<dyn Fn(usize, ClaimMessage)>,
    ) -> Desk {
        Desk {
            core,
            cores,
            claims: RefCell::new(Claims::new(keys_max)),
            questions: RefCell::default(),
            next_number: Cell::new(0),
            rows_done: RefCell::new(vec![false; cores]),
            deadline_us,
            send,
        }
    }

    /// Asks for `key` on behalf of `id`, and waits for its settlement if it is pending. A request
    /// for a key of this core is answered without an await.
    ///
    /// # Cancel safety
    /// Dropping it before it completes takes the question back; a grant that crosses with that, or
    /// that came and was not heard, is released.
    pub async fn claim(&self, key: KeyHash, id: HookId, now_s: u32, now_us: u64) -> Claimed {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let ticket = Ticket {
            core: self.core,
            number,
        };
        let owner = key.owner(self.cores);
        if owner == usize::from(self.core) {
            let answer = self.claims.borrow_mut().claim(key, id, ticket, now_s);
            if let Some(answer) = answer {
                return claimed(answer, key, id);
            }
        } else {
            (self.send)(owner, ClaimMessage::Claim(key, id, ticket));
        }
        self.wait(ticket, key, id, now_us).await
    }

    async fn wait(&self, ticket: Ticket, key: KeyHash, id: HookId, now_us: u64) -> Claimed {
        let question = Rc::new(Question {
            key,
            asked_us: now_us,
            answer: Cell::new(None),
            timed_out: Cell::new(false),
            waker: RefCell::new(None),
        });
        self.questions
            .borrow_mut()
            .insert(ticket.number, Rc::clone(&question));
        let _forget = Forget {
            desk: self,
            ticket,
            claim: Claim { key, id },
            question: Rc::clone(&question),
        };
        poll_fn(|cx| {
            if let Some(answer) = question.answer.take() {
                return Poll::Ready(claimed(answer, key, id));
            }
            if question.timed_out.get() {
                return Poll::Ready(Claimed::TimedOut);
            }
            *question.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The hook of `claim` is committed in every place the mode promises.
    pub fn promote(&self, claim: Claim, expiry_s: u32, now_s: u32) {
        self.settle(
            claim.key,
            now_s,
            ClaimMessage::Promote(claim.key, claim.id, expiry_s),
        );
    }

    /// The hook of `claim` left nothing behind.
    pub fn release(&self, claim: Claim) {
        self.settle(claim.key, 0, ClaimMessage::Release(claim.key, claim.id));
    }

    /// The hook of `claim` is not known to be in every place, and will not be soon: its key is free.
    pub fn give_up(&self, claim: Claim, now_s: u32) {
        let message = ClaimMessage::GiveUp(claim.key, claim.id);
        self.settle(claim.key, now_s, message);
    }

    /// One half of `claim`'s hook is missing: whoever waits is told so.
    pub fn carry(&self, claim: Claim) {
        self.settle(claim.key, 0, ClaimMessage::Carry(claim.key, claim.id));
    }

    /// A durable row read at boot, for whichever core owns it.
    pub fn restore(&self, key: KeyHash, id: HookId, expiry_s: u32, now_s: u32) {
        self.settle(key, now_s, ClaimMessage::Row(key, id, expiry_s));
    }

    /// Tells every core, this one included, that this core has read all its rows.
    pub fn rows_done(&self) {
        for core in 0..self.cores {
            let message = ClaimMessage::RowsDone(self.core);
            if core == usize::from(self.core) {
                self.receive(message, 0);
            } else {
                (self.send)(core, message);
            }
        }
    }

    /// Whether every core has read all its rows: only then is a claim answered rightly.
    pub fn has_all_rows(&self) -> bool {
        self.rows_done.borrow().iter().all(|done| *done)
    }

    fn settle(&self, key: KeyHash, now_s: u32, message: ClaimMessage) {
        let owner = key.owner(self.cores);
        if owner == usize::from(self.core) {
            self.receive(message, now_s);
        } else {
            (self.send)(owner, message);
        }
    }

    /// A message from a core (or from this one).
    pub fn receive(&self, message: ClaimMessage, now_s: u32) {
        let mut replies = Vec::new();
        let mut claims = self.claims.borrow_mut();
        let key = match message {
            ClaimMessage::Claim(key, id, ticket) => {
                if let Some(answer) = claims.claim(key, id, ticket, now_s) {
                    replies.push(Reply {
                        to: ticket,
                        id,
                        answer,
                    });
                }
                key
            }
            ClaimMessage::Cancel(key, ticket) => {
                claims.cancel(key, ticket);
                key
            }
            ClaimMessage::Promote(key, id, expiry_s) => {
                claims.promote(key, id, expiry_s, now_s, &mut replies);
                key
            }
            ClaimMessage::Release(key, id) => {
                claims.release(key, id, &mut replies);
                key
            }
            ClaimMessage::GiveUp(key, id) => {
                claims.give_up(key, id, now_s, &mut replies);
                key
            }
            ClaimMessage::Carry(key, id) => {
                claims.carry(key, id, &mut replies);
                key
            }
            ClaimMessage::Row(key, id, expiry_s) => {
                claims.restore(key, id, expiry_s, now_s);
                key
            }
            ClaimMessage::RowsDone(core) => {
                if let Some(done) = self.rows_done.borrow_mut().get_mut(usize::from(core)) {
                    *done = true;
                }
                return;
            }
            ClaimMessage::Answer(key, reply) => {
                drop(claims);
                self.answer(key, reply);
                return;
            }
        };
        drop(claims);
        for reply in replies {
            if reply.to.core == self.core {
                self.answer(key, reply);
            } else {
                (self.send)(usize::from(reply.to.core), ClaimMessage::Answer(key, reply));
            }
        }
    }

    fn answer(&self, key: KeyHash, reply: Reply) {
        let question = self.questions.borrow_mut().remove(&reply.to.number);
        match question {
            Some(question) => {
                question.answer.set(Some(reply.answer));
                if let Some(waker) = question.waker.borrow_mut().take() {
                    waker.wake();
                }
            }
            None if reply.answer == Answer::Granted => self.release(Claim { key, id: reply.id }),
            None => {}
        }
    }

    /// Ends questions that are past their deadline, and drops expired rows. Called on every sweep.
    pub fn sweep(&self, now_s: u32, now_us: u64) {
        let mut late: Vec<(u64, Rc<Question>)> = self
            .questions
            .borrow()
            .iter()
            .filter(|(_, q)| now_us.saturating_sub(q.asked_us) >= self.deadline_us)
            .map(|(number, q)| (*number, Rc::clone(q)))
            .collect();
        // In the order they were asked: whoever asked first hears first.
        late.sort_unstable_by_key(|(number, _)| *number);
        for (_, question) in late {
            question.timed_out.set(true);
            if let Some(waker) = question.waker.borrow_mut().take() {
                waker.wake();
            }
        }
        self.claims.borrow_mut().sweep(now_s, 512);
    }

    /// Promoted keys, open claims, keys evicted, bytes of the table.
    pub fn counts(&self) -> (usize, usize, u64, usize) {
        let claims = self.claims.borrow();
        (
            claims.key_count(),
            claims.pending_count(),
            claims.evicted_count(),
            claims.memory_bytes(),
        )
    }

    fn forget(&self, ticket: Ticket, key: KeyHash) {
        let open = self.questions.borrow_mut().remove(&ticket.number);
        if let Some(question) = open {
            debug_assert_eq!(question.key, key);
            self.settle(key, 0, ClaimMessage::Cancel(key, ticket));
        }
    }
}

/// Takes the question back when its request stops waiting, however it stops.
struct Forget<'a> {
    desk: &'a Desk,
    ticket: Ticket,
    claim: Claim,
    question: Rc<Question>,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if self.question.answer.get() == Some(Answer::Granted) {
            // Granted, and gone before it could be told.
            self.desk.release(self.claim);
        } else {
            self.desk.forget(self.ticket, self.claim.key);
        }
    }
}

fn claimed(answer: Answer, key: KeyHash, id: HookId) -> Claimed {
    match answer {
        Answer::Granted => Claimed::Granted(Claim { key, id }),
        Answer::Duplicate(original) => Claimed::Duplicate(original),
        Answer::Carried => Claimed::Carried,
        Answer::Crowded => Claimed::Crowded,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use std::collections::VecDeque;
    use std::pin::pin;

    type Wire = Rc<RefCell<VecDeque<(usize, ClaimMessage)>>>;

    fn desks(cores: usize) -> (Vec<Rc<Desk>>, Wire) {
        let wire: Wire = Rc::default();
        let desks = (0..cores)
            .map(|core| {
                let wire = Rc::clone(&wire);
                let send = move |to, message| wire.borrow_mut().push_back((to, message));
                Rc::new(Desk::new(core as u16, cores, 100, 1000, Box::new(send)))
            })
            .collect();
        (desks, wire)
    }

    fn pump(desks: &[Rc<Desk>], wire: &Wire) {
        while let Some((to, message)) = { wire.borrow_mut().pop_front() } {
            desks[to].receive(message, 0);
        }
    }

    fn id(n: u8) -> HookId {
        HookId([n; 16])
    }

    /// A key that core 1 of 2 owns.
    const KEY: KeyHash = KeyHash([1; 16]);

    #[test]
    fn a_key_posted_at_once_to_both_cores_yields_one_grant_and_one_duplicate_with_its_id() {
        let (desks, wire) = desks(2);
        assert_eq!(KEY.owner(2), 1);
        block_on(async {
            let mut far = pin!(desks[0].claim(KEY, id(1), 0, 0));
            assert!(poll_once(far.as_mut()).await.is_none());
            pump(&desks, &wire);
            let mut near = pin!(desks[1].claim(KEY, id(2), 0, 0));
            assert!(
                poll_once(near.as_mut()).await.is_none(),
                "waits for the pending one"
            );
            let Some(Claimed::Granted(claim)) = poll_once(far.as_mut()).await else {
                panic!("granted")
            };
            desks[0].promote(claim, 100, 0);
            pump(&desks, &wire);
            assert_eq!(poll_once(near).await, Some(Claimed::Duplicate(id(1))));
        });
    }

    #[test]
    fn a_grant_that_comes_after_the_deadline_is_released() {
        let (desks, wire) = desks(2);
        block_on(async {
            let Claimed::Granted(first) = desks[1].claim(KEY, id(1), 0, 0).await else {
                panic!("granted")
            };
            let mut late = pin!(desks[0].claim(KEY, id(2), 0, 0));
            assert!(poll_once(late.as_mut()).await.is_none());
            pump(&desks, &wire);
            // The release and the deadline cross on the wire.
            desks[1].release(first);
            desks[0].sweep(0, 1000);
            assert_eq!(poll_once(late).await, Some(Claimed::TimedOut));
            pump(&desks, &wire);
            assert_eq!(desks[1].counts().1, 0, "no claim leaks");
        });
    }

    #[test]
    fn a_dropped_question_leaks_no_claim() {
        let (desks, wire) = desks(2);
        block_on(async {
            {
                let mut gone = pin!(desks[0].claim(KEY, id(2), 0, 0));
                assert!(poll_once(gone.as_mut()).await.is_none());
            }
            pump(&desks, &wire);
            assert_eq!(desks[1].counts().1, 0);
        });
    }

    #[test]
    fn a_grant_that_its_request_never_hears_of_is_released() {
        let (desks, wire) = desks(2);
        block_on(async {
            let mut gone = pin!(desks[0].claim(KEY, id(2), 0, 0));
            assert!(poll_once(gone.as_mut()).await.is_none());
            pump(&desks, &wire);
        });
        pump(&desks, &wire);
        assert_eq!(desks[1].counts().1, 0);
    }

    #[test]
    fn claims_wait_for_the_rows_of_every_core() {
        let (desks, wire) = desks(2);
        desks[0].restore(KEY, id(7), 100, 0);
        desks[0].rows_done();
        pump(&desks, &wire);
        assert!(!desks[1].has_all_rows());
        desks[1].rows_done();
        pump(&desks, &wire);
        assert!(desks[1].has_all_rows() && desks[0].has_all_rows());
        let found = block_on(desks[1].claim(KEY, id(8), 0, 0));
        assert_eq!(found, Claimed::Duplicate(id(7)));
    }
}
