//! Following the log: the chain of headers and cuts, frame by frame, and on after a bad one.
//!
//! Sealed segments (those that a later header cuts) must be whole up to their cut. The last one
//! is read to its first bad frame, and from there looked through at every block to the end of
//! its slot. Slots with a bad header are looked through too: their frames' claims count.

mod doubtful;
mod frames;

use std::collections::VecDeque;
use std::rc::Rc;

use crate::checkpoint::SegmentNeed;
use crate::config::StoreConfig;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::error::{Damage, OpenError};
use crate::format::frame::FrameHeader;
use crate::format::segment::{SEGMENT_DATA_OFFSET, SegmentHeader, store_tag};
use crate::host::Host;
use crate::ids::{Lsn, SegmentId, Seq};
use crate::mutations;
use crate::open::decide::{Before, Decision, Piece, Place, decide};
use crate::open::fold::{apply_frame, first_new_seq};
use crate::open::reader::{FrameAt, SlotReader};
use crate::open::scan::doubtful::Doubtful;
use crate::open::survey::{FoundSlot, io_error};
use crate::slots::SlotNo;
use crate::state::State;
use crate::store::inner::LogEnd;

/// An intact frame of the last segment, above every claim seen so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailFrame {
    pub(crate) header: FrameHeader,
    pub(crate) pos: u64,
}

/// The first bad piece of the log.
#[derive(Clone, Debug)]
struct Broken {
    piece: Piece,
    what: &'static str,
    file: Option<String>,
    segment: SegmentId,
    offset: u64,
    /// The LSN that should be there.
    lsn: Lsn,
    /// The next seq before it.
    next_seq: Seq,
    /// The first intact LSN after it, and its first new seq.
    after: Option<(Lsn, Seq)>,
}

/// What the scan found.
pub(crate) struct Scanned {
    pub(crate) state: State,
    /// D.
    pub(crate) claimed: Lsn,
    /// The last LSN of the kept log.
    pub(crate) last_lsn: Lsn,
    /// The LSN of the next frame: those of fenced groups in front of a segment that is still
    /// empty are never given again, so that a claim means one frame only.
    pub(crate) next_lsn: Lsn,
    /// Where the state began: the checkpoint's start.
    pub(crate) start_lsn: Lsn,
    /// Where the claimed part ends: what the next header's cut names.
    pub(crate) end: LogEnd,
    /// Frames above D that are kept, with the slot that holds them.
    pub(crate) unproven: Vec<TailFrame>,
    pub(crate) unproven_slot: Option<SlotNo>,
    pub(crate) frames_dropped: u64,
    pub(crate) frames_scanned: u64,
    pub(crate) bytes_scanned: u64,
    /// Segments of the log, oldest first.
    pub(crate) chain: Vec<(SlotNo, SegmentHeader)>,
    /// The next seq as the newest header or frame has it.
    pub(crate) next_seq: Seq,
    /// Segments in front of the chain that lead to it from the older checkpoint.
    pub(crate) older: Vec<(SlotNo, SegmentHeader)>,
    /// Segments that the kept checkpoints need.
    pub(crate) needed: Vec<SegmentNeed>,
    /// Slots with a bad header that hold something newer than the log: not touched at once.
    pub(crate) set_aside: Vec<SlotNo>,
}

impl Scanned {
    /// Every segment of the log that a kept checkpoint needs, oldest first.
    pub(crate) fn log(&self) -> impl Iterator<Item = &(SlotNo, SegmentHeader)> {
        self.older.iter().chain(&self.chain)
    }
}

/// Where a scan starts: what a checkpoint holds.
pub(crate) struct StartAt {
    pub(crate) state: State,
    /// Records up to here are in the state.
    pub(crate) lsn: Lsn,
    /// Claimed durable by the checkpoint.
    pub(crate) claimed: Lsn,
    /// Where the oldest kept checkpoint starts; it is the fallback for the newest.
    pub(crate) oldest_lsn: Lsn,
    /// Segments that the kept checkpoints need.
    pub(crate) needed: Vec<SegmentNeed>,
}

struct Scan<'a, D: Disk> {
    disk: &'a D,
    host: &'a Rc<dyn Host>,
    tag: u32,
    state: State,
    start_lsn: Lsn,
    claimed: Lsn,
    expected: Lsn,
    next_seq: Seq,
    ends: VecDeque<LogEnd>,
    tail: VecDeque<TailFrame>,
    broken: Option<Broken>,
    after_bad: u64,
    /// Where frames that the checkpoint replaces are not whole: live hooks may lie there.
    doubtful: Vec<Doubtful>,
    needed: Vec<SegmentNeed>,
    /// Slots without a header of ours, and their newest LSN.
    strays: Vec<(SlotNo, Lsn)>,
    frames_scanned: u64,
    bytes_scanned: u64,
}

