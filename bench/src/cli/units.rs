//! Times and sizes as options. Pure.

use std::time::Duration;

/// `250ms`, `10s`, `2m`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split(text);
    let value: f64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a time such as 500ms, 10s or 2m"))?;
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is not a unit of time: us, ms, s, m or h")),
    };
    Duration::try_from_secs_f64(value * scale).map_err(|e| e.to_string())
}

/// `1024`, `4k` or `4KiB`, `1M` or `1MiB` (powers of two).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = split(text);
    let value: usize = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a size such as 1024, 4k or 1MiB"))?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        _ => return Err(format!("{unit:?} is not a unit of size: k, KiB, M or MiB")),
    };
    value
        .checked_mul(scale)
        .ok_or_else(|| format!("{text} is too large"))
}

fn split(text: &str) -> (&str, &str) {
    let at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_and_without_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        assert!(parse_duration("3 weeks").is_err());
        assert!(parse_duration("").is_err());
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(parse_size("10000"), Ok(10_000));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert!(parse_size("1.5k").is_err());
        assert!(parse_size("-1").is_err());
    }
}
