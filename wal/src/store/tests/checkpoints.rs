//! Checkpoints and the reuse of slots: the log stays short, and nothing live is lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::disk::sim::{CrashMode, SimDisk, SimDiskConfig};
use crate::sim::SimWorld;
use crate::{Delivery, DeliveryState, Outcome, Record, Seq, SinkNo, Store};

fn delivered(store: &Store<SimDisk>, seq: Seq) {
    for sink in [SinkNo(3), SinkNo(9)] {
        store.enqueue(Record::Delivery(Delivery {
            seq,
            sink,
            attempts: 1,
            due_ms: 0,
            state: DeliveryState::Delivered,
            reason: 0,
        }));
    }
}

/// Groups of hooks of which all but each tenth are delivered right after.
async fn churn(store: &Store<SimDisk>, ledger: &RefCell<Ledger>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (hooks, outcome) = put(store, number..number + 1, 3000).await;
        if outcome != Outcome::Durable {
            continue;
        }
        ledger.borrow_mut().add(&hooks, 3000);
        if number % 10 != 0 {
            delivered(store, hooks[0].0);
            ledger.borrow_mut().0.remove(&number);
        }
    }
}

#[test]
fn slots_are_used_again_once_two_checkpoints_need_them_no_more() {
    let config = crate::StoreConfig {
        checkpoint_segments: 3,
        ..config()
    };
    let rig = open_image(1, None, SimDiskConfig::new(1), config).unwrap();
    let ledger = RefCell::new(Ledger::default());
    let turn = async |from: u64| {
        for at in 0..40 {
            let hooks = submit(&rig.store, from + at..from + at + 1, 3000).await;
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Durable);
            delivered(&rig.store, hooks[0].0);
        }
    };
    for at in 0..12 {
        rig.world.block_on(turn(at * 100)).unwrap();
        rig.world.run_for(Duration::from_secs(2));
    }
    let stats = rig.store.stats();
    assert!(stats.bytes > 20 * (64 << 10), "{stats:?}");
    assert!(
        stats.slots <= 12,
        "{} slots for {} bytes",
        stats.slots,
        stats.bytes
    );
    let again = reopen(&as_seen(&rig)).unwrap();
    assert!(again.report.checkpoint.is_some());
    assert!(again.report.segments_scanned <= 6, "{:?}", again.report);
    ledger.borrow().check(&again, "reopened");
}

#[test]
fn a_damaged_newest_checkpoint_is_passed_over_for_the_older() {
    let rig = fresh(2);
    let ledger = RefCell::new(Ledger::default());
    rig.world
        .block_on(async {
            churn(&rig.store, &ledger, 0..15).await;
            rig.store.checkpoint().await.unwrap();
            churn(&rig.store, &ledger, 15..30).await;
            rig.store.checkpoint().await.unwrap();
            churn(&rig.store, &ledger, 30..40).await;
        })
        .unwrap();
    let image = as_seen(&rig);
    let mut names: Vec<String> = image.names();
    names.retain(|name| name.ends_with(".ckpt"));
    names.sort();
    assert_eq!(names.len(), 2);
    let both = reopen(&image).unwrap();
    ledger.borrow().check(&both, "both");
    let mut one = image.clone();
    one.flip(&names[1], 40, 4);
    let older = reopen(&one).unwrap();
    assert_eq!(older.report.checkpoints_bad, 1);
    assert!(older.report.frames_scanned > both.report.frames_scanned);
    ledger.borrow().check(&older, "older");
    older
        .world
        .block_on(older.store.checkpoint())
        .unwrap()
        .unwrap();
    let kept = as_seen(&older).names();
    assert!(
        !kept.contains(&names[1]),
        "a damaged one does not count among the two kept"
    );
    let mut none = one;
    none.flip(&names[0], 40, 4);
    let scanned = reopen(&none).unwrap();
    assert_eq!(scanned.report.checkpoints_bad, 2);
    ledger.borrow().check(&scanned, "none");
}

#[test]
fn finished_hooks_stay_finished_and_rows_keep_their_state() {
    let rig = fresh(3);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..3, 100)).unwrap();
    delivered(&rig.store, hooks[0].0);
    rig.world
        .block_on(async {
            let group = rig.store.try_begin().unwrap();
            rig.store.submit(group);
            next_settled(&rig.store).await;
            rig.store.close().await.unwrap();
        })
        .unwrap();
    let again = reopen(&as_seen(&rig)).unwrap();
    assert_eq!(again.report.live_hooks, 2);
    assert!(again.store.state().finished().contains(hooks[0].0));
    let (_, rows) = again.store.take_boot_dedupe().unwrap();
    assert!(rows.is_empty(), "the generations have them");
}

