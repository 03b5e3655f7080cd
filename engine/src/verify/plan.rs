//! Where one signature is in a request and what it covers: the shape that every signing scheme has.
//!
//! The named providers are plans written out here; the described ones come from the configuration.
//! Pure: reads headers and a time it is given, hashes nothing.

use super::Reason;
use super::build::BuildError;
use super::header::{Candidates, Lookup, check_window, parse_seconds};
use crate::config::{SignatureEncoding, SignatureParse, SignatureScheme, SignedPart};

/// Where one signature is and what it covers; header names in lower case.
pub(super) struct Plan {
    pub(super) header: Box<str>,
    before: Box<[SignedPart]>,
    after: Box<[SignedPart]>,
    cut: Cut,
    prefix: Box<[u8]>,
    encoding: SignatureEncoding,
    timestamp: TimestampFrom,
    tolerance_s: Option<u64>,
}

/// How the header is cut into candidates.
enum Cut {
    Whole,
    /// At commas; the `t=` pair is no candidate.
    Commas,
    Spaces,
}

enum TimestampFrom {
    Nowhere,
    Header(Box<str>),
    /// The `t=` pair of the signature header.
    Pair,
}

/// What a plan read from one request.
pub(super) struct Reading {
    /// What is signed in front of the body.
    pub(super) before: Vec<u8>,
    /// What is signed behind it.
    pub(super) after: Vec<u8>,
    pub(super) candidates: Candidates,
    pub(super) timestamp_s: Option<u64>,
}

impl Plan {
    /// Prepares a described scheme.
    pub(super) fn build(scheme: &SignatureScheme) -> Result<Plan, BuildError> {
        let parts = &scheme.signed;
        let body_count = parts.iter().filter(|p| **p == SignedPart::Body).count();
        let (1, Some(body_at)) = (
            body_count,
            parts.iter().position(|p| *p == SignedPart::Body),
        ) else {
            return Err(BuildError::BodyCount { got: body_count });
        };
        let tolerance_s = scheme.tolerance_seconds;
        let wants_time = parts.contains(&SignedPart::Timestamp);
        let timestamp = match (&scheme.timestamp_header, &scheme.parse) {
            (Some(name), _) => TimestampFrom::Header(name.to_ascii_lowercase().into()),
            (None, SignatureParse::CsvPairs { .. }) if wants_time || tolerance_s.is_some() => {
                TimestampFrom::Pair
            }
            (None, _) if wants_time => return Err(BuildError::NoTimestamp { what: "{ts}" }),
            (None, _) if tolerance_s.is_some() => {
                return Err(BuildError::NoTimestamp {
                    what: "a tolerance",
                });
            }
            (None, _) => TimestampFrom::Nowhere,
        };
        let is_time = |part: &SignedPart| match (part, &timestamp) {
            (SignedPart::Timestamp, _) => true,
            (SignedPart::Header(name), TimestampFrom::Header(time)) => {
                name.eq_ignore_ascii_case(time)
            }
            _ => false,
        };
        if tolerance_s.is_some() && !parts.iter().any(is_time) {
            return Err(BuildError::UnsignedTimestamp);
        }
        let (cut, mut prefix) = match &scheme.parse {
            SignatureParse::Whole => (Cut::Whole, String::new()),
            SignatureParse::CsvPairs { sig_key } => (Cut::Commas, format!("{sig_key}=")),
            SignatureParse::SpaceVersions { version } => (Cut::Spaces, version.clone()),
        };
        prefix.push_str(&scheme.sig_prefix);
        Ok(Plan {
            header: scheme.signature_header.to_ascii_lowercase().into(),
            before: parts[..body_at].into(),
            after: parts[body_at + 1..].into(),
            cut,
            prefix: prefix.as_bytes().into(),
            encoding: scheme.encoding,
            timestamp,
            tolerance_s,
        })
    }

    /// Reads a request by this plan, and judges its time.
    pub(super) fn read<'h>(
        &self,
        signature_bytes: usize,
        headers: impl Fn(&str) -> Lookup<'h>,
        now_s: u64,
    ) -> Result<Reading, Reason> {
        let value = headers(&self.header).required()?;
        let candidates = self.candidates(value, signature_bytes)?;
        let timestamp = match &self.timestamp {
            TimestampFrom::Nowhere => None,
            TimestampFrom::Header(name) => Some(headers(name).required()?),
            TimestampFrom::Pair => Some(pair_timestamp(value)?),
        };
        let timestamp_s = timestamp.map(parse_seconds).transpose()?;
        if let (Some(timestamp_s), Some(tolerance_s)) = (timestamp_s, self.tolerance_s) {
            check_window(timestamp_s, now_s, tolerance_s)?;
        }
        let timestamp = timestamp.unwrap_or_default();
        Ok(Reading {
            before: fill(&self.before, timestamp, &headers)?,
            after: fill(&self.after, timestamp, &headers)?,
            candidates,
            timestamp_s,
        })
    }

    fn candidates(&self, value: &[u8], signature_bytes: usize) -> Result<Candidates, Reason> {
        let mut candidates = Candidates::new(signature_bytes);
        let mut offer = |text: &[u8]| candidates.offer(text, &self.prefix, self.encoding);
        match self.cut {
            Cut::Whole => offer(value)?,
            Cut::Commas => pairs(value)
                .filter(|p| !p.starts_with(b"t="))
                .try_for_each(offer)?,
            Cut::Spaces => value
                .split(|b| *b == b' ')
                .filter(|text| !text.is_empty())
                .try_for_each(&mut offer)?,
        }
        candidates.usable()
    }
}

