//! Turns a state into the blocks of a checkpoint, in slices, while the state goes on changing.
//!
//! Fuzzy and right: what a slice has seen may be newer than the start, never older, and records
//! above the start are applied again on top. Two things need care:
//! - A hook may finish after its entry was written: it would be live and finished at once. The
//!   state notes such seqs while a checkpoint is being built, and they are written last.
//! - A fence undoes what slices may have seen: the checkpoint is spoilt.
//!
//! Nothing that a slice saw is known to be durable: the file may be named only once everything
//! up to [`Builder::end_lsn`] is. Pure; runs on a shard core.

use std::collections::BTreeSet;

use crate::format::bytes::Put;
use crate::format::record::{encode_record, record_len};
use crate::ids::{Lsn, SegmentId, Seq};
use crate::state::{HookSlot, RecordCursor, State};

use super::block::{BlockHead, Payload, seal};
use super::layout::{self, End, GenerationRef, RANGE_BYTES, SegmentNeed, Start, kind};

/// A step handles about this many items before it asks whether to yield.
const STEP_ITEMS: usize = if cfg!(test) { 2 } else { 64 };

/// A segment of the shard, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUse {
    /// The segment.
    pub segment: SegmentId,
    /// The salt of this use of its slot.
    pub salt: u64,
    /// The slot.
    pub slot: u32,
    /// One past its last byte so far.
    pub end: u64,
    /// The last group in it; `None` for the one being written.
    pub last_lsn: Option<Lsn>,
}

/// What a call of [`Builder::fill`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// A block is complete: write the first `bytes` of the buffer, then go on with a fresh one.
    Block {
        /// Its length.
        bytes: usize,
    },
    /// The slice is over: yield, then go on with the same buffer.
    Yield,
    /// Everything in the state was seen: [`Builder::end`] is due, then go on.
    Captured,
    /// The last block was given.
    Done,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Start,
    Hooks(u32),
    Finished(Seq),
    Records(RecordCursor),
    Capture,
    Captured,
    Gone(usize),
    LastRecords,
    End,
    Done,
}

/// A checkpoint being built.
pub struct Builder {
    start: Start,
    salt: u64,
    stage: Stage,
    /// Of the block being filled.
    number: u32,
    kind: u8,
    at: u32,
    items: u32,
    /// Encoded records not yet in a block, from `stream_at` on.
    stream: Vec<u8>,
    stream_at: usize,
    gone: Vec<Seq>,
    live_in: BTreeSet<SegmentId>,
    end: End,
    fences: u64,
}

impl Builder {
    /// Begins. From here on the state notes what must be known of finished hooks. The start LSN
    /// is the durable mark: what is in flight now is applied again after it.
    pub fn begin(state: &mut State, salt: u64, mut start: Start) -> Builder {
        start.start_lsn = state.durable();
        start.hooks_expected = state.counts().hooks;
        state.watch_begin();
        Builder {
            start,
            salt,
            stage: Stage::Start,
            number: 0,
            kind: kind::START,
            at: 0,
            items: 0,
            stream: Vec::new(),
            stream_at: 0,
            gone: Vec::new(),
            live_in: BTreeSet::new(),
            end: End::default(),
            fences: state.fences(),
        }
    }

    /// Records above it are applied again on top of this checkpoint.
    pub fn start_lsn(&self) -> Lsn {
        self.start.start_lsn
    }

    /// Once captured: the newest group that a slice has seen.
    pub fn end_lsn(&self) -> Lsn {
        self.end.end_lsn
    }

    /// Whether the shard was fenced since the start: a slice may have seen what was undone.
    pub fn is_spoilt(&self, state: &State) -> bool {
        state.fences() != self.fences
    }

    /// Goes on filling `block` until it is full, the slice is over or everything is done.
    pub fn fill(
        &mut self,
        state: &mut State,
        block: &mut [u8],
        mut must_yield: impl FnMut() -> bool,
    ) -> Filled {
        loop {
            let next = match self.stage {
                Stage::Captured => return Filled::Captured,
                Stage::Done => return Filled::Done,
                _ => self.step(state, block),
            };
            match next {
                Next::Same => {}
                Next::Full => return self.seal(block),
                Next::Stage(stage) => {
                    self.stage = stage;
                    if self.items > 0 {
                        return self.seal(block);
                    }
                }
            }
            if must_yield() {
                return Filled::Yield;
            }
        }
    }

