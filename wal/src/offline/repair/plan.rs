//! Making the plan: fix the first damage, judge again, until nothing is damaged. Works on copies
//! in memory; reads only.

use std::hash::{BuildHasher, RandomState};

use super::RepairPlan;
use crate::disk::{BLOCK_BYTES, DirEntry, Disk};
use crate::error::{Damage, span};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader, PayloadSum};
use crate::format::padded;
use crate::format::record::{encode_record, record_len};
use crate::format::segment::{
    Cut, NEWER_VERSION, SEGMENT_DATA_OFFSET, SEGMENT_FLAG_GAP, SegmentHeader, store_tag,
};
use crate::ids::{Lsn, SegmentId, Seq};
use crate::offline::OfflineError;
use crate::offline::checkpoints::{newest_valid, read_checkpoints};
use crate::offline::judge::{
    CheckpointClaim, Expect, Found, GENERATION_UNREADABLE, Judgement, NEEDED_ABSENT, Piece, Placed,
    SLOT_ABSENT, find_headless, judge,
};
use crate::offline::lost::{Changed, lost_hooks};
use crate::offline::scan::{ShardScan, look, read_slot, scan};
use crate::record::Record;

/// Seqs that one lost group may at most have handed out.
const SEQS_PER_GROUP_MAX: u64 = 1 << 16;

pub(super) struct Work<'a, D: Disk> {
    pub(super) disk: &'a D,
    expect: Expect,
    pub(super) checkpoint: Option<CheckpointClaim>,
    pub(super) scan: ShardScan,
    /// Content of the slots that are changed.
    pub(super) changed: Changed,
    pub(super) plan: RepairPlan,
}

/// Plans until the judgement is sound.
pub(crate) async fn make_plan<D: Disk>(
    disk: &D,
    expect: Expect,
) -> Result<RepairPlan, OfflineError> {
    let scan = scan(disk, &mut |_, _| {}).await?;
    let checkpoints = read_checkpoints(disk, &scan).await?;
    let checkpoint = newest_valid(&checkpoints).cloned();
    let plan = RepairPlan::default();
    let mut work = Work {
        disk,
        expect,
        checkpoint,
        scan,
        changed: Changed::new(),
        plan,
    };
    // Each round fixes one damage for good; twice as many as there can be is never reached.
    let rounds_max = 16
        + work.scan.unreadable_generations.len()
        + 2 * work
            .scan
            .slots
            .iter()
            .map(|s| s.frames.len() + 2)
            .sum::<usize>();
    for _ in 0..rounds_max {
        let judgement = judge(&work.scan, work.expect, work.checkpoint.as_ref());
        let Some(found) = judgement.found.first().cloned() else {
            let (scan, changed) = (&work.scan, &work.changed);
            let lost = lost_hooks(disk, scan, changed, &judgement, &checkpoints).await?;
            let last = match lost.is_empty() {
                true => None,
                false => Some(work.give_up_hooks(&judgement, &lost).await?),
            };
            work.plan.lost_hooks = lost;
            work.plan.replace = work.changed.into_iter().chain(last).collect();
            return Ok(work.plan);
        };
        work.fix(&judgement, &found).await?;
    }
    Err(OfflineError::NoRepair("the damage does not end".to_owned()))
}