/// The segments that lead from the checkpoint to the newest header, oldest first; or the number
/// of the one that is missing.
fn chain_of(
    slots: &[FoundSlot],
    start: Lsn,
) -> Result<Vec<(SlotNo, SegmentHeader)>, (Piece, SegmentHeader)> {
    let with = |segment: SegmentId| {
        slots.iter().filter_map(move |slot| {
            let header = slot.header().filter(|header| header.segment == segment)?;
            Some((slot.no, *header))
        })
    };
    let mut chain: Vec<(SlotNo, SegmentHeader)> = Vec::new();
    let newest = slots
        .iter()
        .filter_map(FoundSlot::header)
        .map(|header| header.segment)
        .max();
    let Some(mut wanted) = newest else {
        return Ok(chain);
    };
    loop {
        let mut found = with(wanted);
        let named_by = chain.last().map(|(_, header)| *header);
        match (found.next(), found.next(), named_by) {
            (Some(one), None, by) => {
                // IMPORTANT: numbers fall along the chain, so that it ends.
                if by.is_some_and(|by| one.1.segment >= by.segment || one.1.first_lsn > by.cut.lsn)
                {
                    return Err((Piece::Duplicate, one.1));
                }
                chain.push(one);
            }
            (Some(one), Some(_), _) => return Err((Piece::Duplicate, one.1)),
            (None, _, Some(by)) => return Err((Piece::Missing, by)),
            (None, _, None) => return Ok(chain),
        }
        let Some((_, header)) = chain.last() else {
            break;
        };
        if header.cut.segment.0 == 0 || header.cut.lsn <= start {
            break;
        }
        wanted = header.cut.segment;
    }
    chain.reverse();
    Ok(chain)
}

/// Reads the log from `from` on.
pub(crate) async fn scan<D: Disk>(
    disk: &D,
    host: &Rc<dyn Host>,
    config: &StoreConfig,
    slots: &[FoundSlot],
    from: StartAt,
) -> Result<Scanned, OpenError> {
    let mut scan = Scan {
        disk,
        host,
        tag: store_tag(&config.store_uuid, config.shard),
        next_seq: from.state.next_seq(),
        state: from.state,
        start_lsn: from.lsn,
        claimed: from.claimed,
        expected: from.lsn.next(),
        ends: VecDeque::new(),
        tail: VecDeque::new(),
        broken: None,
        after_bad: 0,
        doubtful: Vec::new(),
        needed: from.needed,
        strays: Vec::new(),
        frames_scanned: 0,
        bytes_scanned: 0,
    };
    for header in slots.iter().filter_map(FoundSlot::header) {
        scan.claimed = scan.claimed.max(header.cut.lsn);
    }
    let chain = chain_of(slots, from.lsn).map_err(|(piece, by)| chain_broken(piece, &by))?;
    scan.check_start(&chain)?;
    // Nothing is read there, but the slots are not free: the older checkpoint needs its log too.
    let mut older = chain_of(slots, from.oldest_lsn.min(from.lsn)).unwrap_or_default();
    older.truncate(older.len().saturating_sub(chain.len()));
    let mut last_slot = None;
    for (at, (no, header)) in chain.iter().enumerate() {
        let sealed_by = chain.get(at + 1).map(|(_, next)| *next);
        let bytes = slots
            .iter()
            .find(|slot| slot.no == *no)
            .map_or(0, |slot| slot.bytes);
        scan.segment(*no, header, bytes, sealed_by.as_ref()).await?;
        last_slot = Some(*no);
    }
    for slot in slots.iter().filter(|slot| slot.header().is_none()) {
        let newest = scan.stray(slot).await?;
        scan.strays.push((slot.no, newest));
    }
    scan.check_doubtful().await?;
    scan.conclude(chain, older, last_slot)
}

fn chain_broken(piece: Piece, by: &SegmentHeader) -> OpenError {
    // The header that names a segment claims it durable.
    let (decision, label) = decide(piece, Place::Claimed, Before::Whole);
    debug_assert_eq!(decision, Decision::RefuseDamaged);
    let (segment, what) = match piece {
        Piece::Missing => (by.cut.segment, "a segment that a later one names is absent"),
        _ => (by.segment, label),
    };
    OpenError::Damaged(Damage {
        what,
        file: None,
        segment: Some(segment),
        offset: by.cut.offset,
        lsns: Some((by.cut.lsn, by.cut.lsn)),
        seqs: None,
    })
}

