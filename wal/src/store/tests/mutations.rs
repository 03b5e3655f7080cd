//! Every promise that can be broken on purpose, and the history that notices.
//!
//! Each history must hold as it is, and must be seen broken with its mutation: else it proves
//! nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::disk::sim::{CrashMode, Fate, Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use crate::sim::SimWorld;
use crate::{HookExtra, Outcome, SinkNo, Store, mutations};

/// Who notices which mutation.
const NOTICED_BY: [(&str, fn()); mutations::NAMES.len()] = [
    ("ack_before_sync", an_ack_outlives_a_power_cut),
    ("ack_before_write", an_ack_outlives_a_power_cut),
    ("undo_at_mark", a_fence_leaves_the_group_acked_last),
    ("skip_sync", an_ack_outlives_a_power_cut),
    ("skip_sync_of_two", two_groups_in_flight_have_a_flush_each),
    ("retry_failed_sync", a_failed_sync_is_final),
    ("skip_frame_crc", a_flip_in_a_hook_never_passes),
    ("trust_above_mark", what_an_open_found_outlives_a_power_cut),
    ("recycle_early", the_older_checkpoint_can_be_opened),
    (
        "checkpoint_rename_without_sync",
        a_named_checkpoint_is_whole,
    ),
    (
        "checkpoint_named_early",
        a_named_checkpoint_saw_only_what_is_durable,
    ),
    (
        "move_before_durable",
        a_copy_that_was_fenced_is_not_where_its_hook_is_read,
    ),
    (
        "refuse_torn_tail",
        super::damage::a_torn_group_followed_by_a_whole_one_is_an_ordinary_power_cut,
    ),
    (
        "cut_damage",
        super::damage::a_zeroed_swapped_or_repeated_block_at_or_below_the_claim_refuses,
    ),
];

/// Switched off again however the history ends.
struct Mutated;

impl Drop for Mutated {
    fn drop(&mut self) {
        mutations::set(None);
    }
}

#[test]
fn every_mutation_is_noticed() {
    for name in mutations::NAMES {
        let (_, history) = NOTICED_BY
            .iter()
            .find(|(noticed, _)| *noticed == name)
            .unwrap_or_else(|| panic!("nothing notices {name}"));
        history();
        let mutated = Mutated;
        mutations::set(Some(name));
        let broken = catch_unwind(AssertUnwindSafe(history));
        drop(mutated);
        assert!(broken.is_err(), "{name} was not noticed");
    }
}

/// What is on the medium if the power goes now.
fn cut(disk: &SimDisk) -> crate::disk::sim::SimImage {
    disk.snapshot().image(&CrashMode::NOTHING)
}

fn check_cut(ledger: &Ledger, disk: &SimDisk, what: &str) -> Rig {
    let again = reopen(&cut(disk)).unwrap_or_else(|error| panic!("{what}: {error}"));
    ledger.check(&again, what);
    again
}

fn syncs(disk: &SimDisk) -> u64 {
    let log = disk.log();
    log.iter().filter(|op| op.kind == OpKind::SyncData).count() as u64
}

fn an_ack_outlives_a_power_cut() {
    let rig = fresh(41);
    rig.world.run_for(Duration::from_secs(2));
    let mut ledger = Ledger::default();
    for at in 0..3 {
        let (hooks, outcome) = rig
            .world
            .block_on(put(&rig.store, at..at + 1, 900))
            .unwrap();
        assert_eq!(outcome, Outcome::Durable);
        ledger.add(&hooks, 900);
        check_cut(&ledger, &rig.disk, "right after an ack");
    }
}

fn two_groups_in_flight_have_a_flush_each() {
    let rig = fresh(48);
    rig.world.run_for(Duration::from_secs(2));
    let mut ledger = Ledger::default();
    // The first is slow to flush, so that the second is written meanwhile.
    let slow = FaultPlan::none().nth(OpKind::SyncData, syncs(&rig.disk), Fault::Delay(50_000));
    rig.disk.set_faults(slow);
    for number in 0..2 {
        let hooks = rig
            .world
            .block_on(submit(&rig.store, number..number + 1, 300));
        ledger.add(&hooks.unwrap(), 300);
        rig.world.run_for(Duration::from_millis(10));
    }
    rig.world
        .block_on(async {
            for _ in 0..2 {
                assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Durable);
            }
        })
        .unwrap();
    check_cut(&ledger, &rig.disk, "right after two acks");
}

