//! Groups that are held open: built while others are in flight, filled in steps, overtaken.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::*;
use crate::disk::sim::{Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use crate::writer::GroupBuilder;
use crate::{Outcome, Record, SinkName, SinkNo, Store};

/// Whether the group may be submitted now.
async fn may_go(store: &Store<SimDisk>, group: &GroupBuilder<SimDisk>) -> Option<bool> {
    poll_fn(|cx| match store.poll_submit(group, cx) {
        Poll::Ready(may) => Poll::Ready(Some(may)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn name(number: u16) -> Record {
    Record::SinkName(SinkName {
        sink: SinkNo(number),
        tenant: b"t".as_slice().into(),
        source: b"s".as_slice().into(),
        name: number.to_string().into_bytes().into(),
    })
}

#[test]
fn a_group_is_built_while_as_many_as_may_be_are_in_flight() {
    let rig = fresh(31);
    let mut ledger = Ledger::default();
    let hooks = rig
        .world
        .block_on(async {
            let store = &rig.store;
            let mut hooks = submit(store, 0..3, 200).await;
            hooks.extend(submit(store, 3..6, 200).await);
            assert!(store.try_begin().is_none());
            let mut group = store.try_begin_ahead(1_000, 1_000).unwrap();
            let body = body_of(6, 200);
            hooks.push((group.hook(&draft(6, &body)), 6));
            assert_eq!(may_go(store, &group).await, None, "two are in flight");
            assert!(store.try_begin_ahead(0, 0).is_none(), "one at a time");
            assert_eq!(next_settled(store).await.outcome, Outcome::Durable);
            assert!(poll_fn(|cx| store.poll_submit(&group, cx)).await);
            let lsn = store.submit(group);
            let last = loop {
                let settled = next_settled(store).await;
                assert_eq!(settled.outcome, Outcome::Durable);
                if settled.lsn == lsn {
                    break settled.lsn;
                }
            };
            assert_eq!(store.durable_lsn(), last);
            hooks
        })
        .unwrap();
    ledger.add(&hooks, 200);
    ledger.check(&rig, "written");
    ledger.check(&reopen(&as_seen(&rig)).unwrap(), "opened again");
}

#[test]
fn a_fence_overtakes_a_group_begun_ahead_and_the_queue_keeps_its_order() {
    let rig = fresh(32);
    rig.world.run_for(Duration::from_secs(2));
    let is_sync = |op: &&crate::disk::sim::OpRecord| op.kind == OpKind::SyncData;
    let syncs = rig.disk.log().iter().filter(is_sync).count() as u64;
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::EIO));
    rig.world
        .block_on(async {
            let store = &rig.store;
            store.enqueue(Record::AuditTrim(1));
            submit(store, 0..1, 100).await;
            store.enqueue(Record::AuditTrim(2));
            store.enqueue(name(1));
            let mut group = store.try_begin_ahead(500, 500).unwrap();
            let body = body_of(1, 100);
            let seq = group.hook(&draft(1, &body));
            store.enqueue(Record::AuditTrim(3));
            assert!(!store.has_names_queued());
            store.enqueue(name(2));
            assert!(store.has_names_queued(), "no more hooks into this one");
            assert_eq!(next_settled(store).await.outcome, Outcome::Fenced);
            assert_eq!(may_go(store, &group).await, Some(false));
            drop(group);
            assert!(store.state().location(seq).is_none());
            ready(store).await;
            let group = store.try_begin().unwrap();
            let others: Vec<Record> = group.others.clone();
            let trims: Vec<Record> = (1..=3).map(Record::AuditTrim).collect();
            assert_eq!(others[..2], [name(1), name(2)], "names go ahead");
            assert_eq!(others[2..], trims);
            store.submit(group);
            assert_eq!(next_settled(store).await.outcome, Outcome::Durable);
        })
        .unwrap();
}

#[test]
fn a_group_held_over_a_fence_is_lost_also_once_the_fence_is_left() {
    let rig = fresh(33);
    rig.world.run_for(Duration::from_secs(2));
    let is_sync = |op: &&crate::disk::sim::OpRecord| op.kind == OpKind::SyncData;
    let syncs = rig.disk.log().iter().filter(is_sync).count() as u64;
    rig.disk
        .set_faults(FaultPlan::none().nth(OpKind::SyncData, syncs, Fault::EIO));
    rig.world
        .block_on(async {
            let store = &rig.store;
            submit(store, 0..1, 100).await;
            let group = store.try_begin_ahead(500, 500).unwrap();
            assert_eq!(next_settled(store).await.outcome, Outcome::Fenced);
            while store.is_fenced() {
                store.inner.host.sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(may_go(store, &group).await, Some(false));
            drop(group);
            assert!(store.try_begin().is_some());
        })
        .unwrap();
}

#[test]
fn a_hook_added_in_steps_is_stored_byte_for_byte() {
    let config = crate::StoreConfig {
        segment_bytes: 16 << 20,
        group_bytes_max: 1 << 20,
        ..config()
    };
    let disk = SimDiskConfig::new(34);
    let rig = open_image(34, None, disk, config.clone()).unwrap();
    // The last one is larger than one write.
    for (number, bytes) in [(1, 0), (2, 1), (3, 4_096), (4, 100_001), (5, (3 << 20) + 7)] {
        let body = body_of(number, bytes);
        let seq = rig
            .world
            .block_on(async {
                let store = &rig.store;
                ready(store).await;
                let planned = draft(number, &body).record_bytes();
                let mut group = loop {
                    match store.try_begin_with(planned, planned) {
                        Some(group) => break group,
                        None => ready(store).await,
                    }
                };
                let begun = group.hook_begin(&draft(number, &body));
                let seq = loop {
                    if let Some(seq) = group.hook_step(&body, 70_000) {
                        break seq;
                    }
                    assert_eq!(group.records(), 0, "not in the group yet");
                };
                assert_eq!(seq, begun);
                store.submit(group);
                assert_eq!(next_settled(store).await.outcome, Outcome::Durable);
                seq
            })
            .unwrap();
        let mut ledger = Ledger::default();
        ledger.add(&[(seq, number)], bytes);
        ledger.check(&rig, "written in steps");
        let again = open_image(
            1,
            Some(&as_seen(&rig)),
            SimDiskConfig::new(1),
            config.clone(),
        );
        ledger.check(&again.unwrap(), "opened again");
    }
}
