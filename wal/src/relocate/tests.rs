#![allow(clippy::unwrap_used)]

use super::*;
use crate::hook::{HookExtra, HookFacts};
use crate::ids::{HookId, Seq, SinkNo};
use crate::record::{Location, Record};

fn put(state: &mut State, seq: u64, segment: u64, len: u32) {
    let facts = HookFacts {
        id: HookId([seq as u8; 16]),
        seq: Seq(seq),
        received_at_ms: 0,
        dedupe_ttl_s: 0,
        relocated: false,
    };
    let extra = HookExtra {
        sinks: &[SinkNo(0)],
        ..HookExtra::default()
    };
    let at = Location {
        segment: SegmentId(segment),
        offset: 4096,
        len,
        lsn: Lsn(segment * 10),
    };
    state.settle(state.durable().max(at.lsn));
    state.apply_hook(&facts, &extra, at);
}

fn sealed(segment: u64) -> SegmentUse {
    SegmentUse {
        segment: SegmentId(segment),
        salt: 0,
        slot: segment as u32,
        end: 1000,
        last_lsn: Some(Lsn(segment * 10 + 9)),
    }
}

#[test]
fn emptiest_sealed_segment_below_the_share_is_picked() {
    let mut state = State::new(1);
    put(&mut state, 1, 1, 240);
    put(&mut state, 2, 2, 249);
    put(&mut state, 3, 3, 250);
    put(&mut state, 5, 5, 10);
    let open = SegmentUse {
        last_lsn: None,
        ..sealed(5)
    };
    let segments = [sealed(1), sealed(2), sealed(3), sealed(4), open];
    state.settle(Lsn(50));
    assert_eq!(pick(&segments, &state, 1000, 25), Some(SegmentId(1)));
    state.apply(
        &Record::Finished {
            first: Seq(1),
            last: Seq(1),
        },
        Lsn(50),
    );
    assert_eq!(pick(&segments, &state, 1000, 25), Some(SegmentId(2)));
    state.apply(
        &Record::Finished {
            first: Seq(2),
            last: Seq(2),
        },
        Lsn(50),
    );
    assert_eq!(pick(&segments, &state, 1000, 25), None);
}

#[test]
fn segment_with_a_group_in_flight_is_not_picked() {
    let mut state = State::new(1);
    put(&mut state, 1, 1, 10);
    assert_eq!(pick(&[sealed(1)], &state, 1000, 25), None);
    state.settle(Lsn(19));
    assert_eq!(pick(&[sealed(1)], &state, 1000, 25), Some(SegmentId(1)));
}

#[test]
fn walk_finds_every_live_hook_of_a_segment() {
    let mut state = State::new(1);
    for seq in 1..9000 {
        put(&mut state, seq, 1 + seq / 3000, 100);
    }
    let mut walk = Stragglers::of(SegmentId(2));
    let mut found = Vec::new();
    loop {
        match walk.next(&state) {
            Ok(Some(slot)) => found.push(state.hook(slot).unwrap().seq.0),
            Ok(None) => break,
            Err(()) => {}
        }
    }
    found.sort_unstable();
    assert_eq!(found, (3000..6000).collect::<Vec<_>>());
}

#[test]
fn pace_keeps_its_rate_and_forgets_idle_time() {
    let mut pace = Pace::new(1_000_000);
    assert_eq!(pace.spend(0, 50_000), 0);
    assert_eq!(pace.spend(0, 100_000), 100_000);
    assert_eq!(pace.spend(10_000_000, 50_000), 0, "no credit is saved up");
    assert_eq!(pace.spend(10_000_000, 1), 1);
}

#[test]
fn slot_is_used_again_only_when_neither_checkpoint_needs_it() {
    let mut state = State::new(1);
    put(&mut state, 5, 5, 10);
    let end = |segments: &[u64]| End {
        segments: segments
            .iter()
            .map(|&n| crate::checkpoint::SegmentNeed {
                segment: SegmentId(n),
                salt: 0,
                slot: 0,
                end: 0,
                has_live: true,
                has_tail: false,
            })
            .collect(),
        ..End::default()
    };
    let older = Needs::of(Lsn(30), &end(&[1, 2, 3]));
    let newer = Needs::of(Lsn(52), &end(&[2, 5]));
    let kept = [newer, older];
    let free = |n: u64| may_recycle(&sealed(n), &kept, &state);
    assert!(!free(1), "the older one lists it");
    assert!(!free(2));
    assert!(!free(3));
    assert!(!free(4), "records newer than the older one's start");
    assert!(!free(5));
    assert!(!free(6), "begun after both");
    assert!(!may_recycle(&sealed(1), &[], &state));
    assert!(may_recycle(&sealed(1), &kept[..1], &state));
    assert!(may_recycle(&sealed(4), &kept[..1], &state));
    let open = SegmentUse {
        last_lsn: None,
        ..sealed(4)
    };
    assert!(!may_recycle(&open, &kept[..1], &state));
}
