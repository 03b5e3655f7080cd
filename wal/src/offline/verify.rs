//! `wal verify`: every damage of a shard, with its place, what it means and what to do.
//!
//! Offline; reads only.

use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::checkpoints::{CheckpointScan, lost_hooks, newest_valid, read_checkpoints};
use super::judge::{Expect, Judgement, judge};
use super::scan::scan;
use crate::disk::Disk;
use crate::error::Damage;
use crate::ids::{Lsn, Seq};

/// What a verification found.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// The judgement of the log.
    pub judgement: Judgement,
    /// The checkpoints, newest first.
    pub checkpoints: Vec<CheckpointScan>,
    /// Hooks that were live at the newest checkpoint and cannot be read.
    pub lost_hooks: Vec<Damage>,
    /// Slots read.
    pub slots: usize,
    /// Bytes read.
    pub bytes: u64,
}

impl VerifyReport {
    /// True when nothing acked is damaged.
    pub fn is_sound(&self) -> bool {
        self.judgement.is_sound() && self.lost_hooks.is_empty()
    }
}

/// Reads everything and judges it.
pub async fn verify<D: Disk>(
    disk: &D,
    expect: Expect,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, OfflineError> {
    let scan = scan(disk, progress).await?;
    let checkpoints = read_checkpoints(disk, &scan).await?;
    let judgement = judge(&scan, expect, newest_valid(&checkpoints));
    let lost_hooks = lost_hooks(disk, &scan, &judgement, &checkpoints).await?;
    let (slots, bytes) = (scan.slots.len(), scan.bytes);
    Ok(VerifyReport {
        judgement,
        checkpoints,
        lost_hooks,
        slots,
        bytes,
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn damage_json(damage: &Damage) -> Value {
    let seqs = damage.seqs.map(|(first, end)| {
        json!({ "first": first.0, "end": if end == Seq(u64::MAX) { None } else { Some(end.0) } })
    });
    json!({
        "what": damage.what,
        "file": damage.file,
        "segment": damage.segment.map(|s| s.0),
        "offset": damage.offset,
        "lsns": damage.lsns.map(|(first, last)| json!({ "first": first.0, "last": last.0 })),
        "seqs": seqs,
    })
}

/// A damage in words; seqs with an open end say so.
pub(crate) fn damage_text(damage: &Damage) -> String {
    match damage.seqs {
        Some((first, Seq(u64::MAX))) => {
            let rest = Damage {
                seqs: None,
                ..damage.clone()
            };
            format!("{rest}, seqs {first} and up")
        }
        _ => damage.to_string(),
    }
}

impl VerifyReport {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let j = &self.judgement;
        let found: Vec<Value> = j
            .found
            .iter()
            .map(|f| {
                json!({
                    "damage": damage_json(&f.damage),
                    "salvageable_frames": f.salvage.len(),
                    "advice": f.advice,
                })
            })
            .collect();
        let lsns = |(first, last): &(Lsn, Lsn)| json!({ "first": first.0, "last": last.0 });
        json!({
            "sound": self.is_sound(),
            "store_uuid": j.store_uuid.map(|u| hex(&u)),
            "shard": j.shard.map(|s| s.0),
            "slots": self.slots,
            "bytes_read": self.bytes,
            "segments_in_log": j.chain.len(),
            "durable_lsn_claimed": j.claimed.0,
            "last_lsn_kept": j.last_kept().0,
            "frames_dropped": j.dropped.len(),
            "checkpoints": self.checkpoints.iter().map(CheckpointScan::to_json).collect::<Vec<_>>(),
            "damage": found,
            "lost_hooks": self.lost_hooks.iter().map(damage_json).collect::<Vec<_>>(),
            "given_up_by_repair": j.given_up.iter().map(lsns).collect::<Vec<_>>(),
            "notes": j.notes,
        })
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let j = &self.judgement;
        let shard = j.shard.map_or_else(|| "?".to_owned(), |s| s.to_string());
        writeln!(
            f,
            "shard {shard}: {} slots, {} segments in the log, {} MiB read",
            self.slots,
            j.chain.len(),
            self.bytes >> 20
        )?;
        writeln!(
            f,
            "durable up to LSN {}, kept up to LSN {}",
            j.claimed,
            j.last_kept()
        )?;
        for checkpoint in &self.checkpoints {
            writeln!(f, "{checkpoint}")?;
        }
        for note in &j.notes {
            writeln!(f, "note: {note}")?;
        }
        for (first, last) in &j.given_up {
            writeln!(f, "note: an earlier repair gave up LSNs {first}..={last}")?;
        }
        for found in &j.found {
            writeln!(f, "DAMAGED: {}", damage_text(&found.damage))?;
            if !found.salvage.is_empty() {
                let count = found.salvage.len();
                writeln!(
                    f,
                    "  {count} of its frames are intact in a slot without a header"
                )?;
            }
            writeln!(f, "  {}", found.advice)?;
        }
        for hook in &self.lost_hooks {
            writeln!(f, "DAMAGED: {}", damage_text(hook))?;
        }
        if !self.lost_hooks.is_empty() {
            writeln!(
                f,
                "  these hooks were live at the newest checkpoint; unless they were delivered \
                 since, they are lost to this store. In dual mode `ankusa recover` brings them back"
            )?;
        }
        f.write_str(if self.is_sound() {
            "sound"
        } else {
            "acked data is damaged"
        })
    }
}
