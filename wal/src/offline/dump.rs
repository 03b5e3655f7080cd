//! `wal dump`: headers, frames and records, one item at a time, as text or JSON.
//!
//! Shows what is there, also in slots that are not part of the log, and what does not hold.
//! Offline; reads only.

use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::scan::{FrameScan, is_slot, look, read_slot};
use super::stat::kind_name;
use super::verify::hex;
use crate::disk::Disk;
use crate::format::Envelope;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::record::{RawRecord, decode_extra, decode_record, kind, records};
use crate::format::segment::SegmentHeader;
use crate::ids::Lsn;

use super::io_error;

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct DumpOptions {
    /// Only this file.
    pub file: Option<String>,
    /// Only frames from this LSN on.
    pub from_lsn: Option<Lsn>,
    /// Only frames up to this LSN.
    pub to_lsn: Option<Lsn>,
    /// Show the records of each frame.
    pub records: bool,
    /// Show the bodies of hooks.
    pub bodies: bool,
}

/// One thing found.
#[derive(Clone, Copy, Debug)]
pub enum DumpItem<'a> {
    /// A slot and its header.
    Slot {
        /// Its file.
        file: &'a str,
        /// Its length.
        bytes: u64,
        /// Its header, or what is wrong with it.
        header: Result<&'a SegmentHeader, &'static str>,
    },
    /// A frame.
    Frame {
        /// The file.
        file: &'a str,
        /// The frame.
        frame: &'a FrameScan,
        /// It belongs to the slot's present use.
        is_current: bool,
    },
    /// A record of an intact frame.
    Record {
        /// Its frame's LSN.
        lsn: Lsn,
        /// Offset in the file.
        offset: u64,
        /// The record.
        record: RawRecord<'a>,
        /// Show the body too.
        body: bool,
    },
    /// A block that cannot be read.
    Unreadable {
        /// The file.
        file: &'a str,
        /// Its offset.
        offset: u64,
    },
}

