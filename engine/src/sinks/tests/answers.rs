//! What answers mean.

use proptest::prelude::*;

use super::*;
use crate::dispatch::RETRY_AFTER_MS_MAX;

/// Sun, 06 Nov 1994 08:49:37 GMT.
const NOW_MS: u64 = 784_111_777_000;

#[test]
fn every_status_has_its_outcome() {
    for status in 100..1000u16 {
        let outcome = judge(status, None, NOW_MS);
        let cause = Cause::Status(status);
        let expected = match status {
            200..=299 => Outcome::Delivered,
            300..=399 => Outcome::retry(Cause::Redirect(status)),
            400 | 401 | 403 | 404 | 410 | 413 | 422 => Outcome::Permanent { cause },
            _ => Outcome::retry(cause),
        };
        assert_eq!(outcome, expected, "{status}");
    }
}

#[test]
fn retry_after_counts_where_the_sink_is_only_busy() {
    for (status, honoured) in [
        (408, true),
        (429, true),
        (500, true),
        (503, true),
        (599, true),
        (409, false),
        (425, false),
    ] {
        let retry_after_ms = honoured.then_some(7_000);
        let cause = Cause::Status(status);
        assert_eq!(
            judge(status, Some(b"7"), NOW_MS),
            Outcome::Retry {
                cause,
                retry_after_ms
            }
        );
    }
    assert_eq!(
        judge(301, Some(b"7"), NOW_MS),
        Outcome::retry(Cause::Redirect(301))
    );
}

#[test]
fn retry_after_is_seconds_or_a_date_and_at_most_an_hour() {
    for (value, expected) in [
        ("0", Some(0)),
        ("120", Some(120_000)),
        (" 120 ", Some(120_000)),
        ("3600", Some(RETRY_AFTER_MS_MAX)),
        ("3601", Some(RETRY_AFTER_MS_MAX)),
        ("18446744073709551615", Some(RETRY_AFTER_MS_MAX)),
        ("99999999999999999999999999", Some(RETRY_AFTER_MS_MAX)),
        ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
        ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10_000)),
        ("Sun Nov  6 08:49:47 1994", Some(10_000)),
        ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
        ("Mon, 06 Nov 2023 08:49:27 GMT", Some(RETRY_AFTER_MS_MAX)),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Sun, 99 Nov 1994 08:49:27 GMT", None),
        ("\u{FEFF}1", None),
    ] {
        assert_eq!(
            parse_retry_after(value.as_bytes(), NOW_MS),
            expected,
            "{value}"
        );
    }
    assert_eq!(parse_retry_after(b"\xff", NOW_MS), None);
}

#[test]
fn scheduler_learns_what_it_needs() {
    use crate::dispatch::Outcome as Scheduled;
    let cause = Cause::Status(503);
    let retry = Outcome::Retry {
        cause,
        retry_after_ms: Some(5),
    };
    assert_eq!(
        Scheduled::from(retry),
        Scheduled::Retry { after_ms: Some(5) }
    );
    assert_eq!(
        Scheduled::from(Outcome::Permanent { cause }),
        Scheduled::Permanent
    );
    assert_eq!(Scheduled::from(Outcome::Delivered), Scheduled::Delivered);
    let not_made = Outcome::NotMade {
        cause: Cause::Busy,
        again_ms: 9,
    };
    assert_eq!(
        Scheduled::from(not_made),
        Scheduled::NotMade { again_ms: 9 }
    );
    assert_eq!(cause.to_string(), "status:503");
    assert_eq!(Cause::Egress.to_string(), "egress_refused");
}

proptest! {
    #[test]
    fn no_retry_after_panics(value in proptest::collection::vec(any::<u8>(), 0..60), now in any::<u64>()) {
        if let Some(ms) = parse_retry_after(&value, now) {
            prop_assert!(ms <= RETRY_AFTER_MS_MAX);
        }
    }

    #[test]
    fn no_date_panics(value in "(Sun|Sunday|Mon),? ?[0-9]{1,3}[ -]Nov[ -][0-9]{1,6} [0-9:]{1,9} GMT", now in any::<u64>()) {
        let _ = parse_retry_after(value.as_bytes(), now);
    }
}
