//! The driver in a simulated world: a store of rows in a map, sinks that do as told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::{Delivery, DeliveryState, Host, ReadError, Seq, SinkName, SinkNo};

use super::super::{
    Attempt, Backlog, DeadReason, Dispatch, Limits, Outcome, Plan, RetryPolicy, RowFacts, RowId,
    Rows, SinkTable, Target,
};
use crate::metrics::{CoreMetrics, MetricsConfig, Registry};
use crate::replay::ReplayId;

#[derive(Default)]
struct Shelf {
    /// By row: its delivery as last written.
    rows: RefCell<BTreeMap<u32, Delivery>>,
    unreadable: Cell<bool>,
    sinks: Cell<u16>,
}

#[derive(Clone, Default)]
struct FakeBacklog(Rc<Shelf>);

impl FakeBacklog {
    /// A hook with one row, both numbered `no`.
    fn put(&self, no: u32, sink: u16, due_ms: u64, attempts: u16) {
        let delivery = Delivery {
            seq: Seq(u64::from(no)),
            sink: SinkNo(sink),
            attempts,
            due_ms,
            state: DeliveryState::Due,
            reason: 0,
        };
        self.0.rows.borrow_mut().insert(no, delivery);
        self.0.sinks.set(self.0.sinks.get().max(sink + 1));
    }

    fn row(&self, no: u32) -> Delivery {
        self.0.rows.borrow()[&no]
    }

    fn all_are(&self, state: DeliveryState) -> bool {
        self.0.rows.borrow().values().all(|row| row.state == state)
    }
}

impl Rows for FakeBacklog {
    fn facts(&self, row: RowId) -> Option<RowFacts> {
        let row = *self.0.rows.borrow().get(&row.0)?;
        let attempts = u32::from(row.attempts);
        (row.state == DeliveryState::Due).then_some(RowFacts {
            sink: row.sink,
            bytes: 100,
            attempts,
        })
    }
}

impl Backlog for FakeBacklog {
    type Bytes = Vec<u8>;

    fn seq_of(&self, row: RowId) -> Option<Seq> {
        self.0.rows.borrow().get(&row.0).map(|row| row.seq)
    }

    fn due_rows(&self, seq: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64)) {
        for (no, row) in self.0.rows.borrow().iter().filter(|(_, r)| r.seq == seq) {
            each(RowId(*no), row.sink, row.due_ms);
        }
    }

    fn scan(&self, from: u32, end: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64)) -> Option<u32> {
        let rows = self.0.rows.borrow();
        let mut seen = rows
            .range(from..)
            .take_while(|(no, _)| u64::from(**no) < end.0);
        for (no, row) in seen.by_ref().take(10) {
            each(RowId(*no), row.sink, row.due_ms);
        }
        seen.next().map(|(no, _)| *no)
    }

    fn next_seq(&self) -> Seq {
        Seq(self
            .0
            .rows
            .borrow()
            .keys()
            .last()
            .map_or(0, |no| u64::from(*no) + 1))
    }

    fn due_since_ms(&self, row: RowId) -> Option<u64> {
        self.0.rows.borrow().get(&row.0).map(|row| row.due_ms)
    }

    fn sink_name(&self, sink: SinkNo) -> Option<SinkName> {
        let name = sink.0.to_string().into_bytes().into_boxed_slice();
        Some(SinkName {
            sink,
            tenant: (*b"t").into(),
            source: (*b"s").into(),
            name,
        })
    }

    fn sinks(&self) -> Vec<SinkNo> {
        (0..self.0.sinks.get()).map(SinkNo).collect()
    }

    fn dead_count(&self) -> u64 {
        0
    }

    async fn read(&self, seq: Seq) -> Result<Vec<u8>, ReadError> {
        if self.0.unreadable.get() {
            return Err(ReadError::NotFound(seq));
        }
        Ok(seq.0.to_le_bytes().to_vec())
    }

    fn write(&self, delivery: Delivery) {
        self.0
            .rows
            .borrow_mut()
            .insert(delivery.seq.0 as u32, delivery);
    }
}

/// A sink: how long it takes, what it answers, and what it saw (seq, virtual millisecond).
struct FakeSink {
    world: SimWorld,
    takes_ms: Cell<u64>,
    answer: Cell<Outcome>,
    saw: RefCell<Vec<(u64, u64)>>,
    inflight: RefCell<Vec<u64>>,
    replays: RefCell<Vec<Option<ReplayId>>>,
}