/// The values of `parts` in order.
fn fill<'h>(
    parts: &[SignedPart],
    timestamp: &[u8],
    headers: &impl Fn(&str) -> Lookup<'h>,
) -> Result<Vec<u8>, Reason> {
    let mut out = Vec::new();
    for part in parts {
        match part {
            SignedPart::Literal(text) => out.extend_from_slice(text.as_bytes()),
            SignedPart::Timestamp => out.extend_from_slice(timestamp),
            SignedPart::Header(name) => out.extend_from_slice(headers(name).required()?),
            // The body stands between the two lists.
            SignedPart::Body => {}
        }
    }
    Ok(out)
}

fn pairs(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|b| *b == b',')
        .map(|p| p.trim_ascii())
        .filter(|p| !p.is_empty())
}

/// The `t=` pair, which must be there once.
fn pair_timestamp(value: &[u8]) -> Result<&[u8], Reason> {
    let mut found = pairs(value).filter_map(|p| p.strip_prefix(b"t="));
    match (found.next(), found.next()) {
        (Some(timestamp), None) => Ok(timestamp),
        _ => Err(Reason::MalformedSignature),
    }
}

/// `t=…,v1=…` over `t.body`.
pub(super) fn stripe(tolerance_s: u64) -> SignatureScheme {
    let parse = SignatureParse::CsvPairs {
        sig_key: "v1".into(),
    };
    let signed = vec![SignedPart::Timestamp, literal("."), SignedPart::Body];
    SignatureScheme {
        tolerance_seconds: Some(tolerance_s),
        ..scheme("stripe-signature", signed, parse, SignatureEncoding::Hex)
    }
}

/// `sha256=…` over the body.
pub(super) fn github() -> SignatureScheme {
    let signed = vec![SignedPart::Body];
    SignatureScheme {
        sig_prefix: "sha256=".into(),
        ..scheme(
            "x-hub-signature-256",
            signed,
            SignatureParse::Whole,
            SignatureEncoding::Hex,
        )
    }
}

/// Bare base64 over the body.
pub(super) fn shopify() -> SignatureScheme {
    let signed = vec![SignedPart::Body];
    scheme(
        "x-shopify-hmac-sha256",
        signed,
        SignatureParse::Whole,
        SignatureEncoding::Base64,
    )
}

/// `v0=…` over `v0:ts:body`.
pub(super) fn slack(tolerance_s: u64) -> SignatureScheme {
    let signed = vec![
        literal("v0:"),
        SignedPart::Timestamp,
        literal(":"),
        SignedPart::Body,
    ];
    SignatureScheme {
        sig_prefix: "v0=".into(),
        timestamp_header: Some("x-slack-request-timestamp".into()),
        tolerance_seconds: Some(tolerance_s),
        ..scheme(
            "x-slack-signature",
            signed,
            SignatureParse::Whole,
            SignatureEncoding::Hex,
        )
    }
}

/// `v1,…` between spaces over `id.ts.body`; `family` is what the three header names open with.
pub(super) fn standard_webhooks(family: &str, tolerance_s: u64) -> SignatureScheme {
    let parse = SignatureParse::SpaceVersions {
        version: "v1,".into(),
    };
    let id = SignedPart::Header(format!("{family}-id"));
    let signed = vec![
        id,
        literal("."),
        SignedPart::Timestamp,
        literal("."),
        SignedPart::Body,
    ];
    let header = format!("{family}-signature");
    SignatureScheme {
        timestamp_header: Some(format!("{family}-timestamp")),
        tolerance_seconds: Some(tolerance_s),
        ..scheme(&header, signed, parse, SignatureEncoding::Base64)
    }
}

fn scheme(
    header: &str,
    signed: Vec<SignedPart>,
    parse: SignatureParse,
    encoding: SignatureEncoding,
) -> SignatureScheme {
    SignatureScheme {
        signature_header: header.into(),
        signed,
        parse,
        sig_prefix: String::new(),
        encoding,
        timestamp_header: None,
        tolerance_seconds: None,
    }
}

fn literal(text: &str) -> SignedPart {
    SignedPart::Literal(text.into())
}
