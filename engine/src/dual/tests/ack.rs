//! When a hook is acked, and what a provider and its consumers see when a half fails. Node scope.

#![allow(clippy::unwrap_used)]

use ankusa_wal::disk::sim::Fault;

use super::rig::{rig, settings};
use super::script::Mode;
use crate::dual::tests::rig::{UNAVAILABLE, rig_with};

#[test]
fn no_ack_without_intake_confirm() {
    let rig = rig().serve();
    rig.script.set(Mode::Silent);
    let sent = rig.post("a");
    rig.run_ms(1_000);
    assert!(sent.is_open(), "durable here, not confirmed");
    assert_eq!(
        rig.delivered().len(),
        1,
        "delivery does not wait for the log"
    );
    rig.script.let_go();
    rig.until(|| !sent.is_open());
    assert_eq!(sent.answered().status, 201);
    assert_eq!(rig.logged(), [sent.id()]);
    assert_eq!(rig.delivered(), [sent.id()]);
}

#[test]
fn the_ack_is_withheld_while_only_the_log_half_is_done() {
    let rig = rig().serve();
    rig.syncs_meet(&[Fault::Hang]);
    let sent = rig.post("a");
    rig.run_ms(1_000);
    assert_eq!(rig.script.head(), 1, "in the log");
    assert!(sent.is_open(), "and not durable here");
    assert!(rig.delivered().is_empty());
    rig.disk.release_hangs();
    rig.until(|| !sent.is_open());
    assert_eq!(sent.answered().status, 201);
    rig.run_ms(100);
    assert_eq!(rig.delivered(), [sent.id()]);
}

#[test]
fn the_ack_waits_for_both_halves_and_costs_the_max_of_them_not_the_sum() {
    let cost_us = |sync_ms: Option<u64>, confirm_ms: u64| {
        let rig = rig().serve();
        rig.script.set(Mode::Confirm(confirm_ms));
        if let Some(ms) = sync_ms {
            rig.syncs_meet(&[Fault::Delay(ms * 1000)]);
        }
        let began_us = rig.world.now_us();
        let sent = rig.posted("a");
        assert_eq!(sent.answered().status, 201);
        sent.answered_us.get() - began_us
    };
    let sync = cost_us(Some(200), 0);
    let confirm = cost_us(None, 200);
    let both = cost_us(Some(200), 200);
    assert!(sync >= 200_000 && confirm >= 200_000);
    let most = sync.max(confirm);
    assert!(
        both >= most && both * 10 < most * 11,
        "{both} against {most}"
    );
}

#[test]
fn publish_fails_after_the_local_commit_one_id_one_delivery_and_the_retry_is_pending_until_the_republish()
 {
    let rig = rig().serve();
    rig.log_down();
    let first = rig.posted("a");
    assert_eq!(first.told(), (503, "intake_unavailable".into()));
    rig.run_ms(50);
    let delivered = rig.delivered();
    assert_eq!(delivered.len(), 1, "stored, so it is delivered");
    let retry = rig.posted("a");
    assert_eq!(retry.told(), (503, "intake_pending".into()));
    assert_eq!(retry.answered().retry_after_s, Some(1));
    rig.run_ms(3_000);
    let retry = rig.posted("a");
    assert_eq!(retry.told(), (503, "intake_pending".into()));
    assert_eq!(
        rig.metric("ankusa_intake_refused_total{reason=\"pending_dedupe\"}"),
        2.0
    );
    rig.log_up();
    rig.run_ms(2_000);
    let retry = rig.posted("a");
    assert_eq!(retry.answered().status, 201);
    assert!(retry.answered().duplicate);
    assert_eq!(retry.id(), delivered[0], "the first id");
    assert_eq!(rig.delivered(), delivered, "one delivery");
    assert_eq!(
        rig.logged(),
        delivered,
        "and one record: nothing had landed"
    );
    assert_eq!(rig.log().facts().carried, 0);
}

#[test]
fn the_local_commit_fails_after_the_publish_the_seq_is_kept_and_the_retry_is_a_duplicate_after() {
    let rig = rig().serve();
    rig.next_sync_fails();
    let first = rig.posted("a");
    assert_eq!(first.told(), (503, "store_unavailable".into()));
    let landed = rig.script.landed.borrow()[0].clone();
    let retry = rig.posted("a");
    assert!([503, 409].contains(&retry.answered().status));
    assert_ne!(retry.told().1, "");
    rig.run_ms(5_000);
    let retry = rig.posted("a");
    assert_eq!(retry.answered().status, 201);
    assert!(retry.answered().duplicate);
    assert_eq!(retry.id(), landed.id, "the first id");
    assert_eq!(rig.delivered(), [landed.id], "one delivery");
    assert_eq!(rig.script.head(), 1, "the log half was done");
    let next = rig.posted("b");
    assert_eq!(next.answered().status, 201);
    assert!(
        rig.script.landed.borrow()[1].seq > landed.seq,
        "its seq was kept"
    );
}

