//! The segment that gives up live hooks which cannot be read: it is what an open would start, and
//! says of each hook that it is given up and that its dedupe key no longer stands.
//!
//! It cuts behind the last group that is claimed durable; kept groups above that are copied into
//! it, as an open does, since nothing proves that they are on the medium. Its last frame claims the
//! others. It is written whole, synced and renamed into its place: there or not.

use std::hash::{BuildHasher, RandomState};

use super::plan::{Work, cut_after, empty_frame};
use crate::disk::{BLOCK_BYTES, Disk};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader, PayloadSum};
use crate::format::padded;
use crate::format::record::{encode_record, record_len};
use crate::format::segment::{Cut, SEGMENT_FLAG_GAP, SegmentHeader, store_tag};
use crate::ids::{Lsn, SegmentId, Seq};
use crate::offline::OfflineError;
use crate::offline::judge::{Judgement, Placed};
use crate::offline::lost::LostHook;
use crate::record::Record;

/// Most records in one group.
const GROUP_RECORDS: usize = 4096;

impl<D: Disk> Work<'_, D> {
    /// The name and content of the segment that gives up these hooks.
    pub(super) async fn give_up_hooks(
        &mut self,
        j: &Judgement,
        lost: &[LostHook],
    ) -> Result<(String, Vec<u8>), OfflineError> {
        let (Some((store_uuid, shard)), Some(newest)) =
            (j.store_uuid.zip(j.shard), j.chain.last().cloned())
        else {
            return Err(OfflineError::NoRepair(
                "no segment tells which store this is".to_owned(),
            ));
        };
        let is_proven = |p: &&Placed| p.frame.header.lsn <= j.claimed;
        let unproven: Vec<Placed> = j.kept.iter().filter(|p| !is_proven(p)).copied().collect();
        // An LSN means one group for ever: those of a segment that is still empty are not taken.
        let next = j.last_kept().max(j.claimed).next();
        let next = next.max(newest.header.first_lsn);
        let first_lsn = unproven.first().map_or(next, |p| p.frame.header.lsn);
        let headless = self.scan.slots.iter().filter(|s| s.header.is_err()).count() as u64;
        let segment = SegmentId(self.newest_segment() + headless + 1);
        let next_seq = j.kept.last().map_or(Seq(0), |p| p.frame.header.next_seq);
        let next_seq = next_seq.max(newest.header.next_seq);
        let cut = self.cut(j, first_lsn);
        let has_gap = first_lsn > cut.lsn.next();
        let header = SegmentHeader {
            store_uuid,
            shard,
            flags: if has_gap { SEGMENT_FLAG_GAP } else { 0 },
            segment,
            first_lsn,
            salt: RandomState::new().hash_one(segment.0),
            cut,
            next_seq,
            made_at_ms: 0,
            slots: self.scan.slots.len() as u32 + 1,
        };
        let mut content = vec![0; BLOCK_BYTES];
        header.encode(&mut content);
        for placed in &unproven {
            let from = self.content(placed.slot).await?;
            let bytes = &from[placed.frame.offset as usize..placed.frame.end() as usize];
            let at = content.len();
            content.extend_from_slice(bytes);
            FrameHeader {
                salt: header.salt,
                ..placed.frame.header
            }
            .encode(&mut content[at..]);
        }
        let frame = FrameHeader {
            salt: header.salt,
            lsn: next,
            durable_lsn: j.last_kept().max(header.cut.lsn),
            store_tag: store_tag(&store_uuid, shard),
            next_seq,
            slots: header.slots,
            ..FrameHeader::default()
        };
        give_up_frames(frame, lost, &mut content);
        let name = self.free_slot_name();
        let slot = self.scan.slots.iter().map(|s| s.bytes).max().unwrap_or(0) as usize;
        content.resize(content.len().max(slot).next_multiple_of(BLOCK_BYTES), 0);
        self.plan.steps.push(format!(
            "give up {} live hooks that cannot be read, and their dedupe keys, in a new segment \
             {segment} in {name}",
            lost.len()
        ));
        Ok((name, content))
    }

    /// Where the log ends in front of the new segment: behind the last claimed group. One that a
    /// checkpoint replaces may be damaged, and still is not given to anything else.
    fn cut(&self, j: &Judgement, first_lsn: Lsn) -> Cut {
        let is_before = |p: &&Placed| p.frame.header.lsn < first_lsn;
        let before = j.kept.iter().rfind(|p| is_before(p));
        let cut = cut_after(j, before, first_lsn);
        let start = self.checkpoint.as_ref().map_or(Lsn(0), |c| c.start_lsn);
        let holder = j.chain.iter().rfind(|p| p.header.first_lsn <= start);
        let Some(holder) = holder.filter(|_| cut.lsn < start) else {
            return cut;
        };
        let slot = &self.scan.slots[holder.slot];
        let torn = slot.own_frames().find(|f| f.header.lsn == start);
        Cut {
            segment: holder.header.segment,
            offset: torn.map_or(slot.bytes, |f| f.end()),
            lsn: start,
        }
    }
}

/// Appends the groups that give up these hooks, and an empty one that claims them.
fn give_up_frames(mut header: FrameHeader, lost: &[LostHook], out: &mut Vec<u8>) {
    let mut records = Vec::with_capacity(2 * lost.len());
    for hook in lost {
        records.push(Record::GivenUp(hook.seq));
        records.extend(
            hook.dedupe_hash
                .map(|hash| Record::DedupeGone { hash, id: hook.id }),
        );
    }
    for group in records.chunks(GROUP_RECORDS) {
        let at = out.len();
        let mut sum = PayloadSum::default();
        out.resize(at + FRAME_HEADER_BYTES, 0);
        for record in group {
            let from = out.len();
            out.resize(from + record_len(record), 0);
            sum.add(encode_record(record, &mut out[from..]));
        }
        header.records = group.len() as u32;
        header.payload_bytes = (out.len() - at - FRAME_HEADER_BYTES) as u32;
        header.payload_sum = sum.finish();
        header.encode(&mut out[at..]);
        out.resize(at + padded(out.len() - at), 0);
        header.durable_lsn = header.lsn;
        header.lsn = header.lsn.next();
    }
    let at = out.len();
    out.resize(at + BLOCK_BYTES, 0);
    empty_frame(
        FrameHeader {
            records: 0,
            payload_bytes: 0,
            ..header
        },
        &mut out[at..],
    );
}
