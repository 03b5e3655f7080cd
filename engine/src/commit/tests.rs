//! The join and the queue, every outcome enumerated.

#![allow(clippy::unwrap_used)]

use super::*;
use ankusa_wal::hook::HookDraft;
use std::cell::{Cell, RefCell};

#[derive(Default)]
struct Probe {
    bytes: usize,
    settled: RefCell<Vec<(Seq, Verdict, Remains)>>,
    abandoned: RefCell<u32>,
    cuts: Cell<u32>,
}

impl Item for Probe {
    fn draft(&self, _f: &mut dyn FnMut(&HookDraft<'_>)) {}
    fn record_bytes(&self) -> usize {
        self.bytes
    }
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains) {
        self.settled.borrow_mut().push((seq, verdict, remains));
    }
    fn cut(&self) {
        self.cuts.set(self.cuts.get() + 1);
    }
    fn abandon(&self, _verdict: Verdict) {
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

fn start(c: &mut Committer, lsn: u64, seqs: &[u64]) {
    let mut taken = c.begin();
    for seq in seqs {
        c.take(&mut taken, |_| Seq(*seq));
    }
    c.started(Lsn(lsn), taken, LogOffset(lsn * 10), 0);
}

fn ignore(_: Seq) {}

fn carry(_: &Carried<'_>) {}

fn answer(confirmed: bool) -> LogOutcome {
    match confirmed {
        true => LogOutcome::Confirmed,
        false => LogOutcome::Failed { is_own: false },
    }
}

#[test]
fn a_group_in_disk_mode_is_settled_by_its_local_half_alone() {
    let mut c = committer();
    let p = probe(10);
    c.offer(p.clone(), 0, false).ok().unwrap();
    start(&mut c, 1, &[7]);
    assert!(p.settled.borrow().is_empty(), "started is not acked");
    let mut durable = Vec::new();
    c.local(
        Lsn(1),
        Outcome::Durable,
        &mut |s| durable.push(s),
        &mut carry,
    );
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
    c.offer(p.clone(), 0, false).ok().unwrap();
    start(&mut c, 1, &[7]);
    c.local(
        Lsn(1),
        Outcome::Fenced,
        &mut |_| panic!("not deliverable"),
        &mut carry,
    );
    assert_eq!(
        *p.settled.borrow(),
        [(Seq(7), Verdict::StoreUnavailable, Remains::Undone)]
    );
    assert_eq!(p.cuts.get(), 0, "the cut is not durable yet");
    c.cut();
    c.cut();
    assert_eq!(p.cuts.get(), 1, "told once");
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
            c.offer(p.clone(), 0, true).ok().unwrap();
            start(&mut c, 1, &[7]);
            if local_first {
                c.local(Lsn(1), local, &mut ignore, &mut carry);
                assert!(p.settled.borrow().is_empty(), "one half is not enough");
                c.log(Seq(7), answer(log), &mut carry);
            } else {
                c.log(Seq(7), answer(log), &mut carry);
                assert!(p.settled.borrow().is_empty(), "one half is not enough");
                c.local(Lsn(1), local, &mut ignore, &mut carry);
            }
            assert_eq!(*p.settled.borrow(), [(Seq(7), verdict, remains)]);
            c.log(Seq(7), answer(!log), &mut carry);
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
    c.offer(a.clone(), 0, true).ok().unwrap();
    c.offer(b.clone(), 0, true).ok().unwrap();
    start(&mut c, 1, &[1, 2]);
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
    c.log(Seq(2), answer(true), &mut carry);
    assert_eq!(b.settled.borrow()[0].1, Verdict::Committed);
    assert!(a.settled.borrow().is_empty());
    c.log(Seq(1), answer(false), &mut carry);
    assert_eq!(a.settled.borrow()[0].1, Verdict::IntakeUnavailable);
}

#[test]
fn the_next_group_is_in_flight_while_the_first_waits_for_its_log() {
    let mut c = committer();
    let (a, b) = (probe(10), probe(10));
    c.offer(a.clone(), 0, true).ok().unwrap();
    start(&mut c, 1, &[1]);
    c.offer(b.clone(), 0, true).ok().unwrap();
    start(&mut c, 2, &[2]);
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
    c.local(Lsn(2), Outcome::Durable, &mut ignore, &mut carry);
    c.log(Seq(2), answer(true), &mut carry);
    assert_eq!(b.settled.borrow().len(), 1);
    assert_eq!(c.inflight(), 2, "the first is still open");
    c.log(Seq(1), answer(true), &mut carry);
    assert_eq!(c.inflight(), 0);
}

#[test]
#[should_panic(expected = "LSN order")]
fn a_local_half_out_of_order_is_a_bug() {
    let mut c = committer();
    c.local(Lsn(2), Outcome::Durable, &mut ignore, &mut carry);
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
}

#[test]
fn the_queue_refuses_by_count_and_by_bytes_and_always_takes_one() {
    let mut c = committer();
    c.offer(probe(5000), 0, false).ok().unwrap();
    assert!(c.offer(probe(1), 0, false).is_err(), "bytes");
    start(&mut c, 1, &[1]);
    for _ in 0..4 {
        c.offer(probe(1), 0, false).ok().unwrap();
    }
    assert!(c.offer(probe(1), 0, false).is_err(), "count");
    assert_eq!(c.waiting_bytes(), 4);
}

#[test]
fn what_waits_past_the_deadline_is_overload_and_what_is_in_flight_goes_on() {
    let mut c = committer();
    let (a, b) = (probe(1), probe(1));
    c.offer(a.clone(), 0, false).ok().unwrap();
    start(&mut c, 1, &[1]);
    c.offer(b.clone(), 50, false).ok().unwrap();
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
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
    assert_eq!(
        a.settled.borrow()[0].1,
        Verdict::Committed,
        "its claim is still promoted"
    );
}

#[test]
fn a_record_that_does_not_fit_stays_for_the_next_group() {
    let mut c = committer();
    c.offer(probe(10), 0, false).ok().unwrap();
    c.offer(probe(20), 0, false).ok().unwrap();
    assert_eq!(c.next_group_bytes(25, 10), 10);
    start(&mut c, 1, &[1]);
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
    c.offer(flying.clone(), 10, false).ok().unwrap();
    start(&mut c, 1, &[1]);
    c.offer(fresh.clone(), 100, false).ok().unwrap();
    c.offer(queued.clone(), 10, false).ok().unwrap();
    c.expire(110);
    assert_eq!(*flying.abandoned.borrow(), 1, "in flight");
    assert_eq!(
        *queued.settled.borrow(),
        [(Seq(0), Verdict::Overload, Remains::Nothing)]
    );
    assert!(fresh.settled.borrow().is_empty());
    assert_eq!((c.waiting(), c.waiting_bytes()), (1, 1));
}

#[test]
fn a_confirm_after_a_failure_counts_while_the_local_half_is_open() {
    let mut c = committer();
    let p = probe(10);
    c.offer(p.clone(), 0, true).ok().unwrap();
    start(&mut c, 1, &[7]);
    assert!(c.log(Seq(7), answer(false), &mut carry).is_some());
    assert!(c.log(Seq(7), answer(true), &mut carry).is_some());
    assert!(c.log(Seq(7), answer(false), &mut carry).is_none(), "late");
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
    assert_eq!(p.settled.borrow()[0].1, Verdict::Committed);
}

#[test]
fn what_is_carried_is_told_before_its_item_is_settled_with_what_both_halves_need() {
    for (local, log) in [
        (Outcome::Durable, false),
        (Outcome::Fenced, true),
        (Outcome::Fenced, false),
    ] {
        let mut c = committer();
        let p = probe(10);
        c.offer(p.clone(), 3, true).ok().unwrap();
        start(&mut c, 2, &[7]);
        let mut told = Vec::new();
        c.log(Seq(7), answer(log), &mut carry);
        let unsettled = p.clone();
        c.local(Lsn(2), local, &mut ignore, &mut |c| {
            assert!(unsettled.settled.borrow().is_empty());
            told.push((c.seq, c.local, c.log, c.since_us, c.floor, c.bytes));
        });
        let durable = local == Outcome::Durable;
        assert_eq!(told, [(Seq(7), durable, log, 3, LogOffset(20), 10)]);
        assert_eq!(c.take_freed(), (0, 0), "it still counts");
    }
}

#[test]
fn only_the_first_failure_of_a_group_that_is_not_a_records_own_counts() {
    let mut c = committer();
    for _ in 0..4 {
        c.offer(probe(1), 0, true).ok().unwrap();
    }
    start(&mut c, 1, &[1, 2, 3, 4]);
    let own = LogOutcome::Failed { is_own: true };
    let first = |answer: Option<InFlight>| answer.unwrap().is_first_failure;
    assert!(!first(c.log(Seq(1), own, &mut carry)));
    assert!(!first(c.log(Seq(2), answer(true), &mut carry)));
    assert!(first(c.log(Seq(3), answer(false), &mut carry)));
    assert!(!first(c.log(Seq(4), answer(false), &mut carry)));
}

#[test]
fn what_is_open_follows_the_confirms_and_the_durable_groups() {
    let mut c = committer();
    let open = |c: &mut Committer| {
        let open = c.open();
        (open.unconfirmed.map(|s| s.0), open.floor.map(|f| f.0))
    };
    assert_eq!(open(&mut c), (None, None));
    // One without a log half among them.
    for (seq, logged) in [(1, false), (2, true), (3, true)] {
        c.offer(probe(1), 0, logged).ok().unwrap();
        if seq == 3 {
            start(&mut c, 1, &[1, 2, 3]);
        }
    }
    c.offer(probe(1), 0, true).ok().unwrap();
    start(&mut c, 2, &[4]);
    assert_eq!(open(&mut c), (Some(2), Some(10)));
    c.log(Seq(3), answer(true), &mut carry);
    assert_eq!(open(&mut c), (Some(2), Some(10)));
    c.log(Seq(2), answer(true), &mut carry);
    assert_eq!(open(&mut c), (Some(4), Some(10)));
    c.local(Lsn(1), Outcome::Durable, &mut ignore, &mut carry);
    assert_eq!(open(&mut c), (Some(4), Some(20)));
    // Not durable and not confirmed: open in both until it is carried.
    c.log(Seq(4), answer(false), &mut carry);
    assert_eq!(open(&mut c), (Some(4), Some(20)));
    c.local(Lsn(2), Outcome::Fenced, &mut ignore, &mut carry);
    assert_eq!(open(&mut c), (None, None), "carried: another's to know");
    assert_eq!(c.take_freed(), (2, 2));
}
