//! Which part of what was found is the log, what of it is damaged, and what is only a torn tail.
//!
//! The rules, in order:
//! 1. The newest segment is the one with the highest number among intact headers of this store;
//!    each header's cut names the segment before it and where that one ends. What no cut names
//!    is not part of the log.
//! 2. D, the highest LSN that anything intact claims durable: frames (also in a slot without a
//!    header), cuts, checkpoints.
//! 3. Every LSN from the checkpoint's start (or from the first) up to D must lie at its place in
//!    the chain, intact. What does not is acked data that is damaged.
//! 4. Above D: intact frames up to the first bad one are kept, the rest is an ordinary torn tail.
//!
//! Pure. Offline. The walk over the frames is in the module `place`.

mod place;

use std::collections::BTreeMap;

use super::scan::{FrameScan, ShardScan, SlotScan};
use crate::checkpoint::SegmentNeed;
use crate::error::Damage;
use crate::format::segment::{Cut, NEWER_VERSION, SEGMENT_DATA_OFFSET, SegmentHeader, store_tag};
use crate::ids::{Lsn, SegmentId, Seq, ShardId};
use crate::slots::SlotNo;

pub(crate) use place::find_headless;
use place::place_frames;

/// Which store the directory should belong to; `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Its uuid.
    pub store_uuid: Option<[u8; 16]>,
    /// Its shard.
    pub shard: Option<ShardId>,
}

/// What a checkpoint says, as far as the log is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointClaim {
    /// The store it is of.
    pub store_uuid: [u8; 16],
    /// The shard it is of.
    pub shard: ShardId,
    /// Records up to here are in it.
    pub start_lsn: Lsn,
    /// It claims everything up to here durable.
    pub end_lsn: Lsn,
    /// The segments it needs.
    pub needs: Vec<SegmentNeed>,
    /// The slots that existed.
    pub slots: Vec<u32>,
}

/// One segment of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Place of its slot in the scan.
    pub slot: usize,
    /// Its header.
    pub header: SegmentHeader,
    /// Where the next segment's cut ends it; `None` for the newest.
    pub cut: Option<Cut>,
}

/// A frame at its place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Place of its slot in the scan.
    pub slot: usize,
    /// The segment.
    pub segment: SegmentId,
    /// The frame.
    pub frame: FrameScan,
}

/// One damage, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What and where.
    pub damage: Damage,
    /// The frames of the missing LSNs that are intact somewhere else.
    pub salvage: Vec<Placed>,
    /// What to do.
    pub advice: &'static str,
}

/// The judgement.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// The store, when any header tells.
    pub store_uuid: Option<[u8; 16]>,
    /// The shard, likewise.
    pub shard: Option<ShardId>,
    /// The chain, oldest first.
    pub chain: Vec<Piece>,
    /// D.
    pub claimed: Lsn,
    /// Frames of the chain that are intact and at their place, in LSN order up to the first gap
    /// above D.
    pub kept: Vec<Placed>,
    /// Intact frames above D behind a bad one: dropped at the next open.
    pub dropped: Vec<Placed>,
    /// Damaged acked data.
    pub found: Vec<Found>,
    /// LSNs that an earlier repair gave up.
    pub given_up: Vec<(Lsn, Lsn)>,
    /// What a person should know and nothing need be done about.
    pub notes: Vec<String>,
}

const HEAL: &str = "in dual mode `ankusa recover` heals it from the intake log; else `ankusa wal \
                    repair` gives it up and says exactly what is lost";
const MISSING: &str = "put the file back if it was moved; else as for any damage: `ankusa recover` \
                       in dual mode, or `ankusa wal repair`";
const SALVAGE: &str = "`ankusa wal repair` copies the intact frames into a new segment; nothing is \
                       lost";
const NEEDED: &str = "put the file back if it was moved; else in dual mode restore and recover the \
                      node, or `ankusa wal repair` puts an empty segment in its place: the hooks \
                      in it are lost";
/// The damage of a segment that a checkpoint lists and that is not there.
pub(crate) const NEEDED_ABSENT: &str = "a segment that the newest checkpoint needs is absent";
/// The damage of a slot that a checkpoint lists and that is not there.
pub(crate) const SLOT_ABSENT: &str =
    "a slot is absent, and with it all that was written into it since the newest checkpoint";
/// The damage of dedupe rows that the disk does not give back.
pub(crate) const GENERATION_UNREADABLE: &str = "dedupe rows that cannot be read";
const GENERATION_GONE: &str = "no hook is in it. If it stays so, `ankusa wal repair` moves it aside: \
                               retries of the hooks whose keys were in it are stored again";
