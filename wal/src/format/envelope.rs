//! The envelope: a hook as the provider sent it, also the value of its intake record.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | version (1) |
//! | 2 | 1 | verification: 0 none, 1 verified, 2 flagged |
//! | 3 | 1 | flags: 1 = has a dedupe key |
//! | 4 | 4 | dedupe time to live, seconds |
//! | 8 | 8 | seq |
//! | 16 | 16 | hook id |
//! | 32 | 8 | received at, milliseconds since the epoch |
//! | 40 | 16 | client address (IPv6, or IPv4 mapped) |
//! | 56 | 2 | client port |
//! | 58 | 2 | number of headers |
//! | 60 | 4 | tenant bytes |
//! | 64 | 4 | source bytes |
//! | 68 | 4 | method bytes |
//! | 72 | 4 | target bytes |
//! | 76 | 4 | content type bytes |
//! | 80 | 4 | dedupe key bytes |
//! | 84 | 4 | header block bytes |
//! | 88 | 4 | body bytes |
//! | 92 | 4 | zero |
//!
//! Then tenant, source, method, target, content type, dedupe key, header block, body, without
//! gaps. Header block: per header the name's length (4), the value's length (4), name, value.
//! Decoding copies nothing.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::bytes::{Put, Take, len32};
use super::{FormatError, bad};
use crate::hook::{HookDraft, HookFacts, Verification};
use crate::ids::{HookId, Seq};

/// Version written.
pub const ENVELOPE_VERSION: u16 = 1;
/// Bytes before the tenant.
pub const ENVELOPE_FIXED_BYTES: usize = 96;
/// Where the seq lies: the one field that is set after the rest.
pub const ENVELOPE_SEQ_OFFSET: usize = 8;
/// Flag: a dedupe key is present.
pub const ENVELOPE_FLAG_DEDUPE: u8 = 1;

const HEADER_FIXED_BYTES: usize = 8;
const _: () = assert!(2 + 1 + 1 + 4 + 8 + 16 + 8 + 16 + 2 + 2 + 8 * 4 + 4 == ENVELOPE_FIXED_BYTES);

/// What an envelope takes, found in one look at the headers.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeLen {
    headers: u16,
    headers_bytes: usize,
    /// Bytes before the body.
    pub head: usize,
    /// All bytes.
    pub total: usize,
}

impl EnvelopeLen {
    /// Measures the envelope of a draft. Headers beyond 65,535 are not kept.
    pub fn of(draft: &HookDraft<'_>) -> EnvelopeLen {
        let mut headers_bytes = 0;
        let mut headers = 0u16;
        draft.headers.visit(&mut |name, value| {
            if headers < u16::MAX {
                headers += 1;
                headers_bytes += HEADER_FIXED_BYTES + name.len() + value.len();
            }
        });
        let head = ENVELOPE_FIXED_BYTES
            + draft.tenant.len()
            + draft.source.len()
            + draft.method.len()
            + draft.target.len()
            + draft.content_type.len()
            + draft.dedupe_key.map_or(0, <[u8]>::len)
            + headers_bytes;
        EnvelopeLen {
            headers,
            headers_bytes,
            head,
            total: head + draft.body.len(),
        }
    }
}

/// Bytes that [`encode`] will write for the draft.
pub fn encoded_len(draft: &HookDraft<'_>) -> usize {
    EnvelopeLen::of(draft).total
}

/// Writes the envelope and returns its length. Headers beyond 65,535 are not kept.
///
/// # Panics
/// When `out` is shorter than [`encoded_len`].
pub fn encode(draft: &HookDraft<'_>, seq: Seq, out: &mut [u8]) -> usize {
    let len = EnvelopeLen::of(draft);
    encode_head(draft, &len, seq, &mut out[..len.head]);
    out[len.head..len.total].copy_from_slice(draft.body);
    len.total
}

/// Writes what precedes the body. `len` is the draft's.
///
/// # Panics
/// When `out` is not `len.head` long.
pub fn encode_head(draft: &HookDraft<'_>, len: &EnvelopeLen, seq: Seq, out: &mut [u8]) {
    let key = draft.dedupe_key.unwrap_or_default();
    let (fixed, rest) = out.split_at_mut(ENVELOPE_FIXED_BYTES);
    let mut put = Put::new(fixed);
    put.u16(ENVELOPE_VERSION);
    put.u8(draft.verification as u8);
    put.u8(if draft.dedupe_key.is_some() {
        ENVELOPE_FLAG_DEDUPE
    } else {
        0
    });
    put.u32(draft.dedupe_ttl_s);
    put.u64(seq.0);
    put.bytes(&draft.id.0);
    put.u64(draft.received_at_ms);
    put.bytes(&client_bytes(draft.client.ip()));
    put.u16(draft.client.port());
    put.u16(len.headers);
    let short = [
        draft.tenant,
        draft.source,
        draft.method,
        draft.target,
        draft.content_type,
        key,
    ];
    for field in short {
        put.u32(len32(field.len()));
    }
    put.u32(len32(len.headers_bytes));
    put.u32(len32(draft.body.len()));
    put.u32(0);
    let mut put = Put::new(rest);
    for field in short {
        put.bytes(field);
    }
    let mut left = len.headers;
    draft.headers.visit(&mut |name, value| {
        if left > 0 {
            left -= 1;
            put.u32(len32(name.len()));
            put.u32(len32(value.len()));
            put.bytes(name);
            put.bytes(value);
        }
    });
    assert_eq!(put.at() + ENVELOPE_FIXED_BYTES, len.head);
}

