//! Decisions in time: what is under way, what waits, what a failure costs.

#![allow(clippy::unwrap_used)]

use ankusa_wal::{HookId, LogOffset};
use bytes::Bytes;

use super::super::pending::Kept;
use super::*;

const DEADLINE: u64 = 20_000_000;
const PROBE: u64 = 1_000_000;

fn carry(set: &mut PendingSet, n: u64, local: bool, log: bool) {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    let kept = Kept {
        id: HookId(id),
        envelope: Bytes::from_static(&[1; 10]),
        sinks: Box::default(),
        dedupe_hash: None,
        archive: false,
        first_us: 0,
        floor: LogOffset(0),
        quota_bytes: 0,
    };
    set.carry(Seq(n), kept, local, log);
}

fn decide(r: &mut Reconciler, set: &mut PendingSet, now_us: u64) -> (Vec<u64>, Vec<u64>) {
    let actions = r.decide(set, now_us, DEADLINE, 1 << 20);
    let seqs = |seqs: Vec<Seq>| seqs.into_iter().map(|s| s.0).collect();
    (seqs(actions.republish), seqs(actions.complete_local))
}

#[test]
fn one_republish_and_one_local_write_are_under_way_at_a_time() {
    let (mut r, mut set) = (Reconciler::default(), PendingSet::default());
    carry(&mut set, 1, true, false);
    carry(&mut set, 2, false, true);
    assert_eq!(decide(&mut r, &mut set, 0), (vec![1], vec![2]));
    carry(&mut set, 3, true, false);
    carry(&mut set, 4, false, false);
    assert_eq!(decide(&mut r, &mut set, 0), (vec![], vec![]));
    set.confirmed(Seq(1));
    r.confirmed(Seq(1), 0, PROBE);
    set.landed(Seq(2));
    r.wrote(true, 0, PROBE);
    assert_eq!(decide(&mut r, &mut set, 0), (vec![3], vec![4]));
}

#[test]
fn failures_double_the_pause_up_to_the_probe_and_a_confirm_ends_it() {
    let (mut r, mut set) = (Reconciler::default(), PendingSet::default());
    carry(&mut set, 1, true, false);
    let mut now = 0;
    for pause in [100_000, 200_000, 400_000, 800_000, PROBE, PROBE] {
        assert_eq!(decide(&mut r, &mut set, now).0, [1]);
        let failed = r.failed(&mut set, Seq(1), Class::Unavailable, now, PROBE);
        assert!(failed.counts);
        assert!(decide(&mut r, &mut set, now + pause - 1).0.is_empty());
        now += pause;
    }
    assert_eq!(decide(&mut r, &mut set, now).0, [1]);
    set.confirmed(Seq(1));
    r.confirmed(Seq(1), now, PROBE);
    carry(&mut set, 2, true, false);
    assert_eq!(decide(&mut r, &mut set, now).0, [2]);
}

#[test]
fn each_class_does_what_it_should() {
    let own = Class::Permanent(PermanentAbout::Record);
    let access = Class::Permanent(PermanentAbout::Access);
    let throttled = Class::Throttled {
        retry_after_ms: Some(7_000),
    };
    // Class, told to the breaker, denied, stuck, free to go on at once.
    let table = [
        (Class::Unavailable, true, false, false, false),
        (Class::NotFound, true, false, false, false),
        (throttled, true, false, false, false),
        (access, true, true, false, false),
        (own, false, false, true, true),
    ];
    for (class, counts, is_denied, is_stuck, is_free) in table {
        let (mut r, mut set) = (Reconciler::default(), PendingSet::default());
        carry(&mut set, 1, true, false);
        decide(&mut r, &mut set, 0);
        let failed = r.failed(&mut set, Seq(1), class, 0, PROBE);
        assert_eq!(
            (failed.counts, failed.is_denied),
            (counts, is_denied),
            "{class:?}"
        );
        assert_eq!(matches!(failed.refused, Refused::Stuck(_)), is_stuck);
        assert_eq!(set.len(), 1, "{class:?}: kept");
        carry(&mut set, 2, true, false);
        assert_eq!(
            !decide(&mut r, &mut set, 0).0.is_empty(),
            is_free,
            "{class:?}"
        );
        if class == throttled {
            assert!(decide(&mut r, &mut set, 6_999_999).0.is_empty());
            assert!(!decide(&mut r, &mut set, 7_000_000).0.is_empty());
        }
    }
}

#[test]
fn the_breaker_hears_of_a_batch_once() {
    let (mut r, mut set) = (Reconciler::default(), PendingSet::default());
    for n in 1..=3 {
        carry(&mut set, n, true, false);
    }
    decide(&mut r, &mut set, 0);
    let counts: Vec<bool> = (1..=3)
        .map(|n| {
            r.failed(&mut set, Seq(n), Class::Unavailable, 0, PROBE)
                .counts
        })
        .collect();
    assert_eq!(counts, [true, false, false]);
}

#[test]
fn a_batch_refused_for_good_is_tried_one_by_one() {
    let (mut r, mut set) = (Reconciler::default(), PendingSet::default());
    for n in 1..=3 {
        carry(&mut set, n, true, false);
    }
    assert_eq!(decide(&mut r, &mut set, 0).0, [1, 2, 3]);
    let own = Class::Permanent(PermanentAbout::Record);
    for n in 1..=3 {
        let failed = r.failed(&mut set, Seq(n), own, 0, PROBE);
        assert_eq!(failed.refused, Refused::RetryAlone);
    }
    for n in 1..=3 {
        assert_eq!(decide(&mut r, &mut set, 0).0, [n]);
        if n == 2 {
            let failed = r.failed(&mut set, Seq(n), own, 0, PROBE);
            assert!(matches!(failed.refused, Refused::Stuck(_)));
        } else {
            set.confirmed(Seq(n));
            r.confirmed(Seq(n), 0, PROBE);
        }
    }
    assert_eq!((set.len(), set.stuck()), (1, 1));
}
