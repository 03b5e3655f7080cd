//! Looks at the frames of a segment while its bytes stream by on their way into a backup.
//!
//! A damaged segment must not pass for a backup: header and payload checksums, salt and store of
//! every frame are checked, and the bytes must end where a frame ends. Pure.

use ankusa_wal::disk::BLOCK_BYTES;
use ankusa_wal::format::frame::{FRAME_HEADER_BYTES, FrameHeader, PayloadSum};
use ankusa_wal::format::record::RECORD_HEADER_BYTES;

enum At {
    /// A frame, or the end of the bytes.
    Frame,
    /// The header of a record, so much of it seen.
    Head(usize),
    /// The body of a record: so much of it is left.
    Body(usize),
    /// What fills up the last block of a frame.
    Padding(usize),
}

/// The frames of one segment, from a place where one begins.
pub struct FrameCheck {
    salt: u64,
    store_tag: u32,
    at: At,
    /// Bytes and records of the frame still to come.
    payload_left: usize,
    records_left: u32,
    frame_left: usize,
    expected_sum: u32,
    sum: PayloadSum,
    head: [u8; RECORD_HEADER_BYTES],
    body: crc32fast::Hasher,
}

impl FrameCheck {
    /// A check of frames with this salt and store tag.
    pub fn new(salt: u64, store_tag: u32) -> FrameCheck {
        FrameCheck {
            salt,
            store_tag,
            at: At::Frame,
            payload_left: 0,
            records_left: 0,
            frame_left: 0,
            expected_sum: 0,
            sum: PayloadSum::default(),
            head: [0; RECORD_HEADER_BYTES],
            body: crc32fast::Hasher::new(),
        }
    }

    /// Takes the next bytes: whole blocks.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let taken = match self.at {
                At::Frame => self.frame(bytes)?,
                At::Head(seen) => self.record_head(bytes, seen)?,
                At::Body(left) => self.record_body(bytes, left)?,
                At::Padding(left) => {
                    let taken = left.min(bytes.len());
                    self.at = if taken == left {
                        At::Frame
                    } else {
                        At::Padding(left - taken)
                    };
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Whether the bytes ended with a frame.
    pub fn end(&self) -> Result<(), &'static str> {
        match self.at {
            At::Frame => Ok(()),
            _ => Err("the last frame is cut"),
        }
    }

    fn frame(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let header = FrameHeader::decode(bytes).map_err(|error| error.what)?;
        if header.salt != self.salt || header.store_tag != self.store_tag {
            return Err("a frame of another segment or store");
        }
        self.payload_left = header.payload_bytes as usize;
        self.records_left = header.records;
        self.expected_sum = header.payload_sum;
        self.sum = PayloadSum::default();
        let used = FRAME_HEADER_BYTES + self.payload_left;
        self.frame_left = used.next_multiple_of(BLOCK_BYTES) - used;
        self.next_record()?;
        Ok(FRAME_HEADER_BYTES)
    }

    fn next_record(&mut self) -> Result<(), &'static str> {
        if self.records_left > 0 {
            if self.payload_left < RECORD_HEADER_BYTES {
                return Err("records do not fill their frame");
            }
            self.at = At::Head(0);
            return Ok(());
        }
        if self.payload_left > 0 {
            return Err("records do not fill their frame");
        }
        if self.sum.finish() != self.expected_sum {
            return Err("payload checksum");
        }
        self.at = match self.frame_left {
            0 => At::Frame,
            left => At::Padding(left),
        };
        Ok(())
    }

    fn record_head(&mut self, bytes: &[u8], seen: usize) -> Result<usize, &'static str> {
        let taken = (RECORD_HEADER_BYTES - seen).min(bytes.len());
        self.head[seen..seen + taken].copy_from_slice(&bytes[..taken]);
        if seen + taken < RECORD_HEADER_BYTES {
            self.at = At::Head(seen + taken);
            return Ok(taken);
        }
        self.body = crc32fast::Hasher::new();
        self.body.update(&self.head[4..]);
        let body = self.number(4) as usize;
        self.payload_left -= RECORD_HEADER_BYTES;
        if body > self.payload_left {
            return Err("records do not fill their frame");
        }
        self.at = At::Body(body);
        if body == 0 {
            self.record_ends()?;
        }
        Ok(taken)
    }

    fn record_body(&mut self, bytes: &[u8], left: usize) -> Result<usize, &'static str> {
        let taken = left.min(bytes.len());
        self.body.update(&bytes[..taken]);
        self.payload_left -= taken;
        self.at = At::Body(left - taken);
        if taken == left {
            self.record_ends()?;
        }
        Ok(taken)
    }

    fn record_ends(&mut self) -> Result<(), &'static str> {
        let crc = self.number(0);
        if self.body.clone().finalize() != crc {
            return Err("record checksum");
        }
        self.sum.add(crc);
        self.records_left -= 1;
        self.next_record()
    }

    fn number(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.head[at..at + 4]);
        u32::from_le_bytes(bytes)
    }
}