impl Target for FakeSink {
    fn deliver<'a>(&'a self, envelope: &'a [u8], replay: Option<ReplayId>) -> Attempt<'a> {
        Box::pin(async move {
            self.replays.borrow_mut().push(replay);
            let seq = u64::from_le_bytes(envelope.try_into().unwrap());
            self.saw
                .borrow_mut()
                .push((seq, self.world.now_us() / 1_000));
            assert!(
                !self.inflight.borrow().contains(&seq),
                "seq {seq} twice at once"
            );
            self.inflight.borrow_mut().push(seq);
            let gone = InFlight(self, seq);
            self.world.sleep_us(self.takes_ms.get() * 1_000).await;
            drop(gone);
            self.answer.get()
        })
    }
}

struct InFlight<'a>(&'a FakeSink, u64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.inflight.borrow_mut().retain(|seq| *seq != self.1);
    }
}

struct Sinks(Vec<Option<Rc<FakeSink>>>);

impl SinkTable for Sinks {
    fn plan(&self, name: &SinkName) -> Option<Plan> {
        Some(Plan {
            target: Rc::clone(self.0.get(usize::from(name.sink.0))?.as_ref()?) as Rc<dyn Target>,
            concurrency: 4,
            retry: RetryPolicy {
                jitter: false,
                ..RetryPolicy::default()
            },
            timeout_ms: 5_000,
            paused: false,
            label: Default::default(),
        })
    }
}

struct Rig {
    world: SimWorld,
    host: Rc<SimHost>,
    backlog: FakeBacklog,
    sinks: Vec<Rc<FakeSink>>,
    registry: Arc<Registry>,
    metrics: Rc<CoreMetrics>,
    dispatch: Dispatch<FakeBacklog>,
}

fn rig(seed: u64, sinks: usize, fill: impl FnOnce(&FakeBacklog, u64)) -> Rig {
    let world = SimWorld::new(seed);
    let host = world.host();
    let backlog = FakeBacklog::default();
    backlog.0.sinks.set(sinks as u16);
    fill(&backlog, host.wall_ms());
    let sinks: Vec<Rc<FakeSink>> = (0..sinks)
        .map(|_| {
            Rc::new(FakeSink {
                world: world.clone(),
                takes_ms: Cell::new(1),
                answer: Cell::new(Outcome::Delivered),
                saw: RefCell::default(),
                inflight: RefCell::default(),
                replays: RefCell::default(),
            })
        })
        .collect();
    let registry = Registry::new(MetricsConfig {
        cores: 1,
        ..MetricsConfig::default()
    });
    let metrics = Rc::new(registry.core(0).unwrap());
    let table = Rc::new(Sinks(sinks.iter().cloned().map(Some).collect()));
    let dispatch = Dispatch::new(
        Rc::clone(&host) as Rc<dyn Host>,
        backlog.clone(),
        table,
        Limits::default(),
        Rc::clone(&metrics),
    );
    dispatch.start();
    Rig {
        world,
        host,
        backlog,
        sinks,
        registry,
        metrics,
        dispatch,
    }
}