impl<D: Disk> Work<'_, D> {
    async fn fix(&mut self, j: &Judgement, found: &Found) -> Result<(), OfflineError> {
        if found.damage.what == NEEDED_ABSENT {
            return self.restore_needed(j, found).await;
        }
        if found.damage.what == SLOT_ABSENT {
            return self.blank_slot(&found.damage);
        }
        let Some((first, last)) = found.damage.lsns else {
            return self.move_aside(&found.damage);
        };
        if self.adopt(j, first, last).await? {
            return Ok(());
        }
        self.plan.lost.push(found.damage.clone());
        match j
            .chain
            .iter()
            .find(|p| Some(p.header.segment) == found.damage.segment)
        {
            Some(piece) => self.fill(j, piece.clone(), found).await,
            None => self.give_up(j, first, last).await,
        }
    }

    /// A file of another store, a segment that is there twice, dedupe rows that cannot be read.
    fn move_aside(&mut self, damage: &Damage) -> Result<(), OfflineError> {
        let Some(file) = damage.file.clone().filter(|_| damage.what != NEWER_VERSION) else {
            return Err(OfflineError::NoRepair(damage.to_string()));
        };
        self.plan
            .steps
            .push(format!("move {file} out of the way: {}", damage.what));
        self.scan.slots.retain(|s| s.name != file);
        if damage.what == GENERATION_UNREADABLE {
            self.plan.lost.push(damage.clone());
            let rest = &mut self.scan.unreadable_generations;
            rest.retain(|(name, _)| *name != file);
        }
        self.plan.aside.push(file);
        Ok(())
    }

    pub(super) async fn content(&self, slot: usize) -> Result<Vec<u8>, OfflineError> {
        let file = &self.scan.slots[slot];
        if let Some(content) = self.changed.get(&file.name) {
            return Ok(content.clone());
        }
        let entry = DirEntry {
            name: file.name.clone(),
            bytes: file.bytes,
        };
        let (mut content, _) = read_slot(self.disk, &entry, |_| {}).await?;
        // A file that was cut gets its length back.
        let full = self.scan.slots.iter().map(|s| s.bytes).max().unwrap_or(0) as usize;
        content.resize(full.max(content.len()).next_multiple_of(BLOCK_BYTES), 0);
        Ok(content)
    }

    pub(super) fn put(&mut self, slot: usize, content: Vec<u8>) {
        let name = self.scan.slots[slot].name.clone();
        let entry = DirEntry {
            name: name.clone(),
            bytes: content.len() as u64,
        };
        self.scan.slots[slot] = look(entry, &content, Vec::new());
        self.changed.insert(name, content);
    }

    /// Builds the header of a slot again whose frames are among the missing ones.
    async fn adopt(&mut self, j: &Judgement, first: Lsn, last: Lsn) -> Result<bool, OfflineError> {
        let Some((uuid, shard)) = j.store_uuid.zip(j.shard) else {
            return Ok(false);
        };
        let Some(place) = find_headless(&self.scan, j, first, last).first().copied() else {
            return Ok(false);
        };
        let own: Vec<_> = self.scan.slots[place.slot]
            .frames
            .iter()
            .filter(|f| f.header.salt == place.frame.header.salt && f.is_intact())
            .collect();
        // What lies before its first intact frame is damaged too: at most one LSN a block, and
        // none that the log has already.
        let Some(lowest) = own.iter().min_by_key(|f| f.offset) else {
            return Ok(false);
        };
        let blocks = (lowest.offset - SEGMENT_DATA_OFFSET) / BLOCK_BYTES as u64;
        let lowest_lsn = lowest.header.lsn;
        let hole = lowest.offset - SEGMENT_DATA_OFFSET;
        let mut first_lsn = Lsn(lowest_lsn.0.saturating_sub(blocks))
            .max(first)
            .min(lowest_lsn);
        // The log has all that came before, and yet something lay here: groups that an open had
        // written again. They go back to their place, or else an empty one stands for the last.
        let mut again = Vec::new();
        if hole > 0 && first_lsn == lowest_lsn {
            again = copies_for(j, lowest_lsn, hole);
            first_lsn = again
                .first()
                .map_or(lowest_lsn.prev(), |p| p.frame.header.lsn);
        }
        let before = j.kept_before(first_lsn);
        let cut = cut_after(j, before, first_lsn);
        let next = j.chain.iter().find(|p| p.header.cut.lsn >= first_lsn);
        let newest = j.chain.last().map_or(0, |p| p.header.segment.0);
        let segment = next.map_or(SegmentId(newest + 1), |n| n.header.cut.segment);
        let header = SegmentHeader {
            store_uuid: uuid,
            shard,
            flags: 0,
            segment,
            first_lsn,
            salt: place.frame.header.salt,
            cut,
            next_seq: before.map_or(Seq(0), |p| p.frame.header.next_seq),
            made_at_ms: 0,
            slots: place.frame.header.slots,
        };
        if segment <= cut.segment || first_lsn <= cut.lsn {
            return Ok(false);
        }
        let mut content = self.content(place.slot).await?;
        let mut at = SEGMENT_DATA_OFFSET as usize;
        for placed in &again {
            let from = self.content(placed.slot).await?;
            let bytes = &from[placed.frame.offset as usize..placed.frame.end() as usize];
            content[at..at + bytes.len()].copy_from_slice(bytes);
            FrameHeader {
                salt: header.salt,
                ..placed.frame.header
            }
            .encode(&mut content[at..]);
            at += bytes.len();
        }
        header.encode(&mut content[..BLOCK_BYTES]);
        let name = self.scan.slots[place.slot].name.clone();
        self.plan.steps.push(format!(
            "build the header of {name} again (segment {segment}, from LSN {first_lsn}): its \
             frames are intact"
        ));
        self.put(place.slot, content);
        Ok(true)
    }

    /// Replaces damaged frames by frames that hold nothing.
    async fn fill(
        &mut self,
        j: &Judgement,
        piece: Piece,
        found: &Found,
    ) -> Result<(), OfflineError> {
        let damage = &found.damage;
        let Some((first, last)) = damage.lsns else {
            return Ok(());
        };
        let count = last.0 - first.0 + 1;
        let start = damage.offset.max(SEGMENT_DATA_OFFSET);
        let after = j
            .kept
            .iter()
            .find(|p| p.slot == piece.slot && p.frame.header.lsn > last);
        let end = match (after, piece.cut) {
            (Some(next), _) => Some(next.frame.offset),
            (None, Some(cut)) => Some(cut.offset),
            (None, None) => None,
        };
        let room = end
            .unwrap_or(start + count * BLOCK_BYTES as u64)
            .saturating_sub(start);
        if room < count * BLOCK_BYTES as u64 {
            return self.give_up(j, first, last).await;
        }
        let next_seq = match damage.seqs {
            Some((first, Seq(u64::MAX))) => Seq(first.0 + count * SEQS_PER_GROUP_MAX),
            Some((first, _)) => first,
            None => piece.header.next_seq,
        };
        let mut content = self.content(piece.slot).await?;
        let whole = (start + room) as usize;
        if content.len() < whole {
            content.resize(whole, 0);
        }
        let mut at = start as usize;
        for lsn in first.0..=last.0 {
            // All but the last take one block; the last takes what is left.
            let bytes = if lsn == last.0 {
                whole - at
            } else {
                BLOCK_BYTES
            };
            let header = FrameHeader {
                salt: piece.header.salt,
                lsn: Lsn(lsn),
                durable_lsn: Lsn(lsn - 1),
                store_tag: store_tag(&piece.header.store_uuid, piece.header.shard),
                next_seq,
                slots: piece.header.slots,
                ..FrameHeader::default()
            };
            empty_frame(header, &mut content[at..at + bytes]);
            at += bytes;
        }
        let name = self.scan.slots[piece.slot].name.clone();
        self.plan.steps.push(format!(
            "replace {} in {name} (segment {}, offsets {start} to {whole}) by \
             empty groups",
            span("LSN", first.0, last.0),
            piece.header.segment
        ));
        self.put(piece.slot, content);
        Ok(())
    }

    /// Says in the header of the segment after the gap that the LSNs before it are given up.
    async fn give_up(&mut self, j: &Judgement, first: Lsn, last: Lsn) -> Result<(), OfflineError> {
        let after = j.kept.iter().find(|p| p.frame.header.lsn > last);
        // The segment that starts with the first frame after the gap; else the next one.
        let starts_after = |p: &&Piece| {
            after.is_some_and(|a| a.slot == p.slot && a.frame.offset == SEGMENT_DATA_OFFSET)
        };
        let own = j.chain.iter().find(starts_after);
        let next = || j.chain.iter().find(|p| p.header.first_lsn > last);
        let Some(piece) = own.or_else(next) else {
            return self.new_tail(j, first, last);
        };
        let before = j.kept_before(first);
        let mut header = piece.header;
        if let Some(after) = after.filter(|_| own.is_some()) {
            header.first_lsn = after.frame.header.lsn;
        }
        if header.first_lsn > last.next() {
            let seqs = before.map(|p| (p.frame.header.next_seq, Seq(u64::MAX)));
            self.plan.lost.push(Damage {
                what: "groups behind the damage that have no place in the log any more",
                file: None,
                segment: None,
                offset: 0,
                lsns: Some((last.next(), header.first_lsn.prev())),
                seqs: Some(seqs.unwrap_or((Seq(0), Seq(u64::MAX)))),
            });
        }
        header.cut = cut_after(j, before, first);
        header.flags |= SEGMENT_FLAG_GAP;
        let slot = piece.slot;
        let mut content = self.content(slot).await?;
        header.encode(&mut content[..BLOCK_BYTES]);
        let name = self.scan.slots[slot].name.clone();
        self.plan.steps.push(format!(
            "give up {} in the header of {name} (segment {})",
            span("LSN", first.0, last.0),
            header.segment
        ));
        self.put(slot, content);
        Ok(())
    }

    /// Nothing is left after the gap: a new segment starts behind it.
    fn new_tail(&mut self, j: &Judgement, first: Lsn, last: Lsn) -> Result<(), OfflineError> {
        let before = j.kept_before(first);
        let Some((store_uuid, shard)) = j.store_uuid.zip(j.shard) else {
            return Err(OfflineError::NoRepair(
                "no segment tells which store this is".to_owned(),
            ));
        };
        let newest = self.newest_segment();
        let header = SegmentHeader {
            store_uuid,
            shard,
            flags: SEGMENT_FLAG_GAP,
            segment: SegmentId(newest + 1),
            first_lsn: last.next(),
            salt: RandomState::new().hash_one(newest),
            cut: cut_after(j, before, first),
            next_seq: before.map_or(Seq(0), |p| p.frame.header.next_seq),
            made_at_ms: 0,
            slots: self.scan.slots.len() as u32 + 1,
        };
        let name = self.free_slot_name();
        self.plan.steps.push(format!(
            "give up {} and start segment {} in {name}",
            span("LSN", first.0, last.0),
            header.segment
        ));
        self.put_new(name, &header);
        Ok(())
    }
}

