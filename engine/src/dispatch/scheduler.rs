//! Which delivery starts now: the decisions of dispatch, with no I/O and no clock.
//!
//! Owns where every undelivered row of one shard waits (ready in its sink's lane, or on the timer
//! wheel, or in flight), the windows, the breakers and the turns. Time is the caller's monotonic
//! milliseconds, randomness an argument, and what is durable about a row (its sink, attempts,
//! size) is asked of [`Rows`], so that a row costs 4 bytes here and nothing that could disagree
//! with the store.
//!
//! Invariants: a row is in one place at a time and never in flight twice; none is dropped while
//! the store says it is due; a row starts only after the caller said it is durable, never before
//! its due time, never while its sink is paused or its breaker open.
//!
//! It does not persist anything: the caller writes each [`Verdict`]. Runs on the shard's core.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ankusa_wal::SinkNo;
use ankusa_wal::state::ATTEMPTS_MAX;

use super::RowId;
use super::breaker::{BreakerPolicy, BreakerState};
use super::lanes::{LaneConfig, LaneState, Lanes, Load};
use super::links::Links;
use super::verdict::{DeadReason, Outcome, Verdict};
use super::wheel::Wheel;

/// What the store knows of a row, as far as a decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFacts {
    /// Its sink.
    pub sink: SinkNo,
    /// Bytes of the hook.
    pub bytes: u32,
    /// Attempts that failed so far.
    pub attempts: u32,
}

/// The store's side.
pub trait Rows {
    /// The row's facts; `None` when it is not (or no longer) due for delivery.
    fn facts(&self, row: RowId) -> Option<RowFacts>;
}

/// Bounds of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows in flight.
    pub inflight_max: u32,
    /// Bytes in flight; one larger row may be in flight alone.
    pub inflight_bytes_max: u64,
    /// Breaker settings.
    pub breaker: BreakerPolicy,
}

impl Limits {
    /// A core's share of the node's limits. Never so small that a single large hook stops the
    /// others.
    pub fn share(node: Limits, cores: u32) -> Limits {
        let cores = cores.max(1);
        Limits {
            inflight_max: node.inflight_max.div_ceil(cores).max(1),
            inflight_bytes_max: (node.inflight_bytes_max / u64::from(cores))
                .max(node.inflight_bytes_max.min(16 << 20)),
            breaker: node.breaker,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            inflight_max: 4096,
            inflight_bytes_max: 128 << 20,
            breaker: BreakerPolicy::default(),
        }
    }
}

/// A delivery to make. Given back to [`Scheduler::finish`], once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a started row is in flight until it is finished"]
pub struct Start {
    /// The row.
    pub row: RowId,
    /// Its sink.
    pub sink: SinkNo,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Bytes of the hook.
    pub bytes: u32,
    probe: bool,
}

/// What [`Scheduler::next`] wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Deliver this row.
    Start(Start),
    /// Its sink is gone: write it down as a dead letter. It is out of the scheduler's hands.
    SinkGone(RowId, SinkNo),
}

/// Gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows that could start, the held ones included.
    pub ready_count: u32,
    /// Rows waiting for their due time.
    pub scheduled_count: u32,
    /// In flight.
    pub inflight: Load,
    /// Ready rows of sinks that are paused (or not known yet).
    pub held_count: u32,
    /// Sinks that are paused.
    pub paused_sinks_count: u32,
    /// Sinks whose breaker is not closed.
    pub open_breakers_count: u32,
}