#[test]
fn the_local_half_is_written_with_the_seq_and_the_bytes_that_the_log_has() {
    let rig = rig().serve();
    // Delivered nowhere, so that the hook stays to be read.
    rig.shard.dispatch.set_paused(rig.sink(), true);
    rig.next_sync_fails();
    rig.posted("a");
    rig.run_ms(5_000);
    let landed = rig.script.landed.borrow()[0].clone();
    let read = rig.shard.store.read(ankusa_wal::Seq(landed.seq));
    let stored = rig.world.block_on(read).unwrap().unwrap();
    assert_eq!(*stored, *landed.value);
}

#[test]
fn both_halves_fail_the_record_is_carried_and_completes_when_both_have_recovered() {
    for log_first in [true, false] {
        let rig = rig().serve();
        rig.log_down();
        rig.next_sync_fails();
        let first = rig.posted("a");
        assert_eq!(first.told(), (503, "store_unavailable".into()));
        if log_first {
            rig.log_up();
            rig.run_ms(5_000);
        } else {
            // The store recovers by itself; the hook is delivered although the log is down.
            rig.run_ms(5_000);
            assert_eq!(rig.delivered().len(), 1);
            assert_eq!(rig.posted("a").told(), (503, "intake_pending".into()));
            rig.log_up();
            rig.run_ms(5_000);
        }
        let retry = rig.posted("a");
        assert_eq!(retry.answered().status, 201);
        assert!(retry.answered().duplicate);
        assert_eq!(rig.delivered(), [retry.id()], "one hook id, one delivery");
        assert_eq!(rig.logged(), [retry.id()]);
        assert_eq!(rig.log().facts().carried, 0);
    }
}

#[test]
fn both_halves_fail_although_the_record_landed_one_id_and_one_delivery() {
    let rig = rig().serve();
    rig.script.set(Mode::LandAndFail(UNAVAILABLE, 1));
    rig.next_sync_fails();
    rig.posted("a");
    let first = rig.logged()[0];
    rig.run_ms(3_000);
    rig.log_up();
    rig.run_ms(3_000);
    let retry = rig.posted("a");
    assert_eq!((retry.answered().status, retry.id()), (201, first));
    let only: Vec<_> = rig.logged().into_iter().filter(|id| *id != first).collect();
    assert!(only.is_empty(), "copies of one record, no other");
    assert_eq!(rig.delivered(), [first]);
}

#[test]
fn a_retry_that_meets_an_unconfirmed_original_is_never_answered_201() {
    let rig = rig().serve();
    rig.script.set(Mode::Silent);
    let first = rig.post("a");
    rig.run_ms(500);
    let waiting = rig.post("a");
    rig.run_ms(500);
    assert!(first.is_open() && waiting.is_open());
    // The attempt's deadline passes: the original is carried, whoever waits is told.
    rig.run_ms(1_500);
    assert_eq!(first.told(), (503, "intake_unavailable".into()));
    assert_eq!(waiting.told(), (503, "intake_pending".into()));
    rig.log_up();
    rig.run_ms(3_000);
    let retry = rig.posted("a");
    assert!(retry.answered().duplicate);
    assert_eq!(rig.delivered(), [retry.id()]);
}

#[test]
fn a_publish_timeout_is_a_failure_and_its_republish_applies_once() {
    let rig = rig().serve();
    rig.script.set(Mode::Silent);
    let sent = rig.post("a");
    rig.run_ms(1_900);
    assert!(sent.is_open());
    rig.run_ms(200);
    assert_eq!(sent.told(), (503, "intake_unavailable".into()));
    rig.log_up();
    rig.run_ms(3_000);
    let first = rig.logged()[0];
    let copies = rig.script.count(first);
    assert!(copies >= 2, "it may have landed, so it was sent again");
    assert_eq!(rig.delivered(), [first], "and is one hook");
    assert_eq!(rig.posted("a").id(), first);
}

#[test]
fn a_late_confirm_completes_the_log_half() {
    let rig = rig().serve();
    rig.script.set(Mode::Silent);
    let sent = rig.post("a");
    rig.until(|| !sent.is_open());
    assert_eq!(rig.log().facts().carried, 1);
    rig.script.let_go();
    rig.run_ms(5);
    assert_eq!(rig.log().facts().carried, 0);
    let retry = rig.posted("a");
    assert!(retry.answered().duplicate);
    assert_eq!(rig.delivered(), [retry.id()]);
}

