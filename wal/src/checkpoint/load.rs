//! Reads a checkpoint back into a state.
//!
//! [`Loader`] is pure and fed block by block; every byte it takes was covered by a checksum, and
//! still nothing in it can make it panic. A file is good only when its last block has come and
//! every count agrees. Runs at boot and offline.

use crate::format::bytes::Take;
use crate::format::record::{RECORD_HEADER_BYTES, decode_record, kind as record_kind, read_record};
use crate::format::{FormatError, bad};
use crate::ids::{Lsn, Seq, ShardId, SinkNo};
use crate::record::Location;
use crate::state::{HOOKS_MAX, LoadBatch, RowState, State};

use super::block;
use super::layout::{self, End, Start, kind};

/// A checkpoint read back.
pub struct Loaded {
    /// The state as of the checkpoint; apply what is above `start.start_lsn`.
    pub state: State,
    /// Its first block.
    pub start: Start,
    /// Its last block.
    pub end: End,
}

/// Takes the blocks of one file in order.
pub struct Loader {
    seed: u64,
    salt: Option<u64>,
    number: u32,
    kind_last: u8,
    start: Option<Start>,
    state: State,
    rows: Vec<(SinkNo, u16, RowState)>,
    batch: LoadBatch,
    stream: Vec<u8>,
    end: Vec<u8>,
    seen: (u64, u64, u64),
}

impl Loader {
    /// A loader whose state keys its look-ups with `seed`.
    pub fn new(seed: u64) -> Loader {
        Loader {
            seed,
            salt: None,
            number: 0,
            kind_last: 0,
            start: None,
            state: State::new(seed),
            rows: Vec::new(),
            batch: LoadBatch::default(),
            stream: Vec::new(),
            end: Vec::new(),
            seen: (0, 0, 0),
        }
    }

    /// Takes the next block; `bytes` begins with it.
    pub fn block(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let (head, payload) = block::open(bytes, self.salt, self.number)?;
        self.number = self.number.checked_add(1).ok_or(bad("too many blocks"))?;
        if self.start.is_none() != (head.kind == kind::START) {
            return Err(bad("first block"));
        }
        if self.kind_last == kind::END && head.kind != kind::END {
            return Err(bad("block after the end"));
        }
        self.kind_last = head.kind;
        if head.kind != kind::HOOKS {
            self.index()?;
        }
        match head.kind {
            kind::START => {
                let start = layout::decode_start(payload)?;
                let expected = usize::try_from(start.hooks_expected).unwrap_or(0);
                // A wrong number costs memory only up to here.
                let expected = expected.min(HOOKS_MAX as usize);
                self.state = State::with_expected(self.seed, expected);
                self.state.settle(start.start_lsn);
                self.salt = Some(head.salt);
                self.start = Some(start);
                Ok(())
            }
            kind::HOOKS => self.hooks(payload),
            kind::FINISHED => self.finished(payload),
            kind::RECORDS => self.records(payload),
            kind::GONE => self.gone(payload),
            kind::END => {
                self.end.extend_from_slice(payload);
                Ok(())
            }
            _ => Err(bad("block kind")),
        }
    }

    /// The file has ended.
    pub fn finish(mut self, shard: ShardId, store_uuid: [u8; 16]) -> Result<Loaded, FormatError> {
        let start = self.start.ok_or(bad("empty"))?;
        if start.shard != shard || start.store_uuid != store_uuid {
            return Err(bad("checkpoint of another store or shard"));
        }
        let end = layout::decode_end(&self.end)?;
        if !self.stream.is_empty() || self.seen != (end.hooks, end.ranges, end.gone) {
            return Err(bad("checkpoint is not whole"));
        }
        self.state.sort_dead_letters();
        Ok(Loaded {
            state: self.state,
            start,
            end,
        })
    }

    fn hooks(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        let mut take = Take::new(payload);
        while take.end().is_err() {
            let head = layout::decode_hook(&mut take, &mut self.rows)?;
            let location = Location {
                segment: head.segment,
                offset: u64::from(head.offset),
                len: head.len,
                lsn: Lsn(0),
            };
            let is_new = self.state.load_hook(
                head.seq,
                head.id,
                location,
                head.holds,
                &self.rows,
                &mut self.batch,
            );
            if !is_new {
                return Err(bad("hook without anything to do"));
            }
            self.seen.0 += 1;
        }
        if self.batch.is_full() {
            self.index()?;
        }
        Ok(())
    }

    fn index(&mut self) -> Result<(), FormatError> {
        if self.state.load_index(&mut self.batch) {
            Ok(())
        } else {
            Err(bad("hook twice"))
        }
    }

    fn finished(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        let mut take = Take::new(payload);
        while take.end().is_err() {
            let (first, last) = (Seq(take.u64()?), Seq(take.u64()?));
            if first > last || last.0 == u64::MAX {
                return Err(bad("finished range"));
            }
            self.state.load_finished(first, last);
            self.seen.1 += 1;
        }
        Ok(())
    }

    fn gone(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        let mut take = Take::new(payload);
        while take.end().is_err() {
            self.state.load_gone(Seq(take.u64()?));
            self.seen.2 += 1;
        }
        Ok(())
    }

    fn records(&mut self, payload: &[u8]) -> Result<(), FormatError> {
        self.stream.extend_from_slice(payload);
        let mut at = 0;
        while let Some(len) = record_bytes(&self.stream[at..]) {
            let (raw, _) = read_record(&self.stream, at)?;
            if matches!(
                raw.kind,
                record_kind::HOOK
                    | record_kind::DELIVERY
                    | record_kind::FINISHED
                    | record_kind::DEDUPE
                    | record_kind::DEDUPE_GONE
                    | record_kind::ARCHIVED
                    | record_kind::GIVEN_UP
            ) {
                return Err(bad("record that a checkpoint does not hold"));
            }
            self.state
                .apply(&decode_record(raw.kind, raw.body)?, Lsn(0));
            at += len;
        }
        self.stream.drain(..at);
        Ok(())
    }
}

/// The length of the record at the start of `bytes`, when all of it is there.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let body: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
    let len = RECORD_HEADER_BYTES + u32::from_le_bytes(body) as usize;
    (bytes.len() >= len).then_some(len)
}
