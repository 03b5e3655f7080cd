//! Every state with every event, and the lines that entries wait in.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::claims::{Claim, KeyHash};

fn kept(n: u8) -> Kept {
    Kept {
        id: HookId([n; 16]),
        envelope: Bytes::from(vec![n; 100]),
        sinks: Box::from([SinkNo(1)]),
        dedupe_hash: Some([n; 16]),
        archive: false,
        first_us: u64::from(n) * 1_000,
        floor: LogOffset(u64::from(n) * 10),
        quota_bytes: 200,
    }
}

fn held(n: u8) -> Held {
    Held {
        claim: Claim {
            key: KeyHash([n; 16]),
            id: HookId([n; 16]),
        },
        expiry_s: 5,
    }
}

fn set_of(n: u8, local: bool, log: bool) -> PendingSet {
    let mut set = PendingSet::default();
    assert!(set.carry(Seq(u64::from(n)), kept(n), local, log));
    assert_eq!(set.hold(HookId([n; 16]), held(n)), Hold::Held);
    set
}

const STATES: [(bool, bool, Done); 3] = [
    (false, false, Done::BothPending),
    (true, false, Done::HalfLocal),
    (false, true, Done::HalfLog),
];

#[test]
fn every_state_with_every_half_that_is_done() {
    for (local, log, done) in STATES {
        let seq = Seq(1);
        let mut set = set_of(1, local, log);
        assert_eq!(set.get(seq).unwrap().done(), done);
        match set.confirmed(seq) {
            Progress::Complete(entry) => {
                assert_eq!(done, Done::HalfLocal);
                assert_eq!(entry.claim(), Some(held(1)));
                assert!(set.is_empty() && set.quota_bytes() == 0);
            }
            Progress::Half => assert_eq!(set.get(seq).unwrap().done(), Done::HalfLog),
            Progress::Unknown => panic!("an entry"),
        }
        let mut set = set_of(1, local, log);
        match set.landed(seq) {
            Progress::Complete(_) => assert_eq!(done, Done::HalfLog),
            Progress::Half => assert_eq!(set.get(seq).unwrap().done(), Done::HalfLocal),
            Progress::Unknown => panic!("an entry"),
        }
        assert!(matches!(set.confirmed(Seq(9)), Progress::Unknown));
        assert!(matches!(set.landed(Seq(9)), Progress::Unknown));
    }
}

#[test]
fn every_state_waits_for_its_own_half_local_first() {
    for (local, log, done) in STATES {
        let mut set = set_of(1, local, log);
        let (published, alone) = set.take_log(0, 10, 1_000);
        assert_eq!(!published.is_empty(), done == Done::HalfLocal, "{done:?}");
        assert!(!alone);
        assert_eq!(!set.take_local(10, 1_000).is_empty(), !local, "{done:?}");
        assert!(!set.is_due(u64::MAX), "busy with one or the other");
    }
    let mut set = set_of(1, false, false);
    assert_eq!(set.take_local(10, 1_000), [Seq(1)]);
    assert!(matches!(set.landed(Seq(1)), Progress::Half));
    assert_eq!(set.take_log(0, 10, 1_000), (vec![Seq(1)], false));
}

#[test]
fn a_failure_puts_it_back_in_line_a_permanent_one_alone_and_then_it_is_stuck_not_dropped() {
    let seq = Seq(1);
    let mut set = set_of(1, true, false);
    set.take_log(0, 10, 1_000);
    assert_eq!(set.failed(seq, false, false, 0), Refused::No);
    assert_eq!(set.take_log(0, 10, 1_000), (vec![seq], false));
    assert_eq!(set.failed(seq, true, false, 0), Refused::RetryAlone);
    assert_eq!(set.take_log(0, 10, 1_000), (vec![seq], true));
    assert_eq!(
        set.failed(seq, true, true, 50),
        Refused::Stuck(Some(held(1)))
    );
    assert_eq!((set.len(), set.stuck()), (1, 1));
    assert!(set.get(seq).unwrap().is_refused());
    let again_us = 50 + REFUSED_AGAIN_US;
    assert_eq!(set.take_log(again_us - 1, 10, 1_000).0, []);
    assert_eq!(set.take_log(again_us, 10, 1_000), (vec![seq], true));
    assert_eq!(set.failed(seq, true, true, 90), Refused::Stuck(None));
    assert!(matches!(set.confirmed(seq), Progress::Complete(_)));
    assert_eq!((set.len(), set.stuck()), (0, 0));
}

