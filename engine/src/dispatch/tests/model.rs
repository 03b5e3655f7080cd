//! The scheduler against a naive model that keeps everything in one map.

use std::collections::BTreeMap;

use ankusa_wal::SinkNo;
use proptest::prelude::*;

use super::super::{
    BreakerPolicy, BreakerState, Decision, LaneConfig, LaneState, Limits, Outcome, RetryPolicy,
    RowId, Scheduler, Start, TenantNo, Verdict,
};
use super::Table;

const SINKS: u16 = 5;

#[derive(Clone, Debug)]
enum Op {
    Add { sink: u16, bytes: u32, left_ms: u64 },
    Pass { ms: u64 },
    Start { up_to: usize },
    Finish { pick: usize, how: u8, random: u64 },
    Pause { sink: u16, paused: bool },
    Gone { sink: u16 },
    Back { sink: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    let sink = 0..SINKS;
    prop_oneof![
        4 => (sink.clone(), prop_oneof![Just(10u32), 0u32..300_000], prop_oneof![2 => Just(0u64), 1 => 0u64..600_000])
            .prop_map(|(sink, bytes, left_ms)| Op::Add { sink, bytes, left_ms }),
        2 => prop_oneof![0u64..100, 0u64..60_000].prop_map(|ms| Op::Pass { ms }),
        4 => (1usize..20).prop_map(|up_to| Op::Start { up_to }),
        4 => (any::<usize>(), 0u8..8, any::<u64>())
            .prop_map(|(pick, how, random)| Op::Finish { pick, how, random }),
        1 => (sink.clone(), any::<bool>()).prop_map(|(sink, paused)| Op::Pause { sink, paused }),
        1 => sink.clone().prop_map(|sink| Op::Gone { sink }),
        1 => sink.prop_map(|sink| Op::Back { sink }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Waiting { due_ms: u64, latest_ms: u64 },
    InFlight,
    Ended,
}

struct Run {
    scheduler: Scheduler,
    table: Table,
    places: BTreeMap<u32, Place>,
    flying: Vec<Start>,
    now_ms: u64,
}

fn config(sink: u16) -> LaneConfig {
    let retry = RetryPolicy {
        base_ms: 100,
        max_ms: 5_000,
        attempts_max: 4,
        jitter: true,
    };
    LaneConfig {
        tenant: TenantNo(u32::from(sink) / 2),
        concurrency: 3,
        retry,
        paused: false,
    }
}

impl Run {
    fn new() -> Run {
        let limits = Limits {
            inflight_max: 8,
            inflight_bytes_max: 1_000_000,
            breaker: BreakerPolicy {
                failures: 3,
                open_ms: 1_000,
                open_ms_max: 4_000,
            },
        };
        let mut scheduler = Scheduler::new(limits, 1_000);
        for sink in 0..SINKS {
            scheduler.set_sink(SinkNo(sink), LaneState::Live(config(sink)));
        }
        Run {
            scheduler,
            table: Table::default(),
            places: BTreeMap::new(),
            flying: Vec::new(),
            now_ms: 1_000,
        }
    }

    fn wait(&mut self, row: u32, delay_ms: u64) {
        let due_ms = self.now_ms + delay_ms;
        let latest_ms = due_ms + 32 + delay_ms / 60;
        self.places
            .insert(row, Place::Waiting { due_ms, latest_ms });
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Add {
                sink,
                bytes,
                left_ms,
            } => {
                let row = self.places.len() as u32;
                self.table.put(row, sink, bytes);
                assert!(
                    self.scheduler
                        .add(RowId(row), left_ms, self.now_ms, &self.table)
                );
                let gone = self.scheduler.sink(SinkNo(sink)) == LaneState::Gone;
                self.wait(row, if gone { 0 } else { left_ms });
            }
            Op::Pass { ms } => {
                self.now_ms += ms;
                while self.scheduler.advance(self.now_ms, &self.table, 3) {}
            }
            Op::Start { up_to } => {
                for _ in 0..up_to {
                    if !self.start_one() {
                        self.nothing_could_have_started();
                        break;
                    }
                }
            }
            Op::Finish { pick, how, random } => self.finish_one(pick, how, random),
            Op::Pause { sink, paused } => _ = self.scheduler.set_paused(SinkNo(sink), paused),
            Op::Gone { sink } => self.scheduler.set_sink(SinkNo(sink), LaneState::Gone),
            Op::Back { sink } => self
                .scheduler
                .set_sink(SinkNo(sink), LaneState::Live(config(sink))),
        }
        self.check();
    }

    fn start_one(&mut self) -> bool {
        let (row, sink) = match self.scheduler.next(&self.table) {
            None => return false,
            Some(Decision::SinkGone(row, sink)) => {
                assert_eq!(self.scheduler.sink(sink), LaneState::Gone);
                self.places.insert(row.0, Place::Ended);
                self.table.0.borrow_mut().remove(&row.0);
                return true;
            }
            Some(Decision::Start(start)) => {
                let at = (start.row, start.sink);
                self.flying.push(start);
                at
            }
        };
        let Some(Place::Waiting { due_ms, .. }) = self.places.insert(row.0, Place::InFlight) else {
            panic!("row {row:?} was not waiting");
        };
        assert!(due_ms <= self.now_ms, "row {row:?} is early");
        let LaneState::Live(config) = self.scheduler.sink(sink) else {
            panic!("{sink} not live")
        };
        assert!(!config.paused);
        let mine = self
            .flying
            .iter()
            .filter(|start| start.sink == sink)
            .count();
        match self.scheduler.breaker(sink) {
            BreakerState::Closed => assert!(mine <= 3),
            BreakerState::Probing => assert!(mine <= 4),
            other => panic!("started while {other:?}"),
        }
        let bytes: u64 = self.flying.iter().map(|start| u64::from(start.bytes)).sum();
        assert!(self.flying.len() <= 8 && bytes <= 1_000_000);
        true
    }

    /// The scheduler said that nothing can start; so no row that must be ready by now may belong
    /// to a sink that has room, unless the core's window is what it waits for.
    fn nothing_could_have_started(&self) {
        if self.flying.len() >= 4 {
            return;
        }
        let bytes: u64 = self.flying.iter().map(|start| u64::from(start.bytes)).sum();
        for (row, place) in &self.places {
            let Place::Waiting { latest_ms, .. } = *place else {
                continue;
            };
            let sink = self.table.0.borrow()[row].sink;
            let mine = self
                .flying
                .iter()
                .filter(|start| start.sink == sink)
                .count();
            let room = match self.scheduler.sink(sink) {
                LaneState::Live(config) if config.paused => false,
                LaneState::Live(_) => {
                    self.scheduler.breaker(sink) == BreakerState::Closed
                        && mine == 0
                        && bytes <= 200_000
                }
                LaneState::Gone => self.flying.is_empty(),
                LaneState::Unknown => false,
            };
            // `advance` was last called at a time that is not before the last `Pass`.
            assert!(
                !(room && latest_ms <= self.now_ms),
                "row {row} of {sink:?} was passed over"
            );
        }
    }

    fn finish_one(&mut self, pick: usize, how: u8, random: u64) {
        if self.flying.is_empty() {
            return;
        }
        let start = self.flying.swap_remove(pick % self.flying.len());
        let (row, attempt) = (start.row.0, start.attempt);
        let is_live = matches!(self.scheduler.sink(start.sink), LaneState::Live(_));
        let outcome = match how {
            0..=2 => Outcome::Delivered,
            3 => Outcome::Permanent,
            4 => Outcome::NotMade {
                again_ms: random % 2_000,
            },
            5 => Outcome::Retry {
                after_ms: Some(random % 10_000_000),
            },
            _ => Outcome::Retry { after_ms: None },
        };
        match self.scheduler.finish(start, outcome, self.now_ms, random) {
            Verdict::Delivered | Verdict::Dead { .. } => {
                self.places.insert(row, Place::Ended);
                self.table.0.borrow_mut().remove(&row);
            }
            Verdict::RetryIn { attempts, delay_ms } => {
                assert_eq!(attempts, attempt);
                assert!(attempts < 4 || !is_live);
                self.table.0.borrow_mut().get_mut(&row).unwrap().attempts = attempts;
                self.wait(row, delay_ms);
            }
            Verdict::Unchanged => self.wait(row, random % 2_000),
        }
    }

    /// Every row that has not ended is in exactly one place, and the gauges say so.
    fn check(&self) {
        let counts = self.scheduler.counts();
        let waiting = self
            .places
            .values()
            .filter(|place| matches!(place, Place::Waiting { .. }))
            .count();
        assert_eq!(
            (counts.ready_count + counts.scheduled_count) as usize,
            waiting
        );
        assert_eq!(counts.inflight.rows as usize, self.flying.len());
    }

    /// With everything resumed and every delivery succeeding, all of it drains.
    fn drain(&mut self) {
        for sink in 0..SINKS {
            self.scheduler
                .set_sink(SinkNo(sink), LaneState::Live(config(sink)));
        }
        for _ in 0..100_000 {
            while self.start_one() {}
            if self.flying.is_empty() {
                match self.scheduler.next_wake_ms() {
                    Some(at_ms) => self.now_ms = self.now_ms.max(at_ms),
                    None => break,
                }
                while self.scheduler.advance(self.now_ms, &self.table, 100) {}
            }
            while !self.flying.is_empty() {
                self.finish_one(0, 0, 0);
            }
        }
        assert!(
            self.places.values().all(|place| *place == Place::Ended),
            "{:?}",
            self.places
        );
        assert!(self.table.0.borrow().is_empty());
        assert_eq!(self.scheduler.counts().ready_count, 0);
    }
}

proptest! {
    #[test]
    fn no_row_is_lost_or_started_twice_or_early_or_passed_over(
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let mut run = Run::new();
        for op in &ops {
            run.apply(op);
        }
        run.drain();
    }
}
