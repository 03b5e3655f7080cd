//! The memory log's file: one per partition, appended to and fsynced.
//!
//! ```text
//! file   magic "ankusaml" | first position u64 | frame…
//! frame  length u32 | crc32 u32 | position u64 | written at, ms u64 | headers u16 |
//!        { name length u16 | name | value length u32 | value }… | record value
//! ```
//! Little-endian; `length` counts everything after itself and the checksum, which covers the same.
//! Invariants: positions are dense from the first; a torn tail is cut at open, damage before a
//! whole frame is an error. Blocking: runs on the log's own thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

const MAGIC: &[u8; 8] = b"ankusaml";
const FILE_HEAD: u64 = 16;
const FRAME_HEAD: usize = 8;
const FRAME_FIXED: usize = 18;
/// A longer frame is damage.
const FRAME_MAX: usize = 1 << 30;

/// One record as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) position: u64,
    pub(super) headers: Vec<(String, Bytes)>,
    pub(super) value: Bytes,
}

pub(super) struct PartitionFile {
    path: PathBuf,
    file: File,
    first: u64,
    /// Where each record starts; the last entry is the end.
    starts: Vec<u64>,
    buffer: Vec<u8>,
    buffered: Vec<u64>,
}

fn damaged(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Makes a rename or a new file durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl PartitionFile {
    /// Opens or creates; cuts a torn tail.
    pub(super) fn open(path: PathBuf) -> io::Result<PartitionFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        let len = file.metadata()?.len();
        let mut log = PartitionFile {
            path,
            file,
            first: 0,
            starts: vec![FILE_HEAD],
            buffer: Vec::new(),
            buffered: Vec::new(),
        };
        if len < FILE_HEAD {
            log.write_head()?;
            return Ok(log);
        }
        let mut head = [0u8; FILE_HEAD as usize];
        log.file.read_exact_at(&mut head, 0)?;
        let (magic, first) = head.split_at(8);
        if magic != MAGIC {
            return Err(damaged(format!("{} is not a log", log.path.display())));
        }
        log.first = u64::from_le_bytes(first.try_into().unwrap_or_default());
        log.scan(len)?;
        Ok(log)
    }

    fn write_head(&mut self) -> io::Result<()> {
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&self.first.to_le_bytes());
        self.file.set_len(0)?;
        self.file.write_all_at(&head, 0)?;
        self.file.sync_all()?;
        match self.path.parent() {
            Some(parent) => sync_dir(parent),
            None => Ok(()),
        }
    }

    fn scan(&mut self, len: u64) -> io::Result<()> {
        let mut room = Vec::new();
        let mut at = FILE_HEAD;
        while at < len {
            match read_frame(&self.file, at, len, &mut room)? {
                Some(position) if position == self.head() => {
                    at += (FRAME_HEAD + room.len()) as u64;
                    self.starts.push(at);
                }
                _ => {
                    self.refuse_damage(at, len)?;
                    tracing::warn!(
                        file = %self.path.display(), at, bytes = len - at,
                        "cutting the torn tail of a memory log"
                    );
                    self.file.set_len(at)?;
                    return self.file.sync_all();
                }
            }
        }
        Ok(())
    }

    /// A whole frame after a bad one means that the bad one was once whole.
    fn refuse_damage(&self, bad: u64, len: u64) -> io::Result<()> {
        let mut rest = vec![0u8; (len - bad) as usize];
        self.file.read_exact_at(&mut rest, bad)?;
        for at in 1..rest.len().saturating_sub(FRAME_HEAD + FRAME_FIXED) {
            if let Some(position) = whole_frame(&rest[at..])
                && position > self.head()
            {
                return Err(damaged(format!(
                    "{}: record {} at byte {bad} cannot be read, record {position} after it can",
                    self.path.display(),
                    self.head(),
                )));
            }
        }
        Ok(())
    }

    /// The first position held.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The position the next record takes.
    pub(super) fn head(&self) -> u64 {
        self.first + (self.starts.len() - 1 + self.buffered.len()) as u64
    }

    /// Bytes in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(FILE_HEAD)
    }

    /// Adds a record to the buffer and says its position; [`PartitionFile::flush`] writes it.
    pub(super) fn append<'a>(
        &mut self,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        value: &[u8],
        now_ms: u64,
    ) -> u64 {
        let position = self.head();
        let start = self.buffer.len();
        let out = &mut self.buffer;
        out.extend_from_slice(&[0; FRAME_HEAD]);
        out.extend_from_slice(&position.to_le_bytes());
        out.extend_from_slice(&now_ms.to_le_bytes());
        let count_at = out.len();
        out.extend_from_slice(&[0; 2]);
        let mut count = 0u16;
        for (name, value) in headers {
            count += 1;
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
        out[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
        out.extend_from_slice(value);
        let body = start + FRAME_HEAD;
        let length = (out.len() - body) as u32;
        let crc = crc32fast::hash(&out[body..]);
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..body].copy_from_slice(&crc.to_le_bytes());
        self.buffered.push(out.len() as u64);
        position
    }

    /// Writes what was appended, and syncs it when told to.
    pub(super) fn flush(&mut self, sync: bool) -> io::Result<()> {
        if self.buffered.is_empty() {
            return Ok(());
        }
        let base = self.bytes();
        let done = self
            .file
            .write_all_at(&self.buffer, base)
            .and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
        if done.is_ok() {
            self.starts
                .extend(self.buffered.iter().map(|end| base + end));
        } else {
            // Nobody knows what of it is there: none of it counts.
            self.file.set_len(base)?;
        }
        self.buffer.clear();
        self.buffered.clear();
        done
    }

    /// Drops the records below `first`.
    pub(super) fn drop_below(&mut self, first: u64) -> io::Result<()> {
        let first = first.clamp(self.first, self.head());
        let dropped = (first - self.first) as usize;
        if dropped == 0 {
            return Ok(());
        }
        let from = self.starts[dropped];
        let path = self.path.with_extension("new");
        let mut kept = vec![0u8; (self.bytes() - from) as usize];
        self.file.read_exact_at(&mut kept, from)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.write_all(MAGIC)?;
        file.write_all(&first.to_le_bytes())?;
        file.write_all(&kept)?;
        // IMPORTANT: the new file is whole on the medium before it takes the old one's name.
        file.sync_all()?;
        std::fs::rename(&path, &self.path)?;
        if let Some(parent) = self.path.parent() {
            sync_dir(parent)?;
        }
        self.file = file;
        self.first = first;
        let starts = self.starts.split_off(dropped);
        self.starts = starts.iter().map(|at| at - from + FILE_HEAD).collect();
        Ok(())
    }

    /// Loses the records at and above `head`, as brokers that lost power together may.
    pub(super) fn lose_from(&mut self, head: u64) -> io::Result<()> {
        let head = head.clamp(self.first, self.head());
        self.starts.truncate((head - self.first) as usize + 1);
        self.file.set_len(self.bytes())?;
        self.file.sync_all()
    }

    /// Becomes empty, from position 0.
    pub(super) fn recreate(&mut self) -> io::Result<()> {
        self.first = 0;
        self.starts = vec![FILE_HEAD];
        self.write_head()
    }

    /// A reader over the records held now, from `position`.
    pub(super) fn reader(&self, position: u64) -> io::Result<Reader> {
        let at = self.starts[(position.clamp(self.first, self.head()) - self.first) as usize];
        Ok(Reader {
            file: self.file.try_clone()?,
            at,
            end: self.bytes(),
            room: Vec::new(),
        })
    }
}

