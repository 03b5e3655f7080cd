//! What a recovery asks of a store: which seqs it calls finished, and how seqs are raised.

use super::*;
use crate::disk::sim::{Fault, FaultPlan, SimDiskConfig};
use crate::ids::SEQ_LEAP;
use crate::open::read_only;
use crate::record::Incarnation;
use crate::{HookExtra, Host, Outcome, Record, Seq, SinkNo};

/// A store whose second group failed: its envelope and seq, as the intake log would have them.
fn with_fenced_group() -> (Rig, Seq, Vec<u8>) {
    let rig = fresh(3);
    let (kept, outcome) = rig.world.block_on(put(&rig.store, 0..1, 100)).unwrap();
    assert_eq!(outcome, Outcome::Durable);
    let ops = rig.disk.ops();
    let plan = FaultPlan::none().during(ops..ops + 64, Fault::EIO);
    rig.disk.set_faults(plan);
    let (store, body) = (rig.store.clone(), body_of(1, 100));
    let (seq, envelope) = rig
        .world
        .block_on(async move {
            let mut group = loop {
                match store.try_begin_sized(1000) {
                    Some(group) => break group,
                    None => ready(&store).await,
                }
            };
            let seq = group.hook(&draft(1, &body));
            let envelope = group.envelope_of(seq).unwrap().to_vec();
            store.submit(group);
            assert_eq!(next_settled(&store).await.outcome, Outcome::Fenced);
            (seq, envelope)
        })
        .unwrap();
    rig.disk.set_faults(FaultPlan::none());
    assert!(kept[0].0 < seq);
    (rig, seq, envelope)
}

/// Writes a hook again under its own seq and waits.
fn again(rig: &Rig, seq: Seq, envelope: Vec<u8>) {
    let store = rig.store.clone();
    let outcome = rig.world.block_on(async move {
        let mut group = loop {
            match store.try_begin_sized(1000) {
                Some(group) => break group,
                None => ready(&store).await,
            }
        };
        let extra = HookExtra {
            sinks: &[SinkNo(3)],
            ..HookExtra::default()
        };
        group.hook_again(seq, &envelope, &extra);
        store.submit(group);
        next_settled(&store).await.outcome
    });
    assert_eq!(outcome.unwrap(), Outcome::Durable);
}

#[test]
fn seqs_of_a_fenced_group_and_of_a_leap_are_not_finished_and_can_be_written_after_a_crash() {
    let (rig, seq, envelope) = with_fenced_group();
    assert!(!rig.store.state().finished().contains(seq));
    // The process dies before the hook is written again; the log is what still has it.
    let rig = reopen(&as_seen(&rig)).unwrap();
    {
        let state = rig.store.state();
        let next = rig.report.next_seq;
        assert!(seq.0 + SEQ_LEAP <= next.0, "{seq} {next}");
        for absent in [seq, seq.next(), Seq(seq.0 + SEQ_LEAP / 2), Seq(next.0 - 1)] {
            assert!(!state.finished().contains(absent), "{absent}");
            assert!(state.location(absent).is_none(), "{absent}");
        }
    }
    again(&rig, seq, envelope.clone());
    let read = rig.world.block_on(rig.store.read(seq)).unwrap().unwrap();
    assert_eq!(&*read, &envelope[..]);
    // And it is there after one more crash, with a checkpoint in between.
    rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
    let rig = reopen(&as_seen(&rig)).unwrap();
    assert!(rig.store.state().location(seq).is_some());
}

#[test]
fn finished_and_dropped_hook_does_not_come_back_whatever_lies_in_between() {
    let rig = fresh(4);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, 100)).unwrap();
    let (seq, envelope) = {
        let seq = hooks[0].0;
        let read = rig.world.block_on(rig.store.read(seq)).unwrap().unwrap();
        (seq, read.to_vec())
    };
    let gone = Record::Finished {
        first: seq,
        last: seq,
    };
    assert!(rig.store.enqueue(gone));
    rig.world.block_on(put(&rig.store, 2..3, 100)).unwrap();
    for with_checkpoint in [false, true] {
        if with_checkpoint {
            rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
        }
        let rig = reopen(&as_seen(&rig)).unwrap();
        assert!(rig.store.state().finished().contains(seq));
        again(&rig, seq, envelope.clone());
        assert!(rig.store.state().location(seq).is_none());
    }
}

