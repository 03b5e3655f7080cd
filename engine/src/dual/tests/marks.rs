//! Watermark and offset as they are in the store: never ahead of what is settled, also after a
//! crash at that moment.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::rig::rig;
use super::script::Mode;

#[test]
fn both_marks_follow_what_is_settled_and_ride_in_groups_or_on_a_tick() {
    let rig = rig().serve();
    for key in ["a", "b", "c"] {
        assert_eq!(rig.posted(key).answered().status, 201);
    }
    rig.node.note_head(rig.script.head(), 0);
    rig.run_ms(1_200);
    let last = rig.script.landed.borrow()[2].seq;
    let (watermark, exceptions, offset) = rig.stored_marks();
    assert!(watermark >= last);
    assert!(exceptions.is_empty());
    assert_eq!(offset, Some(2));
    let groups = rig.shard.store.stats().groups;
    rig.run_ms(10_000);
    let idle = rig.shard.store.stats().groups - groups;
    assert!(idle <= 2, "marks that stand are not written: {idle} groups");
}

#[test]
fn a_hook_that_was_delivered_stays_until_the_log_is_known_to_have_it() {
    let rig = rig().serve();
    rig.script.set(Mode::Silent);
    let sent = rig.post("a");
    rig.delivered_after(1);
    rig.run_ms(1_500);
    let counts = rig.shard.store.state().counts();
    assert_eq!((counts.hooks, counts.held_by_log), (1, 1));
    rig.script.let_go();
    rig.until(|| !sent.is_open());
    rig.run_ms(1_200);
    let counts = rig.shard.store.state().counts();
    assert_eq!((counts.hooks, counts.held_by_log), (0, 0));
}

#[test]
fn the_watermark_stays_below_an_unconfirmed_record_though_later_ones_are_confirmed() {
    let rig = rig().serve();
    // In the store and, as far as anyone knows, not in the log.
    rig.script.set(Mode::Lost);
    let lost = rig.post("a");
    rig.run_ms(10);
    rig.log_up();
    for key in ["b", "c"] {
        assert_eq!(rig.posted(key).answered().status, 201);
    }
    rig.run_ms(1_200);
    assert!(lost.is_open());
    let (watermark, _, _) = rig.stored_marks();
    let confirmed = rig.script.landed.borrow()[0].seq;
    assert_eq!(
        watermark,
        confirmed - 2,
        "the one before it is not confirmed"
    );
    let id = rig.delivered()[0];
    assert!(!rig.logged().contains(&id));
    // Cut off now, the next life publishes it: nobody else has it but this host.
    let again = rig.crash().serve();
    assert!(again.logged().contains(&id), "published by the next boot");
}

#[test]
fn the_offset_stays_below_a_record_that_is_only_in_the_log() {
    let rig = rig().serve();
    rig.next_sync_fails();
    assert_eq!(rig.posted("a").told().1, "store_unavailable");
    assert_eq!(rig.script.head(), 1, "it is in the log, at 0");
    rig.node.note_head(1, 0);
    rig.until(|| !rig.shard.store.is_fenced());
    rig.shard.commit.write_marks();
    let next = rig.post("b");
    let mut looked = 0;
    rig.until(|| {
        let is_carried = rig.log().facts().carried == 1;
        if is_carried {
            looked += 1;
            assert_eq!(rig.stored_marks().2, None, "a replay must begin at 0");
        }
        !is_carried && !next.is_open()
    });
    assert!(looked > 0);
    rig.run_ms(3_000);
    rig.node.note_head(rig.script.head(), 0);
    rig.run_ms(1_200);
    assert_eq!(rig.log().facts().carried, 0);
    assert_eq!(rig.stored_marks().2, Some(1));
}

#[test]
fn the_offset_stays_where_it_is_until_the_replay_is_done() {
    let rig = rig();
    let republished = rig.shard.republish_local(|_| false);
    rig.world.block_on(republished).unwrap();
    assert_eq!(rig.posted("a").answered().status, 201);
    rig.node.note_head(1, 0);
    rig.run_ms(2_000);
    assert_eq!(rig.stored_marks().2, None);
    rig.log().offset_may_move();
    rig.run_ms(2_000);
    assert_eq!(rig.stored_marks().2, Some(0));
}

