//! Reading a hook back: from a recent group, else with one direct read, checksum verified.

use std::io;
use std::ops::{Deref, Range};
use std::rc::Rc;

use super::Store;
use super::inner::Inner;
use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::error::{Damage, ReadError};
use crate::format::record::{RECORD_HEADER_BYTES, kind, read_record};
use crate::format::{Envelope, padded};
use crate::ids::Seq;
use crate::record::Location;
use crate::writer::cache::GroupBytes;

/// Times a read is repeated because the hook moved meanwhile.
const MOVES_MAX: usize = 4;

/// A larger record is read alone: several of them would not fit into what is read ahead.
const ALONE_BYTES: usize = 32 << 10;

enum Bytes<D: Disk> {
    Group(GroupBytes<D>),
    Buf(D::Buf),
    Span(Rc<D::Buf>),
    Large(Vec<u8>),
}

/// The envelope of a stored hook; dereferences to its bytes ([`Envelope::parse`] reads them in
/// place).
pub struct StoredHook<D: Disk> {
    bytes: Bytes<D>,
    envelope: Range<usize>,
}

impl<D: Disk> Deref for StoredHook<D> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = match &self.bytes {
            Bytes::Group(group) => group.frame(),
            Bytes::Buf(buf) => buf.as_ref(),
            Bytes::Span(buf) => (**buf).as_ref(),
            Bytes::Large(bytes) => bytes,
        };
        &bytes[self.envelope.clone()]
    }
}

impl<D: Disk> Store<D> {
    /// Reads a live hook: from recent groups, else with one direct read.
    ///
    /// # Cancel safety
    /// May be dropped; the store is not changed.
    pub async fn read(&self, seq: Seq) -> Result<StoredHook<D>, ReadError> {
        let inner = &self.inner;
        for _ in 0..MOVES_MAX {
            let at = inner
                .state
                .borrow()
                .location(seq)
                .ok_or(ReadError::NotFound(seq))?;
            if let Some(hook) = inner.read_cached(seq, at) {
                return Ok(hook);
            }
            let result = inner.read_at(seq, at).await;
            let now = inner.state.borrow().location(seq);
            let is_moved =
                now.map(|now| (now.segment, now.offset)) != Some((at.segment, at.offset));
            if result.is_ok() || !is_moved {
                return result;
            }
        }
        Err(ReadError::NotFound(seq))
    }
}

impl<D: Disk> Inner<D> {
    fn read_cached(&self, seq: Seq, at: Location) -> Option<StoredHook<D>> {
        let mut writer = self.writer.borrow_mut();
        let Some((group, from)) = writer.cache.find(at.segment, at.offset) else {
            writer.stats.cache_misses += 1;
            return None;
        };
        writer.stats.cache_hits += 1;
        let envelope = envelope_range(group.frame(), from, at.len, seq).ok()?;
        Some(StoredHook {
            bytes: Bytes::Group(group),
            envelope,
        })
    }

    async fn read_at(&self, seq: Seq, at: Location) -> Result<StoredHook<D>, ReadError> {
        let failed = |source: io::Error| ReadError::Io { seq, source };
        let (name, file) = {
            let slots = self.slots.borrow();
            let slot = slots
                .of_segment(at.segment)
                .ok_or_else(|| ReadError::Damaged(damage("segment has no slot", None, at, seq)))?;
            (slot.no.file_name(), slot.file.clone())
        };
        let (file, is_own) = match file {
            Some(file) => (file, false),
            None => (self.disk.open(&name).await.map_err(failed)?, true),
        };
        let mut read = self.read_record(&file, at, seq, true).await;
        if matches!(read, Ok(Err(_))) && self.spans.forget(at.segment, at.offset) {
            // The medium may be sound, and what was read ahead is not to be asked again.
            read = self.read_record(&file, at, seq, false).await;
        }
        if is_own {
            self.disk.close(file).await;
        }
        read.map_err(failed)?
            .map_err(|what| ReadError::Damaged(damage(what, Some(name), at, seq)))
    }

    /// The hook at `at`, or what is wrong with it.
    async fn read_record(
        &self,
        file: &D::File,
        at: Location,
        seq: Seq,
        ahead: bool,
    ) -> io::Result<Result<StoredHook<D>, &'static str>> {
        let (bytes, from) = self.read_span(file, at, ahead).await?;
        let slice = match &bytes {
            Bytes::Buf(buf) => buf.as_ref(),
            Bytes::Span(buf) => (**buf).as_ref(),
            Bytes::Large(bytes) => bytes,
            Bytes::Group(group) => group.frame(),
        };
        let envelope = envelope_range(slice, from, at.len, seq);
        Ok(envelope.map(|envelope| StoredHook { bytes, envelope }))
    }

    /// The blocks around a record, and where the record starts in them.
    async fn read_span(
        &self,
        file: &D::File,
        at: Location,
        ahead: bool,
    ) -> io::Result<(Bytes<D>, usize)> {
        let block = BLOCK_BYTES as u64;
        let start = at.offset / block * block;
        let from = (at.offset - start) as usize;
        let span = padded(from + at.len as usize);
        if ahead
            && span <= ALONE_BYTES
            && let Some((buf, begin)) = self.read_ahead(file, at.segment, start, span).await
        {
            return Ok((Bytes::Span(buf), from + (start - begin) as usize));
        }
        if span <= IO_BYTES_MAX {
            let (buf, got) = self.disk.read_at(file, start, span).await?;
            if got < from + at.len as usize {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            return Ok((Bytes::Buf(buf), from));
        }
        let mut bytes = Vec::with_capacity(span);
        while bytes.len() < span {
            let piece = (span - bytes.len()).min(IO_BYTES_MAX);
            let (buf, got) = self
                .disk
                .read_at(file, start + bytes.len() as u64, piece)
                .await?;
            if got == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            bytes.extend_from_slice(&buf.as_ref()[..got]);
        }
        Ok((Bytes::Large(bytes), from))
    }
}

/// Checks the record at `from` and says where its envelope lies.
fn envelope_range(
    bytes: &[u8],
    from: usize,
    len: u32,
    seq: Seq,
) -> Result<Range<usize>, &'static str> {
    let end = from + len as usize;
    let within = bytes.get(..end).ok_or("record cut short")?;
    let (record, _) = read_record(within, from).map_err(|error| error.what)?;
    if record.kind != kind::HOOK || from + record.len != end {
        return Err("not the record that the index names");
    }
    let envelope = Envelope::parse(record.body).map_err(|error| error.what)?;
    if envelope.seq != seq {
        return Err("another hook than the index names");
    }
    let start = from + RECORD_HEADER_BYTES + record.extra.len();
    Ok(start..end)
}

fn damage(what: &'static str, file: Option<String>, at: Location, seq: Seq) -> Damage {
    Damage {
        what,
        file,
        segment: Some(at.segment),
        offset: at.offset,
        lsns: Some((at.lsn, at.lsn)),
        seqs: Some((seq, seq.next())),
    }
}
