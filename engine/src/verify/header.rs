//! Reading what providers put in headers: the header itself, timestamps, and lists of candidate
//! signatures. Pure functions over bytes; no input panics.

use super::Reason;
use super::encoding::{SIGNATURE_BYTES_MAX, decode_signature};
use crate::config::SignatureEncoding;

/// How many candidate signatures one header may carry. Rotation needs two or three; the bound keeps
/// a hostile header from buying compares.
pub const CANDIDATES_MAX: usize = 32;

/// What a request has under a header name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// No such header.
    Absent,
    /// Exactly one, without the white space around it.
    One(&'a [u8]),
    /// Sent more than once: which one the sender meant is anyone's guess, so nobody's is taken.
    Many,
}

impl<'a> Lookup<'a> {
    /// Searches all `headers`; names compare without regard to case.
    pub fn of<N: AsRef<[u8]>>(
        name: &str,
        headers: impl IntoIterator<Item = (N, &'a [u8])>,
    ) -> Lookup<'a> {
        let mut found = Lookup::Absent;
        for (candidate, value) in headers {
            if candidate.as_ref().eq_ignore_ascii_case(name.as_bytes()) {
                found = match found {
                    Lookup::Absent => Lookup::One(value.trim_ascii()),
                    _ => Lookup::Many,
                };
            }
        }
        found
    }

    /// The value of a header that must be there once.
    pub(super) fn required(self) -> Result<&'a [u8], Reason> {
        match self {
            Lookup::Absent => Err(Reason::MissingSignature),
            Lookup::One(value) => Ok(value),
            Lookup::Many => Err(Reason::MalformedSignature),
        }
    }
}

impl<'a> From<Option<&'a [u8]>> for Lookup<'a> {
    fn from(value: Option<&'a [u8]>) -> Lookup<'a> {
        value.map_or(Lookup::Absent, |v| Lookup::One(v.trim_ascii()))
    }
}

/// Whole seconds in plain decimal digits. No sign, no fraction, no exponent, nothing over `u64`.
pub(super) fn parse_seconds(text: &[u8]) -> Result<u64, Reason> {
    if text.is_empty() || text.len() > 20 {
        return Err(Reason::MalformedSignature);
    }
    let mut seconds = 0u64;
    for byte in text {
        if !byte.is_ascii_digit() {
            return Err(Reason::MalformedSignature);
        }
        seconds = seconds
            .checked_mul(10)
            .and_then(|s| s.checked_add(u64::from(byte - b'0')))
            .ok_or(Reason::MalformedSignature)?;
    }
    Ok(seconds)
}

/// Good within ± `tolerance_s`, both ends included.
pub(super) fn check_window(timestamp_s: u64, now_s: u64, tolerance_s: u64) -> Result<(), Reason> {
    if now_s.saturating_sub(timestamp_s) > tolerance_s {
        return Err(Reason::TimestampTooOld);
    }
    if timestamp_s.saturating_sub(now_s) > tolerance_s {
        return Err(Reason::TimestampInFuture);
    }
    Ok(())
}

/// The decoded candidates of one request, all of one length.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    decoded: Vec<[u8; SIGNATURE_BYTES_MAX]>,
    /// Of every candidate; the bytes after it are zero.
    signature_bytes: usize,
    malformed: bool,
    other_scheme: bool,
    seen_count: usize,
}

impl Candidates {
    pub(super) fn new(signature_bytes: usize) -> Candidates {
        Candidates {
            signature_bytes,
            ..Candidates::default()
        }
    }

    /// Takes `text` as a candidate if it opens with `prefix`.
    pub(super) fn offer(
        &mut self,
        text: &[u8],
        prefix: &[u8],
        encoding: SignatureEncoding,
    ) -> Result<(), Reason> {
        self.seen_count += 1;
        if self.seen_count > CANDIDATES_MAX {
            return Err(Reason::MalformedSignature);
        }
        let Some(digits) = text.strip_prefix(prefix) else {
            self.other_scheme = true;
            return Ok(());
        };
        let mut out = [0u8; SIGNATURE_BYTES_MAX];
        match decode_signature(encoding, digits, &mut out) {
            Some(len) if len == self.signature_bytes => self.decoded.push(out),
            _ => self.malformed = true,
        }
        Ok(())
    }

    /// At least one candidate to compare with, or the reason why there is none.
    pub(super) fn usable(self) -> Result<Candidates, Reason> {
        if !self.decoded.is_empty() {
            Ok(self)
        } else if self.malformed || !self.other_scheme {
            Err(Reason::MalformedSignature)
        } else {
            Err(Reason::BadScheme)
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.decoded.iter().map(|c| &c[..self.signature_bytes])
    }
}
