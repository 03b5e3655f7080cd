//! Windows, turns, pauses and memory.

use std::collections::VecDeque;

use ankusa_wal::SinkNo;

use super::super::lanes::{QUANTUM, ROW_COST};
use super::super::{
    BreakerState, DeadReason, Decision, LaneConfig, LaneState, Limits, Outcome, RetryPolicy, RowId,
    Scheduler, Start, TenantNo, Verdict,
};
use super::{Table, live};

fn scheduler() -> Scheduler {
    Scheduler::new(Limits::default(), 0)
}

fn add_ready(
    scheduler: &mut Scheduler,
    table: &Table,
    rows: std::ops::Range<u32>,
    sink: u16,
    bytes: u32,
) {
    for row in rows {
        table.put(row, sink, bytes);
        assert!(scheduler.add(RowId(row), 0, 0, table));
    }
}

fn start(scheduler: &mut Scheduler, table: &Table) -> Option<Start> {
    match scheduler.next(table)? {
        Decision::Start(start) => Some(start),
        Decision::SinkGone(row, sink) => panic!("row {row:?} of sink {sink} is gone"),
    }
}

fn start_all(scheduler: &mut Scheduler, table: &Table) -> Vec<Start> {
    std::iter::from_fn(|| start(scheduler, table)).collect()
}

#[test]
fn slow_sink_never_stalls_another() {
    for bytes in [100u32, 5 << 20] {
        let (mut scheduler, table) = (scheduler(), Table::default());
        scheduler.set_sink(SinkNo(0), live(0));
        scheduler.set_sink(SinkNo(1), live(0));
        add_ready(&mut scheduler, &table, 0..1_000, 0, bytes);
        let stuck = start_all(&mut scheduler, &table);
        assert!(stuck.len() <= 32 && !stuck.is_empty());
        // Nothing of sink 0 ever ends; sink 1 gets all it wants.
        add_ready(&mut scheduler, &table, 1_000..2_000, 1, 1_000);
        let mut delivered = 0;
        loop {
            let started = start_all(&mut scheduler, &table);
            if started.is_empty() {
                break;
            }
            for start in started {
                assert_eq!(start.sink, SinkNo(1));
                scheduler.finish(start, Outcome::Delivered, 0, 0);
                delivered += 1;
            }
        }
        assert_eq!(delivered, 1_000);
        drop(stuck);
    }
}

#[test]
fn busy_tenant_with_many_sinks_leaves_half_of_the_window() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    for sink in 0..200 {
        scheduler.set_sink(SinkNo(sink), live(0));
        add_ready(
            &mut scheduler,
            &table,
            u32::from(sink) * 100..u32::from(sink) * 100 + 100,
            sink,
            10,
        );
    }
    scheduler.set_sink(SinkNo(200), live(1));
    let stuck = start_all(&mut scheduler, &table);
    assert_eq!(stuck.len(), 2048);
    add_ready(&mut scheduler, &table, 50_000..50_032, 200, 10);
    assert_eq!(start_all(&mut scheduler, &table).len(), 32);
}

#[test]
fn only_tenant_and_only_sink_may_use_the_whole_window() {
    let limits = Limits {
        inflight_max: 20,
        ..Limits::default()
    };
    let (mut scheduler, table) = (Scheduler::new(limits, 0), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..100, 0, 6 << 20);
    assert_eq!(start_all(&mut scheduler, &table).len(), 20);
}

#[test]
fn turns_are_equal_whatever_waits_behind_them() {
    // One tenant has a hundred sinks and large hooks, the other one sink and small ones.
    let limits = Limits {
        inflight_max: 1,
        ..Limits::default()
    };
    let (mut scheduler, table) = (Scheduler::new(limits, 0), Table::default());
    for sink in 0..100 {
        scheduler.set_sink(SinkNo(sink), live(0));
        add_ready(
            &mut scheduler,
            &table,
            u32::from(sink) * 1_000..u32::from(sink) * 1_000 + 1_000,
            sink,
            50_000,
        );
    }
    scheduler.set_sink(SinkNo(100), live(1));
    add_ready(&mut scheduler, &table, 200_000..300_000, 100, 100);
    let mut served = [0i64; 2];
    for _ in 0..20_000 {
        let start = start(&mut scheduler, &table).unwrap();
        served[usize::from(start.sink.0 == 100)] += ROW_COST + i64::from(start.bytes);
        scheduler.finish(start, Outcome::Delivered, 0, 0);
        let apart = (served[0] - served[1]).abs();
        assert!(apart <= 2 * QUANTUM + ROW_COST + 50_000, "{served:?}");
    }
}

