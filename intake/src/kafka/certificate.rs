//! When certificates end: as much of X.509 as that takes.
//!
//! Reads PEM files and walks the outer structure of each certificate to its validity; nothing is
//! verified, that is the client's and the brokers' to do. A file that cannot be read has no end.
//! Pure but for [`earliest_end_s`], which blocks: side threads and boot.

use super::base64;
use super::settings::Tls;

/// The end, in seconds since 1970, of whichever certificate of ours stops working first: the
/// earliest of the client's own chain, and the latest of the authorities (the others may be old
/// ones that a bundle still carries).
pub(super) fn earliest_end_s(tls: &Tls) -> Option<i64> {
    let read = |file: &Option<std::path::PathBuf>| {
        let text = std::fs::read_to_string(file.as_ref()?).ok()?;
        Some(ends_s(&text))
    };
    let own = read(&tls.certificate).and_then(|ends| ends.into_iter().min());
    let authorities = read(&tls.ca).and_then(|ends| ends.into_iter().max());
    own.into_iter().chain(authorities).min()
}

/// The ends of the certificates in a PEM text.
fn ends_s(pem: &str) -> Vec<i64> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split(BEGIN).skip(1);
    blocks
        .filter_map(|block| not_after_s(&base64::decode(block.split(END).next()?)?))
        .collect()
}

/// One element: its tag, its content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let count = usize::from(first & 0x7f);
        if count == 0 || count > 4 {
            return None;
        }
        let (digits, after) = rest.split_at_checked(count)?;
        length = digits.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Certificate → its to-be-signed part → validity → the second time.
fn not_after_s(der: &[u8]) -> Option<i64> {
    const VERSION: u8 = 0xa0;
    let (_, certificate, _) = element(der)?;
    let (_, mut at, _) = element(certificate)?;
    if element(at)?.0 == VERSION {
        at = element(at)?.2;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        at = element(at)?.2;
    }
    let (_, validity, _) = element(at)?;
    let (_, _, after) = element(validity)?;
    let (tag, text, _) = element(after)?;
    time_s(tag, text)
}

fn time_s(tag: u8, text: &[u8]) -> Option<i64> {
    const UTC: u8 = 0x17;
    const GENERALIZED: u8 = 0x18;
    let digits = text.strip_suffix(b"Z")?;
    let number = |at: std::ops::Range<usize>| -> Option<i64> {
        std::str::from_utf8(digits.get(at)?).ok()?.parse().ok()
    };
    let (year, at) = match (tag, digits.len()) {
        (UTC, 12) => {
            let short = number(0..2)?;
            (if short < 50 { 2000 } else { 1900 } + short, 2)
        }
        (GENERALIZED, 14) => (number(0..4)?, 4),
        _ => return None,
    };
    let part = |n: usize| number(at + 2 * n..at + 2 * n + 2);
    let days = days_since_1970(year, part(0)?, part(1)?)?;
    Some(days * 86_400 + part(2)? * 3_600 + part(3)? * 60 + part(4)?)
}

/// H. Hinnant's days_from_civil: years begin in March, so that the leap day is a year's last.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Ends 2126-11-07 15:17:19 UTC, beyond what the short form of a year can say.
    const LATE: &str = include_str!("certificate/late.pem");
    const LATE_S: i64 = 4_949_738_239;
    /// Ended 2001-01-01 00:00:00 UTC.
    const OLD: &str = include_str!("certificate/old.pem");

    #[test]
    fn end_of_a_certificate_is_read_in_both_forms_of_a_time() {
        assert_eq!(ends_s(OLD), [978_307_200]);
        assert_eq!(ends_s(LATE), [LATE_S]);
        let both = format!("a remark\n{LATE}{OLD}");
        assert_eq!(ends_s(&both), [LATE_S, 978_307_200]);
    }

    #[test]
    fn client_certificate_counts_by_its_earliest_and_a_bundle_by_its_latest() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("both.pem");
        std::fs::write(&file, format!("{LATE}{OLD}")).unwrap();
        let own = Tls {
            certificate: Some(file.clone()),
            ..Tls::default()
        };
        assert_eq!(earliest_end_s(&own), Some(978_307_200));
        let bundle = Tls {
            ca: Some(file),
            ..Tls::default()
        };
        assert_eq!(earliest_end_s(&bundle), Some(LATE_S));
        assert_eq!(earliest_end_s(&Tls::default()), None);
    }

    #[test]
    fn cut_and_odd_certificates_have_no_end_and_do_no_harm() {
        let text = OLD.split("-----").nth(2).unwrap();
        let der = base64::decode(text).unwrap();
        for cut in 0..der.len() {
            let _ = not_after_s(&der[..cut]);
            let mut flipped = der.clone();
            flipped[cut] ^= 0xff;
            let _ = not_after_s(&flipped);
        }
        assert_eq!(not_after_s(&der[..40]), None);
        assert!(ends_s("-----BEGIN CERTIFICATE-----\n*\n").is_empty());
    }
}
