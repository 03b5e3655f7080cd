//! Faults in an unlucky order: a fence beside a checkpoint, a fallback after slots were used
//! again, a future dropped half way, a slot that is too short.

use std::time::Duration;

use super::*;
use crate::disk::sim::{Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig, SimImage};
use crate::{Delivery, DeliveryState, Outcome, Record, Seq, SinkName, SinkNo, Store};

fn done_of(disk: &SimDisk, kind: OpKind) -> u64 {
    disk.log().iter().filter(|op| op.kind == kind).count() as u64
}

fn delivery(seq: Seq, sink: SinkNo) -> Record {
    Record::Delivery(Delivery {
        seq,
        sink,
        attempts: 1,
        due_ms: 0,
        state: DeliveryState::Delivered,
        reason: 0,
    })
}

/// What the future answers, unless it takes a simulated minute.
fn within<T>(rig: &Rig, what: &str, future: impl Future<Output = T>) -> T {
    let limit = rig.world.sleep_us(60_000_000);
    let either = futures_lite::future::or(async { Some(future.await) }, async {
        limit.await;
        None
    });
    let answer = rig.world.block_on(either).unwrap();
    answer.unwrap_or_else(|| panic!("{what}: never ends"))
}

/// Acks `count` hooks of 6 KB, one group each.
async fn fill(store: &Store<SimDisk>, from: u64, count: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for number in from..from + count {
        let (hooks, outcome) = put(store, number..number + 1, 6000).await;
        assert_eq!(outcome, Outcome::Durable);
        ledger.add(&hooks, 6000);
    }
    ledger
}

async fn deliver_all(store: &Store<SimDisk>, ledger: Ledger) {
    for (seq, _) in ledger.0.into_values() {
        for sink in [SinkNo(3), SinkNo(9)] {
            store.enqueue(delivery(seq, sink));
        }
    }
    while store.queued() > 0 {
        ready(store).await;
        let Some(group) = store.try_begin() else {
            continue;
        };
        store.submit(group);
        next_settled(store).await;
    }
}

/// No checkpoint but those asked for.
pub(super) fn on_demand() -> crate::StoreConfig {
    crate::StoreConfig {
        checkpoint_segments: 1 << 20,
        relocate_below_percent: 0,
        ..config()
    }
}

/// Two checkpoints; the older one needs segments that the newer one does not. Then more log.
/// With `reopen` the store is opened again in between. Answers the live hooks, the image, and
/// the newer checkpoint's name.
pub(super) fn older_checkpoint_needs_more(is_reopened: bool) -> (Ledger, SimImage, String) {
    let mut rig = open_image(31, None, SimDiskConfig::new(31), on_demand()).unwrap();
    rig.world
        .block_on(async {
            let first = fill(&rig.store, 0, 30).await;
            rig.store.checkpoint().await.unwrap();
            deliver_all(&rig.store, first).await;
            rig.store.checkpoint().await.unwrap();
        })
        .unwrap();
    let names = as_seen(&rig).names();
    let newest = names.iter().filter(|name| name.ends_with(".ckpt")).max();
    let newest = newest.unwrap().clone();
    if is_reopened {
        let image = as_seen(&rig);
        rig = open_image(32, Some(&image), SimDiskConfig::new(32), on_demand()).unwrap();
    }
    let mut ledger = Ledger::default();
    for at in 0..4 {
        let more = rig.world.block_on(fill(&rig.store, 100 + at * 20, 20));
        ledger.0.extend(more.unwrap().0);
        rig.world.run_for(Duration::from_secs(2));
    }
    (ledger, as_seen(&rig), newest)
}

#[test]
fn the_older_checkpoint_is_a_fallback_also_after_the_store_was_opened_again() {
    for is_reopened in [false, true] {
        let (ledger, mut image, newest) = older_checkpoint_needs_more(is_reopened);
        image.flip(&newest, 40, 4);
        let again = reopen(&image).unwrap_or_else(|error| panic!("{is_reopened}: {error}"));
        assert_eq!(again.report.checkpoints_bad, 1);
        ledger.check(&again, "from the older checkpoint");
        assert_eq!(again.report.live_hooks, ledger.0.len() as u64);
    }
}

