//! Reading a slot from front to back in pieces of 1 MiB, in bounded memory.

use std::io;

use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::format::FormatError;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::record::check_payload;

/// A window over one file.
pub(crate) struct SlotReader<D: Disk> {
    disk: D,
    file: D::File,
    len: u64,
    window: Vec<u8>,
    start: u64,
    pub(crate) bytes_read: u64,
}

/// What lies at a position.
pub(crate) enum FrameAt {
    /// An intact frame.
    Frame(FrameHeader),
    /// Not one, and why; and its header, when that is intact.
    Bad(FormatError, Option<FrameHeader>),
}

impl<D: Disk> SlotReader<D> {
    pub(crate) fn new(disk: &D, file: &D::File, len: u64) -> SlotReader<D> {
        SlotReader {
            disk: disk.clone(),
            file: file.clone(),
            len: len / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            window: Vec::new(),
            start: 0,
            bytes_read: 0,
        }
    }

    /// Length in whole blocks.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// `bytes` at `pos` (a multiple of the block), short at the end of the file.
    pub(crate) async fn get(&mut self, pos: u64, bytes: usize) -> io::Result<&[u8]> {
        let end = (pos + bytes as u64).min(self.len);
        let have = self.start + self.window.len() as u64;
        if pos < self.start || pos > have {
            self.window.clear();
            self.start = pos;
        } else if self.window.len() > 2 * IO_BYTES_MAX && pos - self.start > IO_BYTES_MAX as u64 {
            self.window.drain(..(pos - self.start) as usize);
            self.start = pos;
        }
        while self.start + (self.window.len() as u64) < end {
            let at = self.start + self.window.len() as u64;
            let piece = (IO_BYTES_MAX as u64).min(self.len - at) as usize;
            let (buf, got) = self.disk.read_at(&self.file, at, piece).await?;
            if got == 0 {
                break;
            }
            self.window.extend_from_slice(&buf.as_ref()[..got]);
            self.bytes_read += got as u64;
        }
        let from = ((pos - self.start) as usize).min(self.window.len());
        let to = ((end.max(pos) - self.start) as usize).min(self.window.len());
        Ok(&self.window[from..to])
    }

    /// Looks for a frame at `pos`: header, length, every checksum.
    pub(crate) async fn frame_at(&mut self, pos: u64, tag: u32) -> io::Result<FrameAt> {
        let head = self.get(pos, BLOCK_BYTES).await?;
        let header = match FrameHeader::decode(head) {
            Ok(header) => header,
            Err(error) => return Ok(FrameAt::Bad(error, None)),
        };
        if header.store_tag != tag {
            let what = "frame of another store";
            return Ok(FrameAt::Bad(FormatError { what }, None));
        }
        let end = pos + header.frame_bytes();
        if end > self.len {
            let what = "frame beyond the end of its slot";
            return Ok(FrameAt::Bad(FormatError { what }, Some(header)));
        }
        let frame = self.get(pos, header.frame_bytes() as usize).await?;
        let payload = frame.get(FRAME_HEADER_BYTES..).unwrap_or_default();
        Ok(match check_payload(&header, payload) {
            Ok(()) => FrameAt::Frame(header),
            Err(error) => FrameAt::Bad(error, Some(header)),
        })
    }

    /// The payload of a frame that [`SlotReader::frame_at`] has just found.
    pub(crate) async fn payload(&mut self, pos: u64, header: &FrameHeader) -> io::Result<&[u8]> {
        let bytes = header.payload_bytes as usize;
        let frame = self.get(pos, header.frame_bytes() as usize).await?;
        let payload = frame.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + bytes);
        payload.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}
