//! Where one signature is in a request and what it covers: the shape that every signing scheme has.
//!
//! The named providers are plans written out here; the described ones come from the configuration.
//! Pure: reads headers and a time it is given, hashes nothing.

use super::Reason;
use super::header::{Candidates, Lookup, check_window, parse_seconds};
use super::spec::{BuildError, Encoding, Parse, SignedSpec};
use super::template::{Part, Template, is_header_name};

/// Where one signature is and what it covers; header names in lower case.
pub(super) struct Plan {
    pub(super) header: Box<str>,
    template: Template,
    parse: Parse,
    prefix: Box<[u8]>,
    encoding: Encoding,
    timestamp: TimestampFrom,
    tolerance_s: Option<u64>,
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
    /// Validates a description; the errors are for the configuration check.
    pub(super) fn build(spec: &SignedSpec, tolerance_s: Option<u64>) -> Result<Plan, BuildError> {
        let template = Template::parse(&spec.signed)?;
        let timestamp_header = spec
            .timestamp_header
            .as_deref()
            .map(header_name)
            .transpose()?;
        let covered = template.covers_timestamp(timestamp_header.as_deref());
        let timestamp = match (timestamp_header, spec.parse) {
            (Some(name), _) => TimestampFrom::Header(name),
            (None, Parse::CsvPairs) if covered || tolerance_s.is_some() => TimestampFrom::Pair,
            (None, _) => TimestampFrom::Nowhere,
        };
        let nowhere = matches!(timestamp, TimestampFrom::Nowhere);
        if nowhere && tolerance_s.is_some() {
            return Err(BuildError::NoTimestamp {
                what: "tolerance_seconds",
            });
        }
        if nowhere && template.parts().any(|p| *p == Part::Timestamp) {
            return Err(BuildError::NoTimestamp {
                what: "{ts} in the signed template",
            });
        }
        if tolerance_s.is_some() && !covered {
            return Err(BuildError::UnsignedTimestamp);
        }
        let prefix = spec.sig_prefix.as_deref().unwrap_or(match spec.parse {
            Parse::Whole => "",
            Parse::CsvPairs => "v1=",
            Parse::SpaceVersions => "v1,",
        });
        Ok(Plan {
            header: header_name(&spec.signature_header)?,
            template,
            parse: spec.parse,
            prefix: prefix.as_bytes().into(),
            encoding: spec.encoding,
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
            before: fill(&self.template.before, timestamp, &headers)?,
            after: fill(&self.template.after, timestamp, &headers)?,
            candidates,
            timestamp_s,
        })
    }

    fn candidates(&self, value: &[u8], signature_bytes: usize) -> Result<Candidates, Reason> {
        let mut candidates = Candidates::new(signature_bytes);
        let mut offer = |text: &[u8]| candidates.offer(text, &self.prefix, self.encoding);
        match self.parse {
            Parse::Whole => offer(value)?,
            Parse::CsvPairs => pairs(value)
                .filter(|p| !p.starts_with(b"t="))
                .try_for_each(offer)?,
            Parse::SpaceVersions => value
                .split(|b| *b == b' ')
                .filter(|text| !text.is_empty())
                .try_for_each(&mut offer)?,
        }
        candidates.usable()
    }
}

/// The values of `parts` in order.
fn fill<'h>(
    parts: &[Part],
    timestamp: &[u8],
    headers: &impl Fn(&str) -> Lookup<'h>,
) -> Result<Vec<u8>, Reason> {
    let mut out = Vec::new();
    for part in parts {
        match part {
            Part::Literal(text) => out.extend_from_slice(text),
            Part::Timestamp => out.extend_from_slice(timestamp),
            Part::Header(name) => out.extend_from_slice(headers(name).required()?),
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

pub(super) fn header_name(name: &str) -> Result<Box<str>, BuildError> {
    if !is_header_name(name) {
        return Err(BuildError::BadHeaderName {
            name: name.to_owned(),
        });
    }
    Ok(name.to_ascii_lowercase().into())
}

pub(super) fn stripe() -> SignedSpec {
    SignedSpec {
        signature_header: "stripe-signature".into(),
        signed: "{ts}.{body}".into(),
        parse: Parse::CsvPairs,
        sig_prefix: None,
        encoding: Encoding::Hex,
        timestamp_header: None,
    }
}

pub(super) fn github() -> SignedSpec {
    whole(
        "x-hub-signature-256",
        "{body}",
        "sha256=",
        Encoding::Hex,
        None,
    )
}

pub(super) fn shopify() -> SignedSpec {
    whole(
        "x-shopify-hmac-sha256",
        "{body}",
        "",
        Encoding::Base64,
        None,
    )
}

pub(super) fn slack() -> SignedSpec {
    let timestamp = Some("x-slack-request-timestamp");
    whole(
        "x-slack-signature",
        "v0:{ts}:{body}",
        "v0=",
        Encoding::Hex,
        timestamp,
    )
}

pub(super) fn standard_webhooks(family: &str) -> SignedSpec {
    SignedSpec {
        signature_header: format!("{family}-signature"),
        signed: format!("{{header:{family}-id}}.{{ts}}.{{body}}"),
        parse: Parse::SpaceVersions,
        sig_prefix: None,
        encoding: Encoding::Base64,
        timestamp_header: Some(format!("{family}-timestamp")),
    }
}

fn whole(
    header: &str,
    signed: &str,
    prefix: &str,
    encoding: Encoding,
    timestamp_header: Option<&str>,
) -> SignedSpec {
    SignedSpec {
        signature_header: header.into(),
        signed: signed.into(),
        parse: Parse::Whole,
        sig_prefix: Some(prefix.into()),
        encoding,
        timestamp_header: timestamp_header.map(str::to_owned),
    }
}
