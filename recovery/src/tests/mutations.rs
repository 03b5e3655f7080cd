//! The promises of a replay, broken on purpose: each is noticed by the test that holds it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ankusa_wal::mutations;

fn is_noticed(mutation: &str, test: fn()) -> bool {
    mutations::set(Some(mutation));
    let noticed = catch_unwind(AssertUnwindSafe(test)).is_err();
    mutations::set(None);
    noticed
}

#[test]
fn replay_that_trusts_order_is_noticed() {
    let test = super::replay::applies_a_record_once_whatever_the_order_and_however_often_it_comes;
    assert!(is_noticed("replay_trusts_order", test));
    let test = super::replay::fenced_hook_that_only_the_log_has_is_applied;
    assert!(is_noticed("replay_trusts_order", test));
}

#[test]
fn finished_seq_replayed_as_new_is_noticed() {
    let test = super::replay::finished_hook_does_not_come_back_as_new;
    assert!(is_noticed("replay_finished_as_new", test));
}
