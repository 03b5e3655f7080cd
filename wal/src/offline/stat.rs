//! `wal stat`: what fills a shard's directory. Offline; reads only.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::checkpoints::{CheckpointScan, newest_valid, read_checkpoints};
use super::judge::{Expect, judge};
use super::scan::{read_slot, scan};
use crate::disk::{DirEntry, Disk, Space};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::record::{kind, records};
use crate::ids::{Lsn, SegmentId};

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStat {
    /// How many.
    pub records: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
}

/// One segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentStat {
    /// Its slot's file.
    pub file: String,
    /// Its number.
    pub segment: SegmentId,
    /// Its first LSN.
    pub first_lsn: Lsn,
    /// Groups in it.
    pub frames: u64,
    /// Bytes of groups, padding included.
    pub frame_bytes: u64,
    /// Padding.
    pub padding_bytes: u64,
}

/// What fills a shard.
#[derive(Clone, Debug, Default)]
pub struct StatReport {
    /// Segments of the log, oldest first.
    pub segments: Vec<SegmentStat>,
    /// Records by kind.
    pub kinds: BTreeMap<u8, KindStat>,
    /// Slots in all.
    pub slots: usize,
    /// Slots without a segment.
    pub blank_slots: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Checkpoints, newest first.
    pub checkpoints: Vec<CheckpointScan>,
    /// Durable up to here.
    pub claimed: Lsn,
    /// Kept up to here.
    pub last_kept: Lsn,
    /// Damages that `verify` would tell of.
    pub damages: usize,
    /// The file system.
    pub space: Space,
}

/// Reads everything and counts it.
pub async fn stat<D: Disk>(
    disk: &D,
    expect: Expect,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<StatReport, OfflineError> {
    let scan = scan(disk, progress).await?;
    let checkpoints = read_checkpoints(disk, &scan).await?;
    let judgement = judge(&scan, expect, newest_valid(&checkpoints));
    let others: u64 = scan.others.iter().map(|f| f.bytes).sum();
    let mut report = StatReport {
        slots: scan.slots.len(),
        blank_slots: scan.slots.iter().filter(|s| s.is_blank).count(),
        bytes: scan.slots.iter().map(|s| s.bytes).sum::<u64>() + others,
        checkpoints,
        claimed: judgement.claimed,
        last_kept: judgement.last_kept(),
        damages: judgement.found.len(),
        space: disk.space().await.unwrap_or_default(),
        ..StatReport::default()
    };
    for piece in &judgement.chain {
        let slot = &scan.slots[piece.slot];
        let entry = DirEntry {
            name: slot.name.clone(),
            bytes: slot.bytes,
        };
        let (content, _) = read_slot(disk, &entry, |_| {}).await?;
        let mut segment = SegmentStat {
            file: slot.name.clone(),
            segment: piece.header.segment,
            first_lsn: piece.header.first_lsn,
            frames: 0,
            frame_bytes: 0,
            padding_bytes: 0,
        };
        for placed in judgement.kept.iter().filter(|p| p.slot == piece.slot) {
            let header = &placed.frame.header;
            segment.frames += 1;
            segment.frame_bytes += header.frame_bytes();
            let used = (FRAME_HEADER_BYTES as u64) + u64::from(header.payload_bytes);
            segment.padding_bytes += header.frame_bytes() - used;
            let start = placed.frame.offset as usize + FRAME_HEADER_BYTES;
            let payload = content.get(start..start + header.payload_bytes as usize);
            for record in records(payload.unwrap_or_default()) {
                let stat = report.kinds.entry(record.kind).or_default();
                stat.records += 1;
                stat.bytes += record.len as u64;
            }
        }
        report.segments.push(segment);
    }
    Ok(report)
}

/// The name of a record kind.
pub(crate) fn kind_name(number: u8) -> &'static str {
    match number {
        kind::HOOK => "hook",
        kind::DELIVERY => "delivery",
        kind::FINISHED => "finished",
        kind::DEDUPE => "dedupe",
        kind::DEDUPE_GONE => "dedupe_gone",
        kind::COUNTERS => "counters",
        kind::SINK_NAME => "sink_name",
        kind::WATERMARK => "watermark",
        kind::OFFSET => "offset",
        kind::NEXT_SEQ => "next_seq",
        kind::INCARNATION => "incarnation",
        kind::INTAKE_IDENTITY => "intake_identity",
        kind::RESEQUENCED => "resequenced",
        kind::ARCHIVED => "archived",
        kind::AUDIT => "audit",
        kind::LIFECYCLE => "lifecycle",
        kind::AUDIT_TRIM => "audit_trim",
        kind::GIVEN_UP => "given_up",
        _ => "unknown",
    }
}

impl StatReport {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let kinds: serde_json::Map<String, Value> = self
            .kinds
            .iter()
            .map(|(k, s)| {
                let stat = json!({ "number": k, "records": s.records, "bytes": s.bytes });
                (kind_name(*k).to_owned(), stat)
            })
            .collect();
        let segment = |s: &SegmentStat| {
            json!({
                "file": s.file,
                "segment": s.segment.0,
                "first_lsn": s.first_lsn.0,
                "frames": s.frames,
                "frame_bytes": s.frame_bytes,
                "padding_bytes": s.padding_bytes,
            })
        };
        json!({
            "slots": self.slots,
            "blank_slots": self.blank_slots,
            "bytes": self.bytes,
            "free_bytes": self.space.free_bytes,
            "durable_lsn_claimed": self.claimed.0,
            "last_lsn_kept": self.last_kept.0,
            "damages": self.damages,
            "segments": self.segments.iter().map(segment).collect::<Vec<_>>(),
            "records": kinds,
            "checkpoints": self.checkpoints.iter().map(CheckpointScan::to_json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for StatReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} slots ({} blank), {} MiB in all, {} MiB free on the disk",
            self.slots,
            self.blank_slots,
            self.bytes >> 20,
            self.space.free_bytes >> 20
        )?;
        writeln!(
            f,
            "durable up to LSN {}, kept up to LSN {}",
            self.claimed, self.last_kept
        )?;
        for s in &self.segments {
            writeln!(
                f,
                "segment {:>6}  {}  from LSN {}: {} groups, {} KiB, {} KiB of it padding",
                s.segment,
                s.file,
                s.first_lsn,
                s.frames,
                s.frame_bytes >> 10,
                s.padding_bytes >> 10
            )?;
        }
        for (number, s) in &self.kinds {
            let name = kind_name(*number);
            writeln!(
                f,
                "{name:<16} {:>12} records {:>14} bytes",
                s.records, s.bytes
            )?;
        }
        for checkpoint in &self.checkpoints {
            writeln!(f, "{checkpoint}")?;
        }
        match self.damages {
            0 => f.write_str("no damage"),
            n => write!(f, "{n} damages: see `ankusa wal verify`"),
        }
    }
}
