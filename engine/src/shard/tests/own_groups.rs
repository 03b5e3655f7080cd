//! Groups of a caller's own: their hooks, their order among the others, and a fence.

#![allow(clippy::unwrap_used)]

use ankusa_wal::{GroupBuilder, IntakeOffset, LogOffset, Record};

use super::*;

/// The envelope of hook `n` under `seq`, as a log or a pending set would hand it back.
fn envelope(n: u8, seq: Seq) -> Vec<u8> {
    let headers: [(&[u8], &[u8]); 0] = [];
    let draft = HookDraft {
        id: HookId([n; 16]),
        received_at_ms: 1,
        tenant: b"t",
        source: b"s",
        method: b"POST",
        target: b"/",
        headers: &headers,
        content_type: b"",
        body: &[7; 50],
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::None,
        client: ([127, 0, 0, 1], 1).into(),
        extra: HookExtra::default(),
    };
    let mut bytes = vec![0; ankusa_wal::format::envelope::encoded_len(&draft)];
    ankusa_wal::format::envelope::encode(&draft, seq, &mut bytes);
    bytes
}

fn again(n: u8, seq: Seq, sink: SinkNo) -> impl FnOnce(&mut GroupBuilder<SimDisk>) {
    move |builder| {
        let extra = HookExtra {
            sinks: &[sink],
            ..HookExtra::default()
        };
        builder.hook_again(seq, &envelope(n, seq), &extra);
        builder.record(Record::Offset(IntakeOffset {
            offset: Some(LogOffset(u64::from(n))),
            hold: None,
        }));
    }
}

#[test]
fn a_group_of_the_callers_own_is_durable_as_one_and_its_hooks_are_delivered() {
    let rig = rig();
    rig.run_ms(500);
    let seq = Seq(900_000_000);
    let written = rig
        .shard
        .commit
        .write_group(400, 300, again(1, seq, rig.sink));
    let outcome = rig.world.block_on(written).unwrap();
    assert_eq!(outcome, Outcome::Durable);
    assert!(rig.is_live(1) || rig.given.0.borrow().len() == 1);
    rig.run_ms(300);
    assert_eq!(*rig.given.0.borrow(), [HookId([1; 16])]);
    let state = rig.shard.store.state();
    assert_eq!(state.meta().offset.offset, Some(LogOffset(1)));
    assert!(rig.shard.store.next_seq() > seq, "never handed out again");
}

#[test]
fn a_fenced_group_of_the_callers_own_leaves_nothing_and_can_be_written_again_under_its_seq() {
    let rig = rig();
    rig.run_ms(500);
    let seq = Seq(900_000_000);
    rig.syncs_meet(&[Fault::Error(libc::EIO, Fate::Kept)]);
    let write = |n| {
        let group = again(n, seq, rig.sink);
        let written = rig.shard.commit.write_group(400, 300, group);
        rig.world.block_on(written).unwrap()
    };
    assert_eq!(write(1), Outcome::Fenced);
    assert!(!rig.is_live(1));
    assert_eq!(rig.shard.store.state().meta().offset.offset, None);
    // While the shard is fenced there is an answer as well.
    assert_eq!(write(1), Outcome::Fenced);
    rig.run_ms(2_000);
    assert!(rig.given.0.borrow().is_empty(), "and nothing was delivered");
    assert_eq!(write(1), Outcome::Durable);
    rig.run_ms(300);
    assert_eq!(*rig.given.0.borrow(), [HookId([1; 16])]);
}

#[test]
fn own_groups_and_hooks_take_turns_and_a_drain_waits_for_both() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Hang]);
    let first = rig.post(1);
    rig.run_ms(20);
    let writes: Vec<_> = (2..5)
        .map(|n| {
            let seq = Seq(900_000_000 + u64::from(n));
            let group = again(n, seq, rig.sink);
            rig.shard.commit.write_group(400, 300, group)
        })
        .collect();
    let last = rig.post(5);
    rig.run_ms(20);
    // Two groups may be in flight: the hook's, and the first of the caller's own beside it.
    let applied = [1, 2, 3, 4, 5].map(|n| rig.is_live(n));
    assert_eq!(applied, [true, true, false, false, false]);
    rig.disk.release_hangs();
    rig.world.block_on(rig.shard.commit.drain()).unwrap();
    for written in writes {
        assert_eq!(rig.world.block_on(written).unwrap(), Outcome::Durable);
    }
    assert_eq!(rig.verdict(&first), Some(Verdict::Committed));
    assert_eq!(rig.verdict(&last), Some(Verdict::Committed));
}

#[test]
fn a_group_that_finds_nothing_to_write_writes_nothing() {
    let rig = rig();
    rig.run_ms(500);
    let before = rig.shard.store.stats().groups;
    let written = rig.shard.commit.write_group(400, 300, |_| {});
    assert_eq!(rig.world.block_on(written).unwrap(), Outcome::Durable);
    assert_eq!(rig.shard.store.stats().groups, before);
}
