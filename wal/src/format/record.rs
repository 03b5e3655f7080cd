//! Records: a header with its own checksum, then a body by kind.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32 of the rest of the record |
//! | 4 | 4 | body bytes |
//! | 8 | 1 | kind |
//! | 9 | 1 | flags: 1 = a relocated hook |
//! | 10 | 2 | zero |
//! | 12 | 4 | hook: bytes of the extra part that precedes the envelope; else zero |
//!
//! Extra part of a hook: flags (1: 1 = dedupe hash, 2 = archive, 4 = log), zero (1), number of
//! sinks (2), dedupe hash (16, when flagged), sink numbers (2 each).
//!
//! Bodies of the other kinds are the fields of [`crate::record`] in order, little-endian;
//! variable ones with a four-byte length.

use super::bytes::{Put, Take, len32};
use super::frame::{FrameHeader, PayloadSum};
use super::{FormatError, bad};
use crate::hook::HookExtra;
use crate::ids::{HookId, LogOffset, Seq, SinkNo};
use crate::record::*;

/// Bytes before a record's body.
pub const RECORD_HEADER_BYTES: usize = 16;
/// Bytes of the checksum, which covers what follows it.
pub const RECORD_CRC_BYTES: usize = 4;
/// Flag: the hook is live already and only moved.
pub const RECORD_FLAG_RELOCATED: u8 = 1;

const _: () = assert!(4 + 4 + 1 + 1 + 2 + 4 == RECORD_HEADER_BYTES);

const EXTRA_DEDUPE: u8 = 1;
const EXTRA_ARCHIVE: u8 = 2;
const EXTRA_LOG: u8 = 4;

/// The kinds, as stored. Numbers are never given twice.
pub mod kind {
    /// A hook: extra part and envelope.
    pub const HOOK: u8 = 1;
    /// [`crate::Record::Delivery`].
    pub const DELIVERY: u8 = 2;
    /// [`crate::Record::Finished`].
    pub const FINISHED: u8 = 3;
    /// [`crate::Record::Dedupe`].
    pub const DEDUPE: u8 = 4;
    /// [`crate::Record::DedupeGone`].
    pub const DEDUPE_GONE: u8 = 5;
    /// [`crate::Record::Counters`].
    pub const COUNTERS: u8 = 6;
    /// [`crate::Record::SinkName`].
    pub const SINK_NAME: u8 = 7;
    /// [`crate::Record::Watermark`].
    pub const WATERMARK: u8 = 8;
    /// [`crate::Record::Offset`].
    pub const OFFSET: u8 = 9;
    /// [`crate::Record::NextSeq`].
    pub const NEXT_SEQ: u8 = 10;
    /// [`crate::Record::Incarnation`].
    pub const INCARNATION: u8 = 11;
    /// [`crate::Record::IntakeIdentity`].
    pub const INTAKE_IDENTITY: u8 = 12;
    /// [`crate::Record::Resequenced`].
    pub const RESEQUENCED: u8 = 13;
    /// [`crate::Record::Archived`].
    pub const ARCHIVED: u8 = 14;
    /// [`crate::Record::Audit`].
    pub const AUDIT: u8 = 15;
    /// [`crate::Record::Lifecycle`].
    pub const LIFECYCLE: u8 = 16;
    /// [`crate::Record::AuditTrim`].
    pub const AUDIT_TRIM: u8 = 17;
    /// [`crate::Record::GivenUp`].
    pub const GIVEN_UP: u8 = 18;
}

/// Bytes of a hook's extra part.
pub fn extra_len(extra: &HookExtra<'_>) -> usize {
    4 + if extra.dedupe_hash.is_some() { 16 } else { 0 } + 2 * extra.sinks.len()
}

/// Bytes of a hook record with an envelope of `envelope_bytes`.
pub fn hook_len(extra: &HookExtra<'_>, envelope_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + extra_len(extra) + envelope_bytes
}

/// Writes a hook's extra part and returns its length.
pub fn encode_extra(extra: &HookExtra<'_>, out: &mut [u8]) -> usize {
    let mut put = Put::new(out);
    put.u8(if extra.dedupe_hash.is_some() {
        EXTRA_DEDUPE
    } else {
        0
    } | if extra.archive { EXTRA_ARCHIVE } else { 0 }
        | if extra.log { EXTRA_LOG } else { 0 });
    put.u8(0);
    put.u16(extra.sinks.len() as u16);
    if let Some(hash) = &extra.dedupe_hash {
        put.bytes(hash);
    }
    for sink in extra.sinks {
        put.u16(sink.0);
    }
    put.at()
}