const FOREIGN: &str = "move the file away: it belongs to another store or shard";

impl Judgement {
    /// True when nothing acked is damaged.
    pub fn is_sound(&self) -> bool {
        self.found.is_empty()
    }

    /// The last kept frame before an LSN.
    pub(crate) fn kept_before(&self, lsn: Lsn) -> Option<&Placed> {
        self.kept.iter().rfind(|p| p.frame.header.lsn < lsn)
    }

    /// The last LSN an open keeps.
    pub fn last_kept(&self) -> Lsn {
        self.kept.last().map_or(Lsn(0), |p| p.frame.header.lsn)
    }
}

/// Judges a scan.
pub fn judge(scan: &ShardScan, expect: Expect, checkpoint: Option<&CheckpointClaim>) -> Judgement {
    let mut out = Judgement::default();
    let headers = own_headers(scan, expect, checkpoint, &mut out);
    let checkpoint =
        checkpoint.filter(|c| Some(c.store_uuid) == out.store_uuid && Some(c.shard) == out.shard);
    link_chain(&headers, &mut out);
    out.claimed = highest_claim(scan, &out, checkpoint);
    place_frames(scan, checkpoint, &mut out);
    check_needs(&headers, checkpoint, &mut out);
    check_slots(scan, checkpoint, &mut out);
    check_generations(scan, &mut out);
    note_orphans(scan, &mut out);
    out
}

fn damage(what: &'static str, file: &SlotScan, segment: Option<SegmentId>, offset: u64) -> Damage {
    Damage {
        what,
        file: Some(file.name.clone()),
        segment,
        offset,
        lsns: None,
        seqs: None,
    }
}

/// The intact headers of this store by segment number; others are told.
fn own_headers(
    scan: &ShardScan,
    expect: Expect,
    checkpoint: Option<&CheckpointClaim>,
    out: &mut Judgement,
) -> BTreeMap<SegmentId, (usize, SegmentHeader)> {
    let newest = scan
        .slots
        .iter()
        .filter_map(|s| s.header.as_ref().ok())
        .max_by_key(|h| h.segment);
    let told = newest.map(|h| (h.store_uuid, h.shard));
    let told = told.or(checkpoint.map(|c| (c.store_uuid, c.shard)));
    out.store_uuid = expect.store_uuid.or(told.map(|t| t.0));
    out.shard = expect.shard.or(told.map(|t| t.1));
    let mut headers = BTreeMap::new();
    for (slot, file) in scan.slots.iter().enumerate() {
        let header = match &file.header {
            Ok(header) => *header,
            Err(error) => {
                if error.what == NEWER_VERSION {
                    let damage = damage(NEWER_VERSION, file, None, 0);
                    let advice = "use the newer release that wrote it";
                    out.found.push(Found {
                        damage,
                        salvage: Vec::new(),
                        advice,
                    });
                }
                continue;
            }
        };
        let foreign = if Some(header.store_uuid) != out.store_uuid {
            Some("segment of another store")
        } else if Some(header.shard) != out.shard {
            Some("segment of another shard")
        } else if headers.contains_key(&header.segment) {
            Some("segment that is there twice")
        } else {
            None
        };
        match foreign {
            Some(what) => {
                let damage = damage(what, file, Some(header.segment), 0);
                out.found.push(Found {
                    damage,
                    salvage: Vec::new(),
                    advice: FOREIGN,
                });
            }
            None => {
                headers.insert(header.segment, (slot, header));
            }
        }
    }
    headers
}

/// Follows the cuts from the newest segment back. Behind a segment that is absent it goes on with
/// the newest one before it, so that no more is called lost than is.
fn link_chain(headers: &BTreeMap<SegmentId, (usize, SegmentHeader)>, out: &mut Judgement) {
    let mut cut: Option<Cut> = None;
    let mut next = headers.last_key_value().map(|(segment, _)| *segment);
    while let Some(wanted) = next {
        let Some((segment, (slot, header))) = headers.range(..=wanted).next_back() else {
            break;
        };
        let own_cut = cut.filter(|c| c.segment == *segment);
        out.chain.push(Piece {
            slot: *slot,
            header: *header,
            cut: own_cut,
        });
        cut = Some(header.cut);
        // A cut always names an earlier segment; a header that does not is not trusted further.
        next = Some(header.cut.segment).filter(|s| s.0 != 0 && s < segment);
    }
    out.chain.reverse();
}

