//! The record of one hook in the log: its key, its headers, its value, and the reasons to skip one.
//!
//! | part | content |
//! |---|---|
//! | value | the encoded hook, byte for byte as the local store holds it |
//! | key | the node id |
//! | `ankusa_intake_v` | `2` |
//! | `ankusa_intake_kind` | `hook` (reserved: `probe`, `tombstone`) |
//! | `ankusa_intake_node` | the node id |
//! | `ankusa_intake_shard`, `_seq`, `_incarnation` | decimal |
//! | `ankusa_intake_id` | the hook id, 36 bytes, hyphenated |
//! | `ankusa_intake_tenant`, `_source` | for filtering and diagnosis, never authoritative |
//!
//! Invariants: [`parse`] of what [`RecordHead::headers`] wrote gives the same head back; no input
//! makes it panic; a header it does not know is ignored (additive changes keep the version).
//! It does not look into the value. Pure; runs anywhere.

#[cfg(test)]
mod tests;
mod text;

use text::{parse_decimal, parse_id, write_decimal, write_id};

/// The version this code writes, and the highest it reads. `1` is another product's envelope.
pub const VERSION: u32 = 2;
/// How many headers a record carries.
pub const HEADERS: usize = 9;

const H_VERSION: &str = "ankusa_intake_v";
const H_KIND: &str = "ankusa_intake_kind";
const H_NODE: &str = "ankusa_intake_node";
const H_SHARD: &str = "ankusa_intake_shard";
const H_SEQ: &str = "ankusa_intake_seq";
const H_ID: &str = "ankusa_intake_id";
const H_INCARNATION: &str = "ankusa_intake_incarnation";
const H_TENANT: &str = "ankusa_intake_tenant";
const H_SOURCE: &str = "ankusa_intake_source";

/// The header names, in the order they are written.
pub const NAMES: [&str; HEADERS] = [
    H_VERSION,
    H_KIND,
    H_NODE,
    H_SHARD,
    H_SEQ,
    H_ID,
    H_INCARNATION,
    H_TENANT,
    H_SOURCE,
];

/// What a record is. Only hooks are written; the others are reserved and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One hook.
    Hook,
    /// Reserved.
    Probe,
    /// Reserved.
    Tombstone,
}

/// The head of a hook's record: where it belongs and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead<'a> {
    /// `intake.node_id`.
    pub node: &'a [u8],
    /// Shard number.
    pub shard: u16,
    /// Seq within the shard.
    pub seq: u64,
    /// Hook id.
    pub id: [u8; 16],
    /// The incarnation of the store that handed out the seq, or 0.
    pub incarnation: u32,
    /// Tenant; `default` when there is none.
    pub tenant: &'a [u8],
    /// Source.
    pub source: &'a [u8],
}

/// Why a record is not a hook of this node that this code can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Not written by this product: no version header.
    Foreign,
    /// Another node's.
    OtherNode,
    /// Version 1: another product's envelope; holds nothing of ours.
    OlderVersion,
    /// A kind other than `hook`, or one this code does not know.
    OtherKind,
    /// A `hook` of a version above ours: a newer binary can read it, so the offset must stay below.
    NewerHook {
        /// The version it names.
        version: u32,
    },
    /// Any other record of a version above ours.
    NewerOther {
        /// The version it names.
        version: u32,
    },
    /// Ours by its headers, but one of them cannot be read (named).
    Malformed(&'static str),
}

impl Skip {
    /// The label used by metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Skip::Foreign => "foreign",
            Skip::OtherNode => "other_node",
            Skip::OlderVersion => "older_version",
            Skip::OtherKind => "other_kind",
            Skip::NewerHook { .. } => "newer_hook",
            Skip::NewerOther { .. } => "newer_other",
            Skip::Malformed(_) => "malformed",
        }
    }
}

/// Room for the texts of one record's headers; reused from record to record.
pub struct HeaderRoom {
    shard: [u8; 20],
    seq: [u8; 20],
    incarnation: [u8; 20],
    id: [u8; 36],
}