impl<D: Disk> Scan<'_, D> {
    /// The oldest segment must reach back to where the state ends.
    fn check_start(&mut self, chain: &[(SlotNo, SegmentHeader)]) -> Result<(), OpenError> {
        let Some((no, first)) = chain.first() else {
            return Ok(());
        };
        if first.cut.lsn > self.start_lsn {
            return Err(OpenError::Damaged(Damage {
                what: "the log before this segment is absent",
                file: Some(no.file_name()),
                segment: Some(first.segment),
                offset: 0,
                lsns: Some((self.start_lsn.next(), first.cut.lsn)),
                seqs: Some((self.next_seq, first.next_seq)),
            }));
        }
        self.ends.push_back(LogEnd {
            segment: first.cut.segment,
            offset: first.cut.offset,
            lsn: first.cut.lsn,
        });
        Ok(())
    }

    /// The refusal that the table demands for the first bad piece, when it does.
    fn refusal(&self) -> Option<OpenError> {
        let broken = self.broken.as_ref()?;
        let place = if broken.lsn <= self.claimed {
            Place::Claimed
        } else {
            Place::Unclaimed
        };
        let (decision, _) = decide(broken.piece, place, Before::Whole);
        let mut refuses = decision == Decision::RefuseDamaged;
        refuses |= mutations::is("refuse_torn_tail") && self.after_bad > 0;
        if !refuses || mutations::is("cut_damage") {
            return None;
        }
        let headless = self.strays.iter().find(|(_, newest)| *newest >= broken.lsn);
        if let (None, Some((slot, _))) = (broken.after, headless) {
            return Some(OpenError::Damaged(Damage {
                what: "segment header",
                file: Some(slot.file_name()),
                segment: None,
                offset: 0,
                lsns: Some((broken.lsn, self.claimed)),
                seqs: Some((broken.next_seq, Seq(u64::MAX))),
            }));
        }
        let last = broken
            .after
            .map_or(self.claimed, |(lsn, _)| lsn.prev().max(broken.lsn));
        let seqs_end = broken.after.map(|(_, seq)| seq);
        Some(OpenError::Damaged(Damage {
            what: broken.what,
            file: broken.file.clone(),
            segment: Some(broken.segment),
            offset: broken.offset,
            lsns: Some((broken.lsn, last)),
            seqs: Some((broken.next_seq, seqs_end.unwrap_or(Seq(u64::MAX)))),
        }))
    }

    fn conclude(
        mut self,
        chain: Vec<(SlotNo, SegmentHeader)>,
        older: Vec<(SlotNo, SegmentHeader)>,
        last_slot: Option<SlotNo>,
    ) -> Result<Scanned, OpenError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let last_lsn = self.ends.back().map_or(self.start_lsn, |end| end.lsn);
        if last_lsn < self.claimed && chain.is_empty() {
            return Err(OpenError::Damaged(Damage {
                what: "no segment header is intact, and something claims durable frames",
                file: None,
                segment: None,
                offset: 0,
                lsns: Some((last_lsn.next(), self.claimed)),
                seqs: None,
            }));
        }
        self.tail.retain(|tail| tail.header.lsn > self.claimed);
        while self.ends.get(1).is_some_and(|end| end.lsn <= self.claimed) {
            self.ends.pop_front();
        }
        let end = self.ends.front().copied().unwrap_or_default();
        self.state.settle(last_lsn.max(self.start_lsn));
        let next_lsn = self.expected.max(last_lsn.max(self.start_lsn).next());
        Ok(Scanned {
            next_lsn,
            state: self.state,
            claimed: self.claimed,
            start_lsn: self.start_lsn,
            last_lsn: last_lsn.max(self.start_lsn),
            end,
            unproven: self.tail.into(),
            unproven_slot: last_slot,
            frames_dropped: self.after_bad,
            frames_scanned: self.frames_scanned,
            bytes_scanned: self.bytes_scanned,
            set_aside: self
                .strays
                .into_iter()
                .filter(|(_, newest)| *newest > last_lsn)
                .map(|(no, _)| no)
                .collect(),
            chain,
            older,
            next_seq: self.next_seq,
            needed: self.needed,
        })
    }
}