/// Calls `each` for everything in the directory, in order of file and offset.
pub async fn dump<D: Disk>(
    disk: &D,
    options: &DumpOptions,
    each: &mut dyn FnMut(DumpItem<'_>),
) -> Result<(), OfflineError> {
    let mut entries = disk.list().await.map_err(io_error("listing", ""))?;
    entries.retain(|e| is_slot(&e.name) && options.file.as_ref().is_none_or(|f| *f == e.name));
    entries.sort();
    if let Some(file) = options.file.clone().filter(|_| entries.is_empty()) {
        return Err(OfflineError::NoSlot(file));
    }
    for entry in entries {
        let (content, unreadable) = read_slot(disk, &entry, |_| {}).await?;
        let slot = look(entry, &content, unreadable);
        let header = slot.header.as_ref().map_err(|e| e.what);
        each(DumpItem::Slot {
            file: &slot.name,
            bytes: slot.bytes,
            header,
        });
        for offset in &slot.unreadable {
            each(DumpItem::Unreadable {
                file: &slot.name,
                offset: *offset,
            });
        }
        for frame in &slot.frames {
            let lsn = frame.header.lsn;
            if options.from_lsn.is_some_and(|from| lsn < from)
                || options.to_lsn.is_some_and(|to| lsn > to)
            {
                continue;
            }
            let is_current = slot
                .header
                .as_ref()
                .is_ok_and(|h| h.salt == frame.header.salt);
            each(DumpItem::Frame {
                file: &slot.name,
                frame,
                is_current,
            });
            if options.records && frame.is_intact() {
                dump_records(&content, frame, options.bodies, each);
            }
        }
    }
    Ok(())
}

fn dump_records(content: &[u8], frame: &FrameScan, body: bool, each: &mut dyn FnMut(DumpItem<'_>)) {
    let start = frame.offset as usize + FRAME_HEADER_BYTES;
    let end = start + frame.header.payload_bytes as usize;
    for record in records(content.get(start..end).unwrap_or_default()) {
        let offset = (start + record.offset) as u64;
        each(DumpItem::Record {
            lsn: frame.header.lsn,
            offset,
            record,
            body,
        });
    }
}

/// Bytes as text where they are text, else as hex.
fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

/// As text on one line, whatever the bytes are.
fn lossy(bytes: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn envelope_json(e: &Envelope<'_>, body: bool) -> Value {
    let headers: Vec<Value> = e
        .headers()
        .map(|(n, v)| json!([bytes_json(n), bytes_json(v)]))
        .collect();
    let mut value = json!({
        "id": e.id.to_string(),
        "seq": e.seq.0,
        "received_at_ms": e.received_at_ms,
        "tenant": bytes_json(e.tenant),
        "source": bytes_json(e.source),
        "method": bytes_json(e.method),
        "target": bytes_json(e.target),
        "headers": headers,
        "content_type": bytes_json(e.content_type),
        "dedupe_key": e.dedupe_key.map(bytes_json),
        "dedupe_ttl_s": e.dedupe_ttl_s,
        "verification": format!("{:?}", e.verification).to_lowercase(),
        "client": e.client.to_string(),
        "body_bytes": e.body.len(),
    });
    if body {
        value["body"] = bytes_json(e.body);
    }
    value
}

fn record_json(record: &RawRecord<'_>, body: bool) -> Value {
    if record.kind != kind::HOOK {
        return match decode_record(record.kind, record.body) {
            Ok(decoded) => Value::from(format!("{decoded:?}")),
            Err(error) => json!({ "error": error.what }),
        };
    }
    let mut sinks = Vec::new();
    let mut value = match Envelope::parse(record.body) {
        Ok(envelope) => envelope_json(&envelope, body),
        Err(error) => json!({ "error": error.what }),
    };
    if let Ok(extra) = decode_extra(record.extra, &mut sinks) {
        value["sinks"] = extra.sinks.iter().map(|s| Value::from(s.0)).collect();
        value["dedupe_hash"] = extra.dedupe_hash.map(|h| hex(&h)).into();
        value["archive"] = extra.archive.into();
        value["log"] = extra.log.into();
    }
    value
}

impl DumpItem<'_> {
    /// For programs: one object, to be written on a line of its own.
    pub fn to_json(&self) -> Value {
        match self {
            DumpItem::Slot {
                file,
                bytes,
                header: Ok(h),
            } => json!({
                "slot": file,
                "bytes": bytes,
                "segment": h.segment.0,
                "shard": h.shard.0,
                "store_uuid": hex(&h.store_uuid),
                "first_lsn": h.first_lsn.0,
                "salt": format!("{:016x}", h.salt),
                "cut": { "segment": h.cut.segment.0, "offset": h.cut.offset, "lsn": h.cut.lsn.0 },
                "next_seq": h.next_seq.0,
                "made_at_ms": h.made_at_ms,
                "slots": h.slots,
                "gap": h.has_gap(),
            }),
            DumpItem::Slot {
                file,
                bytes,
                header: Err(error),
            } => {
                json!({ "slot": file, "bytes": bytes, "error": error })
            }
            DumpItem::Frame {
                file,
                frame,
                is_current,
            } => json!({
                "file": file,
                "offset": frame.offset,
                "lsn": frame.header.lsn.0,
                "durable_lsn": frame.header.durable_lsn.0,
                "bytes": frame.header.frame_bytes(),
                "payload_bytes": frame.header.payload_bytes,
                "records": frame.header.records,
                "hooks": frame.hooks,
                "next_seq": frame.header.next_seq.0,
                "current": is_current,
                "error": frame.fault.map(|e| e.what),
            }),
            DumpItem::Record {
                lsn,
                offset,
                record,
                body,
            } => json!({
                "lsn": lsn.0,
                "offset": offset,
                "bytes": record.len,
                "kind": kind_name(record.kind),
                "relocated": record.flags & 1 != 0,
                "record": record_json(record, *body),
            }),
            DumpItem::Unreadable { file, offset } => {
                json!({ "file": file, "offset": offset, "error": "block cannot be read" })
            }
        }
    }
}

impl fmt::Display for DumpItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpItem::Slot {
                file,
                bytes,
                header: Ok(h),
            } => write!(
                f,
                "{file} ({bytes} bytes): segment {} of shard {}, from LSN {}, cut {}@{} at LSN {}{}",
                h.segment,
                h.shard,
                h.first_lsn,
                h.cut.segment,
                h.cut.offset,
                h.cut.lsn,
                if h.has_gap() {
                    ", after a gap that a repair gave up"
                } else {
                    ""
                }
            ),
            DumpItem::Slot {
                file,
                bytes,
                header: Err(error),
            } => {
                write!(f, "{file} ({bytes} bytes): no segment: {error}")
            }
            DumpItem::Frame {
                frame, is_current, ..
            } => {
                write!(
                    f,
                    "  {:>10} LSN {} (durable {}): {} records, {} hooks, {} bytes, next seq {}",
                    frame.offset,
                    frame.header.lsn,
                    frame.header.durable_lsn,
                    frame.header.records,
                    frame.hooks,
                    frame.header.frame_bytes(),
                    frame.header.next_seq
                )?;
                match frame.fault {
                    Some(fault) => write!(f, ": DAMAGED: {fault}"),
                    None if *is_current => Ok(()),
                    None => f.write_str(" (of an earlier use)"),
                }
            }
            DumpItem::Record {
                offset,
                record,
                body,
                ..
            } => fmt_record(f, *offset, record, *body),
            DumpItem::Unreadable { offset, .. } => write!(f, "  {offset:>10} cannot be read"),
        }
    }
}

fn fmt_record(
    f: &mut fmt::Formatter<'_>,
    offset: u64,
    record: &RawRecord<'_>,
    body: bool,
) -> fmt::Result {
    write!(f, "    {offset:>10} {:<12}", kind_name(record.kind))?;
    if record.kind != kind::HOOK {
        return match decode_record(record.kind, record.body) {
            Ok(decoded) => write!(f, " {decoded:?}"),
            Err(error) => write!(f, " {error}"),
        };
    }
    let envelope = match Envelope::parse(record.body) {
        Ok(envelope) => envelope,
        Err(error) => return write!(f, " {error}"),
    };
    write!(
        f,
        " seq {} {} {}/{} {} {} {} bytes{}",
        envelope.seq,
        envelope.id,
        lossy(envelope.tenant),
        lossy(envelope.source),
        lossy(envelope.method),
        lossy(envelope.target),
        envelope.body.len(),
        if record.flags & 1 != 0 {
            " (relocated)"
        } else {
            ""
        }
    )?;
    if body {
        write!(f, "\n{}", lossy(envelope.body))?;
    }
    Ok(())
}