impl Rig {
    fn run_ms(&self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    fn saw(&self, sink: usize) -> Vec<u64> {
        let mut seqs: Vec<u64> = self.sinks[sink]
            .saw
            .borrow()
            .iter()
            .map(|(seq, _)| *seq)
            .collect();
        seqs.sort_unstable();
        seqs
    }

    fn metric(&self, name: &str) -> String {
        self.dispatch.gauges().write(&self.metrics);
        let text = self.registry.render();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    }
}

#[test]
fn what_is_due_at_the_start_and_what_becomes_durable_is_delivered_once() {
    for seed in 0..20 {
        let rig = rig(seed, 2, |backlog, _| {
            for no in 0..100 {
                backlog.put(no, (no % 2) as u16, 0, 0);
            }
        });
        for no in 100..200 {
            rig.backlog.put(no, (no % 2) as u16, 0, 0);
            rig.dispatch.durable(Seq(u64::from(no)));
        }
        rig.run_ms(1_000);
        assert!(rig.backlog.all_are(DeliveryState::Delivered), "seed {seed}");
        let (even, odd): (Vec<u64>, Vec<u64>) = (0..200).partition(|no| no % 2 == 0);
        assert_eq!(rig.saw(0), even, "seed {seed}");
        assert_eq!(rig.saw(1), odd, "seed {seed}");
    }
}

#[test]
fn row_that_names_another_hook_when_its_attempt_ends_is_delivered_for_that_one() {
    let rig = rig(1, 1, |shelf, _| shelf.put(0, 0, 0, 0));
    rig.sinks[0].takes_ms.set(100);
    rig.run_ms(50);
    assert_eq!(rig.saw(0), [0], "in flight");
    // The first hook is finished from elsewhere, and the row given to the next one.
    rig.backlog.0.rows.borrow_mut().get_mut(&0).unwrap().seq = Seq(10);
    rig.dispatch.durable(Seq(10));
    rig.run_ms(500);
    assert_eq!(rig.saw(0), [0, 10]);
}

#[test]
fn delivery_that_a_replay_asked_for_names_it_until_the_row_comes_to_its_end() {
    let rig = rig(1, 1, |_, _| {});
    let replay = Some(ReplayId(77));
    rig.backlog.put(0, 0, 0, 0);
    rig.sinks[0].answer.set(Outcome::Retry { after_ms: None });
    rig.dispatch.replayed(Seq(0), SinkNo(0), ReplayId(77));
    rig.backlog.put(1, 0, 0, 0);
    rig.run_ms(50);
    assert_eq!(*rig.sinks[0].replays.borrow(), [replay]);
    rig.sinks[0].answer.set(Outcome::Delivered);
    rig.run_ms(20_000);
    assert_eq!(
        *rig.sinks[0].replays.borrow(),
        [replay, replay],
        "the retry too"
    );
    rig.dispatch.durable(Seq(1));
    rig.backlog.put(0, 0, 0, 0);
    rig.dispatch.durable(Seq(0));
    rig.run_ms(50);
    assert_eq!(*rig.sinks[0].replays.borrow(), [replay, replay, None, None]);
}

#[test]
fn sink_that_hangs_stalls_no_other() {
    let rig = rig(1, 2, |backlog, _| {
        for no in 0..200 {
            backlog.put(no, (no % 2) as u16, 0, 0);
        }
    });
    rig.sinks[0].takes_ms.set(3_600_000);
    rig.run_ms(200);
    assert_eq!(rig.saw(0).len(), 4);
    assert_eq!(rig.saw(1).len(), 100);
}

#[test]
fn attempt_over_its_time_has_failed_and_is_made_again() {
    let rig = rig(2, 1, |backlog, _| backlog.put(0, 0, 0, 0));
    rig.sinks[0].takes_ms.set(60_000);
    rig.world
        .run_until(|| rig.backlog.row(0).attempts == 1)
        .unwrap();
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Due);
    assert!((5_000..5_250).contains(&(rig.world.now_us() / 1_000)));
    assert!(rig.sinks[0].inflight.borrow().is_empty());
    rig.sinks[0].takes_ms.set(1);
    rig.run_ms(200);
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Delivered);
    assert_eq!(rig.backlog.row(0).attempts, 2);
}

#[test]
fn backoff_is_kept_whatever_the_wall_clock_does() {
    for shift_ms in [-86_400_000i64, 86_400_000, 0] {
        let rig = rig(3, 1, |backlog, _| backlog.put(0, 0, 0, 9));
        rig.sinks[0].answer.set(Outcome::Retry { after_ms: None });
        rig.run_ms(100);
        rig.world.shift_wall_ms(shift_ms);
        let failed_at = rig.sinks[0].saw.borrow()[0].1;
        rig.sinks[0].answer.set(Outcome::Delivered);
        // 100 ms · 2^9, at most a slot of the wheel later.
        rig.run_ms(51_000);
        assert_eq!(rig.saw(0).len(), 1, "shift {shift_ms}");
        rig.run_ms(1_500);
        assert_eq!(rig.saw(0).len(), 2, "shift {shift_ms}");
        let waited = rig.sinks[0].saw.borrow()[1].1 - failed_at;
        assert!((51_200..52_300).contains(&waited), "{waited}");
    }
}

#[test]
fn retry_is_written_with_its_wall_time() {
    let rig = rig(4, 1, |backlog, _| backlog.put(0, 0, 0, 0));
    rig.sinks[0].answer.set(Outcome::Retry {
        after_ms: Some(60_000),
    });
    rig.run_ms(10);
    let left = rig.backlog.row(0).due_ms - rig.host.wall_ms();
    assert!((59_900..=60_000).contains(&left), "{left}");
}

#[test]
fn due_times_of_another_clock_are_clamped_at_the_start() {
    let rig = rig(5, 1, |backlog, wall_ms| {
        backlog.put(0, 0, wall_ms + 1_800_000, 3);
        backlog.put(1, 0, wall_ms + 30 * 86_400_000, 3);
        backlog.put(2, 0, wall_ms - 30 * 86_400_000, 3);
    });
    rig.run_ms(100);
    assert_eq!(rig.saw(0), [2]);
    rig.run_ms(301_000);
    assert_eq!(rig.saw(0), [1, 2]);
    rig.run_ms(1_540_000);
    assert_eq!(rig.saw(0), [0, 1, 2]);
}

#[test]
fn hook_that_cannot_be_read_stays_due_and_is_counted() {
    let rig = rig(6, 1, |backlog, _| backlog.put(0, 0, 0, 0));
    rig.backlog.0.unreadable.set(true);
    rig.run_ms(61_000);
    let row = rig.backlog.row(0);
    assert_eq!((row.state, row.attempts), (DeliveryState::Due, 0));
    assert_eq!(rig.metric("ankusa_dispatch_read_failures_total"), "3");
    rig.backlog.0.unreadable.set(false);
    rig.run_ms(31_000);
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Delivered);
}