impl Default for HeaderRoom {
    fn default() -> HeaderRoom {
        HeaderRoom {
            shard: [0; 20],
            seq: [0; 20],
            incarnation: [0; 20],
            id: [0; 36],
        }
    }
}

impl RecordHead<'_> {
    /// The headers in the order of [`NAMES`], each value borrowed from the head or the room.
    pub fn headers<'r>(&'r self, room: &'r mut HeaderRoom) -> [&'r [u8]; HEADERS] {
        let shard_len = write_decimal(u64::from(self.shard), &mut room.shard);
        let seq_len = write_decimal(self.seq, &mut room.seq);
        let incarnation_len = write_decimal(u64::from(self.incarnation), &mut room.incarnation);
        write_id(self.id, &mut room.id);
        [
            b"2",
            b"hook",
            self.node,
            &room.shard[..shard_len],
            &room.seq[..seq_len],
            &room.id,
            &room.incarnation[..incarnation_len],
            self.tenant,
            self.source,
        ]
    }

    /// Bytes of key, header names and values: what a record costs beyond its value, an upper bound.
    pub fn overhead_bytes(&self) -> usize {
        let names: usize = NAMES.iter().map(|n| n.len()).sum();
        // Nine headers with two varints each, the record's own frame, the fixed texts.
        names + 2 * self.node.len() + self.tenant.len() + self.source.len() + 36 + 60 + 5 + 128
    }
}

/// Reads the headers of a record that the log held.
///
/// `node` is whose records are wanted. A record is first asked for its version, then for its node,
/// then for its kind, so that another node's newer records never hold this one back.
pub fn parse<'a>(
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    node: &[u8],
) -> Result<RecordHead<'a>, Skip> {
    let mut found: [Option<&'a [u8]>; HEADERS] = [None; HEADERS];
    let mut repeated = None;
    for (name, value) in headers {
        let Some(at) = NAMES.iter().position(|known| *known == name) else {
            continue;
        };
        if found[at].is_some() {
            repeated = repeated.or(Some(NAMES[at]));
        }
        found[at] = Some(value.unwrap_or_default());
    }
    let [
        version,
        kind,
        of,
        shard,
        seq,
        id,
        incarnation,
        tenant,
        source,
    ] = found;
    let version = version.ok_or(Skip::Foreign)?;
    if of.is_some_and(|of| of != node) {
        return Err(Skip::OtherNode);
    }
    let version = parse_decimal(version)
        .and_then(|v| u32::try_from(v).ok())
        .ok_or(Skip::Malformed(H_VERSION))?;
    let is_hook = kind == Some(b"hook");
    if version < VERSION {
        return Err(Skip::OlderVersion);
    }
    if version > VERSION {
        return Err(match is_hook {
            true => Skip::NewerHook { version },
            false => Skip::NewerOther { version },
        });
    }
    if !is_hook {
        return Err(match kind {
            Some(_) => Skip::OtherKind,
            None => Skip::Malformed(H_KIND),
        });
    }
    if let Some(name) = repeated {
        return Err(Skip::Malformed(name));
    }
    let number =
        |value: Option<&[u8]>, name| value.and_then(parse_decimal).ok_or(Skip::Malformed(name));
    let narrow = |value: u64, name| u32::try_from(value).map_err(|_| Skip::Malformed(name));
    Ok(RecordHead {
        node: of.ok_or(Skip::Malformed(H_NODE))?,
        shard: u16::try_from(number(shard, H_SHARD)?).map_err(|_| Skip::Malformed(H_SHARD))?,
        seq: number(seq, H_SEQ)?,
        id: id.and_then(parse_id).ok_or(Skip::Malformed(H_ID))?,
        incarnation: narrow(number(incarnation, H_INCARNATION)?, H_INCARNATION)?,
        tenant: tenant.unwrap_or_default(),
        source: source.unwrap_or_default(),
    })
}