#[test]
fn a_clean_stop_leaves_the_offset_at_the_heads_last_record() {
    let rig = rig().serve();
    for key in ["a", "b", "c", "d"] {
        rig.posted(key);
    }
    rig.node.note_head(rig.script.head(), 0);
    rig.world.block_on(rig.shard.commit.drain()).unwrap();
    let settled = rig.shard.commit.settle_marks(Duration::from_secs(5));
    assert!(rig.world.block_on(settled).unwrap());
    let again = rig.crash();
    let (watermark, _, offset) = again.stored_marks();
    assert_eq!(offset, Some(3));
    assert!(watermark >= rig.script.landed.borrow()[3].seq);
}

#[test]
fn a_record_refused_for_good_is_an_exception_that_the_next_boot_publishes_again() {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    rig.log_down();
    rig.posted("a");
    let bad = {
        let state = rig.shard.store.state();
        let slot = state.hooks().next().unwrap();
        state.hook(slot).unwrap()
    };
    rig.script.refuses.borrow_mut().insert(bad.id);
    rig.log_up();
    rig.run_ms(1_000);
    assert_eq!(rig.posted("b").answered().status, 201);
    rig.run_ms(1_200);
    let (watermark, exceptions, _) = rig.stored_marks();
    assert!(watermark > bad.seq.0, "one refused record does not hold it");
    assert_eq!(exceptions, [bad.seq.0]);
    let again = rig.crash();
    again.script.refuses.borrow_mut().insert(bad.id);
    let republished = again.shard.republish_local(|_| false);
    let republished = again.world.block_on(republished).unwrap();
    assert_eq!((republished.records, republished.refused), (1, 1));
    again.script.refuses.borrow_mut().clear();
    again.run_ms(63_000);
    assert!(again.logged().contains(&bad.id));
    assert_eq!(again.stored_marks().1, [0; 0]);
}

#[test]
fn a_boot_publishes_what_is_above_the_watermark_and_not_what_it_was_just_seen_to_hold() {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    rig.script.set(Mode::Lost);
    for key in ["a", "b", "c"] {
        rig.post(key);
        rig.run_ms(20);
    }
    let again = rig.crash();
    let hooks: Vec<_> = {
        let state = again.shard.store.state();
        state.hooks().map(|s| state.hook(s).unwrap()).collect()
    };
    assert_eq!(hooks.len(), 3);
    let seen = hooks[1].seq;
    let republished = again.shard.republish_local(move |seq| seq == seen);
    assert_eq!(again.world.block_on(republished).unwrap().records, 2);
    let mut logged = again.logged();
    logged.sort();
    let mut wanted = vec![hooks[0].id, hooks[2].id];
    wanted.sort();
    assert_eq!(logged, wanted);
    again.run_ms(1_200);
    assert!(
        again.stored_marks().0 >= hooks[2].seq.0,
        "and the mark follows"
    );
}

#[test]
fn until_a_hook_found_stuck_at_a_boot_completes_its_dedupe_row_counts_as_absent() {
    let rig = rig().serve();
    rig.shard.dispatch.set_paused(rig.sink(), true);
    rig.script.set(Mode::Lost);
    rig.post("a");
    rig.run_ms(100);
    let again = rig.crash();
    let first = {
        let state = again.shard.store.state();
        let slot = state.hooks().next().unwrap();
        state.hook(slot).unwrap().id
    };
    again.script.refuses.borrow_mut().insert(first);
    let again = again.serve();
    assert_eq!(again.node.pending().stuck, 1);
    let second = again.posted("a").answered();
    assert_eq!((second.status, second.duplicate), (201, false));
    assert_ne!(second.id, Some(first));
    again.script.refuses.borrow_mut().clear();
    again.run_ms(63_000);
    assert_eq!(again.node.pending().carried, 0);
    assert_eq!(again.posted("a").answered().id, second.id, "left alone");
    // Had nobody come meanwhile, its row would stand again.
    let third = rig.crash();
    let third = third.serve();
    let retry = third.posted("a").answered();
    assert_eq!((retry.duplicate, retry.id), (true, Some(first)));
}
