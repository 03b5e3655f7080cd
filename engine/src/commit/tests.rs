//! The join and the queue, every outcome enumerated.

#![allow(clippy::unwrap_used)]

use super::*;
use std::cell::RefCell;

#[derive(Default)]
struct Probe {
    bytes: usize,
    settled: RefCell<Vec<(Seq, Verdict, Remains)>>,
    abandoned: RefCell<u32>,
}

impl Item for Probe {
    fn draft(&self, _f: &mut dyn FnMut(&HookDraft<'_>)) {}
    fn record_bytes(&self) -> usize {
        self.bytes
    }
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains) {
        self.settled.borrow_mut().push((seq, verdict, remains));
    }
    fn abandon(&self) {
        *self.abandoned.borrow_mut() += 1;
    }
}

fn probe(bytes: usize) -> Rc<Probe> {
    Rc::new(Probe {
        bytes,
        ..Probe::default()
    })
}

fn committer() -> Committer {
    Committer::new(QueueLimits {
        records_max: 4,
        bytes_max: 1000,
        deadline_us: 100,
    })
}

fn start(c: &mut Committer, lsn: u64, seqs: &[u64], with_log: bool) {
    let mut taken = c.begin();
    for seq in seqs {
        c.take(&mut taken, with_log, |_| Seq(*seq));
    }
    c.started(Lsn(lsn), taken);
}

fn ignore(_: Seq) {}

#[test]
fn a_group_in_disk_mode_is_settled_by_its_local_half_alone() {
    let mut c = committer();
    let p = probe(10);
    c.offer(p.clone(), 0).ok().unwrap();
    start(&mut c, 1, &[7], false);
    assert!(p.settled.borrow().is_empty(), "started is not acked");
    let mut durable = Vec::new();
    c.local(Lsn(1), Outcome::Durable, &mut |s| durable.push(s));
    assert_eq!(durable, [Seq(7)]);
    assert_eq!(
        *p.settled.borrow(),
        [(Seq(7), Verdict::Committed, Remains::Complete)]
    );
    assert_eq!(c.inflight(), 0);
}

#[test]
fn a_fenced_group_in_disk_mode_leaves_nothing_and_is_not_delivered() {
    let mut c = committer();
    let p = probe(10);
    c.offer(p.clone(), 0).ok().unwrap();
    start(&mut c, 1, &[7], false);
    c.local(Lsn(1), Outcome::Fenced, &mut |_| panic!("not deliverable"));
    assert_eq!(
        *p.settled.borrow(),
        [(Seq(7), Verdict::StoreUnavailable, Remains::Nothing)]
    );
}

#[test]
fn the_four_outcomes_in_both_orders() {
    let table = [
        (
            Outcome::Durable,
            true,
            Verdict::Committed,
            Remains::Complete,
        ),
        (
            Outcome::Durable,
            false,
            Verdict::IntakeUnavailable,
            Remains::Carried {
                local: true,
                log: false,
            },
        ),
        (
            Outcome::Fenced,
            true,
            Verdict::StoreUnavailable,
            Remains::Carried {
                local: false,
                log: true,
            },
        ),
        (
            Outcome::Fenced,
            false,
            Verdict::StoreUnavailable,
            Remains::Carried {
                local: false,
                log: false,
            },
        ),
    ];
    for (local, log, verdict, remains) in table {
        for local_first in [true, false] {
            let mut c = committer();
            let p = probe(10);
            c.offer(p.clone(), 0).ok().unwrap();
            start(&mut c, 1, &[7], true);
            if local_first {
                c.local(Lsn(1), local, &mut ignore);
                assert!(p.settled.borrow().is_empty(), "one half is not enough");
                c.log(Seq(7), log);
            } else {
                c.log(Seq(7), log);
                assert!(p.settled.borrow().is_empty(), "one half is not enough");
                c.local(Lsn(1), local, &mut ignore);
            }
            assert_eq!(*p.settled.borrow(), [(Seq(7), verdict, remains)]);
            c.log(Seq(7), !log);
            assert_eq!(
                p.settled.borrow().len(),
                1,
                "a late answer settles nothing twice"
            );
            assert_eq!(c.inflight(), 0);
        }
    }
}

#[test]
fn records_of_one_group_are_joined_each_on_its_own() {
    let mut c = committer();
    let (a, b) = (probe(10), probe(10));
    c.offer(a.clone(), 0).ok().unwrap();
    c.offer(b.clone(), 0).ok().unwrap();
    start(&mut c, 1, &[1, 2], true);
    c.local(Lsn(1), Outcome::Durable, &mut ignore);
    c.log(Seq(2), true);
    assert_eq!(b.settled.borrow()[0].1, Verdict::Committed);
    assert!(a.settled.borrow().is_empty());
    c.log(Seq(1), false);
    assert_eq!(a.settled.borrow()[0].1, Verdict::IntakeUnavailable);
}

#[test]
fn the_next_group_is_in_flight_while_the_first_waits_for_its_log() {
    let mut c = committer();
    let (a, b) = (probe(10), probe(10));
    c.offer(a.clone(), 0).ok().unwrap();
    start(&mut c, 1, &[1], true);
    c.offer(b.clone(), 0).ok().unwrap();
    start(&mut c, 2, &[2], true);
    c.local(Lsn(1), Outcome::Durable, &mut ignore);
    c.local(Lsn(2), Outcome::Durable, &mut ignore);
    c.log(Seq(2), true);
    assert_eq!(b.settled.borrow().len(), 1);
    assert_eq!(c.inflight(), 2, "the first is still open");
    c.log(Seq(1), true);
    assert_eq!(c.inflight(), 0);
}

#[test]
#[should_panic(expected = "LSN order")]
fn a_local_half_out_of_order_is_a_bug() {
    let mut c = committer();
    c.local(Lsn(2), Outcome::Durable, &mut ignore);
    c.local(Lsn(1), Outcome::Durable, &mut ignore);
}

#[test]
fn the_queue_refuses_by_count_and_by_bytes_and_always_takes_one() {
    let mut c = committer();
    c.offer(probe(5000), 0).ok().unwrap();
    assert!(c.offer(probe(1), 0).is_err(), "bytes");
    start(&mut c, 1, &[1], false);
    for _ in 0..4 {
        c.offer(probe(1), 0).ok().unwrap();
    }
    assert!(c.offer(probe(1), 0).is_err(), "count");
    assert_eq!(c.waiting_bytes(), 4);
}

#[test]
fn what_waits_past_the_deadline_is_overload_and_what_is_in_flight_goes_on() {
    let mut c = committer();
    let (a, b) = (probe(1), probe(1));
    c.offer(a.clone(), 0).ok().unwrap();
    start(&mut c, 1, &[1], false);
    c.offer(b.clone(), 50).ok().unwrap();
    c.expire(99);
    assert_eq!(*a.abandoned.borrow(), 0);
    c.expire(149);
    assert_eq!(*a.abandoned.borrow(), 1);
    assert!(b.settled.borrow().is_empty());
    c.expire(150);
    assert_eq!(
        *b.settled.borrow(),
        [(Seq(0), Verdict::Overload, Remains::Nothing)]
    );
    assert_eq!(*a.abandoned.borrow(), 1, "told once");
    c.local(Lsn(1), Outcome::Durable, &mut ignore);
    assert_eq!(
        a.settled.borrow()[0].1,
        Verdict::Committed,
        "its claim is still promoted"
    );
}

#[test]
fn a_record_that_does_not_fit_stays_for_the_next_group() {
    let mut c = committer();
    c.offer(probe(10), 0).ok().unwrap();
    c.offer(probe(20), 0).ok().unwrap();
    assert_eq!(c.next_group_bytes(25, 10), 10);
    start(&mut c, 1, &[1], false);
    assert_eq!(
        (c.waiting(), c.waiting_bytes(), c.next_bytes()),
        (1, 20, Some(20))
    );
}

#[test]
fn a_deadline_counts_from_the_whole_request_also_in_the_queue_and_in_flight() {
    let mut c = committer();
    // The first two waited elsewhere for 90 of their 100; the third did not.
    let (flying, queued, fresh) = (probe(1), probe(1), probe(1));
    c.offer(flying.clone(), 10).ok().unwrap();
    start(&mut c, 1, &[1], false);
    c.offer(fresh.clone(), 100).ok().unwrap();
    c.offer(queued.clone(), 10).ok().unwrap();
    c.expire(110);
    assert_eq!(*flying.abandoned.borrow(), 1, "in flight");
    assert_eq!(
        *queued.settled.borrow(),
        [(Seq(0), Verdict::Overload, Remains::Nothing)]
    );
    assert!(fresh.settled.borrow().is_empty());
    assert_eq!((c.waiting(), c.waiting_bytes()), (1, 1));
}