#[test]
fn refused_by_the_breaker_nothing_is_written_and_the_claim_is_released() {
    let rig = rig().serve();
    rig.node
        .set_readiness(ankusa_intake::Readiness::Unreachable);
    let groups = rig.shard.store.stats().records;
    let refused = rig.posted("a");
    assert_eq!(refused.told(), (503, "intake_unavailable".into()));
    assert_eq!(
        rig.metric("ankusa_intake_refused_total{reason=\"breaker\"}"),
        1.0
    );
    rig.nothing_was_written(groups);
    rig.node.set_readiness(ankusa_intake::Readiness::Up);
    rig.run_ms(1_100);
    let accepted = rig.posted("a");
    assert_eq!(accepted.answered().status, 201);
    assert!(!accepted.answered().duplicate);
}

#[test]
fn refused_by_the_ceiling_of_records_and_by_that_of_bytes() {
    for by_bytes in [false, true] {
        let mut small = settings();
        match by_bytes {
            true => small.pending_max_bytes = 2_000,
            false => small.pending_max_records = 2,
        }
        let rig = rig_with(small).serve();
        rig.log_down();
        for key in ["a", "b"] {
            assert_eq!(rig.posted(key).told(), (503, "intake_unavailable".into()));
        }
        let records = rig.shard.store.stats().records;
        rig.log_up();
        // Before the reconciler has published anything again.
        let refused = rig.posted("c");
        assert_eq!(refused.told(), (503, "intake_unavailable".into()));
        assert_eq!(
            rig.metric("ankusa_intake_refused_total{reason=\"backlog\"}"),
            1.0
        );
        assert_eq!(rig.shard.store.stats().records, records);
        rig.run_ms(3_000);
        assert_eq!(
            rig.posted("c").answered().status,
            201,
            "its place is free again"
        );
        assert!(rig.posted("a").answered().duplicate);
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_alone_and_its_claim_released() {
    let rig = rig().serve();
    let records = rig.shard.store.stats().records;
    let (small, large) = (vec![b'x'; 100], vec![b'x'; 17 << 10]);
    let sent = [
        rig.send("keyed", "a", &small),
        rig.send("keyed", "b", &large),
        rig.send("keyed", "c", &small),
    ];
    rig.until(|| sent.iter().all(|s| !s.is_open()));
    assert_eq!(sent[1].told(), (503, "intake_unavailable".into()));
    let line = "ankusa_intake_refused_total{reason=\"record_too_large\"}";
    assert_eq!(rig.metric(line), 1.0);
    for neighbour in [&sent[0], &sent[2]] {
        assert_eq!(neighbour.answered().status, 201);
    }
    assert_eq!(rig.script.head(), 2);
    assert!(rig.shard.store.stats().records >= records + 2);
    let retry = rig.send("keyed", "b", &small);
    rig.until(|| !retry.is_open());
    assert!(!retry.answered().duplicate, "the key was free");
    // Exactly the limit fits: the bound is the record's own, not the room kept for it.
    let fits = rig.send("plain", "", &vec![b'x'; (16 << 10) - 250]);
    rig.until(|| !fits.is_open());
    assert_eq!(fits.answered().status, 201);
}

#[test]
fn retry_after_reaches_the_provider() {
    let rig = rig().serve();
    rig.log_down();
    let first = rig.posted("a");
    assert_eq!(
        first.answered().retry_after_s,
        Some(2),
        "intake.retry_after_s"
    );
    rig.next_sync_fails();
    let second = rig.posted("b");
    assert_eq!(second.told().1, "store_unavailable");
    assert_eq!(second.answered().retry_after_s, Some(1));
    rig.node.set_readiness(ankusa_intake::Readiness::NoLeader);
    let third = rig.posted("c");
    assert_eq!(third.answered().retry_after_s, Some(2));
}

#[test]
fn one_refused_record_leaves_the_others_of_its_group_unaffected_once_it_travels_alone() {
    let rig = rig().serve();
    rig.log_down();
    let keys = ["a", "b", "c"];
    let sent = keys.map(|key| rig.post(key));
    rig.until(|| sent.iter().all(|s| !s.is_open()));
    let bad = rig.delivered_after(3)[1];
    rig.script.refuses.borrow_mut().insert(bad);
    rig.log_up();
    rig.run_ms(3_000);
    let logged = rig.logged();
    assert!(!logged.contains(&bad));
    assert_eq!(logged.len(), 2, "the neighbours are confirmed");
    assert_eq!(rig.log().facts().stuck, 1);
    let states: Vec<u16> = keys.map(|k| rig.posted(k).answered().status).to_vec();
    assert_eq!(
        states.iter().filter(|s| **s == 201).count(),
        3,
        "{states:?}"
    );
}
