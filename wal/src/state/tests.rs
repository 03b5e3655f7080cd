#![allow(clippy::unwrap_used)]

use super::table::NewHook;
use super::*;

const SEG: SegmentId = SegmentId(7);

fn at(offset: u64, lsn: u64) -> Location {
    Location {
        segment: SEG,
        offset,
        len: 100,
        lsn: Lsn(lsn),
    }
}

fn id(n: u64) -> HookId {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&n.to_be_bytes());
    HookId(bytes)
}

fn put(state: &mut State, seq: u64, sinks: &[SinkNo], lsn: u64) -> Inserted {
    state.insert_hook(&NewHook {
        seq: Seq(seq),
        id: id(seq),
        location: at(seq * 4096, lsn),
        sinks,
        holds: Holds::NONE,
    })
}

fn slot(inserted: Inserted) -> HookSlot {
    match inserted {
        Inserted::New(slot) | Inserted::Again(slot) => slot,
        other => panic!("{other:?}"),
    }
}

const TWO: &[SinkNo] = &[SinkNo(3), SinkNo(9)];

#[test]
fn hook_leaves_when_its_last_row_finishes() {
    let mut state = State::new(1);
    let slot = slot(put(&mut state, 5, TWO, 1));
    state.settle(Lsn(1));
    let rows: Vec<RowId> = state.rows(slot).collect();
    assert_eq!(state.counts().rows_pending, 2);
    assert_eq!(state.finish_row(rows[0]), HookEnd::Lives);
    assert_eq!(state.finish_row(rows[1]), HookEnd::Gone(Seq(5)));
    assert_eq!(state.counts(), Counts::default());
    assert!(state.finished().contains(Seq(5)));
    assert_eq!(state.slot_of_id(id(5)), None);
    assert_eq!(state.live_in(SEG), SegmentLive::default());
    assert_eq!(put(&mut state, 5, TWO, 2), Inserted::Finished);
}

#[test]
fn hold_keeps_a_hook_whose_rows_are_finished() {
    let mut state = State::new(1);
    let hook = NewHook {
        seq: Seq(1),
        id: id(1),
        location: at(0, 1),
        sinks: &[SinkNo(0)],
        holds: Holds::ARCHIVE.and(Holds::LOG),
    };
    let slot = slot(state.insert_hook(&hook));
    state.settle(Lsn(1));
    let row = state.rows(slot).next().unwrap();
    assert_eq!(state.finish_row(row), HookEnd::Lives);
    assert_eq!(state.release(slot, Holds::LOG), HookEnd::Lives);
    assert_eq!(state.release(slot, Holds::LOG), HookEnd::Lives);
    assert_eq!(state.release(slot, Holds::ARCHIVE), HookEnd::Gone(Seq(1)));
    assert_eq!(state.counts(), Counts::default());
}

#[test]
fn undo_takes_only_what_is_above_the_durable_mark() {
    let mut state = State::new(1);
    put(&mut state, 1, TWO, 1);
    put(&mut state, 2, TWO, 2);
    put(&mut state, 3, TWO, 3);
    put(&mut state, 4, &[], 3);
    state.settle(Lsn(1));
    assert_eq!(state.lsn_in_flight(Seq(1)), None);
    assert_eq!(state.lsn_in_flight(Seq(2)), Some(Lsn(2)));
    let undone = state.undo_above(state.durable());
    assert_eq!(undone.iter().map(|u| u.seq.0).collect::<Vec<_>>(), [2, 3]);
    assert!(state.slot_of_seq(Seq(1)).is_some());
    assert!(state.slot_of_seq(Seq(2)).is_none());
    for seq in 2..=4 {
        assert!(!state.finished().contains(Seq(seq)), "{seq} left a trace");
    }
    assert_eq!(state.counts().rows_pending, 2);
    // Carried: the same seqs come again.
    assert!(matches!(put(&mut state, 2, TWO, 5), Inserted::New(_)));
}