/// The segments that the checkpoint lists must be there, in the use that it means.
fn check_needs(
    headers: &BTreeMap<SegmentId, (usize, SegmentHeader)>,
    checkpoint: Option<&CheckpointClaim>,
    out: &mut Judgement,
) {
    for need in checkpoint
        .iter()
        .flat_map(|c| &c.needs)
        .filter(|n| n.has_live || n.has_tail && n.end > SEGMENT_DATA_OFFSET)
    {
        if headers
            .get(&need.segment)
            .is_some_and(|(_, h)| h.salt == need.salt)
        {
            continue;
        }
        let damage = Damage {
            what: NEEDED_ABSENT,
            file: None,
            segment: Some(need.segment),
            offset: 0,
            lsns: None,
            seqs: None,
        };
        out.found.push(Found {
            damage,
            salvage: Vec::new(),
            advice: NEEDED,
        });
    }
}

/// The slots that the checkpoint lists must be there: anything may have been written into one
/// since.
fn check_slots(scan: &ShardScan, checkpoint: Option<&CheckpointClaim>, out: &mut Judgement) {
    let is_there = |name: &String| scan.slots.iter().any(|s| s.name == *name);
    let absent_needs = |out: &Judgement| out.found.iter().any(|f| f.damage.what == NEEDED_ABSENT);
    let listed = checkpoint.iter().flat_map(|c| &c.slots);
    for name in listed.map(|no| SlotNo(*no).file_name()) {
        // One whose segment is needed is put back first, and then looked for again.
        if is_there(&name) || absent_needs(out) {
            continue;
        }
        let next = out.kept.last().map_or(Seq(0), |p| p.frame.header.next_seq);
        out.found.push(Found {
            damage: Damage {
                what: SLOT_ABSENT,
                file: Some(name),
                segment: None,
                offset: 0,
                lsns: None,
                seqs: Some((next, Seq(u64::MAX))),
            },
            salvage: Vec::new(),
            advice: MISSING,
        });
    }
}

/// A generation that cannot be read stops a boot: without its rows retries would be stored again,
/// and the next attempt may read it. One that never can be is an operator's to give up.
fn check_generations(scan: &ShardScan, out: &mut Judgement) {
    for (name, offset) in &scan.unreadable_generations {
        out.found.push(Found {
            damage: Damage {
                what: GENERATION_UNREADABLE,
                file: Some(name.clone()),
                segment: None,
                offset: *offset,
                lsns: None,
                seqs: None,
            },
            salvage: Vec::new(),
            advice: GENERATION_GONE,
        });
    }
}

fn highest_claim(scan: &ShardScan, out: &Judgement, checkpoint: Option<&CheckpointClaim>) -> Lsn {
    let tag = out
        .store_uuid
        .zip(out.shard)
        .map(|(uuid, shard)| store_tag(&uuid, shard));
    let frames = scan.slots.iter().flat_map(|s| &s.frames);
    let own = frames.filter(|f| tag.is_none_or(|tag| f.header.store_tag == tag));
    let cuts = out.chain.iter().map(|p| p.header.cut.lsn);
    let claims = own.map(|f| f.header.durable_lsn).chain(cuts);
    claims
        .chain(checkpoint.map(|c| c.end_lsn))
        .max()
        .unwrap_or(Lsn(0))
}

fn note_orphans(scan: &ShardScan, out: &mut Judgement) {
    let full = scan.slots.iter().map(|s| s.bytes).max().unwrap_or(0);
    for short in scan.slots.iter().filter(|s| s.bytes < full) {
        out.notes.push(format!(
            "{} is shorter than other slots ({} of {full} bytes): if it was cut off, nothing tells \
             what was in the rest",
            short.name, short.bytes
        ));
    }
    for (slot, file) in scan.slots.iter().enumerate() {
        let in_chain = out.chain.iter().any(|p| p.slot == slot);
        match &file.header {
            Ok(header) if !in_chain && Some(header.store_uuid) == out.store_uuid => {
                out.notes.push(format!(
                    "{}: segment {} is not part of the log",
                    file.name, header.segment
                ))
            }
            Err(error) if !file.is_blank => {
                out.notes
                    .push(format!("{}: no segment ({error})", file.name));
            }
            _ => {}
        }
        if !file.unreadable.is_empty() {
            out.notes.push(format!(
                "{}: {} blocks cannot be read, the first at offset {}",
                file.name,
                file.unreadable.len(),
                file.unreadable[0]
            ));
        }
    }
    if !out.dropped.is_empty() {
        out.notes.push(format!(
            "{} intact frames behind a torn one were never acked and are dropped at the next open",
            out.dropped.len()
        ));
    }
}