#[test]
fn sink_that_is_gone_makes_dead_letters_that_say_so() {
    let rig = rig(7, 1, |backlog, _| {
        for no in 0..600 {
            backlog.put(no, 1, 0, 5);
        }
    });
    rig.run_ms(1_000);
    assert!(rig.backlog.all_are(DeliveryState::Dead));
    let row = rig.backlog.row(599);
    assert_eq!(
        DeadReason::from_code(row.reason),
        Some(DeadReason::SinkGone)
    );
    assert_eq!(row.attempts, 5);
    assert_eq!(rig.metric("ankusa_dispatch_dead_lettered_total"), "600");
}

#[test]
fn paused_sink_waits_shows_it_and_resumes() {
    let rig = rig(8, 1, |_, _| {});
    rig.run_ms(10);
    assert!(rig.dispatch.set_paused(SinkNo(0), true));
    for no in 0..10 {
        rig.backlog.put(no, 0, 0, 0);
        rig.dispatch.durable(Seq(u64::from(no)));
    }
    rig.run_ms(3_000);
    assert!(rig.saw(0).is_empty());
    assert_eq!(rig.metric("ankusa_dispatch_paused_hooks"), "10");
    assert_eq!(rig.metric("ankusa_dispatch_paused_sinks"), "1");
    assert!(rig.dispatch.set_paused(SinkNo(0), false));
    rig.run_ms(100);
    assert!(rig.backlog.all_are(DeliveryState::Delivered));
}

#[test]
fn reload_takes_a_sink_away_and_brings_one_back() {
    let rig = rig(9, 2, |_, _| {});
    rig.run_ms(10);
    rig.dispatch
        .set_table(Rc::new(Sinks(vec![None, Some(Rc::clone(&rig.sinks[1]))])));
    for no in 0..2 {
        rig.backlog.put(no, no as u16, 0, 0);
        rig.dispatch.durable(Seq(u64::from(no)));
    }
    rig.run_ms(100);
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Dead);
    assert_eq!(rig.backlog.row(1).state, DeliveryState::Delivered);
    rig.dispatch.set_table(Rc::new(Sinks(
        rig.sinks.iter().cloned().map(Some).collect(),
    )));
    // A replay makes the row due again.
    rig.backlog.put(0, 0, 0, 0);
    rig.dispatch.durable(Seq(0));
    rig.run_ms(100);
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Delivered);
}

#[test]
fn stop_waits_for_what_is_in_flight_and_leaves_the_rest_due() {
    let rig = rig(10, 1, |backlog, _| {
        for no in 0..10 {
            backlog.put(no, 0, 0, 0);
        }
    });
    rig.sinks[0].takes_ms.set(1_000);
    rig.run_ms(10);
    let all_ended = rig
        .world
        .block_on(rig.dispatch.stop(Duration::from_secs(3)))
        .unwrap();
    assert!(all_ended);
    rig.run_ms(5_000);
    let delivered = |row: &&Delivery| row.state == DeliveryState::Delivered;
    assert_eq!(
        rig.backlog
            .0
            .rows
            .borrow()
            .values()
            .filter(delivered)
            .count(),
        4
    );
    assert_eq!(rig.saw(0).len(), 4);
}

#[test]
fn stop_is_bounded_by_its_patience() {
    let rig = rig(11, 1, |backlog, _| backlog.put(0, 0, 0, 0));
    rig.sinks[0].takes_ms.set(4_000);
    rig.run_ms(10);
    assert!(
        !rig.world
            .block_on(rig.dispatch.stop(Duration::from_millis(100)))
            .unwrap()
    );
    assert_eq!(rig.backlog.row(0).state, DeliveryState::Due);
}

#[test]
fn idle_dispatch_does_nothing() {
    let rig = rig(12, 1, |backlog, _| backlog.put(0, 0, 0, 0));
    rig.run_ms(1_000);
    let before = rig.world.steps();
    rig.run_ms(60_000);
    assert!(rig.world.steps() - before < 5);
}

#[test]
fn age_of_the_oldest_due_is_shown() {
    let rig = rig(13, 1, |_, _| {});
    rig.run_ms(10);
    rig.dispatch.set_paused(SinkNo(0), true);
    rig.backlog.put(0, 0, rig.host.wall_ms() - 5_000, 0);
    rig.dispatch.durable(Seq(0));
    rig.run_ms(10_000);
    let age: f64 = rig
        .metric("ankusa_dispatch_oldest_due_age_seconds")
        .parse()
        .unwrap();
    assert!((14.9..15.1).contains(&age), "{age}");
    rig.dispatch.set_paused(SinkNo(0), false);
    rig.run_ms(2_000);
    assert_eq!(rig.metric("ankusa_dispatch_oldest_due_age_seconds"), "0");
}