    /// Gives what only the store knows: its segments, slots and synced dedupe generations.
    pub fn end(
        &mut self,
        segments: &[SegmentUse],
        slots: Vec<u32>,
        generations: Vec<GenerationRef>,
    ) {
        assert!(
            matches!(self.stage, Stage::Captured),
            "the end follows the capture"
        );
        self.end.segments = needed(segments, &self.live_in, self.start.start_lsn);
        let listed: BTreeSet<SegmentId> = self.end.segments.iter().map(|s| s.segment).collect();
        assert!(
            self.live_in.is_subset(&listed),
            "a segment with a live hook is gone before the checkpoint that needs it"
        );
        self.end.slots = slots;
        self.end.generations = generations;
        self.stage = Stage::Gone(0);
    }

    /// The last block's content; complete once [`Builder::end`] was called.
    pub fn manifest(&self) -> (&Start, &End) {
        (&self.start, &self.end)
    }

    fn step(&mut self, state: &mut State, block: &mut [u8]) -> Next {
        let mut payload = Payload::new(block, self.at as usize);
        let next = match self.stage {
            Stage::Start => {
                self.kind = kind::START;
                self.items = 1;
                if let Some(mut put) = payload.take(layout::start_bytes()) {
                    layout::encode_start(&self.start, &mut put);
                }
                Next::Stage(Stage::Hooks(0))
            }
            Stage::Hooks(from) => self.hooks(state, from, &mut payload),
            Stage::Finished(from) => self.finished(state, from, &mut payload),
            Stage::Records(cursor) => self.records(state, cursor, &mut payload),
            Stage::Capture => self.capture(state),
            Stage::Gone(from) => self.write_gone(from, &mut payload),
            Stage::LastRecords => {
                self.kind = kind::RECORDS;
                if self.drain_stream(&mut payload) {
                    self.stream.resize(layout::end_bytes(&self.end), 0);
                    layout::encode_end(&self.end, &mut Put::new(&mut self.stream));
                    Next::Stage(Stage::End)
                } else {
                    Next::Full
                }
            }
            Stage::End => {
                self.kind = kind::END;
                if self.drain_stream(&mut payload) {
                    Next::Stage(Stage::Done)
                } else {
                    Next::Full
                }
            }
            Stage::Captured | Stage::Done => unreachable!("handled by the caller"),
        };
        self.at = payload.at();
        next
    }

    fn hooks(&mut self, state: &mut State, from: u32, payload: &mut Payload<'_>) -> Next {
        self.kind = kind::HOOKS;
        let mut from = from;
        let mut next = Next::Same;
        for _ in 0..STEP_ITEMS {
            let slot = match state.next_hook(from) {
                Ok(Some(slot)) => slot,
                Ok(None) => {
                    next = Next::Stage(Stage::Finished(Seq(0)));
                    from = u32::MAX;
                    break;
                }
                Err(on) => {
                    // A stretch without hooks counts for a step.
                    from = on;
                    break;
                }
            };
            if !self.write_hook(state, slot, payload) {
                next = Next::Full;
                from = slot.0;
                break;
            }
            from = slot.0 + 1;
        }
        // IMPORTANT: in the same borrow as the entries: a hook that finishes between would be
        // noted by nobody.
        state.watch_at(from);
        self.stage = Stage::Hooks(from);
        next
    }

    fn write_hook(&mut self, state: &State, slot: HookSlot, payload: &mut Payload<'_>) -> bool {
        let Some(hook) = state.hook(slot) else {
            unreachable!("a live slot holds a hook");
        };
        if hook.rows_open == 0 && hook.holds.is_none() {
            // Its group is in flight, above the start: its records say it all.
            return true;
        }
        let Some(mut put) = payload.take(layout::hook_bytes(&hook)) else {
            return false;
        };
        layout::encode_hook(&hook, state.rows(slot).map(|row| state.row(row)), &mut put);
        self.live_in.insert(hook.location.segment);
        self.items += 1;
        self.end.hooks += 1;
        true
    }

