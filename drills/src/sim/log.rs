//! The intake log of a simulated world: one partition that outlives every life of the node.
//!
//! It keeps what the interface of a log promises (an answer in time for each attempt, at most one
//! late confirm after it) and otherwise does its worst: confirms late, out of order or never, lands
//! records twice or though it said that it failed, is away for a while, asks for less, refuses a
//! record for good, loses its tail, or becomes another log under the same name.
//!
//! What happens to an attempt is drawn when it is handed over; it goes on when the node dies.
//! Runs in drills only.

mod ask;
mod publisher;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use ankusa_intake::{Class, Failure, PermanentAbout};
use ankusa_wal::sim::{SimRng, SimWorld};
use bytes::Bytes;

pub use publisher::SimPublisher;

use super::trace::Trace;

/// The node id of every life.
pub const NODE: &str = "simulated";

/// Largest record that the log takes while it is picky, bytes.
const PICKY_BYTES_MAX: usize = 12_000;

/// One record as the log holds it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its position.
    pub position: u64,
    /// Shard.
    pub shard: u16,
    /// Seq.
    pub seq: u64,
    /// Hook id.
    pub id: [u8; 16],
    /// Incarnation.
    pub incarnation: u32,
    /// The encoded hook.
    pub value: Bytes,
}

/// How the log is today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Answers soon.
    Sound,
    /// Answers within tens of milliseconds.
    Slow,
    /// Answers beyond any deadline, but lands what it is given.
    Stalled,
    /// Lands nothing and answers nothing.
    Away,
    /// Each attempt ends in its own way.
    Mixed,
}

/// How often what happened, over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Records handed over.
    pub handed: u64,
    /// Records landed, repeats included.
    pub landed: u64,
    /// Landed a second time by the log itself.
    pub doubled: u64,
    /// Landed, and the node was told that it failed.
    pub landed_failed: u64,
    /// Confirmed after the deadline.
    pub late: u64,
    /// Neither landed nor answered.
    pub swallowed: u64,
    /// Failed by a class of its own.
    pub refused: u64,
    /// Times the tail was lost or the log made anew.
    pub went_back: u64,
}

impl LogCounters {
    /// Faults met.
    pub fn faults(&self) -> u64 {
        self.doubled
            + self.landed_failed
            + self.late
            + self.swallowed
            + self.refused
            + self.went_back
    }
}

impl std::ops::AddAssign for LogCounters {
    fn add_assign(&mut self, other: LogCounters) {
        self.handed += other.handed;
        self.landed += other.landed;
        self.doubled += other.doubled;
        self.landed_failed += other.landed_failed;
        self.late += other.late;
        self.swallowed += other.swallowed;
        self.refused += other.refused;
        self.went_back += other.went_back;
    }
}

impl std::fmt::Display for LogCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "handed={} landed={} doubled={} landed_failed={} late={} swallowed={} refused={} \
             went_back={}",
            self.handed,
            self.landed,
            self.doubled,
            self.landed_failed,
            self.late,
            self.swallowed,
            self.refused,
            self.went_back
        )
    }
}

pub(super) struct Inner {
    world: SimWorld,
    trace: Rc<Trace>,
    rng: RefCell<SimRng>,
    weather: Cell<Weather>,
    is_picky: Cell<bool>,
    /// Every id that ever landed.
    ever: RefCell<BTreeSet<[u8; 16]>>,
    identity: Cell<u32>,
    earliest: Cell<u64>,
    head: Cell<u64>,
    records: RefCell<Vec<Stored>>,
    counters: Cell<LogCounters>,
}

/// The log. A clone is the same log.
#[derive(Clone)]
pub struct SimLog(pub(super) Rc<Inner>);

/// What becomes of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Lands after so long and is confirmed so much later.
    Confirm {
        land_us: u64,
        answer_us: u64,
        twice: bool,
    },
    /// Lands, and is told as failed.
    LandFail {
        land_us: u64,
        answer_us: u64,
        failure: Failure,
    },
    /// Fails and does not land.
    Fail { answer_us: u64, failure: Failure },
    /// Lands and is never answered.
    LandSilent { land_us: u64 },
    /// Nothing at all.
    Swallow,
}

impl SimLog {
    /// An empty log.
    pub fn new(world: &SimWorld, trace: &Rc<Trace>, seed: u64) -> SimLog {
        SimLog(Rc::new(Inner {
            world: world.clone(),
            trace: Rc::clone(trace),
            rng: RefCell::new(SimRng::stream(seed, 31)),
            weather: Cell::new(Weather::Sound),
            is_picky: Cell::new(false),
            ever: RefCell::default(),
            identity: Cell::new(1),
            earliest: Cell::new(0),
            head: Cell::new(0),
            records: RefCell::default(),
            counters: Cell::default(),
        }))
    }

    /// One core's way into it.
    pub fn publisher(&self) -> Rc<SimPublisher> {
        SimPublisher::new(self)
    }

