//! Live hooks that cannot be read: which ones, where they lay, and what else is known of them.
//!
//! A checkpoint points at records that may lie below its start, where nothing reads the log again.
//! A hook counts as lost only when the log after that start neither ends nor moves it. Offline;
//! reads only.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::checkpoints::{CheckpointScan, StillHost};
use super::judge::{Judgement, Placed};
use super::scan::{ShardScan, SlotScan, read_slot};
use super::verify::hex;
use crate::checkpoint::{self, GenerationRef};
use crate::disk::{DirEntry, Disk};
use crate::error::Damage;
use crate::format::Envelope;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::record::{kind, read_record};
use crate::generation::{self, GenerationConfig};
use crate::ids::{HookId, SegmentId, Seq};
use crate::open::fold::apply_frame;
use crate::record::{DedupeRow, Location};
use crate::state::State;

/// A hook of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveHook {
    pub(crate) seq: Seq,
    pub(crate) id: HookId,
    pub(crate) at: Location,
}

/// A live hook that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHook {
    /// Its place in the shard.
    pub seq: Seq,
    /// Its id, as its sender was told.
    pub id: HookId,
    /// The keyed hash of its dedupe key, where a row has it.
    pub dedupe_hash: Option<[u8; 16]>,
    /// Where its record should be.
    pub damage: Damage,
}

impl LostHook {
    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "seq": self.seq.0,
            "id": self.id.to_string(),
            "dedupe_hash": self.dedupe_hash.map(|hash| hex(&hash)),
            "file": self.damage.file,
            "segment": self.damage.segment.map(|s| s.0),
            "offset": self.damage.offset,
        })
    }
}

impl fmt::Display for LostHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}, id {}", self.seq, self.id)?;
        match self.dedupe_hash {
            Some(hash) => write!(f, ", dedupe key hash {}", hex(&hash)),
            None => Ok(()),
        }
    }
}

/// The content of the slots that a plan changes, by name.
pub(crate) type Changed = BTreeMap<String, Vec<u8>>;

async fn content<D: Disk>(
    disk: &D,
    slot: &SlotScan,
    changed: &Changed,
) -> Result<Vec<u8>, OfflineError> {
    if let Some(content) = changed.get(&slot.name) {
        return Ok(content.clone());
    }
    let entry = DirEntry {
        name: slot.name.clone(),
        bytes: slot.bytes,
    };
    Ok(read_slot(disk, &entry, |_| {}).await?.0)
}

/// The live hooks that cannot be read, by seq.
pub(crate) async fn lost_hooks<D: Disk>(
    disk: &D,
    scan: &ShardScan,
    changed: &Changed,
    judgement: &Judgement,
    checkpoints: &[CheckpointScan],
) -> Result<Vec<LostHook>, OfflineError> {
    let Some(newest) = checkpoints.iter().find(|c| c.claim.is_ok()) else {
        return Ok(Vec::new());
    };
    let mut lost = unreadable(disk, scan, changed, judgement, &newest.hooks).await?;
    if lost.is_empty() {
        return Ok(lost);
    }
    let now = replayed(disk, scan, changed, judgement, newest).await?;
    let Some((mut state, generations)) = now else {
        return Ok(lost);
    };
    lost.retain(|hook| {
        let at = state.location(hook.seq);
        at.is_some_and(|at| {
            (Some(at.segment), at.offset) == (hook.damage.segment, hook.damage.offset)
        })
    });
    let mut keys = lost.iter().map(|hook| (hook.id, None)).collect();
    note_keys(&mut keys, &state.take_dedupe_ready());
    read_keys(disk, judgement, &generations, &mut keys).await;
    for hook in &mut lost {
        hook.dedupe_hash = keys.get(&hook.id).copied().flatten();
    }
    lost.sort_by_key(|hook| hook.seq);
    Ok(lost)
}