#[test]
fn hook_larger_than_the_window_is_sent_alone_and_is_not_overtaken() {
    let limits = Limits {
        inflight_bytes_max: 1_000_000,
        ..Limits::default()
    };
    let (mut scheduler, table) = (Scheduler::new(limits, 0), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..1, 0, 900_000);
    add_ready(&mut scheduler, &table, 1..2, 0, 8_000_000);
    add_ready(&mut scheduler, &table, 2..3, 0, 10);
    let first = start(&mut scheduler, &table).unwrap();
    assert_eq!(start(&mut scheduler, &table), None);
    scheduler.finish(first, Outcome::Delivered, 0, 0);
    let large = start(&mut scheduler, &table).unwrap();
    assert_eq!(large.row, RowId(1));
    assert_eq!(start(&mut scheduler, &table), None);
    scheduler.finish(large, Outcome::Delivered, 0, 0);
    assert_eq!(start(&mut scheduler, &table).unwrap().row, RowId(2));
}

#[test]
fn paused_sink_holds_its_rows_and_resume_lets_them_go() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    assert!(scheduler.set_paused(SinkNo(0), true));
    add_ready(&mut scheduler, &table, 0..10, 0, 10);
    assert_eq!(scheduler.next(&table), None);
    let counts = scheduler.counts();
    assert_eq!(
        (
            counts.ready_count,
            counts.held_count,
            counts.paused_sinks_count
        ),
        (10, 10, 1)
    );
    assert!(scheduler.set_paused(SinkNo(0), false));
    assert_eq!(start_all(&mut scheduler, &table).len(), 10);
    assert!(!scheduler.set_paused(SinkNo(9), true));
}

#[test]
fn unknown_sink_waits_and_gone_sink_becomes_dead_letters() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    add_ready(&mut scheduler, &table, 0..2, 7, 10);
    assert_eq!(scheduler.next(&table), None);
    scheduler.set_sink(SinkNo(7), LaneState::Gone);
    assert_eq!(
        scheduler.next(&table),
        Some(Decision::SinkGone(RowId(0), SinkNo(7)))
    );
    assert_eq!(
        scheduler.next(&table),
        Some(Decision::SinkGone(RowId(1), SinkNo(7)))
    );
    assert_eq!(scheduler.next(&table), None);
    // Also one that is due much later: nothing will come of waiting.
    table.put(2, 7, 10);
    scheduler.add(RowId(2), 100_000, 0, &table);
    assert_eq!(
        scheduler.next(&table),
        Some(Decision::SinkGone(RowId(2), SinkNo(7)))
    );
}

#[test]
fn sink_that_goes_while_in_flight_ends_cleanly() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(3));
    add_ready(&mut scheduler, &table, 0..1, 0, 10);
    let start = start(&mut scheduler, &table).unwrap();
    scheduler.set_sink(SinkNo(0), LaneState::Gone);
    let verdict = scheduler.finish(start, Outcome::Retry { after_ms: None }, 0, 0);
    assert!(matches!(verdict, Verdict::RetryIn { attempts: 1, .. }));
    scheduler.advance(1_000, &table, 10);
    assert_eq!(
        scheduler.next(&table),
        Some(Decision::SinkGone(RowId(0), SinkNo(0)))
    );
    assert_eq!(scheduler.inflight().rows, 0);
}

#[test]
fn open_breaker_spends_no_attempt_and_lets_one_probe_through() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..100, 0, 10);
    let started = start_all(&mut scheduler, &table);
    assert_eq!(started.len(), 32);
    for start in started {
        scheduler.finish(start, Outcome::Retry { after_ms: None }, 0, u64::MAX);
    }
    assert_eq!(
        scheduler.breaker(SinkNo(0)),
        BreakerState::Open { until_ms: 30_000 }
    );
    scheduler.advance(29_999, &table, 1_000);
    assert_eq!(scheduler.next(&table), None);
    assert_eq!(scheduler.next_wake_ms(), Some(30_000));
    scheduler.advance(30_000, &table, 1_000);
    let probes = start_all(&mut scheduler, &table);
    assert_eq!(probes.len(), 1);
    for probe in probes {
        assert_eq!(probe.attempt, 1);
        scheduler.finish(probe, Outcome::Delivered, 30_001, 0);
    }
    assert_eq!(scheduler.breaker(SinkNo(0)), BreakerState::Closed);
    assert_eq!(start_all(&mut scheduler, &table).len(), 32);
}