fn a_copy_that_was_fenced_is_not_where_its_hook_is_read() {
    let rig = fresh(49);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..1, 300)).unwrap();
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 300);
    rig.world.run_for(Duration::from_secs(2));
    let writes = rig.disk.log();
    let writes = writes.iter().filter(|op| op.kind == OpKind::Write).count();
    let lost = Fault::Error(libc::EIO, Fate::Lost);
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::Write, writes as u64, lost));
    let seq = hooks[0].0;
    rig.world
        .block_on(async {
            let envelope = rig.store.read(seq).await.unwrap();
            let extra = HookExtra {
                sinks: &[SinkNo(3), SinkNo(9)],
                dedupe_hash: None,
                archive: false,
                log: false,
            };
            let mut group = rig.store.try_begin().unwrap();
            group.hook_again(seq, &envelope, &extra);
            rig.store.submit(group);
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            ready(&rig.store).await;
        })
        .unwrap();
    ledger.check(&rig, "its copy never became durable");
}

fn a_fence_leaves_the_group_acked_last() {
    let rig = fresh(42);
    rig.world.run_for(Duration::from_secs(2));
    let mut ledger = Ledger::default();
    // Acked, with hooks, and right before the two that fail: no empty frame in between.
    let syncs = syncs(&rig.disk);
    let both = syncs + 1..syncs + 3;
    rig.disk
        .set_faults(FaultPlan::none().nth_during(OpKind::SyncData, both, Fault::EIO));
    rig.world
        .block_on(async {
            let (hooks, outcome) = put(&rig.store, 0..2, 300).await;
            assert_eq!(outcome, Outcome::Durable);
            ledger.add(&hooks, 300);
            submit(&rig.store, 2..3, 300).await;
            submit(&rig.store, 3..4, 300).await;
            for _ in 0..2 {
                assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            }
        })
        .unwrap();
    ledger.check(&rig, "fenced");
    assert_eq!(rig.store.state().live_hooks(), 2);
}

fn a_failed_sync_is_final() {
    let rig = fresh(43);
    rig.world.run_for(Duration::from_secs(2));
    let lost = Fault::Error(libc::EIO, Fate::Lost);
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs(&rig.disk), lost));
    let (hooks, outcome) = rig.world.block_on(put(&rig.store, 0..1, 900)).unwrap();
    let mut ledger = Ledger::default();
    if outcome == Outcome::Durable {
        ledger.add(&hooks, 900);
    }
    check_cut(&ledger, &rig.disk, "acked although the first sync failed");
}

fn a_flip_in_a_hook_never_passes() {
    let rig = fresh(44);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..1, 900)).unwrap();
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 900);
    let mut image = as_seen(&rig);
    image.flip("slot-0000.wal", 4096 + 800, 1);
    // Nothing claims the one group: it may be cut, it may not be altered.
    let again = reopen(&image).unwrap();
    if again.report.live_hooks > 0 {
        ledger.check(&again, "flipped");
    }
}

fn what_an_open_found_outlives_a_power_cut() {
    let world = SimWorld::new(45);
    let disk = SimDisk::new(&world, SimDiskConfig::new(45));
    let host = world.host();
    let opened = world.block_on(Store::open(disk.clone(), host.clone(), config()));
    let (store, _) = opened.unwrap().unwrap();
    world.run_for(Duration::from_secs(2));
    disk.set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs(&disk), Fault::Hang));
    let hooks = world.block_on(submit(&store, 0..2, 900)).unwrap();
    world.run_for(Duration::from_secs(1));
    // The process is killed with the group written and not flushed; the device keeps it for now.
    world.kill(&host);
    drop(store);
    let rig = open_on(world, disk, config()).unwrap();
    assert_eq!(rig.report.live_hooks, 2, "the cache of the device had it");
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 900);
    // From here on a duplicate may be answered for these hooks: they may not go any more.
    check_cut(&ledger, &rig.disk, "after the open");
}

fn the_older_checkpoint_can_be_opened() {
    let (ledger, mut image, newest) = super::adversary::older_checkpoint_needs_more(false);
    image.flip(&newest, 40, 4);
    let again = reopen(&image).unwrap();
    ledger.check(&again, "from the older checkpoint");
}

fn a_named_checkpoint_is_whole() {
    let rig = fresh(46);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 300)).unwrap();
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 300);
    rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
    let again = check_cut(&ledger, &rig.disk, "after a checkpoint");
    assert_eq!(again.report.checkpoints_bad, 0);
    assert!(again.report.checkpoint.is_some());
}

fn a_named_checkpoint_saw_only_what_is_durable() {
    let rig = fresh(47);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 300)).unwrap();
    let mut ledger = Ledger::default();
    ledger.add(&hooks, 300);
    rig.world.run_for(Duration::from_secs(2));
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs(&rig.disk), Fault::Hang));
    rig.world.block_on(submit(&rig.store, 2..3, 300)).unwrap();
    rig.world.run_for(Duration::from_millis(50));
    let store = rig.store.clone();
    rig.world.spawn(async move {
        let _ = store.checkpoint().await;
    });
    rig.world.run_for(Duration::from_secs(2));
    let again = check_cut(&ledger, &rig.disk, "a checkpoint beside a group in flight");
    assert_eq!(again.report.live_hooks, 2);
}
