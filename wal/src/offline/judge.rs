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
//! Pure. Offline.

use std::collections::BTreeMap;

use super::scan::{FrameScan, ShardScan, SlotScan};
use crate::error::Damage;
use crate::format::segment::{Cut, NEWER_VERSION, SEGMENT_DATA_OFFSET, SegmentHeader, store_tag};
use crate::ids::{Lsn, SegmentId, Seq, ShardId};

/// Which store the directory should belong to; `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Its uuid.
    pub store_uuid: Option<[u8; 16]>,
    /// Its shard.
    pub shard: Option<ShardId>,
}

/// What the newest valid checkpoint says, as far as the log is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointClaim {
    /// Records up to here are in it.
    pub start_lsn: Lsn,
    /// It claims everything up to here durable.
    pub end_lsn: Lsn,
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
pub fn judge(scan: &ShardScan, expect: Expect, checkpoint: Option<CheckpointClaim>) -> Judgement {
    let mut out = Judgement::default();
    let headers = own_headers(scan, expect, &mut out);
    link_chain(&headers, &mut out);
    out.claimed = highest_claim(scan, &out, checkpoint);
    place_frames(scan, checkpoint, &mut out);
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
    out: &mut Judgement,
) -> BTreeMap<SegmentId, (usize, SegmentHeader)> {
    let newest = scan
        .slots
        .iter()
        .filter_map(|s| s.header.as_ref().ok())
        .max_by_key(|h| h.segment);
    out.store_uuid = expect.store_uuid.or(newest.map(|h| h.store_uuid));
    out.shard = expect.shard.or(newest.map(|h| h.shard));
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

fn highest_claim(scan: &ShardScan, out: &Judgement, checkpoint: Option<CheckpointClaim>) -> Lsn {
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

/// Walks the chain frame by frame and tells what is kept, dropped or damaged.
fn place_frames(scan: &ShardScan, checkpoint: Option<CheckpointClaim>, out: &mut Judgement) {
    let replay_from = checkpoint.map_or(Lsn(0), |c| c.start_lsn);
    let chain = std::mem::take(&mut out.chain);
    let mut gaps = Vec::new();
    // Before the first header in the chain everything must be in the checkpoint.
    let mut reached = replay_from;
    if let Some(first) = chain.first() {
        reached = first
            .header
            .first_lsn
            .prev()
            .min(replay_from.max(first.header.cut.lsn));
        if first.header.cut.lsn > replay_from {
            let absent = Some(first.header.cut.segment);
            let (from, last) = (replay_from.next(), first.header.cut.lsn);
            gaps.push(Gap {
                first: from,
                last,
                place: None,
                absent,
                prev: None,
            });
        }
    }
    let mut before: Option<SegmentId> = None;
    for piece in &chain {
        let header = &piece.header;
        if header.first_lsn > reached.next() {
            let missing = (reached.next(), header.first_lsn.prev());
            if header.has_gap() {
                out.given_up.push(missing);
            } else {
                let absent = Some(header.cut.segment).filter(|s| Some(*s) != before);
                let place = Some((piece.slot, header.segment, SEGMENT_DATA_OFFSET));
                let place = if absent.is_some() { None } else { place };
                let prev = out.kept.last().map(|p| p.frame);
                gaps.push(Gap {
                    first: missing.0,
                    last: missing.1,
                    place,
                    absent,
                    prev,
                });
            }
        }
        before = Some(header.segment);
        reached = walk_piece(&scan.slots[piece.slot], piece, out, &mut gaps);
    }
    out.chain = chain;
    if out.claimed > reached {
        let place = out.chain.last().map(|p| {
            let end = out
                .kept
                .last()
                .filter(|k| k.slot == p.slot)
                .map(|k| k.frame.end());
            (p.slot, p.header.segment, end.unwrap_or(SEGMENT_DATA_OFFSET))
        });
        let prev = out.kept.last().map(|p| p.frame);
        gaps.push(Gap {
            first: reached.next(),
            last: out.claimed,
            place,
            absent: None,
            prev,
        });
    }
    for gap in gaps {
        report_gap(scan, replay_from, gap, out);
    }
}

/// LSNs that are not at their place.
struct Gap {
    first: Lsn,
    last: Lsn,
    /// Slot, segment and offset where they should start.
    place: Option<(usize, SegmentId, u64)>,
    /// The segment that holds them is not there.
    absent: Option<SegmentId>,
    prev: Option<FrameScan>,
}

/// The frames of one segment; answers the last LSN that the log has reached.
fn walk_piece(slot: &SlotScan, piece: &Piece, out: &mut Judgement, gaps: &mut Vec<Gap>) -> Lsn {
    let header = &piece.header;
    let end = piece.cut.map_or(slot.bytes, |c| c.offset.min(slot.bytes));
    let last = piece.cut.map(|c| c.lsn);
    let mut lsn = header.first_lsn;
    let mut at = SEGMENT_DATA_OFFSET;
    let mut whole = true;
    for frame in slot.own_frames().filter(|f| f.end() <= end) {
        let placed = Placed {
            slot: piece.slot,
            segment: header.segment,
            frame: *frame,
        };
        if !frame.is_intact() || frame.header.lsn < lsn {
            continue;
        }
        let in_order = frame.header.lsn == lsn && frame.offset == at;
        let acked = frame.header.lsn <= out.claimed;
        if !in_order && !acked {
            // Above D, behind a bad frame.
            whole = false;
        } else if !in_order {
            let place = Some((piece.slot, header.segment, at));
            let prev = out.kept.last().map(|p| p.frame);
            if frame.header.lsn > lsn {
                gaps.push(Gap {
                    first: lsn,
                    last: frame.header.lsn.prev(),
                    place,
                    absent: None,
                    prev,
                });
            }
        }
        if whole {
            out.kept.push(placed);
            lsn = frame.header.lsn.next();
            at = frame.end();
        } else {
            out.dropped.push(placed);
        }
    }
    let reached = lsn.prev();
    match last {
        Some(last) if reached < last => {
            let place = Some((piece.slot, header.segment, at));
            let prev = out.kept.last().map(|p| p.frame);
            gaps.push(Gap {
                first: lsn,
                last,
                place,
                absent: None,
                prev,
            });
            last
        }
        _ => reached,
    }
}

/// Turns a gap into damage, when any of it is needed.
fn report_gap(scan: &ShardScan, replay_from: Lsn, gap: Gap, out: &mut Judgement) {
    if gap.last <= replay_from {
        out.notes.push(format!(
            "LSNs {}..={} are not whole, and no longer needed: a checkpoint has them",
            gap.first, gap.last
        ));
        return;
    }
    let first = gap.first.max(replay_from.next());
    let salvage = find_headless(scan, out, first, gap.last);
    let next = out.kept.iter().find(|p| p.frame.header.lsn > gap.last);
    let seqs = gap.prev.map(|prev| {
        let from = prev.header.next_seq;
        let known = next.map(|n| {
            n.frame
                .first_new_seq
                .filter(|s| *s >= from)
                .unwrap_or(n.frame.header.next_seq)
        });
        (from, known.unwrap_or(Seq(u64::MAX)))
    });
    let (file, segment, offset) = match gap.place {
        Some((slot, segment, offset)) => (Some(&scan.slots[slot]), Some(segment), offset),
        None => (None, gap.absent, 0),
    };
    let what = match file {
        Some(file)
            if file
                .unreadable
                .iter()
                .any(|b| (offset..offset + 4096).contains(b)) =>
        {
            "acked frames cannot be read"
        }
        Some(file) if offset >= file.bytes => "acked frames are absent: the file is short",
        Some(_) => "acked frames are damaged",
        None if segment.is_some() => "segment is absent",
        None => "acked frames are absent",
    };
    let missing = gap.last.0 - first.0 + 1;
    let advice = if salvage.len() as u64 == missing {
        SALVAGE
    } else if file.is_none() {
        MISSING
    } else {
        HEAL
    };
    let file = file.map(|f| f.name.clone());
    let damage = Damage {
        what,
        file,
        segment,
        offset,
        lsns: Some((first, gap.last)),
        seqs,
    };
    out.found.push(Found {
        damage,
        salvage,
        advice,
    });
}

/// Intact frames of these LSNs in a slot whose header is gone.
///
/// Such a slot may also hold frames of an earlier use, or frames that a fence undid, whose LSNs
/// were given again. A frame counts only when its own use of the slot claims it durable, or when
/// the next segment's cut ends exactly where that use does.
pub(crate) fn find_headless(
    scan: &ShardScan,
    out: &Judgement,
    first: Lsn,
    last: Lsn,
) -> Vec<Placed> {
    let tag = out
        .store_uuid
        .zip(out.shard)
        .map(|(uuid, shard)| store_tag(&uuid, shard));
    let cut = out
        .chain
        .iter()
        .map(|p| p.header.cut)
        .find(|c| c.lsn >= first);
    let mut best = Vec::new();
    for (slot, file) in scan
        .slots
        .iter()
        .enumerate()
        .filter(|(_, s)| s.header.is_err())
    {
        let mut uses: BTreeMap<u64, Vec<FrameScan>> = BTreeMap::new();
        for frame in file.frames.iter().filter(|f| f.is_intact()) {
            if Some(frame.header.store_tag) == tag {
                uses.entry(frame.header.salt).or_default().push(*frame);
            }
        }
        for frames in uses.into_values() {
            let claimed = frames.iter().map(|f| f.header.durable_lsn).max();
            let at_cut =
                |f: &FrameScan| cut.is_some_and(|c| c.lsn == f.header.lsn && c.offset == f.end());
            let is_cut = frames.iter().any(at_cut);
            let wanted = |f: &FrameScan| {
                let lsn = f.header.lsn;
                first <= lsn && lsn <= last && (is_cut || Some(lsn) <= claimed)
            };
            let placed = |frame| Placed {
                slot,
                segment: SegmentId(0),
                frame,
            };
            let found: Vec<Placed> = frames.into_iter().filter(wanted).map(placed).collect();
            if found.len() > best.len() {
                best = found;
            }
        }
    }
    best
}

fn note_orphans(scan: &ShardScan, out: &mut Judgement) {
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
