//! Carried records are completed, or stuck and kept, whatever it takes; claims follow.

#![allow(clippy::unwrap_used)]

use ankusa_intake::{Class, PermanentAbout};
use ankusa_wal::disk::sim::{Fate, Fault};
use ankusa_wal::{HookExtra, HookId, Outcome, Seq};

use super::rig::{Rig, UNAVAILABLE, rig, rig_with, settings};
use super::script::Mode;
use crate::claims::{Claim, KeyHash};
use crate::commit::driver::LogHalf;
use crate::dual::{Held, Hold};

#[test]
fn completes_the_log_half_after_the_log_returns() {
    let rig = rig().serve();
    rig.log_down();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert_eq!(rig.posted(key).told().1, "intake_unavailable");
    }
    rig.run_ms(10_000);
    assert_eq!(rig.log().facts().carried, 20);
    assert!(rig.log().facts().oldest_ms >= 10_000);
    rig.log_up();
    rig.run_ms(1_500);
    assert_eq!(rig.log().facts().carried, 0);
    assert_eq!(rig.logged().len(), 20, "each once: none had landed");
    let line = "ankusa_intake_reconciled_total{half=\"log\"}";
    assert_eq!(rig.metric(line), 20.0);
    for key in &keys {
        assert!(rig.posted(key).answered().duplicate);
    }
}

#[test]
fn completes_the_local_half_once_the_store_write_succeeds() {
    let rig = rig().serve();
    // The write of the group fails, and so do the first attempts to write it again.
    let failure = Fault::Error(libc::EIO, Fate::Kept);
    rig.syncs_meet(&[failure; 6]);
    let sent = rig.posted("a");
    assert_eq!(sent.told().1, "store_unavailable");
    rig.run_ms(10_000);
    assert_eq!(rig.log().facts().carried, 0);
    let id = rig.logged()[0];
    assert_eq!(rig.delivered(), [id]);
    assert_eq!(
        rig.metric("ankusa_intake_reconciled_total{half=\"local\"}"),
        1.0
    );
    assert_eq!(rig.posted("a").id(), id);
}

#[test]
fn does_not_reapply_a_local_half_that_landed() {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    rig.next_sync_fails();
    rig.posted("a");
    let landed = rig.script.landed.borrow()[0].clone();
    // The record comes to be in the store another way, just before the reconciler's turn.
    let (seq, value, sink) = (Seq(landed.seq), landed.value.clone(), rig.sink());
    rig.until(|| !rig.shard.store.is_fenced());
    let written = rig.shard.commit.write_group(2_000, 2_000, move |builder| {
        let extra = HookExtra {
            sinks: &[sink],
            log: true,
            ..HookExtra::default()
        };
        builder.hook_again(seq, &value, &extra);
    });
    assert_eq!(rig.world.block_on(written).unwrap(), Outcome::Durable);
    rig.run_ms(3_000);
    assert_eq!(rig.log().facts().carried, 0, "found, not written");
    rig.counts_equal_a_fold();
    assert_eq!(rig.shard.store.state().counts().hooks, 1);
    rig.shard.dispatch.set_paused(sink, false);
    rig.run_ms(500);
    assert_eq!(rig.delivered(), [landed.id]);
    assert_eq!(rig.posted("a").id(), landed.id);
}

#[test]
fn a_local_half_that_is_written_again_and_again_under_fences_is_one_hook() {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    let failure = Fault::Error(libc::EIO, Fate::Drawn);
    rig.syncs_meet(&[failure; 9]);
    for key in ["a", "b", "c"] {
        rig.post(key);
    }
    rig.run_ms(15_000);
    assert_eq!(rig.log().facts().carried, 0);
    rig.counts_equal_a_fold();
    assert_eq!(rig.shard.store.state().counts().hooks, 3);
    rig.shard.dispatch.set_paused(rig.sink(), false);
    rig.run_ms(500);
    let mut delivered = rig.delivered();
    delivered.sort();
    delivered.dedup();
    assert_eq!((delivered.len(), rig.delivered().len()), (3, 3));
}