    fn finished(&mut self, state: &State, from: Seq, payload: &mut Payload<'_>) -> Next {
        self.kind = kind::FINISHED;
        let mut from = from;
        for _ in 0..STEP_ITEMS {
            let Some((first, last)) = state.finished().next_range(from) else {
                return Next::Stage(Stage::Records(RecordCursor::default()));
            };
            let Some(mut put) = payload.take(RANGE_BYTES) else {
                return Next::Full;
            };
            put.u64(first.0);
            put.u64(last.0);
            self.items += 1;
            self.end.ranges += 1;
            from = last.next();
            self.stage = Stage::Finished(from);
        }
        Next::Same
    }

    fn records(
        &mut self,
        state: &State,
        mut cursor: RecordCursor,
        payload: &mut Payload<'_>,
    ) -> Next {
        self.kind = kind::RECORDS;
        for _ in 0..STEP_ITEMS {
            if !self.drain_stream(payload) {
                return Next::Full;
            }
            let Some(record) = state.next_record(&mut cursor) else {
                return Next::Stage(Stage::Capture);
            };
            self.push_record(&record);
            self.stage = Stage::Records(cursor);
        }
        Next::Same
    }

    fn push_record(&mut self, record: &crate::record::Record) {
        let at = self.stream.len();
        self.stream.resize(at + record_len(record), 0);
        encode_record(record, &mut self.stream[at..]);
    }

    /// Moves encoded records into the block; false when it is full and some are left.
    fn drain_stream(&mut self, payload: &mut Payload<'_>) -> bool {
        let left = self.stream.len() - self.stream_at;
        let bytes = left.min(payload.room());
        if bytes > 0
            && let Some(mut put) = payload.take(bytes)
        {
            put.bytes(&self.stream[self.stream_at..self.stream_at + bytes]);
            self.stream_at += bytes;
            self.items += 1;
        }
        if bytes < left {
            return false;
        }
        self.stream.clear();
        self.stream_at = 0;
        true
    }

    /// The last look at the state, in one piece: what finished behind the cursor, the small
    /// tables, and how new all this can be.
    fn capture(&mut self, state: &mut State) -> Next {
        self.gone = state.watch_take();
        self.end.gone = self.gone.len() as u64;
        for record in state.meta().marks() {
            self.push_record(&record);
        }
        self.end.end_lsn = state.applied();
        Next::Stage(Stage::Captured)
    }

    fn write_gone(&mut self, from: usize, payload: &mut Payload<'_>) -> Next {
        self.kind = kind::GONE;
        let end = self.gone.len().min(from + STEP_ITEMS * 8);
        for at in from..end {
            let Some(mut put) = payload.take(8) else {
                return Next::Full;
            };
            put.u64(self.gone[at].0);
            self.items += 1;
            self.stage = Stage::Gone(at + 1);
        }
        if end == self.gone.len() {
            Next::Stage(Stage::LastRecords)
        } else {
            Next::Same
        }
    }

    fn seal(&mut self, block: &mut [u8]) -> Filled {
        let head = BlockHead {
            salt: self.salt,
            number: self.number,
            kind: self.kind,
            items: self.items,
            payload_bytes: self.at,
        };
        self.number += 1;
        self.at = 0;
        self.items = 0;
        Filled::Block {
            bytes: seal(&head, block),
        }
    }
}

enum Next {
    Same,
    Full,
    Stage(Stage),
}

/// The segments a checkpoint needs: those with a hook of it, and those with records above its
/// start.
fn needed(
    segments: &[SegmentUse],
    live_in: &BTreeSet<SegmentId>,
    start_lsn: Lsn,
) -> Vec<SegmentNeed> {
    let mut needs: Vec<SegmentNeed> = segments
        .iter()
        .map(|s| SegmentNeed {
            segment: s.segment,
            salt: s.salt,
            slot: s.slot,
            end: s.end,
            has_live: live_in.contains(&s.segment),
            has_tail: s.last_lsn.is_none_or(|last| last > start_lsn),
        })
        .filter(|need| need.has_live || need.has_tail)
        .collect();
    needs.sort_by_key(|need| need.segment);
    needs
}