/// The hooks of a checkpoint whose records are not what was written.
async fn unreadable<D: Disk>(
    disk: &D,
    scan: &ShardScan,
    changed: &Changed,
    judgement: &Judgement,
    hooks: &[LiveHook],
) -> Result<Vec<LostHook>, OfflineError> {
    let mut by_segment: BTreeMap<SegmentId, Vec<&LiveHook>> = BTreeMap::new();
    for hook in hooks {
        by_segment.entry(hook.at.segment).or_default().push(hook);
    }
    let mut lost = Vec::new();
    for (segment, hooks) in by_segment {
        let own = |s: &&SlotScan| {
            s.header
                .as_ref()
                .is_ok_and(|h| h.segment == segment && Some(h.store_uuid) == judgement.store_uuid)
        };
        let Some(slot) = scan.slots.iter().find(own) else {
            lost.extend(hooks.iter().map(|hook| lost_hook(hook, None)));
            continue;
        };
        let in_intact_frame = |at: &Location| {
            let end = at.offset + u64::from(at.len);
            slot.own_frames()
                .any(|f| f.is_intact() && f.offset < at.offset && end <= f.end())
        };
        let doubtful: Vec<_> = hooks
            .into_iter()
            .filter(|hook| !in_intact_frame(&hook.at))
            .collect();
        if doubtful.is_empty() {
            continue;
        }
        // The record may be whole although something else in its frame is not.
        let content = content(disk, slot, changed).await?;
        for hook in doubtful {
            if !holds_hook(&content, hook) {
                lost.push(lost_hook(hook, Some(slot.name.clone())));
            }
        }
    }
    Ok(lost)
}

fn holds_hook(content: &[u8], hook: &LiveHook) -> bool {
    let record = read_record(content, hook.at.offset as usize).ok();
    record.is_some_and(|(record, _)| {
        record.kind == kind::HOOK && Envelope::parse(record.body).is_ok_and(|e| e.seq == hook.seq)
    })
}

fn lost_hook(hook: &LiveHook, file: Option<String>) -> LostHook {
    LostHook {
        seq: hook.seq,
        id: hook.id,
        dedupe_hash: None,
        damage: Damage {
            what: "a live hook cannot be read",
            file,
            segment: Some(hook.at.segment),
            offset: hook.at.offset,
            lsns: None,
            seqs: Some((hook.seq, hook.seq.next())),
        },
    }
}

/// The state that an open would come to: the checkpoint, and the kept log after its start.
async fn replayed<D: Disk>(
    disk: &D,
    scan: &ShardScan,
    changed: &Changed,
    judgement: &Judgement,
    newest: &CheckpointScan,
) -> Result<Option<(State, Vec<GenerationRef>)>, OfflineError> {
    let (Ok(claim), Some(number)) = (&newest.claim, checkpoint::parse_name(&newest.name)) else {
        return Ok(None);
    };
    let unfit =
        |what: &dyn fmt::Display| OfflineError::NoRepair(format!("{}: {what}", newest.name));
    let loaded = checkpoint::load(disk, &StillHost, number, claim.shard, claim.store_uuid).await;
    let loaded = loaded.map_err(|e| unfit(&e))?;
    let (mut state, start) = (loaded.state, loaded.start.start_lsn);
    let mut held: Option<(usize, Vec<u8>)> = None;
    for placed in judgement.kept.iter().filter(|p| p.frame.header.lsn > start) {
        if held.as_ref().is_none_or(|(slot, _)| *slot != placed.slot) {
            let bytes = content(disk, &scan.slots[placed.slot], changed).await?;
            held = Some((placed.slot, bytes));
        }
        let Some(payload) = held
            .as_ref()
            .and_then(|(_, bytes)| payload_of(bytes, placed))
        else {
            continue;
        };
        let (header, at) = (&placed.frame.header, placed.frame.offset);
        state.settle(header.lsn);
        apply_frame(&mut state, header, payload, placed.segment, at).map_err(|e| unfit(&e))?;
    }
    Ok(Some((state, loaded.end.generations)))
}

fn payload_of<'b>(content: &'b [u8], placed: &Placed) -> Option<&'b [u8]> {
    let from = placed.frame.offset as usize + FRAME_HEADER_BYTES;
    content.get(from..from + placed.frame.header.payload_bytes as usize)
}

/// The dedupe key of each lost hook, where it is known.
type Keys = HashMap<HookId, Option<[u8; 16]>>;

fn note_keys(keys: &mut Keys, rows: &[DedupeRow]) {
    for row in rows.iter().filter(|row| !generation::is_gone(row)) {
        if let Some(key) = keys.get_mut(&row.id) {
            *key = Some(row.hash);
        }
    }
}

/// Keys from the generations that a checkpoint lists, as far as those can be read.
async fn read_keys<D: Disk>(
    disk: &D,
    judgement: &Judgement,
    listed: &[GenerationRef],
    keys: &mut Keys,
) {
    let Some((store_uuid, shard)) = judgement.store_uuid.zip(judgement.shard) else {
        return;
    };
    let config = GenerationConfig::new(shard, store_uuid);
    let mut rows = generation::rows_of(disk, config, listed);
    while let Some(block) = rows.next_block(0).await {
        note_keys(keys, &block.unwrap_or_default());
    }
}