/// Reads a hook's extra part; the sinks go to `sinks`.
pub fn decode_extra<'s>(
    bytes: &[u8],
    sinks: &'s mut Vec<SinkNo>,
) -> Result<HookExtra<'s>, FormatError> {
    let mut take = Take::new(bytes);
    let flags = take.u8()?;
    if flags & !(EXTRA_DEDUPE | EXTRA_ARCHIVE | EXTRA_LOG) != 0 {
        return Err(bad("hook flags"));
    }
    take.u8()?;
    let count = take.u16()?;
    let dedupe_hash = if flags & EXTRA_DEDUPE != 0 {
        Some(take.array()?)
    } else {
        None
    };
    sinks.clear();
    for _ in 0..count {
        sinks.push(SinkNo(take.u16()?));
    }
    take.end()?;
    Ok(HookExtra {
        sinks,
        dedupe_hash,
        archive: flags & EXTRA_ARCHIVE != 0,
        log: flags & EXTRA_LOG != 0,
    })
}

/// Completes a record whose body is already at `out[16..]`: writes the header, computes the
/// checksum and returns it.
///
/// # Panics
/// When `out` is shorter than a header.
pub fn seal(kind: u8, flags: u8, extra_bytes: usize, out: &mut [u8]) -> u32 {
    write_header(kind, flags, extra_bytes, out);
    let crc = crc32fast::hash(&out[RECORD_CRC_BYTES..]);
    out[..RECORD_CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Writes the header of the record that `out` is, but for the checksum.
///
/// # Panics
/// When `out` is shorter than a header.
pub fn write_header(kind: u8, flags: u8, extra_bytes: usize, out: &mut [u8]) {
    let body = len32(out.len() - RECORD_HEADER_BYTES);
    let mut put = Put::new(&mut out[RECORD_CRC_BYTES..RECORD_HEADER_BYTES]);
    put.u32(body);
    put.u8(kind);
    put.u8(flags);
    put.u16(0);
    put.u32(len32(extra_bytes));
}

/// Bytes of a record.
pub fn record_len(record: &Record) -> usize {
    RECORD_HEADER_BYTES
        + match record {
            Record::Delivery(_) => 8 + 2 + 2 + 8 + 1 + 1,
            Record::Finished { .. } => 16,
            Record::Dedupe(_) => 16 + 16 + 8 + 8,
            Record::DedupeGone { .. } => 32,
            Record::Counters(rows) => 4 + 10 * rows.len(),
            Record::SinkName(n) => 2 + 12 + n.tenant.len() + n.source.len() + n.name.len(),
            Record::Watermark(mark) => 8 + 4 + 8 * mark.exceptions.len(),
            Record::Offset(_) => 1 + 16,
            Record::NextSeq(_)
            | Record::Archived(_)
            | Record::AuditTrim(_)
            | Record::GivenUp(_) => 8,
            Record::Incarnation(_) => 12,
            Record::IntakeIdentity(i) => 4 + 8 + i.node.len() + i.log.len(),
            Record::Resequenced(_) => 32,
            Record::Audit(row) | Record::Lifecycle(row) => 16 + 4 + row.body.len(),
        }
}

/// Writes a record into `out`, which has its exact length, and returns its checksum.
///
/// # Panics
/// When `out` is not [`record_len`] long.
pub fn encode_record(record: &Record, out: &mut [u8]) -> u32 {
    let mut put = Put::new(&mut out[RECORD_HEADER_BYTES..]);
    let kind = encode_body(record, &mut put);
    assert_eq!(put.at() + RECORD_HEADER_BYTES, record_len(record));
    seal(kind, 0, 0, out)
}

fn encode_body(record: &Record, put: &mut Put<'_>) -> u8 {
    match record {
        Record::Delivery(row) => {
            put.u64(row.seq.0);
            put.u16(row.sink.0);
            put.u16(row.attempts);
            put.u64(row.due_ms);
            put.u8(row.state as u8);
            put.u8(row.reason);
            kind::DELIVERY
        }
        Record::Finished { first, last } => {
            put.u64(first.0);
            put.u64(last.0);
            kind::FINISHED
        }
        Record::Dedupe(row) => {
            put.bytes(&row.hash);
            put.bytes(&row.id.0);
            put.u64(row.seq.0);
            put.u64(row.expires_at_s);
            kind::DEDUPE
        }
        Record::DedupeGone { hash, id } => {
            put.bytes(hash);
            put.bytes(&id.0);
            kind::DEDUPE_GONE
        }
        Record::Counters(rows) => {
            put.u32(len32(rows.len()));
            for row in rows {
                put.u16(row.counter);
                put.u64(row.value);
            }
            kind::COUNTERS
        }
        Record::SinkName(name) => {
            put.u16(name.sink.0);
            put.long(&name.tenant);
            put.long(&name.source);
            put.long(&name.name);
            kind::SINK_NAME
        }
        Record::Watermark(mark) => {
            put.u64(mark.seq.0);
            put.u32(len32(mark.exceptions.len()));
            for seq in &mark.exceptions {
                put.u64(seq.0);
            }
            kind::WATERMARK
        }
        Record::Offset(row) => {
            let flags = u8::from(row.offset.is_some()) | (u8::from(row.hold.is_some()) << 1);
            put.u8(flags);
            put.u64(row.offset.unwrap_or_default().0);
            put.u64(row.hold.unwrap_or_default().0);
            kind::OFFSET
        }
        Record::NextSeq(seq) => {
            put.u64(seq.0);
            kind::NEXT_SEQ
        }
        Record::Incarnation(row) => {
            put.u32(row.incarnation);
            put.u64(row.first_seq.0);
            kind::INCARNATION
        }
        Record::IntakeIdentity(row) => {
            put.u32(row.partition);
            put.long(&row.node);
            put.long(&row.log);
            kind::INTAKE_IDENTITY
        }
        Record::Resequenced(row) => {
            put.u64(row.old.0);
            put.bytes(&row.id.0);
            put.u64(row.new.0);
            kind::RESEQUENCED
        }
        Record::Archived(seq) => {
            put.u64(seq.0);
            kind::ARCHIVED
        }
        Record::Audit(row) | Record::Lifecycle(row) => {
            put.u64(row.no);
            put.u64(row.at_ms);
            put.long(&row.body);
            if matches!(record, Record::Audit(_)) {
                kind::AUDIT
            } else {
                kind::LIFECYCLE
            }
        }
        Record::AuditTrim(no) => {
            put.u64(*no);
            kind::AUDIT_TRIM
        }
        Record::GivenUp(seq) => {
            put.u64(seq.0);
            kind::GIVEN_UP
        }
    }
}

/// Reads the body of a record that is not a hook.
pub fn decode_record(record_kind: u8, body: &[u8]) -> Result<Record, FormatError> {
    let mut take = Take::new(body);
    let record = decode_body(record_kind, &mut take)?;
    take.end()?;
    Ok(record)
}

fn decode_body(record_kind: u8, take: &mut Take<'_>) -> Result<Record, FormatError> {
    Ok(match record_kind {
        kind::DELIVERY => Record::Delivery(Delivery {
            seq: Seq(take.u64()?),
            sink: SinkNo(take.u16()?),
            attempts: take.u16()?,
            due_ms: take.u64()?,
            state: DeliveryState::from_u8(take.u8()?).ok_or(bad("delivery state"))?,
            reason: take.u8()?,
        }),
        kind::FINISHED => Record::Finished {
            first: Seq(take.u64()?),
            last: Seq(take.u64()?),
        },
        kind::DEDUPE => Record::Dedupe(DedupeRow {
            hash: take.array()?,
            id: HookId(take.array()?),
            seq: Seq(take.u64()?),
            expires_at_s: take.u64()?,
        }),
        kind::DEDUPE_GONE => Record::DedupeGone {
            hash: take.array()?,
            id: HookId(take.array()?),
        },
        kind::COUNTERS => {
            let mut rows = Vec::new();
            for _ in 0..take.u32()? {
                rows.push(Counter {
                    counter: take.u16()?,
                    value: take.u64()?,
                });
            }
            Record::Counters(rows)
        }
        kind::SINK_NAME => Record::SinkName(SinkName {
            sink: SinkNo(take.u16()?),
            tenant: take.long()?.into(),
            source: take.long()?.into(),
            name: take.long()?.into(),
        }),
        kind::WATERMARK => {
            let seq = Seq(take.u64()?);
            let mut exceptions = Vec::new();
            for _ in 0..take.u32()? {
                exceptions.push(Seq(take.u64()?));
            }
            Record::Watermark(Watermark { seq, exceptions })
        }
        kind::OFFSET => {
            let flags = take.u8()?;
            let (offset, hold) = (LogOffset(take.u64()?), LogOffset(take.u64()?));
            Record::Offset(IntakeOffset {
                offset: (flags & 1 != 0).then_some(offset),
                hold: (flags & 2 != 0).then_some(hold),
            })
        }
        kind::NEXT_SEQ => Record::NextSeq(Seq(take.u64()?)),
        kind::INCARNATION => Record::Incarnation(Incarnation {
            incarnation: take.u32()?,
            first_seq: Seq(take.u64()?),
        }),
        kind::INTAKE_IDENTITY => Record::IntakeIdentity(IntakeIdentity {
            partition: take.u32()?,
            node: take.long()?.into(),
            log: take.long()?.into(),
        }),
        kind::RESEQUENCED => Record::Resequenced(Resequenced {
            old: Seq(take.u64()?),
            id: HookId(take.array()?),
            new: Seq(take.u64()?),
        }),
        kind::ARCHIVED => Record::Archived(Seq(take.u64()?)),
        kind::AUDIT => Record::Audit(decode_row(take)?),
        kind::LIFECYCLE => Record::Lifecycle(decode_row(take)?),
        kind::AUDIT_TRIM => Record::AuditTrim(take.u64()?),
        kind::GIVEN_UP => Record::GivenUp(Seq(take.u64()?)),
        _ => return Err(bad("unknown record kind")),
    })
}

fn decode_row(take: &mut Take<'_>) -> Result<TrailRow, FormatError> {
    Ok(TrailRow {
        no: take.u64()?,
        at_ms: take.u64()?,
        body: take.long()?.into(),
    })
}

/// One record as it lies in a payload, checksum verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// Offset of its header from the start of what was read.
    pub offset: usize,
    /// Kind.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Length, header included.
    pub len: usize,
    /// Hook: the extra part; else empty.
    pub extra: &'a [u8],
    /// Hook: the envelope; else the whole body.
    pub body: &'a [u8],
}

/// Reads the record at the start of `bytes` and verifies its checksum.
pub fn read_record(bytes: &[u8], offset: usize) -> Result<(RawRecord<'_>, u32), FormatError> {
    let mut take = Take::new(bytes.get(offset..).ok_or(bad("record too short"))?);
    let crc = take.u32()?;
    let body_bytes = take.u32()? as usize;
    let kind = take.u8()?;
    let flags = take.u8()?;
    take.u16()?;
    let extra_bytes = take.u32()? as usize;
    let body = take.bytes(body_bytes)?;
    let end = offset + RECORD_HEADER_BYTES + body_bytes;
    if crc32fast::hash(&bytes[offset + 4..end]) != crc && !crate::mutations::is("skip_frame_crc") {
        return Err(bad("record checksum"));
    }
    let (extra, body) = body
        .split_at_checked(extra_bytes)
        .ok_or(bad("record extra part"))?;
    Ok((
        RawRecord {
            offset,
            kind,
            flags,
            len: end - offset,
            extra,
            body,
        },
        crc,
    ))
}

/// Verifies every checksum of a frame; `payload` is what follows its header.
pub fn check_payload(header: &FrameHeader, payload: &[u8]) -> Result<(), FormatError> {
    let payload = payload
        .get(..header.payload_bytes as usize)
        .ok_or(bad("payload cut short"))?;
    let mut sum = PayloadSum::default();
    let mut at = 0;
    for _ in 0..header.records {
        let (record, crc) = read_record(payload, at)?;
        sum.add(crc);
        at += record.len;
    }
    if at != payload.len() {
        return Err(bad("payload length"));
    }
    if sum.finish() != header.payload_sum && !crate::mutations::is("skip_frame_crc") {
        return Err(bad("payload checksum"));
    }
    Ok(())
}

/// Iterates the records of a payload that [`check_payload`] has passed.
pub fn records(payload: &[u8]) -> impl Iterator<Item = RawRecord<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= payload.len() {
            return None;
        }
        let (record, _) = read_record(payload, at).ok()?;
        at += record.len;
        Some(record)
    })
}
