//! Faults of the disk, one at each operation in turn, and power cuts at every flush.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::disk::Disk;
use crate::disk::sim::{
    CrashMode, Fate, Fault, FaultPlan, FlushEdge, OpKind, SimDisk, SimDiskConfig, SimImage,
    SimSnapshot,
};
use crate::sim::SimWorld;
use crate::{OpenError, Outcome, Store};

/// A short history: groups one and two at a time, over several segments. Answers what was acked.
async fn history(store: &Store<SimDisk>, ledger: &RefCell<Ledger>, rounds: u64) {
    for round in 0..rounds {
        let base = round * 10;
        let first = submit(store, base..base + 2, 5000).await;
        let second = submit(store, base + 2..base + 3, 9000).await;
        for hooks in [(first, 5000), (second, 9000)] {
            let settled = next_settled(store).await;
            if settled.outcome == Outcome::Durable {
                ledger.borrow_mut().add(&hooks.0, hooks.1);
            }
        }
    }
}

/// Runs the history on a disk with `plan`; answers the ledger, the image, and how many
/// operations there were. The store may be refused or fenced, it may not lie.
fn run(seed: u64, plan: FaultPlan) -> (Ledger, SimImage, u64) {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed).faults(plan));
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    if let Ok(rig) = open_on(world.clone(), disk.clone(), config()) {
        let (store, kept) = (rig.store.clone(), Rc::clone(&ledger));
        let done = Rc::new(Cell::new(false));
        let is_done = Rc::clone(&done);
        world.spawn(async move {
            history(&store, &kept, 4).await;
            is_done.set(true);
        });
        let limit = world.now_us() + 60_000_000;
        world
            .run_until(|| done.get() || world.now_us() > limit)
            .unwrap();
        // Live reads see what was acked.
        disk.set_faults(FaultPlan::none());
        disk.release_hangs();
        if done.get() {
            ledger.borrow().check(&rig, "live");
        }
    }
    let image = disk.snapshot().as_seen();
    let kept = ledger.borrow().clone();
    (kept, image, disk.ops())
}

fn check_reopened(ledger: &Ledger, image: &SimImage, what: &str) {
    let rig = reopen(image).unwrap_or_else(|error| panic!("{what}: {error}"));
    ledger.check(&rig, what);
    let again = reopen(&as_seen(&rig)).unwrap_or_else(|error| panic!("{what}, twice: {error}"));
    ledger.check(&again, what);
}

#[test]
fn failing_any_one_operation_loses_nothing_acked() {
    let (_, _, ops) = run(1, FaultPlan::none());
    assert!(ops > 40, "{ops}");
    let faults = [
        Fault::Error(libc::EIO, Fate::Lost),
        Fault::Error(libc::EIO, Fate::Kept),
        Fault::EIO,
        Fault::ENOSPC,
        Fault::Short(4096),
        Fault::Short(512),
        Fault::Short(0),
        Fault::Late(Fate::Kept),
        Fault::Delay(3_000_000),
    ];
    for fault in faults {
        for op in 0..ops {
            let what = format!("{fault:?} at {op}");
            let (ledger, image, _) = run(1, FaultPlan::none().at(op, fault));
            check_reopened(&ledger, &image, &what);
        }
    }
}

#[test]
fn an_outage_of_the_disk_is_fenced_and_left_by_itself() {
    for (from, to) in [(40, 60), (45, 120), (60, 61), (50, 300)] {
        let plan = FaultPlan::none().during(from..to, Fault::EIO);
        let (ledger, image, _) = run(2, plan);
        check_reopened(&ledger, &image, &format!("EIO during {from}..{to}"));
        let slots = image
            .names()
            .iter()
            .filter(|name| name.ends_with(".wal"))
            .count();
        assert!(slots <= 8, "an outage eats no disk: {slots} slots");
    }
}