/// Reads one frame's body into `room`; its position, or none when there is no whole frame.
fn read_frame(file: &File, at: u64, end: u64, room: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut head = [0u8; FRAME_HEAD];
    if end - at < FRAME_HEAD as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut head, at)?;
    let (length, crc) = frame_head(&head);
    if !(FRAME_FIXED..=FRAME_MAX).contains(&length) || end - at < (FRAME_HEAD + length) as u64 {
        return Ok(None);
    }
    room.resize(length, 0);
    file.read_exact_at(room, at + FRAME_HEAD as u64)?;
    if crc32fast::hash(room) != crc {
        return Ok(None);
    }
    Ok(Some(position_of(room)))
}

fn frame_head(head: &[u8]) -> (usize, u32) {
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    (word(0) as usize, word(4))
}

fn position_of(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().unwrap_or_default())
}

fn whole_frame(bytes: &[u8]) -> Option<u64> {
    let (length, crc) = frame_head(bytes.get(..FRAME_HEAD)?);
    if !(FRAME_FIXED..=FRAME_MAX).contains(&length) {
        return None;
    }
    let body = bytes.get(FRAME_HEAD..FRAME_HEAD + length)?;
    (crc32fast::hash(body) == crc).then(|| position_of(body))
}

/// Reads records one after the other, on any thread, while the file is appended to or replaced.
pub(super) struct Reader {
    file: File,
    at: u64,
    end: u64,
    room: Vec<u8>,
}

impl Reader {
    /// The next record; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Stored>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let bad = |at: u64| damaged(format!("no whole record at byte {at}"));
        let position = read_frame(&self.file, self.at, self.end, &mut self.room)?
            .ok_or_else(|| bad(self.at))?;
        let body = Bytes::copy_from_slice(&self.room);
        let (headers, value) = split_body(&body).ok_or_else(|| bad(self.at))?;
        self.at += (FRAME_HEAD + self.room.len()) as u64;
        Ok(Some(Stored {
            position,
            headers,
            value,
        }))
    }
}

type Headers = Vec<(String, Bytes)>;

fn split_body(body: &Bytes) -> Option<(Headers, Bytes)> {
    let mut at = FRAME_FIXED;
    let mut take = |len: usize| {
        let from = at;
        at = at.checked_add(len)?;
        (at <= body.len()).then(|| body.slice(from..at))
    };
    let count = u16::from_le_bytes(body.get(16..18)?.try_into().ok()?);
    let mut headers = Vec::with_capacity(usize::from(count.min(32)));
    for _ in 0..count {
        let name_len = u16::from_le_bytes(take(2)?[..].try_into().ok()?);
        let name = String::from_utf8(take(usize::from(name_len))?.to_vec()).ok()?;
        let value_len = u32::from_le_bytes(take(4)?[..].try_into().ok()?);
        headers.push((name, take(value_len as usize)?));
    }
    let value = body.slice(at..);
    Some((headers, value))
}

#[cfg(test)]
mod tests;