#[test]
fn a_stuck_entry_past_the_deadline_releases_its_claim_raises_the_gauge_and_goes_on() {
    let rig = rig().serve();
    rig.log_down();
    rig.posted("a");
    let first = rig.delivered_after(1)[0];
    rig.run_ms(19_000);
    assert_eq!(rig.node.pending().stuck, 0);
    assert_eq!(rig.posted("a").told().1, "intake_pending");
    rig.run_ms(1_100);
    assert_eq!(rig.node.pending().stuck, 1);
    // The retry is a new hook with the same key.
    let retry = rig.posted("a");
    assert_eq!(retry.told().1, "intake_unavailable");
    rig.log_up();
    rig.run_ms(3_000);
    assert_eq!(rig.node.pending().stuck, 0, "it went on");
    assert_eq!(rig.node.pending().carried, 0);
    let second = rig.delivered()[1];
    assert_ne!(first, second);
    let mut logged = rig.logged();
    logged.sort();
    let mut both = vec![first, second];
    both.sort();
    assert_eq!(logged, both);
    assert_eq!(
        rig.posted("a").id(),
        second,
        "the late completion overwrote nothing"
    );
}

#[test]
fn a_stuck_entry_that_completes_late_leaves_a_key_that_another_hook_was_acked_under() {
    let rig = rig().serve();
    rig.log_down();
    rig.posted("a");
    let first = rig.delivered_after(1)[0];
    rig.script.refuses.borrow_mut().insert(first);
    rig.log_up();
    rig.run_ms(1_000);
    assert_eq!(rig.node.pending().stuck, 1, "refused for good: at once");
    let second = rig.posted("a");
    assert_eq!(second.answered().status, 201);
    assert_ne!(second.id(), first);
    rig.script.refuses.borrow_mut().clear();
    rig.run_ms(61_000);
    assert_eq!(rig.node.pending().carried, 0);
    assert!(rig.logged().contains(&first));
    assert_eq!(rig.posted("a").id(), second.id());
}

#[test]
fn permanent_class_goes_straight_to_stuck_and_is_not_dropped() {
    let rig = rig_with(crate::dual::DualSettings {
        breaker_failures: 3,
        ..settings()
    })
    .serve();
    rig.script
        .set(Mode::Fail(Class::Permanent(PermanentAbout::Record), 1));
    let sent = rig.posted("a");
    assert_eq!(sent.told(), (503, "intake_unavailable".into()));
    rig.run_ms(500);
    assert_eq!(rig.node.pending().stuck, 1);
    let calls = rig.script.calls.borrow().len();
    rig.run_ms(50_000);
    assert_eq!(rig.script.calls.borrow().len(), calls, "not over and over");
    assert_eq!(
        rig.node.breaker(),
        crate::dual::BreakerState::Closed,
        "it does not count"
    );
    rig.log_up();
    assert_eq!(rig.posted("b").answered().status, 201, "neighbours go on");
    rig.run_ms(60_000);
    assert_eq!(rig.node.pending().carried, 0, "tried again, not dropped");
    assert_eq!(rig.logged().len(), 2);
}

#[test]
fn records_refused_together_are_tried_one_by_one_and_only_the_bad_one_is_stuck() {
    let rig = rig().serve();
    rig.log_down();
    for n in 0..5 {
        rig.posted(&format!("k{n}"));
    }
    let bad = rig.delivered_after(5)[2];
    rig.script.refuses.borrow_mut().insert(bad);
    rig.log_up();
    rig.run_ms(2_000);
    assert_eq!(rig.logged().len(), 4);
    assert!(!rig.logged().contains(&bad));
    assert_eq!(rig.log().facts().stuck, 1);
}

#[test]
fn a_topic_that_is_gone_loses_no_record() {
    let rig = rig().serve();
    rig.script.set(Mode::Fail(Class::NotFound, 1));
    rig.posted("a");
    rig.run_ms(120_000);
    assert_eq!(rig.log().facts().carried, 1);
    rig.log_up();
    rig.run_ms(1_500);
    assert_eq!(rig.logged().len(), 1);
    assert_eq!(rig.log().facts().carried, 0);
}