/// The cut that ends the log behind `before`, for a segment whose LSNs start at `first` or later.
pub(super) fn cut_after(j: &Judgement, before: Option<&Placed>, first: Lsn) -> Cut {
    match before {
        Some(p) => Cut {
            segment: p.segment,
            offset: p.frame.end(),
            lsn: p.frame.header.lsn,
        },
        // No frame before it: where the first segment of the chain was cut, if that is earlier.
        None => match j.chain.first() {
            Some(piece) if piece.header.cut.lsn < first => piece.header.cut,
            _ => Cut::default(),
        },
    }
}

/// The kept frames right before `lsn` that fill a hole of this size exactly; none when they do not.
fn copies_for(j: &Judgement, lsn: Lsn, hole: u64) -> Vec<Placed> {
    let mut frames = Vec::new();
    let (mut left, mut next) = (hole, lsn);
    for placed in j.kept.iter().rev().filter(|p| p.frame.header.lsn < lsn) {
        let bytes = placed.frame.header.frame_bytes();
        if left == 0 || bytes > left || placed.frame.header.lsn.next() != next {
            break;
        }
        left -= bytes;
        next = placed.frame.header.lsn;
        frames.push(*placed);
    }
    frames.reverse();
    if left == 0 { frames } else { Vec::new() }
}

/// A frame of exactly `out.len()` bytes whose records say nothing new: the next seq, over and
/// over.
pub(super) fn empty_frame(mut header: FrameHeader, out: &mut [u8]) {
    let record = Record::NextSeq(header.next_seq);
    let len = record_len(&record);
    out.fill(0);
    let mut at = FRAME_HEADER_BYTES;
    let mut sum = PayloadSum::default();
    while padded(at) < out.len() {
        sum.add(encode_record(&record, &mut out[at..at + len]));
        header.records += 1;
        at += len;
    }
    header.payload_bytes = (at - FRAME_HEADER_BYTES) as u32;
    header.payload_sum = sum.finish();
    header.encode(out);
    assert_eq!(header.frame_bytes(), out.len() as u64);
}