#[test]
fn a_failed_sync_fences_only_what_is_above_the_mark_and_the_store_goes_on() {
    let rig = fresh(3);
    let mut ledger = Ledger::default();
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 300)).unwrap();
    ledger.add(&hooks, 300);
    rig.world.run_for(Duration::from_secs(2));
    let syncs = rig
        .disk
        .log()
        .iter()
        .filter(|op| op.kind == OpKind::SyncData)
        .count() as u64;
    // The next sync fails, with two groups in flight.
    rig.disk.set_faults(FaultPlan::none().nth(
        OpKind::SyncData,
        syncs,
        Fault::Error(libc::EIO, Fate::Lost),
    ));
    let fenced = rig
        .world
        .block_on(async {
            let mut hooks = submit(&rig.store, 2..3, 300).await;
            hooks.extend(submit(&rig.store, 3..4, 300).await);
            let outcomes = [
                next_settled(&rig.store).await,
                next_settled(&rig.store).await,
            ];
            assert_eq!(outcomes.map(|s| s.outcome), [Outcome::Fenced; 2]);
            assert_eq!(outcomes.map(|s| s.lsn.0), [3, 4]);
            hooks
        })
        .unwrap();
    let ops_when_fenced = rig.disk.log().len();
    assert_eq!(rig.store.durable_lsn().0, 2);
    assert_eq!(
        rig.store.state().live_hooks(),
        2,
        "the groups above the mark are undone"
    );
    for (seq, _) in &fenced {
        assert!(rig.store.state().location(*seq).is_none());
    }
    ledger.check(&rig, "fenced");
    let (hooks, outcome) = rig.world.block_on(put(&rig.store, 4..5, 300)).unwrap();
    assert_eq!(outcome, Outcome::Durable);
    assert!(hooks[0].0 > fenced[1].0, "a seq is never reused");
    ledger.add(&hooks, 300);
    ledger.check(&rig, "after the fence");
    assert_eq!(rig.store.stats().fences, 1);
    // Nothing was issued again to the file whose sync failed.
    let log = rig.disk.log();
    let failed = log
        .iter()
        .find(|op| op.kind == OpKind::SyncData && op.fault.is_some())
        .unwrap();
    let name = failed.name.clone();
    for op in &log[ops_when_fenced..] {
        let is_write = matches!(op.kind, OpKind::Write | OpKind::SyncData);
        assert!(
            !(is_write && op.name == name),
            "issued again to {name}: {op:?}"
        );
    }
    let again = reopen(&as_seen(&rig)).unwrap();
    assert_eq!(again.report.live_hooks, 3);
    ledger.check(&again, "reopened");
}

#[test]
fn records_of_a_fenced_group_are_written_again_and_an_offset_is_put_back() {
    use crate::{IntakeOffset, LogOffset, Record};
    let rig = fresh(4);
    let offset = |at| {
        Record::Offset(IntakeOffset {
            offset: Some(LogOffset(at)),
            hold: None,
        })
    };
    rig.world
        .block_on(async {
            let mut group = rig.store.try_begin().unwrap();
            group.record(offset(5));
            rig.store.submit(group);
            next_settled(&rig.store).await;
        })
        .unwrap();
    rig.world.run_for(Duration::from_secs(2));
    let syncs = rig
        .disk
        .log()
        .iter()
        .filter(|op| op.kind == OpKind::SyncData)
        .count() as u64;
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::EIO));
    rig.world
        .block_on(async {
            rig.store.enqueue(Record::AuditTrim(7));
            let mut group = rig.store.try_begin().unwrap();
            assert_eq!(group.records(), 1, "the queue rides in the next group");
            group.record(offset(9));
            rig.store.submit(group);
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            assert_eq!(
                rig.store.queued(),
                1,
                "the trim waits again, the offset does not"
            );
            assert_eq!(rig.store.state().meta().offset.offset, Some(LogOffset(5)));
            ready(&rig.store).await;
            let group = rig.store.try_begin().unwrap();
            assert_eq!(group.records(), 1);
            drop(group);
            assert_eq!(
                rig.store.queued(),
                1,
                "a group that is dropped gives it back"
            );
            ready(&rig.store).await;
            let group = rig.store.try_begin().unwrap();
            rig.store.submit(group);
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Durable);
            assert_eq!(rig.store.queued(), 0);
        })
        .unwrap();
}

#[test]
fn a_hang_refuses_but_fails_nothing_until_the_disk_answers() {
    let rig = fresh(5);
    rig.world.run_for(Duration::from_secs(2));
    let syncs = rig
        .disk
        .log()
        .iter()
        .filter(|op| op.kind == OpKind::SyncData)
        .count() as u64;
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::Hang));
    rig.world.block_on(submit(&rig.store, 0..1, 100)).unwrap();
    rig.world.run_for(Duration::from_secs(1));
    assert_eq!(rig.store.admit(), Ok(()));
    rig.world.run_for(Duration::from_secs(2));
    assert_eq!(rig.store.admit(), Err(crate::Refusal::Stalled));
    assert!(rig.store.stats().stalled_ms >= 2000);
    rig.disk.release_hangs();
    let settled = rig.world.block_on(next_settled(&rig.store)).unwrap();
    assert_eq!(settled.outcome, Outcome::Durable);
    assert_eq!(rig.store.admit(), Ok(()));
}

#[test]
fn a_full_disk_is_refused_before_a_group_fails() {
    let world = SimWorld::new(6);
    let mut disk_config = SimDiskConfig::new(6);
    disk_config.capacity_bytes = 5 * (64 << 10);
    let disk = SimDisk::new(&world, disk_config);
    let rig = open_on(world, disk, config()).unwrap();
    let mut ledger = Ledger::default();
    let mut number = 0;
    loop {
        rig.world.run_for(Duration::from_millis(1200));
        if rig.store.admit().is_err() {
            break;
        }
        assert!(number < 100, "never refused");
        let put = put(&rig.store, number..number + 1, 3000);
        let (hooks, outcome) = rig.world.block_on(put).unwrap();
        assert_eq!(outcome, Outcome::Durable);
        ledger.add(&hooks, 3000);
        number += 1;
    }
    assert_eq!(rig.store.admit(), Err(crate::Refusal::Full));
    assert_eq!(rig.store.stats().fences, 0);
    // Records that free space still find room.
    rig.world
        .block_on(async {
            rig.store.enqueue(crate::Record::AuditTrim(1));
            let group = rig.store.try_begin().unwrap();
            rig.store.submit(group);
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Durable);
        })
        .unwrap();
    ledger.check(&rig, "full");
    rig.disk.set_capacity(1 << 30);
    rig.world.run_for(Duration::from_secs(3));
    assert_eq!(rig.store.admit(), Ok(()), "space came back");
}

