//! The frames of one slot: those of the log in their order, those behind a bad one, and those of
//! a slot without a header of ours.
//!
//! A frame of the log is next in order and carries its segment's salt. Behind a bad one only
//! claims count, and only of frames with that salt: bytes that a client sent may look like a
//! frame, and nobody outside knows the salt.
//!
//! A slot with a header of zeros is read to its end only when its first MiB is not zeros. A
//! segment is entered at the front of its slot: header and first group go out in one write, what
//! follows lies behind them without a gap, and nothing in it is acked before that first group is
//! durable. So where header and first MiB are zeros, either nothing was ever written, or nothing
//! of what was written was acked; the same holds for frames that an open copied there (its header
//! comes last) and for a slot that was probed (its old frames claim what the log claims). Only a
//! medium that loses a whole MiB which it had flushed escapes this; `wal verify` reads all of it.

use super::*;
use crate::disk::IO_BYTES_MAX;
use crate::open::survey::SlotHead;

impl<D: Disk> Scan<'_, D> {
    /// Reads one segment of the chain; `by` is the next one's header, whose cut seals it.
    pub(super) async fn segment(
        &mut self,
        no: SlotNo,
        header: &SegmentHeader,
        bytes: u64,
        by: Option<&SegmentHeader>,
    ) -> Result<(), OpenError> {
        let failed = io_error("reading a segment");
        let file = self.disk.open(&no.file_name()).await.map_err(&failed)?;
        let mut reader = SlotReader::new(self.disk, &file, bytes);
        self.expected = header.first_lsn;
        self.next_seq = self.next_seq.max(header.next_seq);
        let result = self.frames(no, header, &mut reader, by).await;
        self.bytes_scanned += reader.bytes_read;
        drop(reader);
        self.disk.close(file).await;
        result
    }

    async fn frames(
        &mut self,
        no: SlotNo,
        header: &SegmentHeader,
        reader: &mut SlotReader<D>,
        by: Option<&SegmentHeader>,
    ) -> Result<(), OpenError> {
        let failed = io_error("reading a segment");
        let mut pos = SEGMENT_DATA_OFFSET;
        let mut what;
        let what = loop {
            if by.is_some_and(|by| pos >= by.cut.offset) {
                break "segment ends early";
            }
            match reader.frame_at(pos, self.tag).await.map_err(&failed)? {
                FrameAt::Bad(error, torn) => {
                    // A torn group's header was written all the same: its claim is true.
                    self.claimed = self.claimed.max(claim_of(torn, header.salt));
                    what = error.what;
                }
                FrameAt::Frame(frame) if frame.salt != header.salt => {
                    what = "frame of an older use of the slot";
                }
                FrameAt::Frame(frame) if frame.lsn != self.expected => {
                    what = "frame out of order";
                }
                FrameAt::Frame(frame) => {
                    self.keep(header.segment, &frame, pos, reader).await?;
                    pos += frame.frame_bytes();
                    what = "";
                }
            }
            if !what.is_empty() {
                match self.pass_over((no, header), pos, what, reader, by).await? {
                    Some(next) => pos = next,
                    None => break what,
                }
            }
            if self.host.must_yield() {
                self.host.yield_now().await;
            }
        };
        if let Some(by) = by {
            let is_whole = pos == by.cut.offset && self.expected == by.cut.lsn.next();
            // An empty segment that is cut at its own start, or a chain start below the state.
            let is_empty_cut = self.expected > by.cut.lsn && pos == by.cut.offset;
            if is_whole || is_empty_cut {
                return Ok(());
            }
        }
        self.broken = Some(Broken {
            piece: Piece::Bad,
            what,
            file: Some(no.file_name()),
            segment: header.segment,
            offset: pos,
            lsn: self.expected,
            next_seq: self.next_seq,
            after: None,
        });
        self.look_on(header.salt, pos, reader).await?;
        match by {
            // A sealed segment is claimed by its cut.
            Some(by) => {
                self.claimed = self.claimed.max(by.cut.lsn);
                Err(self
                    .refusal()
                    .unwrap_or_else(|| chain_broken(Piece::Bad, by)))
            }
            None => Ok(()),
        }
    }

    /// Takes an intact frame that is next in order.
    async fn keep(
        &mut self,
        segment: SegmentId,
        frame: &FrameHeader,
        pos: u64,
        reader: &mut SlotReader<D>,
    ) -> Result<(), OpenError> {
        if frame.lsn > self.start_lsn {
            let read = reader.payload(pos, frame).await;
            let payload = read.map_err(io_error("reading a frame"))?;
            self.state.settle(frame.lsn);
            apply_frame(&mut self.state, frame, payload, segment, pos)?;
        }
        self.frames_scanned += 1;
        self.claimed = self.claimed.max(frame.durable_lsn);
        self.next_seq = self.next_seq.max(frame.next_seq);
        self.expected = frame.lsn.next();
        let offset = pos + frame.frame_bytes();
        self.ends.push_back(LogEnd {
            segment,
            offset,
            lsn: frame.lsn,
        });
        self.tail.push_back(TailFrame {
            header: *frame,
            pos,
        });
        while self
            .tail
            .front()
            .is_some_and(|tail| tail.header.lsn <= self.claimed)
        {
            self.tail.pop_front();
        }
        // One end at or below the claim is enough.
        while self.ends.get(1).is_some_and(|end| end.lsn <= self.claimed) {
            self.ends.pop_front();
        }
        Ok(())
    }

    /// After a bad frame: every block to the end of the slot.
    async fn look_on(
        &mut self,
        salt: u64,
        bad_at: u64,
        reader: &mut SlotReader<D>,
    ) -> Result<(), OpenError> {
        let failed = io_error("reading on after a bad frame");
        let mut pos = bad_at + BLOCK_BYTES as u64;
        while pos < reader.len() {
            let found = reader.frame_at(pos, self.tag).await.map_err(&failed)?;
            let frame = match found {
                FrameAt::Frame(frame) => frame,
                FrameAt::Bad(_, torn) => {
                    self.claimed = self.claimed.max(claim_of(torn, salt));
                    pos += BLOCK_BYTES as u64;
                    if self.host.must_yield() {
                        self.host.yield_now().await;
                    }
                    continue;
                }
            };
            if frame.salt == salt {
                self.claimed = self.claimed.max(frame.durable_lsn);
                if frame.lsn >= self.expected {
                    self.after_bad += 1;
                }
                let first = self
                    .broken
                    .as_mut()
                    .filter(|b| b.after.is_none() && frame.lsn > b.lsn);
                if let Some(broken) = first {
                    let payload = reader.payload(pos, &frame).await.map_err(&failed)?;
                    broken.after =
                        Some((frame.lsn, first_new_seq(&frame, payload, broken.next_seq)));
                }
            }
            pos += frame.frame_bytes();
        }
        Ok(())
    }

    /// A slot without a header of ours: its frames' claims count. Answers its newest LSN.
    pub(super) async fn stray(&mut self, slot: &FoundSlot) -> Result<Lsn, OpenError> {
        let failed = io_error("reading a slot without a header");
        let file = self
            .disk
            .open(&slot.no.file_name())
            .await
            .map_err(&failed)?;
        let mut reader = SlotReader::new(self.disk, &file, slot.bytes);
        let mut newest = Lsn(0);
        let mut pos = SEGMENT_DATA_OFFSET;
        if slot.head == SlotHead::Blank {
            let start = reader.get(pos, IO_BYTES_MAX).await;
            // What cannot be read is met again below.
            if start.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
                // Never entered: see the head of this file.
                pos = reader.len();
            }
        }
        let result = loop {
            if pos >= reader.len() {
                break Ok(());
            }
            match reader.frame_at(pos, self.tag).await {
                Err(error) => break Err(failed(error)),
                Ok(FrameAt::Bad(_, torn)) => {
                    let claim = torn.map_or(Lsn(0), |torn| torn.durable_lsn);
                    self.claimed = self.claimed.max(claim);
                    pos += BLOCK_BYTES as u64;
                }
                Ok(FrameAt::Frame(frame)) => {
                    newest = newest.max(frame.lsn);
                    self.claimed = self.claimed.max(frame.durable_lsn);
                    pos += frame.frame_bytes();
                }
            }
            if self.host.must_yield() {
                self.host.yield_now().await;
            }
        };
        self.bytes_scanned += reader.bytes_read;
        drop(reader);
        self.disk.close(file).await;
        result.map(|()| newest)
    }
}

/// What the intact header of a torn frame claims, when the frame is of this use of the slot.
pub(super) fn claim_of(torn: Option<FrameHeader>, salt: u64) -> Lsn {
    torn.filter(|torn| torn.salt == salt)
        .map_or(Lsn(0), |torn| torn.durable_lsn)
}