#[test]
fn permanent_refusal_and_last_attempt_are_dead_letters() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..2, 0, 10);
    table.0.borrow_mut().get_mut(&1).unwrap().attempts = 83;
    let first = start(&mut scheduler, &table).unwrap();
    let second = start(&mut scheduler, &table).unwrap();
    assert_eq!(
        scheduler.finish(first, Outcome::Permanent, 0, 0),
        Verdict::Dead {
            attempts: 1,
            reason: DeadReason::Permanent
        }
    );
    assert_eq!(
        scheduler.finish(second, Outcome::Retry { after_ms: Some(5) }, 0, 0),
        Verdict::Dead {
            attempts: 84,
            reason: DeadReason::AttemptsExhausted
        }
    );
    assert_eq!(scheduler.next_wake_ms(), None);
}

#[test]
fn attempt_that_was_not_made_is_not_counted_and_comes_again() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..1, 0, 10);
    let first = start(&mut scheduler, &table).unwrap();
    let verdict = scheduler.finish(first, Outcome::NotMade { again_ms: 1_000 }, 0, 0);
    assert_eq!(verdict, Verdict::Unchanged);
    scheduler.advance(1_016, &table, 10);
    assert_eq!(start(&mut scheduler, &table).unwrap().attempt, 1);
}

#[test]
fn row_that_is_known_is_not_taken_up_twice() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    scheduler.set_sink(SinkNo(0), live(0));
    add_ready(&mut scheduler, &table, 0..1, 0, 10);
    assert!(!scheduler.add(RowId(0), 0, 0, &table));
    let start = start(&mut scheduler, &table).unwrap();
    assert!(!scheduler.add(RowId(0), 0, 0, &table));
    scheduler.finish(start, Outcome::Retry { after_ms: None }, 0, 0);
    assert!(!scheduler.add(RowId(0), 0, 0, &table));
}

#[test]
fn shares_of_the_cores_never_fall_below_two_large_hooks() {
    let node = Limits::default();
    let share = Limits::share(node, 64);
    assert_eq!(
        (share.inflight_max, share.inflight_bytes_max),
        (64, 16 << 20)
    );
    let small = Limits {
        inflight_bytes_max: 1 << 20,
        inflight_max: 1,
        ..node
    };
    let share = Limits::share(small, 64);
    assert_eq!((share.inflight_max, share.inflight_bytes_max), (1, 1 << 20));
}

#[test]
fn million_rows_cost_four_bytes_each_and_a_constant() {
    struct Uniform;
    impl super::Rows for Uniform {
        fn facts(&self, row: RowId) -> Option<super::RowFacts> {
            let sink = SinkNo((row.0 % 16) as u16);
            Some(super::RowFacts {
                sink,
                bytes: 1_000,
                attempts: 0,
            })
        }
    }
    let mut scheduler = scheduler();
    let lane = LaneConfig {
        tenant: TenantNo(0),
        concurrency: 32,
        retry: RetryPolicy::default(),
        paused: false,
    };
    for sink in 0..16 {
        scheduler.set_sink(SinkNo(sink), LaneState::Live(lane));
    }
    let before = scheduler.memory_bytes();
    for row in 0..1_000_000 {
        assert!(scheduler.add(RowId(row), u64::from(row % 7) * 50_000, 0, &Uniform));
    }
    let grown = scheduler.memory_bytes() - before;
    assert!(grown <= 4 * 1_000_000 + 256 * 1024, "{grown} bytes");
    // And they all come out, once.
    while scheduler.advance(400_000, &Uniform, 10_000) {}
    let mut queue = VecDeque::new();
    let mut ended = 0u32;
    loop {
        while let Some(start) = match scheduler.next(&Uniform) {
            Some(Decision::Start(start)) => Some(start),
            _ => None,
        } {
            queue.push_back(start);
        }
        let Some(start) = queue.pop_front() else {
            break;
        };
        assert_eq!(
            scheduler.finish(start, Outcome::Delivered, 400_000, 0),
            Verdict::Delivered
        );
        ended += 1;
    }
    assert_eq!(ended, 1_000_000);
}

#[test]
fn row_dies_when_the_store_can_count_no_further_whatever_is_configured() {
    let (mut scheduler, table) = (scheduler(), Table::default());
    let LaneState::Live(mut config) = live(0) else {
        panic!("live")
    };
    config.retry.attempts_max = 10_000;
    scheduler.set_sink(SinkNo(0), LaneState::Live(config));
    add_ready(&mut scheduler, &table, 0..1, 0, 10);
    table.0.borrow_mut().get_mut(&0).unwrap().attempts = 4_094;
    let last = start(&mut scheduler, &table).unwrap();
    let verdict = scheduler.finish(last, Outcome::Retry { after_ms: None }, 0, 0);
    assert!(
        matches!(
            verdict,
            Verdict::Dead {
                attempts: 4_095,
                ..
            }
        ),
        "{verdict:?}"
    );
}
