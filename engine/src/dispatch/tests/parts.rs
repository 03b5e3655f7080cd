//! Back-off, breaker, wheel and links.

use proptest::prelude::*;

use super::super::backoff::{RETRY_AFTER_MS_MAX, RetryPolicy};
use super::super::breaker::{Breaker, BreakerPolicy, BreakerState};
use super::super::links::Links;
use super::super::wheel::{DELAY_MS_MAX, TICK_MS, Wheel};

#[test]
fn backoff_stays_between_half_and_whole_of_the_doubling_delay() {
    let policy = RetryPolicy::default();
    for attempt in 1..=200u32 {
        let whole = if attempt > 12 {
            300_000
        } else {
            (100u64 << (attempt - 1)).min(300_000)
        };
        assert_eq!(policy.delay_ms(attempt, 0), whole / 2);
        assert_eq!(policy.delay_ms(attempt, u64::MAX), whole);
        let middle = policy.delay_ms(attempt, u64::MAX / 2);
        assert!(
            middle > whole / 2 && middle < whole,
            "{attempt}: {middle} of {whole}"
        );
        let steady = RetryPolicy {
            jitter: false,
            ..policy
        };
        assert_eq!(steady.delay_ms(attempt, 0), whole);
    }
}

#[test]
fn eighty_four_attempts_last_about_six_hours() {
    let steady = RetryPolicy {
        jitter: false,
        ..RetryPolicy::default()
    };
    let total_ms: u64 = (1..84).map(|attempt| steady.delay_ms(attempt, 0)).sum();
    let hours = total_ms as f64 / 3_600_000.0;
    assert!((5.5..6.5).contains(&hours), "{hours}");
}

#[test]
fn extreme_policies_do_not_overflow() {
    let policy = RetryPolicy {
        base_ms: u64::MAX,
        max_ms: u64::MAX,
        attempts_max: u32::MAX,
        jitter: true,
    };
    assert_eq!(policy.delay_ms(u32::MAX, u64::MAX), u64::MAX);
    let zero = RetryPolicy {
        base_ms: 0,
        ..policy
    };
    assert_eq!(zero.delay_ms(1, 7), 1);
}

#[test]
fn retry_after_is_honoured_up_to_an_hour_and_never_shortens_the_backoff() {
    let policy = RetryPolicy {
        jitter: false,
        ..RetryPolicy::default()
    };
    assert_eq!(policy.delay_with_retry_after_ms(1, 0, 5_000), 5_000);
    assert_eq!(
        policy.delay_with_retry_after_ms(1, 0, 86_400_000),
        RETRY_AFTER_MS_MAX
    );
    assert_eq!(policy.delay_with_retry_after_ms(20, 0, 1_000), 300_000);
}

#[test]
fn due_times_written_under_a_wrong_clock_are_clamped() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.clamp_ms(0), 0);
    assert_eq!(policy.clamp_ms(RETRY_AFTER_MS_MAX), RETRY_AFTER_MS_MAX);
    assert_eq!(policy.clamp_ms(RETRY_AFTER_MS_MAX + 1), policy.max_ms);
    assert_eq!(policy.clamp_ms(u64::MAX), policy.max_ms);
    let long = RetryPolicy {
        max_ms: 2 * RETRY_AFTER_MS_MAX,
        ..policy
    };
    assert_eq!(
        long.clamp_ms(2 * RETRY_AFTER_MS_MAX),
        2 * RETRY_AFTER_MS_MAX
    );
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    Open,
    HalfOpen,
    Probing,
}

fn breaker_in(state: State, policy: &BreakerPolicy) -> Breaker {
    let mut breaker = Breaker::new();
    if state == State::Closed {
        return breaker;
    }
    for _ in 0..policy.failures {
        breaker.failure(policy, false, 0);
    }
    if state != State::Open {
        breaker.tick(policy.open_ms);
    }
    if state == State::Probing {
        assert!(breaker.start());
    }
    breaker
}

fn name(breaker: &Breaker) -> State {
    match breaker.state() {
        BreakerState::Closed => State::Closed,
        BreakerState::Open { .. } => State::Open,
        BreakerState::HalfOpen => State::HalfOpen,
        BreakerState::Probing => State::Probing,
    }
}

/// Every state with every event: the table at the head of the breaker.
#[test]
fn every_breaker_transition_is_the_one_in_the_table() {
    use State::*;
    let policy = BreakerPolicy::default();
    for state in [Closed, Open, HalfOpen, Probing] {
        for (event, after) in [
            ("early tick", state),
            ("late tick", if state == Open { HalfOpen } else { state }),
            ("start", if state == HalfOpen { Probing } else { state }),
            ("old success", state),
            ("old failure", state),
            (
                "probe success",
                if state == Probing { Closed } else { state },
            ),
            ("probe failure", if state == Probing { Open } else { state }),
            (
                "probe forgotten",
                if state == Probing { HalfOpen } else { state },
            ),
            ("old forgotten", state),
        ] {
            let mut breaker = breaker_in(state, &policy);
            match event {
                "early tick" => _ = breaker.tick(policy.open_ms - 1),
                "late tick" => _ = breaker.tick(policy.open_ms),
                "start" => _ = breaker.start(),
                "old success" => _ = breaker.success(false),
                "old failure" => _ = breaker.failure(&policy, false, 0),
                "probe success" => _ = breaker.success(true),
                "probe failure" => _ = breaker.failure(&policy, true, 0),
                "probe forgotten" => breaker.forget(true),
                "old forgotten" => breaker.forget(false),
                _ => panic!("{event}"),
            }
            assert_eq!(name(&breaker), after, "{state:?} then {event}");
        }
    }
}