/// The scheduler of one shard.
pub struct Scheduler {
    limits: Limits,
    links: Links,
    wheel: Wheel,
    lanes: Lanes,
    inflight: Load,
    ready_count: u32,
    /// When open breakers become half open; an entry is good while its lane still says so.
    reopenings: BinaryHeap<Reverse<(u64, u16)>>,
    breaker_transitions: u64,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits, now_ms: u64) -> Scheduler {
        Scheduler {
            limits,
            links: Links::default(),
            wheel: Wheel::new(now_ms),
            lanes: Lanes::default(),
            inflight: Load::default(),
            ready_count: 0,
            reopenings: BinaryHeap::new(),
            breaker_transitions: 0,
        }
    }

    /// Other bounds from now on (reload).
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Says what a sink is today. Rows, breaker and what is in flight stay.
    pub fn set_sink(&mut self, sink: SinkNo, state: LaneState) {
        self.lanes.set_state(sink, state);
    }

    /// What the scheduler believes a sink to be.
    pub fn sink(&self, sink: SinkNo) -> LaneState {
        self.lanes
            .get(sink)
            .map_or(LaneState::Unknown, |lane| lane.state)
    }

    /// Rows of the sink that could start, and rows of it in flight.
    pub fn sink_load(&self, sink: SinkNo) -> (u32, u32) {
        self.lanes
            .get(sink)
            .map_or((0, 0), |lane| (lane.ready.count(), lane.inflight.rows))
    }

    /// Where the sink's breaker stands.
    pub fn breaker(&self, sink: SinkNo) -> BreakerState {
        self.lanes
            .get(sink)
            .map_or(BreakerState::Closed, |lane| lane.breaker.state())
    }

    /// Pauses or resumes a sink; false when it is not configured.
    pub fn set_paused(&mut self, sink: SinkNo, paused: bool) -> bool {
        let LaneState::Live(config) = self.sink(sink) else {
            return false;
        };
        self.lanes
            .set_state(sink, LaneState::Live(LaneConfig { paused, ..config }));
        true
    }

    /// Takes up a row that is durable, due in `left_ms` by its persisted due time (0: now).
    /// Idempotent: false when the row is known already, or not due at all.
    pub fn add(&mut self, row: RowId, left_ms: u64, now_ms: u64, rows: &impl Rows) -> bool {
        if !self.links.is_free(row.0) {
            return false;
        }
        let Some(facts) = rows.facts(row) else {
            return false;
        };
        let lane = self.lanes.get_mut(facts.sink);
        let wait_ms = match lane.state {
            LaneState::Gone => 0,
            LaneState::Live(config) => config.retry.clamp_ms(left_ms),
            LaneState::Unknown => lane.retry().clamp_ms(left_ms),
        };
        if !self
            .wheel
            .insert(&mut self.links, row.0, now_ms + wait_ms, now_ms)
        {
            self.make_ready(row, facts.sink);
        }
        true
    }

    /// Brings time forward: rows whose due time has come become ready, breakers half open.
    /// At most `budget` rows; true when there is more to do.
    pub fn advance(&mut self, now_ms: u64, rows: &impl Rows, budget: u32) -> bool {
        while let Some(&Reverse((until_ms, no))) = self.reopenings.peek() {
            if until_ms > now_ms {
                break;
            }
            self.reopenings.pop();
            if self.lanes.get_mut(SinkNo(no)).breaker.tick(now_ms) {
                self.breaker_transitions += 1;
                self.lanes.refresh(SinkNo(no));
            }
        }
        for _ in 0..budget {
            let Some(row) = self.wheel.pop_due(&mut self.links, now_ms) else {
                return false;
            };
            if let Some(facts) = rows.facts(RowId(row)) {
                self.make_ready(RowId(row), facts.sink);
            }
        }
        true
    }

    /// When `advance` has something to do next, if nothing else happens.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let reopening = self
            .reopenings
            .peek()
            .map(|Reverse((until_ms, _))| *until_ms);
        match (self.wheel.next_due_ms(), reopening) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The next thing to do now, if there is one.
    pub fn next(&mut self, rows: &impl Rows) -> Option<Decision> {
        loop {
            let no = self.lanes.turn()?;
            let lane = self.lanes.get_mut(no);
            let row = RowId(lane.ready.head()?);
            let facts = rows.facts(row);
            let Some(facts) = facts.filter(|facts| facts.sink == no) else {
                // The store has finished the row meanwhile, or its number names another row now.
                self.take_ready(no);
                if let Some(facts) = facts {
                    self.make_ready(row, facts.sink);
                }
                continue;
            };
            if lane.state == LaneState::Gone {
                self.take_ready(no);
                self.lanes.charge(no, 0);
                return Some(Decision::SinkGone(row, no));
            }
            match self.room(no, facts.bytes) {
                Room::Yes => return Some(Decision::Start(self.start(row, no, facts))),
                Room::NotForLane => self.lanes.get_mut(no).full = true,
                Room::NotForTenant => {
                    let tenant = self.lanes.get_mut(no).tenant();
                    self.lanes.tenant_mut(tenant).full = true;
                }
                // IMPORTANT: nobody overtakes the row whose turn it is, else a large one would
                // wait for ever behind small ones.
                Room::NotForCore => return None,
            }
        }
    }

    /// Ends an attempt and says what to write. `random` are 64 random bits for the back-off.
    pub fn finish(&mut self, start: Start, outcome: Outcome, now_ms: u64, random: u64) -> Verdict {
        let Start {
            row,
            sink,
            attempt,
            bytes,
            probe,
        } = start;
        self.links.release(row.0);
        self.inflight.remove(bytes);
        let tenant = self.lanes.get_mut(sink).tenant();
        self.judge_breaker(sink, outcome, probe, now_ms);
        let lane = self.lanes.get_mut(sink);
        lane.inflight.remove(bytes);
        lane.full = false;
        let retry = lane.retry();
        let tenant = self.lanes.tenant_mut(tenant);
        tenant.inflight.remove(bytes);
        tenant.full = false;

        let verdict = match outcome {
            Outcome::Delivered => Verdict::Delivered,
            Outcome::Permanent => Verdict::Dead {
                attempts: attempt,
                reason: DeadReason::Permanent,
            },
            Outcome::Retry { .. } if attempt >= retry.attempts_max.min(ATTEMPTS_MAX.into()) => {
                Verdict::Dead {
                    attempts: attempt,
                    reason: DeadReason::AttemptsExhausted,
                }
            }
            Outcome::Retry { after_ms } => Verdict::RetryIn {
                attempts: attempt,
                delay_ms: retry.delay_with_retry_after_ms(attempt, random, after_ms.unwrap_or(0)),
            },
            Outcome::NotMade { .. } => Verdict::Unchanged,
        };
        let again_ms = match (verdict, outcome) {
            (Verdict::RetryIn { delay_ms, .. }, _) => Some(delay_ms),
            (_, Outcome::NotMade { again_ms }) => Some(again_ms),
            _ => None,
        };
        if let Some(again_ms) = again_ms
            && !self
                .wheel
                .insert(&mut self.links, row.0, now_ms + again_ms, now_ms)
        {
            self.make_ready(row, sink);
        }
        self.lanes.refresh(sink);
        verdict
    }

    /// Gauges. Walks the lanes: not for every event.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            ready_count: self.ready_count,
            scheduled_count: self.wheel.count(),
            inflight: self.inflight,
            ..Counts::default()
        };
        for (_, lane) in self.lanes.iter() {
            if lane.is_held() {
                counts.held_count += lane.ready.count();
            }
            counts.paused_sinks_count +=
                u32::from(matches!(lane.state, LaneState::Live(config) if config.paused));
            counts.open_breakers_count += u32::from(lane.breaker.state() != BreakerState::Closed);
        }
        counts
    }

    /// The row at the head of every lane that has one: the one that waits longest there.
    pub fn heads(&self) -> impl Iterator<Item = (SinkNo, RowId)> {
        self.lanes
            .iter()
            .filter_map(|(no, lane)| lane.ready.head().map(|row| (no, RowId(row))))
    }

    /// How often a breaker changed its state so far.
    pub fn breaker_transitions(&self) -> u64 {
        self.breaker_transitions
    }

    /// Rows in flight.
    pub fn inflight(&self) -> Load {
        self.inflight
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.links.bytes() + self.lanes.bytes() + self.wheel.bytes() + size_of::<Scheduler>()
    }

    fn make_ready(&mut self, row: RowId, sink: SinkNo) {
        self.lanes.get_mut(sink).ready.push(&mut self.links, row.0);
        self.ready_count += 1;
        self.lanes.refresh(sink);
    }

    fn take_ready(&mut self, sink: SinkNo) {
        if self
            .lanes
            .get_mut(sink)
            .ready
            .pop(&mut self.links)
            .is_some()
        {
            self.ready_count -= 1;
        }
    }

    fn start(&mut self, row: RowId, sink: SinkNo, facts: RowFacts) -> Start {
        self.take_ready(sink);
        self.links.hold(row.0);
        self.lanes.charge(sink, facts.bytes);
        let lane = self.lanes.get_mut(sink);
        let probe = lane.breaker.start();
        lane.inflight.add(facts.bytes);
        let tenant = lane.tenant();
        self.lanes.tenant_mut(tenant).inflight.add(facts.bytes);
        self.inflight.add(facts.bytes);
        self.breaker_transitions += u64::from(probe);
        Start {
            row,
            sink,
            attempt: facts.attempts + 1,
            bytes: facts.bytes,
            probe,
        }
    }

    /// A lane may hold an eighth of the bytes, a tenant half of the window, when others are
    /// there; so one slow sink or one busy tenant never takes what the others need.
    fn room(&mut self, sink: SinkNo, bytes: u32) -> Room {
        let Limits {
            inflight_max,
            inflight_bytes_max,
            ..
        } = self.limits;
        let (other_lanes, other_tenants) = self.lanes.is_shared();
        let lane = self.lanes.get_mut(sink);
        let tenant = lane.tenant();
        if other_lanes
            && !lane
                .inflight
                .has_room(bytes, u32::MAX, inflight_bytes_max / 8)
        {
            return Room::NotForLane;
        }
        let tenant = self.lanes.tenant_mut(tenant);
        if other_tenants
            && !tenant
                .inflight
                .has_room(bytes, inflight_max.div_ceil(2), inflight_bytes_max / 2)
        {
            return Room::NotForTenant;
        }
        if self
            .inflight
            .has_room(bytes, inflight_max, inflight_bytes_max)
        {
            Room::Yes
        } else {
            Room::NotForCore
        }
    }

    fn judge_breaker(&mut self, sink: SinkNo, outcome: Outcome, probe: bool, now_ms: u64) {
        let breaker = &mut self.lanes.get_mut(sink).breaker;
        match outcome {
            // A refusal for good is an answer: the sink works.
            Outcome::Delivered | Outcome::Permanent => {
                self.breaker_transitions += u64::from(breaker.success(probe));
            }
            Outcome::Retry { .. } => {
                if let Some(until_ms) = breaker.failure(&self.limits.breaker, probe, now_ms) {
                    self.breaker_transitions += 1;
                    self.reopenings.push(Reverse((until_ms, sink.0)));
                }
            }
            Outcome::NotMade { .. } => breaker.forget(probe),
        }
    }
}

enum Room {
    Yes,
    NotForLane,
    NotForTenant,
    NotForCore,
}