#[test]
fn index_follows_a_copy_only_once_it_is_durable() {
    let mut state = State::new(1);
    let slot = slot(put(&mut state, 1, TWO, 1));
    state.settle(Lsn(1));
    let copy = |lsn| NewHook {
        seq: Seq(1),
        id: id(1),
        location: Location {
            segment: SegmentId(8),
            offset: 0,
            len: 90,
            lsn: Lsn(lsn),
        },
        sinks: TWO,
        holds: Holds::NONE,
    };
    assert_eq!(state.insert_hook(&copy(2)), Inserted::Again(slot));
    assert_eq!(state.hook(slot).unwrap().location.segment, SEG);
    assert!(state.undo_above(state.durable()).is_empty());
    assert_eq!(state.hook(slot).unwrap().location.segment, SEG);
    state.insert_hook(&copy(3));
    state.settle(Lsn(3));
    assert_eq!(state.hook(slot).unwrap().location.segment, SegmentId(8));
    assert_eq!(state.live_in(SEG).hooks, 0);
    assert_eq!(
        state.live_in(SegmentId(8)),
        SegmentLive {
            hooks: 1,
            bytes: 90
        }
    );
}

#[test]
fn hook_in_flight_is_not_finished_before_it_is_durable() {
    let mut state = State::new(1);
    let slot = slot(put(&mut state, 1, &[SinkNo(1)], 1));
    let row = state.rows(slot).next().unwrap();
    assert_eq!(state.finish_row(row), HookEnd::Lives);
    assert!(!state.finished().contains(Seq(1)));
    state.settle(Lsn(1));
    assert!(state.finished().contains(Seq(1)));
    assert_eq!(state.hook(slot), None);
}

#[test]
fn row_fields_survive_packing() {
    let mut state = State::new(1);
    let slot = slot(put(&mut state, 1, TWO, 0));
    let row = state.row_of(Seq(1), SinkNo(9)).unwrap();
    for (attempts, due_ms) in [(0, 0), (1, 1_767_225_600_001), (4095, 2_700_000_000_123)] {
        state.set_row(row, attempts, RowState::Due { due_ms });
        let expected = Row {
            slot,
            sink: SinkNo(9),
            attempts,
            state: RowState::Due { due_ms },
        };
        assert_eq!(state.row(row), expected);
    }
    for due_ms in [1, 1_767_225_599_999, u64::MAX] {
        state.set_row(row, 1, RowState::Due { due_ms });
        assert_eq!(state.row(row).state, RowState::Due { due_ms: 0 });
    }
    let dead = RowState::Dead {
        at_s: u32::MAX,
        reason: 255,
    };
    state.set_row(row, 9999, dead);
    assert_eq!(state.row(row).state, dead);
    assert_eq!(state.row(row).attempts, ATTEMPTS_MAX);
    assert_eq!(state.row_of(Seq(1), SinkNo(4)), None);
}

#[test]
fn dead_letters_are_listed_newest_first_across_changes() {
    let mut state = State::new(1);
    for seq in 0..2000 {
        put(&mut state, seq, &[SinkNo(0)], 0);
        let row = state.row_of(Seq(seq), SinkNo(0)).unwrap();
        state.set_row(
            row,
            1,
            RowState::Dead {
                at_s: seq as u32,
                reason: 1,
            },
        );
    }
    let mut cursor = DeadCursor::NEWEST;
    let mut seen = Vec::new();
    loop {
        let (rows, next) = state.dead_letters(cursor, 97);
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let RowState::Dead { at_s, .. } = state.row(row).state else {
                panic!("not dead")
            };
            seen.push(at_s);
        }
        cursor = next;
        // Two thirds of the rest go while the listing is under way.
        for seq in (0..2000u64).filter(|s| s % 3 != 0 && *s as usize % 20 == seen.len() % 20) {
            if let Some(row) = state.row_of(Seq(seq), SinkNo(0)) {
                state.finish_row(row);
            }
        }
    }
    seen.dedup();
    assert!(seen.iter().zip(&seen[1..]).filter(|(a, b)| a < b).count() < 40);
    for stays in (0..2000u32).filter(|s| s % 3 == 0) {
        assert!(seen.contains(&stays), "{stays} was skipped");
    }
}

#[test]
fn oldest_live_seq_rises_as_hooks_finish_in_order() {
    let mut state = State::new(1);
    for seq in 10..5000 {
        put(&mut state, seq, &[SinkNo(0)], 0);
    }
    for seq in 10..4999 {
        assert_eq!(state.oldest_live(), Some(Seq(seq)));
        state.finish_seq(Seq(seq));
    }
    state.finish_seq(Seq(4999));
    assert_eq!(state.oldest_live(), None);
    assert_eq!(
        state.finished().ranges().collect::<Vec<_>>(),
        [(Seq(10), Seq(4999))]
    );
}