#[test]
fn breaker_opens_at_the_fifth_failure_in_a_row_and_a_success_between_resets() {
    let policy = BreakerPolicy::default();
    let mut breaker = Breaker::new();
    for _ in 0..4 {
        assert_eq!(breaker.failure(&policy, false, 0), None);
    }
    breaker.success(false);
    for _ in 0..4 {
        assert_eq!(breaker.failure(&policy, false, 0), None);
    }
    assert_eq!(breaker.failure(&policy, false, 7), Some(7 + 30_000));
}

#[test]
fn open_period_doubles_to_the_longest_and_starts_over_after_a_success() {
    let policy = BreakerPolicy::default();
    let mut breaker = breaker_in(State::Open, &policy);
    let mut now = 0;
    for period in [60_000, 120_000, 240_000, 300_000, 300_000] {
        now += 1_000_000;
        assert!(breaker.tick(now));
        assert!(breaker.start());
        assert_eq!(breaker.failure(&policy, true, now), Some(now + period));
    }
    now += 1_000_000;
    breaker.tick(now);
    breaker.start();
    assert!(breaker.success(true));
    for _ in 0..4 {
        assert_eq!(breaker.failure(&policy, false, now), None);
    }
    assert_eq!(breaker.failure(&policy, false, now), Some(now + 30_000));
}

#[test]
fn probe_may_start_beside_a_window_full_of_hanging_attempts() {
    let policy = BreakerPolicy::default();
    assert!(!breaker_in(State::Closed, &policy).admits(32, 32));
    assert!(breaker_in(State::HalfOpen, &policy).admits(32, 32));
    assert!(!breaker_in(State::Open, &policy).admits(0, 32));
    assert!(!breaker_in(State::Probing, &policy).admits(1, 32));
}

/// The most a row may be late, by how long it waits.
fn lateness_ms(delay_ms: u64) -> u64 {
    2 * TICK_MS + delay_ms / 60
}

proptest! {
    #[test]
    fn wheel_gives_every_row_once_never_early_and_hardly_late(
        start in 0u64..1_000_000_000,
        delays in prop::collection::vec(prop_oneof![1u64..1_000, 1_000u64..400_000, 1u64..40_000_000], 1..200),
        step in prop_oneof![0u64..50, 1u64..5_000, 1u64..10_000_000],
        gap in 0u64..3_000,
    ) {
        let (mut links, mut wheel) = (Links::default(), Wheel::new(start));
        let mut due = Vec::new();
        let mut now = start;
        let mut out = vec![false; delays.len()];
        let mut check_out = |row: u32, now: u64, due: &[(u64, u64)]| {
            let (at, delay) = due[row as usize];
            assert!(!out[row as usize], "row {row} came twice");
            assert!(now >= at, "row {row} is {} ms early", at - now);
            assert!(now - at <= lateness_ms(delay) + step.max(gap), "row {row}: {} ms late of {delay}", now - at);
            out[row as usize] = true;
        };
        for (row, delay) in delays.iter().enumerate() {
            due.push((now + delay, *delay));
            prop_assert!(wheel.insert(&mut links, row as u32, now + delay, now));
            now += gap;
            while let Some(row) = wheel.pop_due(&mut links, now) {
                check_out(row, now, &due);
            }
        }
        while wheel.count() > 0 {
            // Looked at just before and some time after the wheel's own word for when to look.
            let next = wheel.next_due_ms().unwrap();
            now = now.max(next - 1);
            while let Some(row) = wheel.pop_due(&mut links, now) {
                check_out(row, now, &due);
            }
            now = now.max(next) + step;
            while let Some(row) = wheel.pop_due(&mut links, now) {
                check_out(row, now, &due);
            }
        }
        prop_assert!(out.iter().all(|seen| *seen));
    }
}

#[test]
fn short_delay_stays_short_when_nobody_looked_at_the_wheel_for_a_day() {
    let (mut links, mut wheel) = (Links::default(), Wheel::new(0));
    assert!(wheel.insert(&mut links, 0, 5 * 86_400_000, 0));
    let now = 86_400_000;
    assert!(wheel.insert(&mut links, 1, now + 100, now));
    assert!(wheel.next_due_ms().unwrap() <= now + 100 + TICK_MS);
}

#[test]
fn due_time_beyond_the_wheel_is_cut_to_its_reach() {
    let (mut links, mut wheel) = (Links::default(), Wheel::new(50));
    assert!(wheel.insert(&mut links, 0, u64::MAX, 50));
    let due = wheel.next_due_ms().unwrap();
    assert!(
        (DELAY_MS_MAX..DELAY_MS_MAX + DELAY_MS_MAX / 400).contains(&due),
        "{due}"
    );
}

#[test]
fn due_time_that_has_come_is_not_taken_in() {
    let (mut links, mut wheel) = (Links::default(), Wheel::new(1_000));
    assert!(!wheel.insert(&mut links, 0, 1_000, 1_000));
    assert!(!wheel.insert(&mut links, 0, 3, 1_000));
    assert!(links.is_free(0));
    assert!(wheel.insert(&mut links, 0, 1_001, 1_000));
}

#[test]
fn clock_that_goes_back_makes_nothing_early_or_lost() {
    let (mut links, mut wheel) = (Links::default(), Wheel::new(10_000));
    assert!(wheel.insert(&mut links, 0, 12_000, 10_000));
    assert_eq!(wheel.pop_due(&mut links, 5_000), None);
    assert_eq!(wheel.pop_due(&mut links, 11_999), None);
    assert_eq!(wheel.pop_due(&mut links, 12_000), Some(0));
}
