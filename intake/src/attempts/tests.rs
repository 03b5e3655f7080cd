//! One answer in time, at most one late confirm, bytes held until the client is done.
#![allow(clippy::unwrap_used)]

use super::*;

const DOWN: Failure = Failure {
    class: Class::Unavailable,
    reason: "down",
};

fn add(attempts: &mut Attempts, token: u64, deadline_us: u64) -> Key {
    attempts.add(token, 5, 0, deadline_us, Bytes::from_static(b"abcd"))
}

#[test]
fn a_late_confirm_is_told_and_a_late_failure_is_not() {
    let mut attempts = Attempts::default();
    let (a, b) = (add(&mut attempts, 1, 10), add(&mut attempts, 2, 10));
    let mut out = Vec::new();
    attempts.expire(9, &mut out);
    assert_eq!(out, []);
    attempts.expire(10, &mut out);
    assert_eq!(out.len(), 2);
    assert_eq!(attempts.held(), (2, 8), "the client still reads the bytes");
    let confirm = Confirm {
        position: Some(4),
        floor: 5,
    };
    assert_eq!(
        attempts.settle(a, Ok(Some(4))),
        Some(Answer::Confirmed {
            token: 1,
            confirm,
            late: true
        })
    );
    assert!(confirm.log_went_back());
    assert_eq!(attempts.settle(b, Err(DOWN)), None);
    assert_eq!(attempts.held(), (0, 0));
    attempts.expire(100, &mut out);
    assert_eq!(out.len(), 2);
}

#[test]
fn an_old_key_never_settles_the_attempt_that_took_its_slot() {
    let mut attempts = Attempts::default();
    let a = add(&mut attempts, 1, 10);
    assert!(attempts.settle(a, Ok(None)).is_some());
    let b = add(&mut attempts, 2, 10);
    assert_eq!(attempts.settle(a, Ok(Some(9))), None);
    assert!(attempts.settle(b, Err(DOWN)).is_some());
}

#[test]
fn an_earlier_deadline_handed_over_later_is_kept() {
    let mut attempts = Attempts::default();
    add(&mut attempts, 1, 100);
    add(&mut attempts, 2, 50);
    let mut out = Vec::new();
    attempts.expire(60, &mut out);
    assert!(matches!(out[..], [Answer::Failed { token: 2, .. }]));
}