/// Every flush of a history, cut right before and right after it, in every way worth trying.
fn flushes(seed: u64, rounds: u64) -> Vec<(SimSnapshot, Ledger)> {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed));
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let (seen, acked) = (Rc::clone(&cuts), Rc::clone(&ledger));
    disk.observe(move |_: FlushEdge, snapshot: SimSnapshot| {
        seen.borrow_mut().push((snapshot, acked.borrow().clone()));
    });
    let rig = open_on(world, disk, config()).unwrap();
    rig.world
        .block_on(history(&rig.store, &ledger, rounds))
        .unwrap();
    rig.world.run_for(Duration::from_millis(500));
    cuts.take()
}

#[test]
fn a_power_cut_at_any_flush_loses_nothing_acked() {
    let mut images = 0;
    for seed in [1] {
        for (at, (snapshot, ledger)) in flushes(seed, 2).iter().enumerate() {
            for mode in snapshot.modes(seed, 2) {
                let what = format!("seed {seed} flush {at} {mode:?}");
                check_reopened(ledger, &snapshot.image(&mode), &what);
                images += 1;
            }
        }
    }
    assert!(images > 200, "{images}");
}

#[test]
fn a_power_cut_or_failure_during_the_open_never_shortens_the_log() {
    // A tail of two unclaimed groups: the open writes them again.
    let rig = fresh(7);
    let mut ledger = Ledger::default();
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 3000)).unwrap();
    ledger.add(&hooks, 3000);
    rig.world
        .block_on(async {
            let first = submit(&rig.store, 2..4, 3000).await;
            let second = submit(&rig.store, 4..6, 3000).await;
            next_settled(&rig.store).await;
            next_settled(&rig.store).await;
            ledger.add(&first, 3000);
            ledger.add(&second, 3000);
        })
        .unwrap();
    let image = as_seen(&rig);
    // Cuts at each flush of the open, then again at each flush of the open after that.
    let cuts_of = |image: &SimImage, seed: u64| {
        let world = SimWorld::new(seed);
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(seed), image);
        let cuts = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&cuts);
        disk.observe(move |_, snapshot| seen.borrow_mut().push(snapshot));
        let opened = open_on(world, disk, config()).unwrap();
        assert_eq!(opened.report.live_hooks, 6);
        cuts.take()
    };
    for snapshot in cuts_of(&image, 1) {
        for mode in snapshot.modes(1, 1) {
            let once = snapshot.image(&mode);
            check_reopened(&ledger, &once, &format!("{mode:?}"));
            // A second cut, in the open that follows the first.
            for again in cuts_of(&once, 2) {
                for mode in [CrashMode::NOTHING, CrashMode::drawn(3)] {
                    check_reopened(&ledger, &again.image(&mode), &format!("twice {mode:?}"));
                }
            }
        }
    }
    // Each operation of the open fails in turn.
    for op in 0..80 {
        for fault in [Fault::EIO, Fault::ENOSPC, Fault::Short(512)] {
            let world = SimWorld::new(1);
            let plan = FaultPlan::none().at(op, fault);
            let disk = SimDisk::with_image(&world, SimDiskConfig::new(1).faults(plan), &image);
            let result = open_on(world, disk.clone(), config());
            if let Err(error) = &result {
                let is_io = matches!(error, OpenError::Io { .. });
                assert!(is_io, "{fault:?} at {op}: {error}");
            }
            let what = format!("open failed: {fault:?} at {op}");
            check_reopened(&ledger, &disk.snapshot().as_seen(), &what);
        }
    }
}

#[test]
fn opening_again_and_again_uses_no_more_slots() {
    let rig = fresh(8);
    let mut ledger = Ledger::default();
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 300)).unwrap();
    ledger.add(&hooks, 300);
    let mut image = as_seen(&rig);
    for at in 0..12 {
        let rig = reopen(&image).unwrap();
        ledger.check(&rig, &format!("open {at}"));
        image = as_seen(&rig);
    }
    let slots = image
        .names()
        .iter()
        .filter(|name| name.ends_with(".wal"))
        .count();
    assert!(slots <= 4, "{slots} slots after twelve opens");
    let _ = Store::<SimDisk>::record_bytes_max;
    let _ = <SimDisk as Disk>::list;
}
