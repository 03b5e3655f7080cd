//! The ordinary life of a store.

use std::time::Duration;

use super::*;
use crate::disk::sim::{CrashMode, Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use crate::{Envelope, Outcome, Refusal, SyncMode};

#[test]
fn a_hook_acked_is_there_after_the_store_is_opened_again() {
    let rig = fresh(1);
    assert!(rig.report.fresh);
    let (hooks, outcome) = rig.world.block_on(put(&rig.store, 0..3, 500)).unwrap();
    assert_eq!(outcome, Outcome::Durable);
    assert_eq!(hooks[0].0.0, 1);
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 500);
    ledger.check(&rig, "live");
    let again = reopen(&as_seen(&rig)).unwrap();
    assert!(!again.report.fresh);
    assert_eq!(again.report.live_hooks, 3);
    assert_eq!(
        again.report.frames_rewritten, 1,
        "nothing claims the one group yet"
    );
    ledger.check(&again, "reopened");
    assert_eq!(again.store.next_seq().0, 4 + crate::ids::SEQ_LEAP);
}

#[test]
fn the_envelope_says_what_the_draft_said() {
    let rig = fresh(1);
    let body = body_of(5, 100);
    let mut group = rig.store.try_begin().unwrap();
    let seq = group.hook(&draft(5, &body));
    let from_group = group.envelope_of(seq).unwrap().to_vec();
    rig.store.submit(group);
    rig.world.block_on(next_settled(&rig.store)).unwrap();
    let read = rig.world.block_on(rig.store.read(seq)).unwrap().unwrap();
    assert_eq!(&*read, &from_group[..]);
    let envelope = Envelope::parse(&read).unwrap();
    assert_eq!(envelope.tenant, b"acme");
    assert_eq!(envelope.target, b"/in/acme/github?x=1");
    assert_eq!(envelope.headers().count(), 2);
    assert_eq!(
        envelope.headers().next().unwrap(),
        (&b"x-event"[..], &b"push"[..])
    );
    assert_eq!(envelope.dedupe_key, Some(&b"key"[..]));
    assert_eq!(envelope.client, ([127, 0, 0, 1], 4000).into());
    assert_eq!(envelope.body, &body[..]);
}

#[test]
fn an_idle_shard_claims_its_last_group_with_one_empty_frame() {
    let rig = fresh(2);
    rig.world.block_on(put(&rig.store, 0..1, 100)).unwrap();
    rig.world.run_for(Duration::from_secs(5));
    assert_eq!(rig.store.stats().groups, 2, "one group and one claim");
    let again = reopen(&as_seen(&rig)).unwrap();
    assert_eq!(again.report.durable_claimed.0, 1);
    assert_eq!(
        again.report.frames_rewritten, 1,
        "the empty frame asks for no claim"
    );
}

#[test]
fn many_segments_are_followed_by_their_cuts() {
    for sync in [SyncMode::Fdatasync, SyncMode::Dsync] {
        let config = crate::StoreConfig { sync, ..config() };
        let rig = open_image(3, None, SimDiskConfig::new(3), config).unwrap();
        let mut ledger = Ledger::default();
        for at in 0..60 {
            let (hooks, outcome) = rig
                .world
                .block_on(put(&rig.store, at * 3..at * 3 + 3, 2000))
                .unwrap();
            assert_eq!(outcome, Outcome::Durable);
            ledger.add(&hooks, 2000);
        }
        assert!(rig.store.stats().slots > 6);
        ledger.check(&rig, "live");
        let again = reopen(&as_seen(&rig)).unwrap();
        ledger.check(&again, "reopened");
    }
}

#[test]
fn a_clean_stop_leaves_nothing_to_write_again() {
    let rig = fresh(4);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 100)).unwrap();
    rig.store.enqueue(crate::Record::AuditTrim(3));
    rig.world.block_on(rig.store.close()).unwrap().unwrap();
    assert_eq!(rig.store.admit(), Err(Refusal::Closed));
    let again = reopen(&as_seen(&rig)).unwrap();
    assert!(again.report.durable_claimed.0 >= 2);
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 100);
    ledger.check(&again, "after a clean stop");
}

#[test]
fn a_record_larger_than_a_group_is_a_group_of_its_own() {
    let config = crate::StoreConfig {
        segment_bytes: 8 << 20,
        ..config()
    };
    let rig = open_image(5, None, SimDiskConfig::new(5), config).unwrap();
    let (hooks, outcome) = rig.world.block_on(put(&rig.store, 0..1, 3 << 20)).unwrap();
    assert_eq!(outcome, Outcome::Durable);
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 3 << 20);
    ledger.check(&rig, "live");
    let again = reopen(&as_seen(&rig)).unwrap();
    ledger.check(&again, "reopened");
}

#[test]
fn two_groups_are_in_flight_and_a_third_waits() {
    let rig = fresh(6);
    rig.world
        .block_on(async {
            submit(&rig.store, 0..1, 100).await;
            submit(&rig.store, 1..2, 100).await;
            assert!(rig.store.try_begin().is_none());
            let first = next_settled(&rig.store).await;
            let second = next_settled(&rig.store).await;
            assert_eq!((first.lsn.0, second.lsn.0), (1, 2));
            ready(&rig.store).await;
            assert!(rig.store.try_begin().is_some());
        })
        .unwrap();
}

/// Found by the simulation: delivery outcomes waited in the store's queue, went ahead into the
/// group, and a hook larger than a group no longer fitted: the core panicked.
#[test]
fn a_hook_larger_than_a_group_finds_room_whatever_is_queued() {
    let rig = fresh(7);
    rig.world
        .block_on(async {
            for sink in 0..500 {
                rig.store.enqueue(crate::Record::Delivery(crate::Delivery {
                    seq: crate::Seq(1),
                    sink: crate::SinkNo(sink),
                    attempts: 1,
                    due_ms: 0,
                    state: crate::DeliveryState::Delivered,
                    reason: 0,
                }));
            }
            let large = 40 << 10;
            let group = rig.store.try_begin_with(large, large).unwrap();
            assert!(group.records() == 0 && group.fits(large));
            drop(group);
            let small = rig.store.try_begin_with(1_000, 1_000).unwrap();
            assert!(small.records() > 0 && small.fits(1_000));
        })
        .unwrap();
}

/// Found by the simulation (seeds 35 and 38): a process died between the rename of a new slot and
/// the sync of the directory. The next one found the name, wrote acked groups to the slot, and a
/// power cut took name and groups.
#[test]
fn a_slot_whose_name_was_not_synced_holds_nothing_before_it_is() {
    for nth in 0..4 {
        let world = crate::sim::SimWorld::new(nth);
        let faults = FaultPlan::none().nth(OpKind::SyncDir, nth, Fault::EIO);
        let disk = SimDisk::new(&world, SimDiskConfig::new(nth).faults(faults));
        let died = open_on(world.clone(), disk.clone(), config()).is_err();
        world.crash();
        disk.set_faults(FaultPlan::none());
        let rig = open_on(world, disk, config()).unwrap();
        let (hooks, outcome) = rig.world.block_on(put(&rig.store, 0..3, 100)).unwrap();
        assert_eq!(outcome, Outcome::Durable);
        let again = reopen(&rig.disk.snapshot().image(&CrashMode::NOTHING)).unwrap();
        let mut ledger = Ledger::default();
        ledger.add(&hooks, 100);
        ledger.check(&again, &format!("sync {nth} failed, the open too: {died}"));
    }
}