/// What the state learns of an envelope that was written or read whole in this process: a few
/// fixed fields, nothing else is looked at.
pub(crate) fn facts_of(envelope: &[u8]) -> Result<HookFacts, FormatError> {
    let mut take = Take::new(envelope);
    take.u32()?;
    let facts = HookFacts {
        dedupe_ttl_s: take.u32()?,
        seq: Seq(take.u64()?),
        id: HookId(take.array()?),
        received_at_ms: take.u64()?,
        relocated: false,
    };
    debug_assert_eq!(Envelope::parse(envelope).map(|e| e.facts(false)), Ok(facts));
    Ok(facts)
}

fn client_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Id, tenant and source of an envelope that [`encode`] wrote, without reading the rest.
///
/// # Panics
/// When it is none.
pub fn peek(bytes: &[u8]) -> (HookId, &[u8], &[u8]) {
    let len = |at: usize| {
        let mut len = [0; 4];
        len.copy_from_slice(&bytes[at..at + 4]);
        u32::from_le_bytes(len) as usize
    };
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[16..32]);
    let source_at = ENVELOPE_FIXED_BYTES + len(60);
    let tenant = &bytes[ENVELOPE_FIXED_BYTES..source_at];
    (HookId(id), tenant, &bytes[source_at..source_at + len(64)])
}

/// An envelope read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Seq.
    pub seq: Seq,
    /// Hook id.
    pub id: HookId,
    /// Arrival, milliseconds.
    pub received_at_ms: u64,
    /// Verification result.
    pub verification: Verification,
    /// Client.
    pub client: SocketAddr,
    /// Tenant.
    pub tenant: &'a [u8],
    /// Source.
    pub source: &'a [u8],
    /// Method.
    pub method: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
    /// Content type.
    pub content_type: &'a [u8],
    /// Dedupe key.
    pub dedupe_key: Option<&'a [u8]>,
    /// Its time to live, seconds.
    pub dedupe_ttl_s: u32,
    /// Body.
    pub body: &'a [u8],
    headers: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Reads an envelope that fills `bytes` exactly.
    pub fn parse(bytes: &'a [u8]) -> Result<Envelope<'a>, FormatError> {
        let mut take = Take::new(bytes);
        let version = take.u16()?;
        if version != ENVELOPE_VERSION {
            return Err(bad("unknown envelope version"));
        }
        let verification = Verification::from_u8(take.u8()?).ok_or(bad("envelope verification"))?;
        let flags = take.u8()?;
        if flags & !ENVELOPE_FLAG_DEDUPE != 0 {
            return Err(bad("envelope flags"));
        }
        let dedupe_ttl_s = take.u32()?;
        let seq = Seq(take.u64()?);
        let id = HookId(take.array()?);
        let received_at_ms = take.u64()?;
        let ip = Ipv6Addr::from(take.array::<16>()?);
        let port = take.u16()?;
        let headers_count = take.u16()?;
        let mut lens = [0usize; 8];
        for len in &mut lens {
            *len = take.u32()? as usize;
        }
        take.u32()?;
        let tenant = take.bytes(lens[0])?;
        let source = take.bytes(lens[1])?;
        let method = take.bytes(lens[2])?;
        let target = take.bytes(lens[3])?;
        let content_type = take.bytes(lens[4])?;
        let key = take.bytes(lens[5])?;
        let headers = take.bytes(lens[6])?;
        let body = take.bytes(lens[7])?;
        take.end()?;
        check_headers(headers, headers_count)?;
        if flags & ENVELOPE_FLAG_DEDUPE == 0 && !key.is_empty() {
            return Err(bad("envelope dedupe key without its flag"));
        }
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        Ok(Envelope {
            seq,
            id,
            received_at_ms,
            verification,
            client: SocketAddr::new(ip, port),
            tenant,
            source,
            method,
            target,
            content_type,
            dedupe_key: (flags & ENVELOPE_FLAG_DEDUPE != 0).then_some(key),
            dedupe_ttl_s,
            body,
            headers,
        })
    }

    /// The headers, in order.
    pub fn headers(&self) -> HeaderPairs<'a> {
        HeaderPairs { rest: self.headers }
    }

    /// What the state learns of it.
    pub fn facts(&self, relocated: bool) -> HookFacts {
        HookFacts {
            id: self.id,
            seq: self.seq,
            received_at_ms: self.received_at_ms,
            dedupe_ttl_s: self.dedupe_ttl_s,
            relocated,
        }
    }
}

fn check_headers(block: &[u8], count: u16) -> Result<(), FormatError> {
    let mut take = Take::new(block);
    for _ in 0..count {
        let name = take.u32()? as usize;
        let value = take.u32()? as usize;
        take.bytes(name)?;
        take.bytes(value)?;
    }
    take.end()
}

/// Iterates an envelope's headers.
#[derive(Clone, Copy, Debug)]
pub struct HeaderPairs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for HeaderPairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut take = Take::new(self.rest);
        let name_bytes = take.u32().ok()? as usize;
        let value_bytes = take.u32().ok()? as usize;
        let name = take.bytes(name_bytes).ok()?;
        let value = take.bytes(value_bytes).ok()?;
        self.rest = self
            .rest
            .get(HEADER_FIXED_BYTES + name_bytes + value_bytes..)?;
        Some((name, value))
    }
}