#[test]
fn a_segment_that_the_checkpoint_needs_and_that_is_gone_is_damage() {
    let rig = fresh(4);
    let ledger = RefCell::new(Ledger::default());
    rig.world
        .block_on(async {
            churn(&rig.store, &ledger, 0..60).await;
            rig.store.checkpoint().await.unwrap();
        })
        .unwrap();
    let image = as_seen(&rig);
    let mut refused = 0;
    for name in image.names().iter().filter(|name| name.ends_with(".wal")) {
        let mut without = image.clone();
        without.remove(name);
        match reopen(&without) {
            Err(crate::OpenError::Damaged(_)) => refused += 1,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{name} is gone and nobody says so"),
        }
    }
    assert!(refused >= 4);
}

#[test]
fn a_power_cut_at_any_flush_of_checkpoints_and_reuse_loses_nothing_live() {
    let world = SimWorld::new(5);
    let disk = SimDisk::new(&world, SimDiskConfig::new(5));
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let (seen, acked) = (Rc::clone(&cuts), Rc::clone(&ledger));
    let turn = std::cell::Cell::new(0u32);
    disk.observe(move |_, snapshot| {
        // Each third flush: the others differ little.
        turn.set(turn.get() + 1);
        if turn.get().is_multiple_of(3) {
            seen.borrow_mut().push((snapshot, acked.borrow().clone()));
        }
    });
    let rig = open_on(world, disk, config()).unwrap();
    rig.world
        .block_on(async {
            for at in 0..3 {
                churn(&rig.store, &ledger, at * 20..at * 20 + 20).await;
                rig.store.checkpoint().await.unwrap();
            }
        })
        .unwrap();
    let cuts = cuts.take();
    assert!(cuts.len() > 40);
    for (at, (snapshot, ledger)) in cuts.iter().enumerate() {
        for mode in [
            CrashMode::NOTHING,
            CrashMode::EVERYTHING,
            CrashMode::drawn(at as u64),
            CrashMode::drawn(at as u64 + 1000),
        ] {
            let what = format!("flush {at} {mode:?}");
            let again =
                reopen(&snapshot.image(&mode)).unwrap_or_else(|error| panic!("{what}: {error}"));
            ledger.check(&again, &what);
        }
    }
}

#[test]
fn a_group_fenced_during_a_checkpoint_spoils_it() {
    use crate::disk::sim::{Fault, FaultPlan, OpKind};
    let rig = fresh(6);
    let ledger = RefCell::new(Ledger::default());
    rig.world
        .block_on(churn(&rig.store, &ledger, 0..5))
        .unwrap();
    // The spare slot is ready, the claim written: the next sync is the group's.
    rig.world.run_for(Duration::from_secs(2));
    let of = |kind| rig.disk.log().iter().filter(|op| op.kind == kind).count() as u64;
    // The group's write takes long: the dedupe rows and the checkpoint are synced before it, and
    // the third sync is the group's.
    rig.disk.set_faults(
        FaultPlan::none()
            .nth(OpKind::SyncData, of(OpKind::SyncData) + 2, Fault::EIO)
            .nth(OpKind::Write, of(OpKind::Write), Fault::Delay(50_000)),
    );
    rig.world
        .block_on(async {
            submit(&rig.store, 100..101, 100).await;
            let result = rig.store.checkpoint().await;
            let is_fenced = matches!(result, Err(crate::CheckpointError::Fenced));
            assert!(is_fenced, "{result:?}");
            assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            ready(&rig.store).await;
            rig.store.checkpoint().await.unwrap();
        })
        .unwrap();
    let again = reopen(&as_seen(&rig)).unwrap();
    ledger.borrow().check(&again, "after a spoilt checkpoint");
}

#[test]
fn a_few_stragglers_hold_no_segment() {
    let config = crate::StoreConfig {
        checkpoint_segments: 2,
        relocate_below_percent: 60,
        ..config()
    };
    let rig = open_image(7, None, SimDiskConfig::new(7), config).unwrap();
    let ledger = RefCell::new(Ledger::default());
    let mut first = None;
    for at in 0..14u64 {
        rig.world
            .block_on(churn(&rig.store, &ledger, at * 40..at * 40 + 40))
            .unwrap();
        first = first.or(ledger.borrow().0.get(&0).map(|(seq, _)| *seq));
        rig.world.run_for(Duration::from_secs(5));
    }
    let stats = rig.store.stats();
    assert!(
        stats.slots <= 16,
        "{} slots for {} bytes",
        stats.slots,
        stats.bytes
    );
    let moved = rig.store.state().location(first.unwrap()).unwrap();
    assert!(moved.segment.0 > 3, "the first hook was appended again");
    ledger.borrow().check(&rig, "live");
    let again = reopen(&as_seen(&rig)).unwrap();
    ledger.borrow().check(&again, "reopened");
    // The outcome of the last one may still have been in the queue.
    let live = ledger.borrow().0.len() as u64;
    assert!((live..=live + 1).contains(&again.report.live_hooks));
}