#[test]
fn finished_seqs_are_told_apart_by_the_incarnation_that_handed_them_out() {
    let rig = fresh(5);
    for (incarnation, first_seq) in [(1, Seq(0)), (2, Seq(1000))] {
        let row = Incarnation {
            incarnation,
            first_seq,
        };
        rig.store.enqueue(Record::Incarnation(row));
    }
    rig.world.block_on(put(&rig.store, 0..1, 100)).unwrap();
    let rig = reopen(&as_seen(&rig)).unwrap();
    let state = rig.store.state();
    let of = |seq| state.meta().incarnation_of(Seq(seq));
    assert_eq!(
        (of(999), of(1000), of(1 << 40)),
        (Some(1), Some(2), Some(2))
    );
}

#[test]
fn next_seq_record_raises_what_is_handed_out_at_once_and_after_an_open() {
    let rig = fresh(6);
    let far = Seq(9 << 30);
    rig.store.enqueue(Record::NextSeq(far));
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..1, 100)).unwrap();
    assert!(hooks[0].0 >= far, "{}", hooks[0].0);
    let rig = reopen(&as_seen(&rig)).unwrap();
    assert!(rig.report.next_seq.0 > far.0 + SEQ_LEAP);
}

#[test]
fn reading_only_writes_nothing_and_sees_what_an_open_sees() {
    let rig = fresh(7);
    rig.world.block_on(put(&rig.store, 0..3, 100)).unwrap();
    rig.world.block_on(put(&rig.store, 3..4, 9000)).unwrap();
    let image = as_seen(&rig);
    let world = crate::sim::SimWorld::new(1);
    let disk = crate::disk::sim::SimDisk::with_image(&world, SimDiskConfig::new(1), &image);
    let host: std::rc::Rc<dyn Host> = world.host();
    let (state, next_seq) = world
        .block_on(read_only(&disk, &host, &config()))
        .unwrap()
        .unwrap();
    assert!(disk.snapshot().as_seen().same_as(&image), "a byte changed");
    let opened = reopen(&image).unwrap();
    assert_eq!(next_seq, opened.report.next_seq);
    assert_eq!(state.live_hooks(), opened.store.state().live_hooks());
    assert_eq!(state.meta(), opened.store.state().meta());
}

#[test]
fn a_second_record_of_a_live_hook_keeps_its_rows() {
    let rig = fresh(8);
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..1, 100)).unwrap();
    let seq = hooks[0].0;
    let envelope = rig.world.block_on(rig.store.read(seq)).unwrap().unwrap();
    let envelope = envelope.to_vec();
    again(&rig, seq, envelope);
    let state = rig.store.state();
    let slot = state.slot_of_seq(seq).unwrap();
    assert_eq!(state.rows(slot).count(), 2);
    assert_eq!(state.live_hooks(), 1);
}

#[test]
fn a_store_that_was_fenced_is_sound_to_verify_before_and_after_the_next_open() {
    let (rig, _, _) = with_fenced_group();
    let mut image = as_seen(&rig);
    for opened in 0..3 {
        let world = crate::sim::SimWorld::new(1);
        let disk = crate::disk::sim::SimDisk::with_image(&world, SimDiskConfig::new(1), &image);
        let expect = crate::offline::judge::Expect::default();
        let verified = async { crate::offline::verify(&disk, expect, &mut |_, _| {}).await };
        let report = world.block_on(verified).unwrap().unwrap();
        assert!(report.is_sound(), "opened {opened} times: {report}");
        let again = reopen(&image).unwrap();
        if opened == 1 {
            again.world.block_on(put(&again.store, 5..6, 100)).unwrap();
        }
        image = as_seen(&again);
    }
}
