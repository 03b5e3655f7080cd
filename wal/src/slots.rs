//! Slots: the fixed-size files that hold one segment each, written before use and used again.
//!
//! Invariants: a `.wal` file is wholly written and synced, name included, before it counts; a
//! slot whose file had a failed write or sync is used again only through a new descriptor and
//! after a probe write; one slot never holds two segments that are both needed.
//!
//! This file knows which slot is what; the work is done by `store/keeper.rs`. Runs on the shard
//! core.

use crate::checkpoint::SegmentUse;
use crate::disk::Disk;
use crate::format::segment::SEGMENT_DATA_OFFSET;
use crate::ids::{Lsn, SegmentId};

/// The number in a slot's file name. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotNo(pub u32);

impl std::fmt::Display for SlotNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl SlotNo {
    /// The slot's file.
    pub fn file_name(self) -> String {
        format!("slot-{:04}.wal", self.0)
    }

    /// The name under which it is prepared.
    pub fn temp_name(self) -> String {
        format!("slot-{:04}.tmp", self.0)
    }

    /// The slot of a file name.
    pub fn parse(name: &str) -> Option<SlotNo> {
        let digits = name.strip_prefix("slot-")?.strip_suffix(".wal")?;
        if digits.len() < 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let no = SlotNo(digits.parse().ok()?);
        (no.file_name() == name).then_some(no)
    }
}

/// What a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    /// Ready: the next header may go there.
    Spare,
    /// Holds a segment of the log.
    Segment(SegmentId),
    /// Its segment is needed no more.
    Free,
    /// A write or sync of it failed: a new descriptor and a probe write first.
    Suspect,
}

/// One slot.
pub struct Slot<D: Disk> {
    /// Its number.
    pub no: SlotNo,
    /// What it is.
    pub use_: SlotUse,
    /// Its size.
    pub bytes: u64,
    /// Descriptor for writing; `None` until it is opened.
    pub file: Option<D::File>,
    /// A write or sync of this descriptor failed.
    pub is_tainted: bool,
    /// Salt of the segment it holds.
    pub salt: u64,
    /// One past the segment's last byte, once it is left.
    pub end: u64,
    /// The segment's last LSN, once it is left.
    pub last_lsn: Option<Lsn>,
}

/// The slots of one shard.
pub struct Slots<D: Disk> {
    slots: Vec<Slot<D>>,
    /// The slot of the last abandoned attempt: the next attempt takes another one.
    last_abandoned: Option<SlotNo>,
}

impl<D: Disk> Default for Slots<D> {
    fn default() -> Self {
        Slots {
            slots: Vec::new(),
            last_abandoned: None,
        }
    }
}

impl<D: Disk> Slots<D> {
    /// Adds a slot that exists.
    pub fn push(&mut self, slot: Slot<D>) {
        self.slots.push(slot);
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// How many are ready.
    pub fn spares(&self) -> u32 {
        self.slots
            .iter()
            .filter(|slot| slot.use_ == SlotUse::Spare)
            .count() as u32
    }

    /// Those that hold nothing of the log and are this long at least: how many, and their bytes.
    pub fn reusable(&self, bytes_min: u64) -> (u32, u64) {
        let is_reusable = |slot: &&Slot<D>| {
            matches!(slot.use_, SlotUse::Spare | SlotUse::Free) && slot.bytes >= bytes_min
        };
        let of = |(count, bytes), slot: &Slot<D>| (count + 1, bytes + slot.bytes);
        self.slots.iter().filter(is_reusable).fold((0, 0), of)
    }

    /// The number that a new slot takes: the lowest unused one.
    pub fn next_no(&self) -> SlotNo {
        let mut no = 0;
        while self.get(SlotNo(no)).is_some() {
            no += 1;
        }
        SlotNo(no)
    }

    /// A slot by number.
    pub fn get(&self, no: SlotNo) -> Option<&Slot<D>> {
        self.slots.iter().find(|slot| slot.no == no)
    }

    /// A slot by number.
    pub fn get_mut(&mut self, no: SlotNo) -> Option<&mut Slot<D>> {
        self.slots.iter_mut().find(|slot| slot.no == no)
    }

    /// The slot that holds a segment.
    pub fn of_segment(&self, segment: SegmentId) -> Option<&Slot<D>> {
        self.slots
            .iter()
            .find(|slot| slot.use_ == SlotUse::Segment(segment))
    }

    /// The segments of the log, as a checkpoint lists them, rising.
    pub fn segments(&self) -> Vec<SegmentUse> {
        let mut segments: Vec<SegmentUse> = self
            .slots
            .iter()
            .filter_map(|slot| match slot.use_ {
                SlotUse::Segment(segment) => Some(SegmentUse {
                    segment,
                    salt: slot.salt,
                    slot: slot.no.0,
                    end: slot.end,
                    last_lsn: slot.last_lsn,
                }),
                _ => None,
            })
            .collect();
        segments.sort_by_key(|segment| segment.segment);
        segments
    }

    /// The numbers of all slots.
    pub fn numbers(&self) -> Vec<u32> {
        self.slots.iter().map(|slot| slot.no.0).collect()
    }

    /// The log goes on in `no`; what `left` held ends at `end`.
    pub fn enter(&mut self, no: SlotNo, segment: SegmentId, salt: u64) {
        if let Some(slot) = self.get_mut(no) {
            slot.use_ = SlotUse::Segment(segment);
            slot.salt = salt;
            slot.end = SEGMENT_DATA_OFFSET;
            slot.last_lsn = None;
        }
    }

    /// The segment in `no` is left for good: it ends at `end`, with `last_lsn`.
    pub fn leave(&mut self, no: SlotNo, end: u64, last_lsn: Lsn) {
        if let Some(slot) = self.get_mut(no) {
            slot.end = end;
            slot.last_lsn = Some(last_lsn);
        }
    }

    /// A spare, large enough.
    pub fn spare(&self, bytes: u64) -> Option<SlotNo> {
        self.slots
            .iter()
            .find(|slot| slot.use_ == SlotUse::Spare && slot.bytes >= bytes)
            .map(|slot| slot.no)
    }

    /// The next slot to make ready: a free one, else a suspect one other than the last abandoned.
    pub fn to_prepare(&self) -> Option<(SlotNo, SlotUse)> {
        let of = |wanted: SlotUse| {
            self.slots
                .iter()
                .filter(move |slot| slot.use_ == wanted)
                .find(|slot| wanted == SlotUse::Free || Some(slot.no) != self.last_abandoned)
                .map(|slot| (slot.no, slot.use_))
        };
        of(SlotUse::Free).or_else(|| of(SlotUse::Suspect))
    }

    /// An attempt to start a segment in this slot failed, or its probe did.
    pub fn abandon(&mut self, no: SlotNo) {
        self.last_abandoned = Some(no);
        if let Some(at) = self.slots.iter().position(|slot| slot.no == no) {
            // The one that failed last is looked at last.
            let mut slot = self.slots.remove(at);
            slot.use_ = SlotUse::Suspect;
            slot.is_tainted = true;
            self.slots.push(slot);
        }
    }

    /// A new segment stands: any slot may be probed again.
    pub fn forget_abandoned(&mut self) {
        self.last_abandoned = None;
    }
}