#[test]
fn a_confirm_while_a_republish_is_out_completes_it_and_the_failure_after_it_is_nothing() {
    let mut set = set_of(1, true, false);
    set.take_log(0, 10, 1_000);
    assert!(matches!(set.confirmed(Seq(1)), Progress::Complete(_)));
    assert_eq!(set.failed(Seq(1), true, true, 0), Refused::No);
    assert!(set.is_empty());
}

#[test]
fn past_the_deadline_every_state_is_stuck_once_and_goes_on() {
    for (local, log, done) in STATES {
        let mut set = set_of(1, local, log);
        assert_eq!(set.expire(1_000 + 99, 100, 9), (vec![], false));
        assert_eq!(set.expire(1_000 + 100, 100, 1), (vec![held(1)], true));
        assert_eq!(set.expire(u64::MAX, 100, 9), (vec![], false));
        assert_eq!(set.stuck(), 1);
        assert_eq!(set.held().count(), 0, "given up, not renewed");
        assert_eq!(set.lowest_unconfirmed(), None);
        let named: Vec<Seq> = set.stuck_unconfirmed().collect();
        assert_eq!(named.len(), usize::from(!log), "{done:?}");
        assert!(set.is_due(0), "{done:?}");
        assert_eq!(set.get(Seq(1)).unwrap().claim(), Some(held(1)));
    }
}

#[test]
fn the_three_indexes_find_it_until_it_is_complete() {
    let mut set = set_of(1, true, false);
    set.carry(Seq(2), kept(2), false, true);
    let id = HookId([1; 16]);
    assert_eq!(set.by_id(id).unwrap().0, Seq(1));
    assert_eq!(set.by_key(&[2; 16]).unwrap().0, Seq(2));
    assert!(set.get(Seq(2)).is_some());
    set.confirmed(Seq(1));
    assert!(set.by_id(id).is_none() && set.by_key(&[1; 16]).is_none());
    assert_eq!(set.hold(id, held(1)), Hold::Completed);
    assert_eq!(set.oldest_us(), Some(2_000));
}

#[test]
fn batches_stop_at_records_and_at_bytes_and_always_take_one() {
    let mut set = PendingSet::default();
    for n in 1..=9 {
        set.carry(Seq(u64::from(n)), kept(n), true, false);
    }
    assert_eq!(set.take_log(0, 3, 10_000).0.len(), 3);
    assert_eq!(set.take_log(0, 9, 250).0.len(), 2);
    assert_eq!(set.take_log(0, 9, 1).0.len(), 1);
    assert_eq!(set.probes(), 9);
}

#[test]
fn what_is_not_durable_caps_the_offset_and_what_is_unconfirmed_the_watermark() {
    let mut set = PendingSet::default();
    set.carry(Seq(3), kept(3), true, false);
    set.carry(Seq(4), kept(4), false, true);
    set.carry(Seq(5), kept(5), false, false);
    assert_eq!(set.floor(), Some(LogOffset(40)));
    assert_eq!(set.lowest_unconfirmed(), Some(Seq(3)));
    set.landed(Seq(4));
    set.confirmed(Seq(3));
    assert_eq!(set.floor(), Some(LogOffset(50)));
    assert_eq!(set.lowest_unconfirmed(), Some(Seq(5)));
    set.landed(Seq(5));
    assert_eq!(set.floor(), None);
}

#[test]
fn a_log_that_went_back_has_confirmed_nothing() {
    let mut set = PendingSet::default();
    set.carry(Seq(4), kept(4), false, true);
    set.carry(Seq(5), kept(5), true, false);
    set.log_went_back();
    assert_eq!(set.floor(), Some(LogOffset(0)));
    assert_eq!(set.lowest_unconfirmed(), Some(Seq(4)));
    assert!(
        matches!(set.landed(Seq(4)), Progress::Half),
        "the log again"
    );
}

#[test]
fn a_record_that_is_carried_already_keeps_its_entry() {
    let mut set = set_of(1, true, false);
    assert!(!set.carry(Seq(1), kept(1), false, true));
    assert_eq!(set.get(Seq(1)).unwrap().done(), Done::HalfLocal);
    assert_eq!(set.quota_bytes(), 200);
}