#[test]
fn a_checkpoint_taken_while_fenced_does_not_ask_for_the_segment_that_is_abandoned() {
    let rig = fresh(33);
    rig.world.run_for(Duration::from_secs(2));
    let writes = done_of(&rig.disk, OpKind::Write);
    rig.disk.set_faults(
        FaultPlan::none()
            .nth(OpKind::Write, writes, Fault::EIO)
            .nth(OpKind::Write, writes + 1, Fault::Hang),
    );
    rig.world
        .block_on(async {
            submit(&rig.store, 0..1, 100).await;
            submit(&rig.store, 1..2, 100).await;
            for _ in 0..2 {
                assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            }
            rig.store.checkpoint().await.unwrap();
            rig.disk.release_hangs();
            ready(&rig.store).await;
        })
        .unwrap();
    let ledger = rig.world.block_on(fill(&rig.store, 10, 20)).unwrap();
    rig.world.run_for(Duration::from_secs(5));
    let again = reopen(&as_seen(&rig)).unwrap_or_else(|error| panic!("refused: {error}"));
    ledger.check(&again, "after the fence");
}

#[test]
fn a_lost_header_is_told_also_when_a_fence_and_a_crash_left_an_empty_segment_behind() {
    let rig = fresh(39);
    rig.world.block_on(fill(&rig.store, 0, 1)).unwrap();
    rig.world.run_for(Duration::from_secs(2));
    let syncs = done_of(&rig.disk, OpKind::SyncData);
    let failing = FaultPlan::none().nth_during(OpKind::SyncData, syncs..syncs + 2, Fault::EIO);
    rig.disk.set_faults(failing);
    rig.world
        .block_on(async {
            submit(&rig.store, 5..6, 100).await;
            submit(&rig.store, 6..7, 100).await;
            for _ in 0..2 {
                assert_eq!(next_settled(&rig.store).await.outcome, Outcome::Fenced);
            }
            ready(&rig.store).await;
        })
        .unwrap();
    let last_given = |store: &Store<_>| store.inner.writer.borrow().pipeline.applied();
    let given = last_given(&rig.store);
    let again = reopen(&as_seen(&rig)).unwrap();
    assert!(
        last_given(&again.store) >= given,
        "an LSN is never given twice"
    );
    // Who waits for what is applied to be durable does not wait for LSNs that nobody will write:
    // a boot that did never ended.
    assert_eq!(again.store.applied_lsn(), again.store.durable_lsn());
    again.world.block_on(fill(&again.store, 10, 2)).unwrap();
    let mut image = as_seen(&again);
    let number = |name: &String| {
        let header = crate::format::segment::SegmentHeader::decode(&image.read(name).unwrap());
        header.map_or(0, |header| header.segment.0)
    };
    let names = image.names();
    let slots = names.iter().filter(|name| name.ends_with(".wal"));
    let newest = slots.max_by_key(|name| number(name)).unwrap().clone();
    image.flip(&newest, 40, 1);
    let told = reopen(&image);
    assert!(matches!(told, Err(crate::OpenError::Damaged(_))));
}

#[test]
fn a_clean_stop_right_after_a_fence_is_clean() {
    let rig = fresh(34);
    let ledger = rig.world.block_on(fill(&rig.store, 0, 2)).unwrap();
    rig.world.run_for(Duration::from_secs(2));
    let syncs = done_of(&rig.disk, OpKind::SyncData);
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::EIO));
    rig.world
        .block_on(async {
            assert_eq!(put(&rig.store, 5..6, 100).await.1, Outcome::Fenced);
            ready(&rig.store).await;
            rig.store.close().await.unwrap();
        })
        .unwrap();
    let again = reopen(&as_seen(&rig)).unwrap();
    ledger.check(&again, "closed");
    assert!(again.report.checkpoint.is_some());
}

