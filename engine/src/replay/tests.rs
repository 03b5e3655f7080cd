#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use super::*;

fn part() -> Part {
    Part {
        id: ReplayId::mint(1_800_000_000_000, 7),
        state: ReplayState::Running,
        filter: Filter::Like {
            sink: SinkNo(513),
            tenant: true,
            source: false,
            name: true,
        },
        per_second: 10_000,
        started_at_ms: 1_800_000_000_000,
        moved: 3,
        skipped: 1,
        updated_at_ms: 1_800_000_000_001,
    }
}

#[derive(Default)]
struct Counters(HashMap<u16, u64>);

impl Counters {
    fn apply(&mut self, record: Record) {
        let Record::Counters(counters) = record else {
            panic!("a part is made of counters")
        };
        self.0.extend(counters.iter().map(|c| (c.counter, c.value)));
    }

    fn get(&self) -> impl Fn(u16) -> u64 + Copy {
        |no| self.0.get(&no).copied().unwrap_or(0)
    }
}

#[test]
fn part_reads_back_as_written_whatever_its_state_and_filter() {
    let states = [
        ReplayState::Running,
        ReplayState::Paused(Pause::Operator),
        ReplayState::Paused(Pause::KeepsDying),
        ReplayState::Done,
        ReplayState::Cancelled,
    ];
    let filters = [Filter::All, Filter::Nothing, part().filter];
    for state in states {
        for filter in filters {
            let part = Part {
                state,
                filter,
                ..part()
            };
            let mut counters = Counters::default();
            counters.apply(part.record(15));
            assert_eq!(Part::read(15, counters.get()), Some(part));
            assert_eq!(Part::read(14, counters.get()), None);
        }
    }
}

#[test]
fn order_and_count_written_at_once_do_not_undo_each_other() {
    let (mut counters, mut moved) = (Counters::default(), part());
    counters.apply(moved.record(0));
    let paused = Part {
        state: ReplayState::Paused(Pause::Operator),
        ..moved
    };
    moved.moved = 99;
    counters.apply(moved.count_record(0, 1));
    counters.apply(paused.state_record(0, 2));
    let now = Part::read(0, counters.get()).unwrap();
    assert_eq!((now.moved, now.state), (99, paused.state));
}

#[test]
fn new_part_takes_a_free_slot_then_the_one_that_ended_longest_ago_and_never_a_running_one() {
    let mut counters = Counters::default();
    for slot in 0..PARTS_MAX {
        assert_eq!(slot_for_new(counters.get()), Some(slot));
        counters.apply(part().record(slot));
    }
    assert_eq!(slot_for_new(counters.get()), None);
    for (slot, at) in [(3, 20), (9, 10)] {
        let ended = Part {
            state: ReplayState::Done,
            updated_at_ms: at,
            ..part()
        };
        counters.apply(ended.record(slot));
    }
    assert_eq!(slot_for_new(counters.get()), Some(9));
}

#[test]
fn id_is_sixteen_digits_and_nothing_else() {
    let id = part().id;
    assert_eq!(ReplayId::parse(&id.to_string()), Some(id));
    for text in [
        "",
        "0",
        "0000000000000000",
        "+000000000000001",
        "xyz",
        "00000000000000011",
    ] {
        assert_eq!(ReplayId::parse(text), None, "{text}");
    }
}

#[test]
fn filter_survives_as_a_sink_number_of_the_shard() {
    let mut state = ankusa_wal::State::new(1);
    for (source, name) in [("a", "x"), ("b", "x"), ("b", "y")] {
        let parts = [source, name].map(str::as_bytes);
        state.sink_no(b"t", parts[0], parts[1]).unwrap();
    }
    let wanted = Wanted {
        source: Some("b".into()),
        ..Wanted::default()
    };
    let filter = Filter::of(&wanted, state.names());
    assert_eq!(filter.wanted(state.names()), Some(wanted.clone()));
    let meant: Vec<u16> = state
        .names()
        .iter()
        .filter(|name| wanted.is(name))
        .map(|name| name.sink.0)
        .collect();
    assert_eq!(meant, [1, 2]);
    let unknown = Wanted {
        tenant: Some("z".into()),
        ..Wanted::default()
    };
    assert_eq!(Filter::of(&unknown, state.names()), Filter::Nothing);
    assert_eq!(Filter::of(&Wanted::default(), state.names()), Filter::All);
}