    /// How it is from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.0.trace.note(format_args!("log: {weather:?}"));
        self.0.weather.set(weather);
    }

    /// From now on it refuses large records for good, or no longer.
    pub fn set_picky(&self, is_picky: bool) {
        self.0.trace.note(format_args!("log: picky {is_picky}"));
        self.0.is_picky.set(is_picky);
    }

    /// Whether a hook ever landed in it.
    pub fn ever_held(&self, id: &[u8; 16]) -> bool {
        self.0.ever.borrow().contains(id)
    }

    /// Whether it holds a hook now.
    pub fn holds(&self, id: &[u8; 16]) -> bool {
        self.0.records.borrow().iter().any(|r| r.id == *id)
    }

    /// How it is.
    pub fn weather(&self) -> Weather {
        self.0.weather.get()
    }

    /// Notes a line in the run's trace.
    pub fn note(&self, line: std::fmt::Arguments<'_>) {
        self.0.trace.note(line);
    }

    /// What happened so far.
    pub fn counters(&self) -> LogCounters {
        self.0.counters.get()
    }

    /// Every record held, in order.
    pub fn records(&self) -> Vec<Stored> {
        self.0.records.borrow().clone()
    }

    /// The position that the next record takes.
    pub fn head(&self) -> u64 {
        self.0.head.get()
    }

    /// Its last records are gone, as if less than it confirmed had been there.
    pub fn lose_tail(&self, records: u64) {
        let head = self
            .head()
            .saturating_sub(records)
            .max(self.0.earliest.get());
        self.0
            .trace
            .note(format_args!("log: head {} back to {head}", self.head()));
        self.0.records.borrow_mut().retain(|r| r.position < head);
        self.0.head.set(head);
        self.count(|c| c.went_back += 1);
    }

    /// Deleted and made again: another log under the same name.
    pub fn recreate(&self) {
        self.0.trace.note(format_args!("log: made anew"));
        self.0.records.borrow_mut().clear();
        self.0.head.set(0);
        self.0.earliest.set(0);
        self.0.identity.set(self.0.identity.get() + 1);
        self.count(|c| c.went_back += 1);
    }

    /// Retention has passed everything below this position.
    pub fn forget_below(&self, position: u64) {
        let position = position.min(self.head());
        self.0
            .trace
            .note(format_args!("log: nothing below {position}"));
        self.0
            .records
            .borrow_mut()
            .retain(|r| r.position >= position);
        self.0.earliest.set(self.0.earliest.get().max(position));
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut LogCounters)) {
        let mut counters = self.0.counters.get();
        change(&mut counters);
        self.0.counters.set(counters);
    }

    pub(super) fn is_away(&self) -> bool {
        self.0.weather.get() == Weather::Away
    }

    /// The record arrives: its position. None: the log that it was sent to is no more.
    pub(super) fn land(&self, identity: u32, mut record: Stored) -> Option<u64> {
        if identity != self.0.identity.get() {
            return None;
        }
        let position = self.0.head.get();
        record.position = position;
        self.0.ever.borrow_mut().insert(record.id);
        self.0.trace.note(format_args!(
            "log: {}/{} at {position}",
            record.shard, record.seq
        ));
        self.0.records.borrow_mut().push(record);
        self.0.head.set(position + 1);
        self.count(|c| c.landed += 1);
        Some(position)
    }

    /// Draws what becomes of a record of this size.
    pub(super) fn fate(&self, bytes: usize) -> Fate {
        let mut rng = self.0.rng.borrow_mut();
        if self.0.is_picky.get() && bytes > PICKY_BYTES_MAX {
            return Fate::Fail {
                answer_us: rng.between(100, 2_000),
                failure: failure(Class::Permanent(PermanentAbout::Record)),
            };
        }
        let soon = |rng: &mut SimRng| Fate::Confirm {
            land_us: rng.between(10, 1_000),
            answer_us: rng.between(10, 1_000),
            twice: false,
        };
        match self.0.weather.get() {
            Weather::Sound => soon(&mut rng),
            Weather::Slow => Fate::Confirm {
                land_us: rng.between(500, 30_000),
                answer_us: rng.between(500, 40_000),
                twice: false,
            },
            Weather::Stalled => Fate::Confirm {
                land_us: rng.between(10, 4_000_000),
                answer_us: rng.between(2_000_000, 9_000_000),
                twice: false,
            },
            Weather::Away => Fate::Swallow,
            Weather::Mixed => mixed(&mut rng, soon),
        }
    }
}

fn mixed(rng: &mut SimRng, soon: impl Fn(&mut SimRng) -> Fate) -> Fate {
    let unavailable = failure(Class::Unavailable);
    let answer_us = rng.between(50, 60_000);
    match rng.below(20) {
        0..9 => soon(rng),
        9 | 10 => Fate::Confirm {
            land_us: rng.between(10, 60_000),
            answer_us,
            twice: true,
        },
        11 | 12 => Fate::LandFail {
            land_us: rng.between(10, 3_000_000),
            answer_us,
            failure: unavailable,
        },
        13 | 14 => Fate::Confirm {
            land_us: rng.between(10, 3_000_000),
            answer_us: rng.between(2_000_000, 6_000_000),
            twice: false,
        },
        15 => Fate::LandSilent {
            land_us: rng.between(10, 3_000_000),
        },
        16 => Fate::Swallow,
        17 => Fate::Fail {
            answer_us,
            failure: failure(Class::Throttled {
                retry_after_ms: rng.coin().then(|| rng.between(1, 2_000) as u32),
            }),
        },
        18 => Fate::Fail {
            answer_us,
            failure: failure(Class::NotFound),
        },
        _ => Fate::Fail {
            answer_us,
            failure: unavailable,
        },
    }
}

pub(super) fn failure(class: Class) -> Failure {
    Failure {
        class,
        reason: "simulated",
    }
}