#[test]
fn a_checkpoint_dropped_at_any_point_does_not_stop_the_next() {
    for polls in 1..60 {
        let rig = fresh(35);
        let ledger = rig.world.block_on(fill(&rig.store, 0, 3)).unwrap();
        let store = rig.store.clone();
        let mut first = Some(Box::pin(async move { store.checkpoint().await }));
        let mut left = polls;
        let dropped = std::future::poll_fn(|cx| {
            let Some(future) = &mut first else {
                return std::task::Poll::Ready(true);
            };
            if future.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(false);
            }
            left -= 1;
            if left == 0 {
                first = None;
                return std::task::Poll::Ready(true);
            }
            std::task::Poll::Pending
        });
        let is_dropped = rig.world.block_on(dropped).unwrap();
        let what = format!("dropped after {polls} polls");
        within(&rig, &what, rig.store.checkpoint()).unwrap();
        let again = reopen(&as_seen(&rig)).unwrap();
        ledger.check(&again, "after a dropped checkpoint");
        let (mut rows, brought) = again.store.take_boot_dedupe().unwrap();
        assert!(brought.is_empty());
        let rows = again.world.block_on(rows.next_block(0)).unwrap();
        assert_eq!(rows.unwrap().unwrap().len(), 3, "after {polls} polls");
        if !is_dropped {
            return;
        }
    }
    panic!("a checkpoint takes fewer polls");
}

#[test]
fn a_slot_that_is_too_short_stops_nothing() {
    for length in [0, 4096, 5000] {
        let rig = fresh(36);
        let mut ledger = rig.world.block_on(fill(&rig.store, 0, 2)).unwrap();
        rig.world.run_for(Duration::from_secs(2));
        let mut image = as_seen(&rig);
        assert!(image.truncate("slot-0001.wal", length));
        let again = reopen(&image).unwrap();
        let what = format!("cut to {length}");
        let more = within(&again, &what, fill(&again.store, 10, 40));
        ledger.0.extend(more.0);
        ledger.check(&again, "live");
        ledger.check(&reopen(&as_seen(&again)).unwrap(), "reopened");
    }
}

#[test]
fn a_hook_larger_than_a_group_goes_out_beside_queued_records() {
    let config = crate::StoreConfig {
        segment_bytes: 1 << 20,
        ..config()
    };
    let rig = open_image(37, None, SimDiskConfig::new(37), config.clone()).unwrap();
    let mut ledger = Ledger::default();
    for at in 0..6u64 {
        for no in 0..200 {
            rig.store.enqueue(Record::AuditTrim(no));
        }
        let (hooks, outcome) = rig
            .world
            .block_on(put(&rig.store, at..at + 1, 300_000))
            .unwrap();
        assert_eq!(outcome, Outcome::Durable);
        ledger.add(&hooks, 300_000);
    }
    let image = as_seen(&rig);
    let again = open_image(1, Some(&image), SimDiskConfig::new(1), config).unwrap();
    ledger.check(&again, "reopened");
}

fn name(number: u16) -> Record {
    Record::SinkName(SinkName {
        sink: SinkNo(number),
        tenant: (*b"acme").into(),
        source: (*b"github").into(),
        name: [b'n'; 100].into(),
    })
}

#[test]
fn the_name_of_a_sink_never_comes_after_a_hook_that_uses_it() {
    let rig = fresh(38);
    for no in 0..1000 {
        rig.store.enqueue(Record::AuditTrim(no));
    }
    for number in 0..100 {
        rig.store.enqueue(name(number));
    }
    rig.world.run_for(Duration::from_secs(2));
    let syncs = done_of(&rig.disk, OpKind::SyncData);
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::EIO));
    rig.world
        .block_on(async {
            // Once at first, once more after the fence.
            for outcome in [Outcome::Fenced, Outcome::Durable] {
                ready(&rig.store).await;
                let group = rig.store.try_begin_sized(400).unwrap();
                let names = group.others.iter();
                let names = names.filter(|record| matches!(record, Record::SinkName(_)));
                assert_eq!(names.count(), 100);
                assert!(group.fits(400));
                rig.store.submit(group);
                assert_eq!(next_settled(&rig.store).await.outcome, outcome);
            }
        })
        .unwrap();
}