#[test]
fn a_throttled_log_is_left_alone_for_as_long_as_it_asks() {
    let rig = rig().serve();
    rig.log_down();
    rig.posted("a");
    rig.script.set(Mode::Fail(
        Class::Throttled {
            retry_after_ms: Some(5_000),
        },
        1,
    ));
    rig.run_ms(2_000);
    let calls = rig.script.calls.borrow().len();
    rig.log_up();
    rig.run_ms(2_900);
    assert_eq!(rig.script.calls.borrow().len(), calls);
    rig.run_ms(2_000);
    assert_eq!(rig.log().facts().carried, 0);
}

#[test]
fn hold_returns_completed_when_the_reconciler_won_the_race() {
    let rig = rig().serve();
    let held = |id| Held {
        claim: Claim {
            key: KeyHash([1; 16]),
            id,
        },
        expiry_s: 9,
    };
    rig.log_down();
    rig.posted("a");
    let id = rig.delivered_after(1)[0];
    assert_eq!(rig.log().hold(id, held(id)), Hold::Held);
    rig.log_up();
    rig.run_ms(2_000);
    assert_eq!(rig.log().hold(id, held(id)), Hold::Completed);
    let never = HookId([9; 16]);
    assert_eq!(rig.log().hold(never, held(never)), Hold::Completed);
}

#[test]
fn claims_promote_only_when_both_halves_are_confirmed() {
    // Whichever half is done first, the key is pending until the other one is.
    for local_first in [true, false] {
        let rig = rig().serve();
        if local_first {
            rig.log_down();
        } else {
            rig.syncs_meet(&[Fault::Error(libc::EIO, Fate::Kept); 12]);
        }
        rig.posted("a");
        let mut pending = 0;
        for _ in 0..5 {
            rig.run_ms(20);
            let retry = rig.posted("a");
            assert_eq!(retry.answered().status, 503, "never 201 on one half");
            pending += usize::from(retry.told().1 == "intake_pending");
        }
        assert!(pending > 0 || !local_first);
        rig.log_up();
        rig.run_ms(15_000);
        let retry = rig.posted("a");
        assert!(retry.answered().duplicate);
        assert_eq!(rig.delivered(), [retry.id()]);
        assert_eq!(rig.log().facts().carried, 0);
    }
}

#[test]
fn many_carried_records_go_in_batches_that_a_log_can_take() {
    let rig = rig().serve();
    rig.script.set(Mode::Fail(UNAVAILABLE, 1));
    for n in 0..600 {
        rig.send("plain", &n.to_string(), b"x");
    }
    rig.run_ms(2_000);
    assert_eq!(rig.log().facts().carried, 600);
    let calls = rig.script.calls.borrow().len();
    rig.log_up();
    rig.run_ms(1_500);
    assert_eq!(rig.log().facts().carried, 0);
    let calls: Vec<usize> = rig.script.calls.borrow()[calls..]
        .iter()
        .map(Vec::len)
        .collect();
    assert!(calls.iter().all(|n| *n <= 256), "{calls:?}");
    let mut logged = rig.logged();
    logged.sort();
    logged.dedup();
    assert_eq!((logged.len(), rig.logged().len()), (600, 600));
}

impl Rig {
    /// The store's counters are what a look at every hook gives.
    fn counts_equal_a_fold(&self) {
        let state = self.shard.store.state();
        let (mut hooks, mut rows, mut held) = (0, 0, 0);
        for slot in state.hooks() {
            let hook = state.hook(slot).unwrap();
            hooks += 1;
            rows += u64::from(hook.rows_open);
            held += u64::from(hook.holds.has(ankusa_wal::state::Holds::LOG));
        }
        let counts = state.counts();
        assert_eq!(counts.hooks, hooks);
        assert_eq!(counts.held_by_log, held);
        let open = counts.rows_pending + counts.rows_scheduled + counts.rows_dead;
        assert_eq!(open, rows);
    }
}
