//! What an HTTP sink's answer means.
//!
//! | status | outcome |
//! |---|---|
//! | 2xx | delivered |
//! | 400 401 403 404 410 413 422 | dead letter at once: asking again does not change the answer |
//! | 3xx | retried; not followed, since following would resend the hook elsewhere or as a GET. An operator puts the URL right, and what waited is delivered without a replay |
//! | 408 429 5xx | retried, after `Retry-After` where it says so |
//! | anything else | retried |
//!
//! Pure.

use std::time::{Duration, SystemTime};

use super::outcome::{Cause, Outcome};
use crate::dispatch::RETRY_AFTER_MS_MAX;

/// The outcome of an answer. `now_ms` is the wall clock, for a `Retry-After` that is a date.
pub fn judge(status: u16, retry_after: Option<&[u8]>, now_ms: u64) -> Outcome {
    match status {
        200..=299 => Outcome::Delivered,
        300..=399 => Outcome::retry(Cause::Redirect(status)),
        400 | 401 | 403 | 404 | 410 | 413 | 422 => Outcome::Permanent {
            cause: Cause::Status(status),
        },
        _ => Outcome::Retry {
            cause: Cause::Status(status),
            retry_after_ms: match status {
                408 | 429 | 500..=599 => retry_after.and_then(|v| parse_retry_after(v, now_ms)),
                _ => None,
            },
        },
    }
}

/// Milliseconds from now, at most [`RETRY_AFTER_MS_MAX`]; `None` when it is neither a number of
/// seconds nor an HTTP date. A date that has passed is now.
pub fn parse_retry_after(value: &[u8], now_ms: u64) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_ascii();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
        return Some(seconds.saturating_mul(1000).min(RETRY_AFTER_MS_MAX));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let now = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(now_ms))?;
    let wait = date.duration_since(now).unwrap_or_default();
    Some(
        u64::try_from(wait.as_millis()).map_or(RETRY_AFTER_MS_MAX, |ms| ms.min(RETRY_AFTER_MS_MAX)),
    )
}
