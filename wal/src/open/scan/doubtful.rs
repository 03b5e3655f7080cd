//! Frames that are not whole and that nobody needs any more: those up to the checkpoint's start.
//!
//! The checkpoint has what their records did, so that they stop no boot by themselves. What may
//! still be needed in them are live hooks, which stay where they were appended: once the log is
//! read, those that are still live and still there are read too. One that cannot be refuses the
//! open, with its seq; `wal repair` gives it up.

use super::frames::claim_of;
use super::*;
use crate::format::Envelope;
use crate::format::padded;
use crate::format::record::{kind, read_record};
use crate::record::Location;

/// A stretch of a segment without an intact frame.
#[derive(Clone, Debug)]
pub(super) struct Doubtful {
    no: SlotNo,
    segment: SegmentId,
    /// First byte, and one past the last.
    bytes: (u64, u64),
    lsns: (Lsn, Lsn),
    what: &'static str,
}

impl<D: Disk> Scan<'_, D> {
    /// Passes over what is bad at `pos` when the checkpoint replaces all of it. Answers where the
    /// log goes on; `None` when something bad is needed, or the log ends here.
    pub(super) async fn pass_over(
        &mut self,
        (no, header): (SlotNo, &SegmentHeader),
        pos: u64,
        what: &'static str,
        reader: &mut SlotReader<D>,
        by: Option<&SegmentHeader>,
    ) -> Result<Option<u64>, OpenError> {
        if self.expected > self.start_lsn {
            return Ok(None);
        }
        let end = by.map_or(reader.len(), |by| by.cut.offset.min(reader.len()));
        let next = self.next_intact(header.salt, pos, end, reader).await?;
        let goes_on = next.filter(|(_, lsn)| *lsn <= self.start_lsn.next());
        let (to, first) = match goes_on {
            Some(next) => next,
            None => (
                self.end_of_start(header.salt, pos, end, reader).await?,
                self.start_lsn.next(),
            ),
        };
        self.doubtful.push(Doubtful {
            no,
            segment: header.segment,
            bytes: (pos, to),
            lsns: (self.expected, first.prev()),
            what,
        });
        self.expected = first;
        if goes_on.is_some() {
            return Ok(Some(to));
        }
        // The log ends with what the checkpoint replaces, or what comes then is damaged.
        self.ends.push_back(LogEnd {
            segment: header.segment,
            offset: to,
            lsn: self.start_lsn,
        });
        Ok(None)
    }

    /// The first intact frame of this use of the slot from `pos` on that the log has yet to come to.
    async fn next_intact(
        &mut self,
        salt: u64,
        pos: u64,
        end: u64,
        reader: &mut SlotReader<D>,
    ) -> Result<Option<(u64, Lsn)>, OpenError> {
        let failed = io_error("reading on after a bad frame");
        let mut at = pos;
        while at < end {
            match reader.frame_at(at, self.tag).await.map_err(&failed)? {
                FrameAt::Frame(frame) if frame.salt == salt && frame.lsn > self.expected => {
                    return Ok(Some((at, frame.lsn)));
                }
                FrameAt::Frame(frame) => at += frame.frame_bytes(),
                FrameAt::Bad(_, torn) => {
                    self.claimed = self.claimed.max(claim_of(torn, salt));
                    at += BLOCK_BYTES as u64;
                }
            }
            if self.host.must_yield() {
                self.host.yield_now().await;
            }
        }
        Ok(None)
    }

    /// Where the checkpoint's last frame ends, when nothing intact follows it: as its own header
    /// says, else nobody knows, and all of the slot is kept.
    async fn end_of_start(
        &mut self,
        salt: u64,
        pos: u64,
        end: u64,
        reader: &mut SlotReader<D>,
    ) -> Result<u64, OpenError> {
        let failed = io_error("reading on after a bad frame");
        for at in (pos..end).step_by(BLOCK_BYTES) {
            let found = reader.frame_at(at, self.tag).await.map_err(&failed)?;
            if let FrameAt::Bad(_, Some(torn)) = found
                && torn.salt == salt
                && torn.lsn == self.start_lsn
            {
                return Ok((at + torn.frame_bytes()).min(end));
            }
        }
        Ok(end)
    }

    /// Reads the live hooks that lie where frames were passed over.
    pub(super) async fn check_doubtful(&mut self) -> Result<(), OpenError> {
        if mutations::is("cut_damage") {
            return Ok(());
        }
        for doubtful in std::mem::take(&mut self.doubtful) {
            let (from, to) = doubtful.bytes;
            let state = &self.state;
            let hooks = state.hooks().filter_map(|slot| state.hook(slot));
            let within =
                |at: &Location| at.segment == doubtful.segment && (from..to).contains(&at.offset);
            let mut hooks: Vec<(Seq, Location)> = hooks
                .map(|hook| (hook.seq, hook.location))
                .filter(|(_, at)| within(at))
                .collect();
            hooks.sort_unstable_by_key(|(seq, _)| *seq);
            let lost = self.unreadable(&doubtful, &hooks).await?;
            let (Some(first), Some(last)) = (lost.first(), lost.last()) else {
                let (first, last) = doubtful.lsns;
                tracing::warn!(
                    file = doubtful.no.file_name(), offset = from, %first, %last,
                    "{}; nothing in it is needed: the checkpoint has it", doubtful.what
                );
                continue;
            };
            tracing::error!(
                file = doubtful.no.file_name(), segment = %doubtful.segment,
                "live hooks that cannot be read, by seq: {lost:?}"
            );
            return Err(OpenError::Damaged(Damage {
                what: doubtful.what,
                file: Some(doubtful.no.file_name()),
                segment: Some(doubtful.segment),
                offset: from,
                lsns: Some(doubtful.lsns),
                seqs: Some((*first, last.next())),
            }));
        }
        Ok(())
    }

    async fn unreadable(
        &self,
        doubtful: &Doubtful,
        hooks: &[(Seq, Location)],
    ) -> Result<Vec<Seq>, OpenError> {
        let mut lost = Vec::new();
        if hooks.is_empty() {
            return Ok(lost);
        }
        let failed = io_error("reading live hooks of a damaged frame");
        let file = self
            .disk
            .open(&doubtful.no.file_name())
            .await
            .map_err(&failed)?;
        for (seq, at) in hooks {
            // What the disk does not give back is lost as what it gives back wrong.
            let is_there = holds_hook(self.disk, &file, *seq, at)
                .await
                .unwrap_or(false);
            if !is_there {
                lost.push(*seq);
            }
            if self.host.must_yield() {
                self.host.yield_now().await;
            }
        }
        self.disk.close(file).await;
        Ok(lost)
    }
}

async fn holds_hook<D: Disk>(
    disk: &D,
    file: &D::File,
    seq: Seq,
    at: &Location,
) -> std::io::Result<bool> {
    let start = at.offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let from = (at.offset - start) as usize;
    let end = start + padded(from + at.len as usize) as u64;
    let mut reader = SlotReader::<D>::new(disk, file, end);
    let bytes = reader.get(start, (end - start) as usize).await?;
    let record = read_record(bytes, from).ok();
    Ok(record.is_some_and(|(record, _)| {
        record.kind == kind::HOOK && Envelope::parse(record.body).is_ok_and(|e| e.seq == seq)
    }))
}
