//! The walk along the chain: which frames are at their place, which LSNs are not.

use std::collections::BTreeMap;

use super::{CheckpointClaim, Found, HEAL, Judgement, MISSING, Piece, Placed, SALVAGE};
use crate::error::{Damage, span};
use crate::format::segment::{SEGMENT_DATA_OFFSET, store_tag};
use crate::ids::{Lsn, SegmentId, Seq};
use crate::offline::scan::{FrameScan, ShardScan, SlotScan};

/// Walks the chain frame by frame and tells what is kept, dropped or damaged.
pub(super) fn place_frames(
    scan: &ShardScan,
    checkpoint: Option<&CheckpointClaim>,
    out: &mut Judgement,
) {
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
            // A hole in front of a group that is in order otherwise: groups lie without gaps.
            gaps.push(Gap {
                first: lsn,
                last: frame.header.lsn.prev().max(lsn),
                place,
                absent: None,
                prev,
            });
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
            "{}: not whole, below the checkpoint's start. Nothing of it is needed but the live hooks \
             in it; one that cannot be read is named",
            span("LSN", gap.first.0, gap.last.0)
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
