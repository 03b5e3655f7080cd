//! Every state with every event.

use super::BreakerState::{Closed, HalfOpen, Open, Probing};
use super::*;

const EVENTS: [Event; 7] = [
    Event::Confirmed,
    Event::Failed,
    Event::Denied,
    Event::NotReady,
    Event::Elapsed,
    Event::ProbeTaken,
    Event::ProbeGivenBack,
];

#[test]
fn every_state_with_every_event_goes_where_the_table_says() {
    // In the order of EVENTS; closed stands one failure below its limit.
    let table = [
        (Closed, [Closed, Open, Open, Open, Closed, Closed, Closed]),
        (Open, [Closed, Open, Open, Open, HalfOpen, Open, Open]),
        (
            HalfOpen,
            [Closed, Open, Open, Open, HalfOpen, Probing, HalfOpen],
        ),
        (
            Probing,
            [Closed, Open, Open, Open, HalfOpen, Probing, HalfOpen],
        ),
    ];
    for (state, after) in table {
        for (event, wanted) in EVENTS.into_iter().zip(after) {
            let before = Breaker {
                state,
                failures: if state == Closed { 2 } else { 0 },
                changes: 7,
            };
            let got = before.on(event, 3);
            assert_eq!(got.state, wanted, "{state:?} on {event:?}");
            let changed = u32::from(wanted != state);
            assert_eq!(got.changes, 7 + changed, "{state:?} on {event:?}");
            assert_eq!(Breaker::unpack(got.pack()), got);
        }
    }
}

#[test]
fn failures_in_a_row_open_it_and_a_confirm_between_them_starts_the_count_again() {
    let mut breaker = Breaker::CLOSED;
    for event in [
        Event::Failed,
        Event::Failed,
        Event::Confirmed,
        Event::Failed,
        Event::Failed,
    ] {
        breaker = breaker.on(event, 3);
        assert_eq!(breaker.state, Closed);
    }
    assert_eq!(breaker.on(Event::Failed, 3).state, Open);
}

#[test]
fn a_probe_that_fails_opens_it_for_its_whole_time_again() {
    let mut breaker = Breaker::CLOSED.on(Event::Failed, 1);
    let opened = breaker.changes;
    for event in [Event::Elapsed, Event::ProbeTaken, Event::Failed] {
        breaker = breaker.on(event, 1);
    }
    assert_eq!(breaker.state, Open);
    assert_ne!(breaker.changes, opened, "seen as a new opening");
}
