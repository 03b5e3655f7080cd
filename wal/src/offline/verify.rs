//! `wal verify`: every damage of a shard, with its place, what it means and what to do.
//!
//! Offline; reads only.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::checkpoints::{CheckpointScan, newest_valid, read_checkpoints};
use super::judge::{Expect, Judgement, judge};
use super::lost::{Changed, LostHook, lost_hooks};
use super::scan::scan;
use crate::disk::Disk;
use crate::error::{Damage, span};
use crate::ids::{Lsn, Seq};

/// What a verification found.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// The judgement of the log.
    pub judgement: Judgement,
    /// The checkpoints, newest first.
    pub checkpoints: Vec<CheckpointScan>,
    /// Live hooks that cannot be read, by seq.
    pub lost_hooks: Vec<LostHook>,
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
    let changed = Changed::new();
    let lost_hooks = lost_hooks(disk, &scan, &changed, &judgement, &checkpoints).await?;
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

/// Most ranges of seqs in one line.
const RANGES_MAX: usize = 100;

/// Seqs in rising order as ranges, both ends included.
pub(crate) fn seqs_text(seqs: &[Seq]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == seq.0 => *last = seq.0,
            _ => ranges.push((seq.0, seq.0)),
        }
    }
    let more = ranges.len().saturating_sub(RANGES_MAX);
    ranges.truncate(RANGES_MAX);
    let mut text: Vec<String> = ranges.iter().map(|r| span("seq", r.0, r.1)).collect();
    if more > 0 {
        text.push(format!("and {more} more ranges"));
    }
    text.join(", ")
}

/// The lost hooks, a line for each segment.
fn write_lost(lost: &[LostHook], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut places: BTreeMap<_, Vec<Seq>> = BTreeMap::new();
    for hook in lost {
        let place = (hook.damage.segment, &hook.damage.file);
        places.entry(place).or_default().push(hook.seq);
    }
    for ((segment, file), seqs) in places {
        let segment = segment.map_or_else(|| "?".to_owned(), |s| s.to_string());
        let file = file.as_deref().unwrap_or("which is absent");
        let (count, seqs) = (seqs.len(), seqs_text(&seqs));
        writeln!(
            f,
            "DAMAGED: live hooks cannot be read in segment {segment}, {file}: {count} of them: {seqs}"
        )?;
    }
    if !lost.is_empty() {
        writeln!(
            f,
            "  they are lost to this store. In dual mode `ankusa recover` brings them back; else \
             `ankusa wal repair` gives them up, names the id of each, and lets the rest go on"
        )?;
    }
    Ok(())
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
            "lost_hooks": self.lost_hooks.iter().map(LostHook::to_json).collect::<Vec<_>>(),
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
            let lsns = span("LSN", first.0, last.0);
            writeln!(f, "note: an earlier repair gave up {lsns}")?;
        }
        for found in &j.found {
            writeln!(f, "DAMAGED: {}", found.damage)?;
            if !found.salvage.is_empty() {
                let count = found.salvage.len();
                writeln!(
                    f,
                    "  {count} of its frames are intact in a slot without a header"
                )?;
            }
            writeln!(f, "  {}", found.advice)?;
        }
        write_lost(&self.lost_hooks, f)?;
        let passed_over = self.checkpoints.iter().filter(|c| c.claim.is_err()).count();
        match (self.is_sound(), passed_over) {
            (false, _) => f.write_str("acked data is damaged"),
            (true, 0) => f.write_str("sound"),
            (true, n) => write!(
                f,
                "sound: nothing acked is lost. {n} of the checkpoints cannot be used; an open \
                 passes over it, reads more of the log instead, and writes a new one"
            ),
        }
    }
}
