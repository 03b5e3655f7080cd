//! When a run refuses, and that a refusal writes nothing.

use ankusa_wal::home::StoreOrigin;

use super::*;
use crate::boot::Start;

/// A store with three hooks in both places whose replay has been through once.
fn existing(log: &TestLog) -> Remains {
    let node = Node::fresh(log, 1);
    node.run().unwrap();
    node.ingest(0, 0..3);
    let node = Node::reopen(log, &node.stop());
    node.run().unwrap();
    node.stop()
}

fn restored(log: &TestLog) -> Remains {
    let mut remains = existing(log);
    remains.facts.origin = StoreOrigin::Restored;
    remains.facts.incarnation = 2;
    remains
}

/// More records, of which retention then keeps the last.
fn passed_retention(log: &TestLog, first_seq: u64) {
    for at in 0..6 {
        log.push(record(0, first_seq + at, 100 + at));
    }
    log.set_earliest(log.head() - 2);
}

#[test]
fn node_id_mismatch_refuses_and_names_both() {
    let log = TestLog::new();
    let node = Node::reopen(&log, &existing(&log));
    let before = node.facts.borrow().clone();
    let refused = node.run_with(Options {
        node: "node-b".into(),
        ..options()
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.word(), "intake_node_mismatch");
    let text = refused.to_string();
    assert!(text.contains("node-a") && text.contains("node-b"), "{text}");
    assert_eq!(*node.facts.borrow(), before);
}

#[test]
fn truncated_log_refuses_a_restored_store_again_and_again() {
    let log = TestLog::new();
    let remains = restored(&log);
    passed_retention(&log, 1000);
    let node = Node::reopen(&log, &remains);
    let refused = node.run().unwrap_err();
    assert_eq!(
        refused,
        Refusal::Truncated {
            wanted: 3,
            earliest: 7
        }
    );
    let again = Node::reopen(&log, &node.stop());
    assert_eq!(again.run().unwrap_err(), refused);
    assert!(again.gaps.borrow().is_empty());
    assert_eq!(again.content().len(), 3);
}

#[test]
fn allow_gap_goes_on_and_leaves_an_audit_row() {
    let log = TestLog::new();
    let remains = restored(&log);
    passed_retention(&log, 1000);
    let node = Node::reopen(&log, &remains);
    let summary = node.run_with(Options {
        allow_gap: true,
        ..options()
    });
    let summary = summary.unwrap();
    assert_eq!(summary.counts.applied, 2);
    let gaps = node.gaps.borrow();
    assert_eq!(gaps.len(), 1);
    assert_eq!(
        (gaps[0].wanted, gaps[0].earliest, gaps[0].lost()),
        (3, 7, 4)
    );
    assert_eq!(summary.gap.as_ref(), gaps.first());
    assert_eq!(node.offset(0), Some(8));
}

#[test]
fn truncated_log_only_warns_an_existing_store_that_handed_out_what_it_holds() {
    let log = TestLog::new();
    let remains = existing(&log);
    let node = Node::reopen(&log, &remains);
    node.ingest(0, 10..14);
    let remains = node.stop();
    log.set_earliest(log.head() - 1);
    let node = Node::reopen(&log, &remains);
    assert_eq!(node.run().unwrap().counts.present, 1);
    assert!(node.gaps.borrow().is_empty());
}

#[test]
fn older_copy_of_itself_is_treated_as_restored() {
    let log = TestLog::new();
    let remains = existing(&log);
    passed_retention(&log, 1 << 40);
    let node = Node::reopen(&log, &remains);
    assert_eq!(node.run().unwrap_err().word(), "intake_truncated");
}

#[test]
fn fresh_store_is_refused_when_the_log_holds_what_is_left_of_its_node() {
    let log = TestLog::new();
    passed_retention(&log, 1);
    let node = Node::fresh(&log, 1);
    let refused = node.run().unwrap_err();
    assert_eq!(
        refused,
        Refusal::Truncated {
            wanted: 0,
            earliest: 4
        }
    );
    // A node that is new to an old topic is not.
    let node = Node::fresh(&log, 1);
    let fine = node.run_with(Options {
        node: "node-new".into(),
        ..options()
    });
    assert_eq!(fine.unwrap().counts.records, 0);
}

#[test]
fn log_of_another_identity_makes_an_existing_store_republish_all() {
    let log = TestLog::new();
    let remains = existing(&log);
    let anew = TestLog::new();
    anew.0.borrow_mut().identity = "log-2".into();
    let node = Node::reopen(&anew, &remains);
    let summary = node.run().unwrap();
    assert!(summary.log_went_back);
    assert_eq!((summary.republished, anew.head()), (3, 3));
    assert_eq!(node.facts.borrow().log.as_deref(), Some("log-2"));
    assert_eq!(node.offset(0), None);
    // The next boot sees them as any tail.
    let again = Node::reopen(&anew, &node.stop());
    let summary = again.run().unwrap();
    assert_eq!((summary.counts.present, summary.republished), (3, 0));
}

#[test]
fn log_whose_head_fell_below_the_offset_makes_an_existing_store_republish_all() {
    let log = TestLog::new();
    let remains = existing(&log);
    log.0.borrow_mut().partitions[0].truncate(1);
    let node = Node::reopen(&log, &remains);
    let summary = node.run().unwrap();
    assert!(summary.log_went_back);
    // The one that is still there was seen, the others were published.
    assert_eq!((summary.counts.present, summary.republished), (1, 2));
    assert_eq!(node.offset(0), Some(0));
}

#[test]
fn recreated_log_refuses_a_restored_store_until_the_gap_is_allowed() {
    let log = TestLog::new();
    let remains = restored(&log);
    let anew = TestLog::new();
    anew.0.borrow_mut().identity = "log-2".into();
    let node = Node::reopen(&anew, &remains);
    let refused = node.run().unwrap_err();
    assert_eq!(refused.word(), "intake_recreated");
    let text = refused.to_string();
    assert!(text.contains("log-1") && text.contains("log-2"), "{text}");
    assert_eq!(node.facts.borrow().log.as_deref(), Some("log-1"));
    let node = Node::reopen(&anew, &node.stop());
    let summary = node.run_with(Options {
        allow_gap: true,
        ..options()
    });
    assert_eq!(summary.unwrap().republished, 3);
    assert_eq!(node.gaps.borrow().len(), 1);
}

#[test]
fn start_above_the_offset_is_refused() {
    let log = TestLog::new();
    let remains = existing(&log);
    for seq in 50..60 {
        log.push(record(0, seq, seq));
    }
    let node = Node::reopen(&log, &remains);
    let refused = node.run_with(Options {
        start: Start::Position(8),
        ..options()
    });
    assert_eq!(
        refused.unwrap_err(),
        Refusal::StartAbove { from: 8, wanted: 3 }
    );
    let fine = node.run_with(Options {
        start: Start::Position(2),
        ..options()
    });
    assert_eq!(fine.unwrap().counts.applied, 10);
}

#[test]
fn log_that_does_not_answer_ends_a_run_that_does_not_wait() {
    let log = TestLog::new();
    log.0.borrow_mut().silent = 1;
    let node = Node::fresh(&log, 1);
    let refused = node.run_with(Options {
        wait: false,
        ..options()
    });
    assert_eq!(refused.unwrap_err().word(), "intake_unavailable");
}

#[test]
fn blank_shard_of_an_existing_store_does_not_ask_for_the_whole_log_again() {
    let log = TestLog::new();
    let mut remains = existing(&log);
    let blank = Node::fresh(&log, 2).stop();
    remains.images.push(blank.images[1].clone());
    let node = Node::reopen(&log, &remains);
    node.run().unwrap();
    assert_eq!(log.0.borrow().asked.last(), Some(&(0, 3)));
    assert_eq!(node.offset(1), Some(2));
}

#[test]
fn boot_without_replay_leaves_the_offset_and_is_refused_to_a_store_that_is_not_an_existing_one() {
    let log = TestLog::new();
    let by_hand = || Options {
        replay: false,
        ..options()
    };
    let refused = Node::fresh(&log, 1).run_with(by_hand()).unwrap_err();
    assert_eq!(refused.word(), "intake_not_recovered");
    let remains = existing(&log);
    log.push(record(0, 50, 50));
    let node = Node::reopen(&log, &remains);
    let summary = node.run_with(by_hand()).unwrap();
    assert_eq!((summary.counts.records, node.offset(0)), (0, Some(2)));
    let node = Node::reopen(&log, &node.stop());
    assert_eq!(node.run().unwrap().counts.applied, 1);
}
