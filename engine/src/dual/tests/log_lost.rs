//! The log loses what it held while the node lives: everything in the store is published again.

#![allow(clippy::unwrap_used)]

use ankusa_wal::IntakeIdentity;

use super::rig::{Rig, rig};
use super::script::Mode;

fn three_kept() -> Rig {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    for key in ["a", "b", "c"] {
        assert_eq!(rig.posted(key).answered().status, 201);
    }
    rig.node.note_head(3, 0);
    rig.run_ms(1_200);
    assert_eq!(rig.stored_marks().2, Some(2));
    rig
}

fn all_are_there_again(rig: &Rig, ids: &[ankusa_wal::HookId]) {
    let logged = rig.logged();
    for id in ids {
        assert!(logged.contains(id), "acked, and in one place only");
    }
    assert!(rig.delivered().is_empty());
    rig.node.note_head(rig.script.head(), rig.node.epoch());
    rig.run_ms(2_500);
    let (watermark, _, offset) = rig.stored_marks();
    let last = rig.script.landed.borrow().iter().map(|r| r.seq).max();
    assert!(watermark >= last.unwrap());
    assert_eq!(offset, Some(rig.script.head() - 1));
    rig.shard.dispatch.set_paused(rig.sink(), false);
    rig.run_ms(500);
    let mut delivered = rig.delivered();
    delivered.sort();
    delivered.dedup();
    assert_eq!(delivered.len(), rig.delivered().len(), "each once");
}

#[test]
fn a_head_below_the_known_one_republishes_all_and_both_marks_start_over() {
    let rig = three_kept();
    let ids = rig.logged();
    rig.script.lose_all();
    assert!(!rig.node.note_head(0, 0));
    assert_eq!(rig.node.epoch(), 1);
    assert!(rig.node.note_head(9, 0), "an answer to an older question");
    assert_eq!(rig.node.head(), None, "says nothing of this log");
    rig.run_ms(100);
    assert!(rig.stored_marks().2.is_none(), "durably forgotten");
    rig.run_ms(1_000);
    all_are_there_again(&rig, &ids);
}

#[test]
fn a_confirm_below_the_position_known_when_it_was_handed_over_does_the_same() {
    let rig = three_kept();
    let mut ids = rig.logged();
    rig.script.lose_all();
    // Its own record is in the new log, the others are nowhere but here.
    let sent = rig.posted("d");
    assert_eq!(sent.answered().status, 201);
    ids.push(sent.id());
    rig.run_ms(1_000);
    assert_eq!(rig.node.epoch(), 1);
    all_are_there_again(&rig, &ids);
}

#[test]
fn what_was_in_flight_to_the_old_log_is_not_taken_as_confirmed_by_it() {
    let rig = three_kept();
    let mut ids = rig.logged();
    rig.script.set(Mode::Silent);
    let sent = rig.post("d");
    rig.run_ms(100);
    ids.push(*rig.logged().last().unwrap());
    rig.script.lose_all();
    rig.log_up();
    rig.node.note_head(0, 0);
    rig.run_ms(100);
    // The old log's answer comes late.
    rig.script.let_go();
    rig.run_ms(3_000);
    assert!(!sent.is_open());
    all_are_there_again(&rig, &ids);
    let retry = rig.posted("d");
    assert!(retry.answered().duplicate);
}

#[test]
fn a_crash_before_all_was_published_again_loses_none_of_it() {
    let rig = three_kept();
    let ids = rig.logged();
    rig.script.lose_all();
    rig.script.set(Mode::Lost);
    rig.node.note_head(0, 0);
    rig.run_ms(500);
    let again = rig.crash().serve();
    for id in ids {
        assert!(again.logged().contains(&id));
    }
}

fn again(rig: &Rig, id: ankusa_wal::HookId) -> usize {
    rig.logged().iter().filter(|logged| **logged == id).count()
}

/// A topic that was deleted and made again was noticed by a position below the known head, and a
/// minute later by its identity: everything was published to it twice.
#[test]
fn a_log_made_anew_and_noticed_twice_is_published_to_once() {
    let rig = three_kept();
    let ids = rig.logged();
    rig.node.will_ask();
    rig.script.lose_all();
    rig.node.note_head(0, 0);
    rig.run_ms(1_000);
    assert_eq!(rig.node.epoch(), 1);
    assert!(rig.stored_marks().2.is_none(), "durably forgotten at once");
    assert!(rig.logged().is_empty(), "nobody knows yet which log it is");
    let other = IntakeIdentity {
        node: b"node".as_slice().into(),
        partition: 0,
        log: b"another".as_slice().into(),
    };
    rig.node.log_went_back(Some(other), 1);
    rig.run_ms(1_000);
    assert_eq!(rig.node.epoch(), 2);
    for id in &ids {
        assert_eq!(again(&rig, *id), 1);
    }
    all_are_there_again(&rig, &ids);
}

#[test]
fn a_log_that_is_the_same_after_all_is_published_to_once_that_is_known() {
    let rig = three_kept();
    let ids = rig.logged();
    rig.node.will_ask();
    rig.script.lose_all();
    rig.node.note_head(0, 0);
    rig.run_ms(500);
    assert!(rig.logged().is_empty());
    rig.node.is_sure();
    rig.run_ms(1_000);
    assert_eq!(rig.node.epoch(), 1);
    for id in &ids {
        assert_eq!(again(&rig, *id), 1);
    }
    all_are_there_again(&rig, &ids);
}
