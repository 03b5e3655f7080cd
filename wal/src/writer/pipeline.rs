//! Groups in flight: pure. LSNs, the durable mark, what settles when, the freeze.
//!
//! Invariants, asserted where they move: `applied ≥ durable`; the durable mark rises one LSN
//! after the other and only over groups whose write and sync both succeeded; from the first
//! failure reaped it is frozen, and a later success raises nothing; a group settles once, in LSN
//! order. LSNs are never given twice: those of fenced groups are skipped.
//!
//! It knows no disk and no clock.

use std::collections::VecDeque;

use crate::ids::Lsn;
use crate::mutations;
use crate::store::{Outcome, Settled};

/// A group in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    lsn: Lsn,
    started_us: u64,
    /// Submitted by the store itself: its settling is nobody's business.
    is_internal: bool,
    /// `None` while its I/O runs.
    result: Option<bool>,
    /// Already told to the caller.
    is_settled: bool,
}

/// What a completion changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing that anyone must hear of.
    Waiting,
    /// The durable mark rose to here.
    Durable(Lsn),
    /// First failure: everything above the mark is fenced.
    Froze {
        /// The frozen durable mark.
        durable: Lsn,
    },
}

/// The pipeline of one shard.
#[derive(Debug)]
pub(crate) struct Pipeline {
    flights: VecDeque<Flight>,
    settled: VecDeque<Settled>,
    inflight_max: usize,
    applied: Lsn,
    durable: Lsn,
    frozen: bool,
}

impl Pipeline {
    /// A pipeline after an open: everything up to `durable` is on the medium; LSNs up to `given`
    /// were given to groups that are in no log.
    pub(crate) fn new(durable: Lsn, given: Lsn, inflight_max: usize) -> Pipeline {
        assert!(given >= durable, "an LSN would be given twice");
        Pipeline {
            flights: VecDeque::with_capacity(inflight_max + 1),
            settled: VecDeque::with_capacity(inflight_max + 1),
            inflight_max,
            applied: given,
            durable,
            frozen: false,
        }
    }

    pub(crate) fn applied(&self) -> Lsn {
        self.applied
    }

    /// The last group that the state holds: one in flight and not fenced, else the durable mark.
    /// Below [`Pipeline::applied`] once LSNs were skipped.
    pub(crate) fn visible(&self) -> Lsn {
        let holds = self.flights.iter().rev().find(|f| !f.is_settled);
        holds.map_or(self.durable, |flight| flight.lsn)
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Groups whose I/O runs, those of a fence included.
    pub(crate) fn inflight(&self) -> usize {
        self.flights.len()
    }

    /// True when another group may start.
    pub(crate) fn has_room(&self) -> bool {
        !self.frozen && self.flights.len() < self.inflight_max
    }

    /// When the oldest group in flight was started.
    pub(crate) fn oldest_us(&self) -> Option<u64> {
        self.flights.front().map(|flight| flight.started_us)
    }

    /// Takes the next LSN for a group that is applied now and written next.
    pub(crate) fn submit(&mut self, now_us: u64, is_internal: bool) -> Lsn {
        assert!(
            self.has_room(),
            "a group submitted without room in the pipeline"
        );
        let lsn = self.applied.next();
        self.applied = lsn;
        self.flights.push_back(Flight {
            lsn,
            started_us: now_us,
            is_internal,
            result: None,
            is_settled: false,
        });
        lsn
    }

    /// The I/O of a group has ended, well or not. Called once per group, in any order.
    pub(crate) fn complete(&mut self, lsn: Lsn, ok: bool) -> Step {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.lsn == lsn) else {
            return Step::Waiting;
        };
        assert!(flight.result.is_none(), "the I/O of LSN {lsn} ended twice");
        flight.result = Some(ok);
        if self.frozen {
            self.drop_reaped();
            return Step::Waiting;
        }
        if !ok {
            return self.freeze();
        }
        let before = self.durable;
        while let Some(flight) = self.flights.front().copied() {
            if flight.result != Some(true) {
                break;
            }
            self.flights.pop_front();
            assert!(flight.lsn > self.durable, "durable mark moves backwards");
            self.durable = flight.lsn;
            self.settle(flight, Outcome::Durable);
        }
        assert!(self.durable <= self.applied);
        if self.durable > before {
            Step::Durable(self.durable)
        } else {
            Step::Waiting
        }
    }

    fn freeze(&mut self) -> Step {
        self.frozen = true;
        for at in 0..self.flights.len() {
            let flight = self.flights[at];
            assert!(flight.lsn > self.durable, "a durable group still in flight");
            self.settle(flight, Outcome::Fenced);
            self.flights[at].is_settled = true;
        }
        self.drop_reaped();
        Step::Froze {
            durable: self.durable,
        }
    }

    fn drop_reaped(&mut self) {
        self.flights.retain(|flight| flight.result.is_none());
    }

    fn settle(&mut self, flight: Flight, outcome: Outcome) {
        if !flight.is_internal && !flight.is_settled {
            self.settled.push_back(Settled {
                lsn: flight.lsn,
                outcome,
            });
        }
    }

    /// The next group to tell the caller of.
    pub(crate) fn take_settled(&mut self) -> Option<Settled> {
        self.settled.pop_front()
    }

    /// A new segment has been started: groups may be submitted again.
    pub(crate) fn thaw(&mut self) {
        assert!(
            self.frozen && self.flights.is_empty(),
            "thawed with I/O in flight"
        );
        self.frozen = false;
    }

    /// The undo set begins above this LSN.
    pub(crate) fn undo_above(durable: Lsn) -> Lsn {
        if mutations::is("undo_at_mark") {
            durable.prev()
        } else {
            durable
        }
    }
}

#[cfg(test)]
mod tests;