mod properties {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::model::{History, id_of, ops, replay, snapshot};
    use super::*;

    fn seqs(ranges: &[(Seq, Seq)]) -> BTreeSet<Seq> {
        ranges
            .iter()
            .flat_map(|&(a, b)| (a.0..=b.0).map(Seq))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn state_agrees_with_the_naive_fold_through_fences(history_ops in ops(160)) {
            let mut history = History::new();
            for op in &history_ops {
                history.step(op);
            }
            history.settle_all();
            let (hooks, finished) = history.naive();
            let seen = snapshot(&history.state);
            prop_assert_eq!(&seen.hooks, &hooks);
            prop_assert_eq!(seqs(&seen.finished), finished);
            let oldest = history.state.oldest_live();
            prop_assert_eq!(oldest, hooks.keys().next().copied());
            for &seq in hooks.keys() {
                prop_assert!(history.state.slot_of_id(id_of(seq)).is_some());
            }
        }

        #[test]
        fn log_applied_once_or_twice_gives_the_same_state(history_ops in ops(160)) {
            let mut history = History::new();
            for op in &history_ops {
                history.step(op);
            }
            history.settle_all();
            let live = snapshot(&history.state);
            let mut again = State::new(7);
            replay(&mut again, &history.log, Lsn(0));
            prop_assert_eq!(&snapshot(&again), &live);
            replay(&mut again, &history.log, Lsn(0));
            prop_assert_eq!(&snapshot(&again), &live);
            replay(&mut history.state, &history.log, Lsn(0));
            prop_assert_eq!(&snapshot(&history.state), &live);
        }

        #[test]
        fn seq_set_agrees_with_a_plain_set(
            steps in prop::collection::vec((0..3u8, 0..6000u64, 0..3000u64), 1..60)
        ) {
            let mut set = SeqSet::new();
            let mut plain = BTreeSet::new();
            for (what, first, span) in steps {
                match what {
                    0 => {
                        set.insert_range(Seq(first), Seq(first + span));
                        plain.extend((first..=first + span).map(Seq));
                    }
                    1 => prop_assert_eq!(set.insert(Seq(first)), plain.insert(Seq(first))),
                    _ => for seq in (first..first + span).step_by(97) {
                        prop_assert_eq!(set.remove(Seq(seq)), plain.remove(&Seq(seq)));
                    },
                }
                prop_assert_eq!(set.contains(Seq(first)), plain.contains(&Seq(first)));
            }
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert_eq!(&seqs(&ranges), &plain);
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].1.next() < pair[1].0, "ranges are maximal");
            }
            let mut built = SeqSet::new();
            for &(first, last) in &ranges {
                built.insert_range(first, last);
            }
            prop_assert_eq!(built, set);
        }
    }
}

mod look_ups {
    use super::super::index::Index;
    use crate::sim::SimRng;

    fn hash_of(slot: u32) -> u64 {
        u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(slot) << 40
    }

    #[test]
    fn index_finds_what_is_there_and_keeps_its_weight_under_churn() {
        const LIVE: u32 = 50_000;
        let mut rng = SimRng::new(3);
        let mut index = Index::with_expected(0);
        let mut live: Vec<u32> = (0..LIVE).collect();
        for &slot in &live {
            index.insert(hash_of(slot), slot, hash_of);
        }
        for next in LIVE..10 * LIVE {
            let at = rng.below(u64::from(LIVE)) as usize;
            let gone = std::mem::replace(&mut live[at], next);
            assert!(index.remove(hash_of(gone), gone, hash_of));
            index.insert(hash_of(next), next, hash_of);
            assert_eq!(index.find(hash_of(gone), |s| s == gone), None);
        }
        for &slot in &live {
            assert_eq!(index.find(hash_of(slot), |s| s == slot), Some(slot));
        }
        let per_entry = index.memory_bytes() as f64 / f64::from(LIVE);
        assert!(per_entry < 12.5, "{per_entry} bytes an entry");
        for &slot in &live {
            assert!(index.remove(hash_of(slot), slot, hash_of));
            assert!(!index.remove(hash_of(slot), slot, hash_of));
        }
        assert!(
            index.memory_bytes() < 10_000,
            "{} bytes for nothing",
            index.memory_bytes()
        );
    }
}
