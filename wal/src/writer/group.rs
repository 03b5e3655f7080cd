//! A group being built: records encoded in place, straight into the buffer that is written.
//!
//! The body of a hook is copied once, from the request into this buffer, and its checksum is
//! computed there. Nothing is allocated per hook. Runs on the shard core, inside one slice.

use std::rc::Rc;

use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::format::envelope::{self, Envelope, EnvelopeLen};
use crate::format::frame::{FRAME_HEADER_BYTES, PayloadSum};
use crate::format::padded;
use crate::format::record::{self as codec, RECORD_FLAG_RELOCATED, RECORD_HEADER_BYTES, kind};
use crate::hook::{HookDraft, HookExtra};
use crate::ids::{SegmentId, Seq};
use crate::record::Record;
use crate::store::inner::Inner;

impl HookDraft<'_> {
    /// Bytes that the hook's record takes in a group.
    pub fn record_bytes(&self) -> usize {
        codec::hook_len(&self.extra, envelope::encoded_len(self))
    }
}

/// Where a group is built.
pub(crate) enum Body<D: Disk> {
    /// The buffer of the write.
    Aligned(D::Buf),
    /// Larger than one write.
    Large(Vec<u8>),
}

impl<D: Disk> Body<D> {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Aligned(buf) => buf.as_ref(),
            Body::Large(bytes) => bytes,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Body::Aligned(buf) => buf.as_mut(),
            Body::Large(bytes) => bytes,
        }
    }
}

/// A record of the group, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Offset of the record in the frame.
    pub(crate) offset: u32,
    /// Its length.
    pub(crate) len: u32,
    /// A hook's: bytes of the extra part. Another record's: its place in `others`.
    pub(crate) extra_or_index: u32,
    /// The hook; `None` for another record.
    pub(crate) seq: Option<Seq>,
}

/// A group being built. Dropping it gives back nothing but its buffer: the seqs it took are
/// skipped.
pub struct GroupBuilder<D: Disk> {
    inner: Rc<Inner<D>>,
    /// The segment it goes to, or to none: a fence starts another.
    pub(crate) segment: SegmentId,
    pub(crate) body: Option<Body<D>>,
    /// Where the frame starts in the body: a block of headroom when a segment header goes out
    /// with it.
    pub(crate) start: usize,
    /// One past the last record, from the start of the frame.
    pub(crate) end: usize,
    /// What the group may grow to.
    limit: usize,
    /// What one single record may grow it to: the room in the segment.
    limit_single: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) others: Vec<Record>,
    pub(crate) sum: PayloadSum,
    /// How many of `others`, from the first, came from the store's queue.
    from_queue: usize,
    /// A hook whose body is not all there yet.
    partial: Option<Partial>,
}

/// A hook that is added in steps.
struct Partial {
    seq: Seq,
    extra_bytes: usize,
    len: usize,
    /// Bytes of the record that are written.
    filled: usize,
    /// Of the record so far.
    crc: crc32fast::Hasher,
}

/// Writes the extra part and what precedes the body, after room for the record's header.
fn encode_hook_head(draft: &HookDraft<'_>, seq: Seq, len: &EnvelopeLen, out: &mut [u8]) {
    let out = &mut out[RECORD_HEADER_BYTES..];
    let extra_bytes = codec::encode_extra(&draft.extra, out);
    envelope::encode_head(draft, len, seq, &mut out[extra_bytes..]);
}

impl<D: Disk> GroupBuilder<D> {
    pub(crate) fn new(
        inner: Rc<Inner<D>>,
        planned_bytes: usize,
        headroom: usize,
        limit: usize,
        limit_single: usize,
        entries: Vec<Entry>,
    ) -> GroupBuilder<D> {
        let planned = padded(headroom + FRAME_HEADER_BYTES + planned_bytes).max(BLOCK_BYTES);
        // Many records stop at the limit, which one I/O takes; only a single one goes beyond, and
        // then the plan says so.
        let wanted = if planned_bytes <= inner.config.group_bytes_max {
            planned.min(headroom + limit)
        } else {
            planned
        };
        let body = if wanted <= IO_BYTES_MAX {
            Body::Aligned(inner.disk.alloc(wanted))
        } else {
            Body::Large(vec![0; wanted])
        };
        GroupBuilder {
            inner,
            segment: SegmentId::default(),
            body: Some(body),
            start: headroom,
            end: FRAME_HEADER_BYTES,
            limit,
            limit_single,
            entries,
            others: Vec::new(),
            sum: PayloadSum::default(),
            from_queue: 0,
            partial: None,
        }
    }

    /// Adds a record that waited in the store's queue; it goes back there when the group is
    /// dropped. Before any other record.
    pub(crate) fn record_from_queue(&mut self, record: Record) {
        assert_eq!(
            self.from_queue,
            self.entries.len(),
            "queued records go first"
        );
        self.record(record);
        self.from_queue += 1;
    }

    /// Encodes a new hook and returns its seq. The hook is in the group; it is durable only once
    /// the group settles so.
    ///
    /// # Panics
    /// When the record does not [fit](GroupBuilder::fits).
    pub fn hook(&mut self, draft: &HookDraft<'_>) -> Seq {
        let seq = self.inner.take_seq();
        let extra_bytes = codec::extra_len(&draft.extra);
        let envelope = EnvelopeLen::of(draft);
        let head = RECORD_HEADER_BYTES + extra_bytes + envelope.head;
        let len = head + draft.body.len();
        let out = self.room(len);
        encode_hook_head(draft, seq, &envelope, &mut out[..head]);
        codec::write_header(kind::HOOK, 0, extra_bytes, out);
        // NOTE: of the body where it comes from. Reading the copy right after it was written waits
        // for the stores: that was a quarter of the time of a group of 256 KiB.
        let mut crc = crc32fast::Hasher::new();
        crc.update(&out[codec::RECORD_CRC_BYTES..head]);
        crc.update(draft.body);
        let crc = crc.finalize();
        out[..codec::RECORD_CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        out[head..].copy_from_slice(draft.body);
        self.push(crc, len, extra_bytes, Some(seq));
        seq
    }

    /// Like [`GroupBuilder::hook`], but for the body, which [`GroupBuilder::hook_step`] copies and
    /// checksums in steps: between two of them others may have the core. Until the last step the
    /// hook is not in the group, and nothing else may be added.
    ///
    /// # Panics
    /// When the record does not [fit](GroupBuilder::fits).
    pub fn hook_begin(&mut self, draft: &HookDraft<'_>) -> Seq {
        let seq = self.inner.take_seq();
        let extra_bytes = codec::extra_len(&draft.extra);
        let envelope = EnvelopeLen::of(draft);
        let head = RECORD_HEADER_BYTES + extra_bytes + envelope.head;
        let len = head + draft.body.len();
        let out = self.room(len);
        encode_hook_head(draft, seq, &envelope, &mut out[..head]);
        codec::write_header(kind::HOOK, 0, extra_bytes, out);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&out[codec::RECORD_CRC_BYTES..head]);
        self.partial = Some(Partial {
            seq,
            extra_bytes,
            len,
            filled: head,
            crc,
        });
        seq
    }

    /// Adds the next `bytes_max` bytes of the body of the hook that was begun; its seq once all of
    /// it is there. `body` is the draft's, whole.
    ///
    /// # Panics
    /// When no hook was begun, or with another one's body.
    pub fn hook_step(&mut self, body: &[u8], bytes_max: usize) -> Option<Seq> {
        let Some(mut partial) = self.partial.take() else {
            panic!("a step of no hook");
        };
        let done = body.len().checked_sub(partial.len - partial.filled);
        let Some(done) = done else {
            panic!("the body of another hook");
        };
        let bytes = &body[done..body.len().min(done.saturating_add(bytes_max))];
        let out = self.room(partial.len);
        out[partial.filled..partial.filled + bytes.len()].copy_from_slice(bytes);
        partial.crc.update(bytes);
        partial.filled += bytes.len();
        if partial.filled < partial.len {
            self.partial = Some(partial);
            return None;
        }
        let crc = partial.crc.finalize();
        out[..codec::RECORD_CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.push(crc, partial.len, partial.extra_bytes, Some(partial.seq));
        Some(partial.seq)
    }

    /// Encodes a hook that already has its seq and envelope: a carried local half, a replayed
    /// record, a relocation. When the hook is live its index moves to this copy once the group
    /// is durable; when its seq is finished nothing changes.
    ///
    /// # Panics
    /// When the record does not fit, or when the envelope carries another seq.
    pub fn hook_again(&mut self, seq: Seq, envelope: &[u8], extra: &HookExtra<'_>) {
        let is_of_it = Envelope::parse(envelope).is_ok_and(|e| e.seq == seq);
        assert!(is_of_it, "envelope of another seq");
        self.inner.raise_seq(seq.next());
        let extra_bytes = codec::extra_len(extra);
        let len = RECORD_HEADER_BYTES + extra_bytes + envelope.len();
        let flags = if self.inner.is_live(seq) {
            RECORD_FLAG_RELOCATED
        } else {
            0
        };
        let out = self.room(len);
        codec::encode_extra(extra, &mut out[RECORD_HEADER_BYTES..]);
        out[RECORD_HEADER_BYTES + extra_bytes..].copy_from_slice(envelope);
        let crc = codec::seal(kind::HOOK, flags, extra_bytes, out);
        self.push(crc, len, extra_bytes, Some(seq));
    }

    /// Adds another record; [`Record::NextSeq`] raises what this store hands out next at once.
    /// Like an [enqueued](crate::Store::enqueue) one it comes back into the
    /// store's queue when the group is fenced, offsets and watermarks excepted.
    ///
    /// # Panics
    /// When the record does not fit.
    pub fn record(&mut self, record: Record) {
        if let Record::NextSeq(seq) = &record {
            self.inner.raise_seq(*seq);
        }
        let len = codec::record_len(&record);
        let out = self.room(len);
        let crc = codec::encode_record(&record, out);
        let index = self.others.len();
        self.others.push(record);
        self.push(crc, len, index, None);
    }

    /// Whether a record of `encoded_bytes` (its header included) still belongs into this group.
    /// One larger than a whole group is taken when it is the first of the caller's own.
    pub fn fits(&self, encoded_bytes: usize) -> bool {
        let end = self.end.saturating_add(encoded_bytes);
        if self.entries.len() == self.from_queue {
            return end <= self.limit_single;
        }
        self.entries.len() < self.inner.config.group_records_max && end <= self.limit
    }

    /// Records so far.
    pub fn records(&self) -> usize {
        self.entries.len()
    }

    /// Bytes so far, header included, padding not.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// The envelope of a hook of this group, as it goes to the intake log.
    pub fn envelope_of(&self, seq: Seq) -> Option<&[u8]> {
        let at = self
            .entries
            .binary_search_by_key(&Some(seq), |entry| entry.seq)
            .ok();
        // NOTE: sorted as long as only new hooks are in the group; else look at each.
        let entry = match at {
            Some(at) => self.entries.get(at)?,
            None => self.entries.iter().find(|entry| entry.seq == Some(seq))?,
        };
        let from = self.start + entry.offset as usize;
        let head = RECORD_HEADER_BYTES + entry.extra_or_index as usize;
        self.body
            .as_ref()?
            .bytes()
            .get(from + head..from + entry.len as usize)
    }

    /// The hooks of this group, in order, with their envelopes as they go to the intake log.
    pub fn hooks(&self) -> impl Iterator<Item = (Seq, &[u8])> {
        let bytes = self.body.as_ref().map_or(&[][..], Body::bytes);
        let hook = move |entry: &Entry| {
            let from = self.start + entry.offset as usize;
            let head = RECORD_HEADER_BYTES + entry.extra_or_index as usize;
            let envelope = bytes.get(from + head..from + entry.len as usize)?;
            Some((entry.seq?, envelope))
        };
        self.entries.iter().filter_map(hook)
    }

    fn push(&mut self, crc: u32, len: usize, extra_or_index: usize, seq: Option<Seq>) {
        assert!(
            self.partial.is_none(),
            "a record in the middle of a large hook"
        );
        self.sum.add(crc);
        self.entries.push(Entry {
            offset: self.end as u32,
            len: len as u32,
            extra_or_index: extra_or_index as u32,
            seq,
        });
        self.end += len;
    }

    /// The next `len` bytes of the group, growing its buffer when the plan was too small.
    fn room(&mut self, len: usize) -> &mut [u8] {
        assert!(
            self.fits(len),
            "a record of {len} bytes does not fit into the group"
        );
        let from = self.start + self.end;
        let need = from + len;
        let have = self.body.as_ref().map_or(0, |body| body.bytes().len());
        if need > have {
            self.grow(need);
        }
        match &mut self.body {
            Some(body) => &mut body.bytes_mut()[from..need],
            // A group without a body was submitted, and submitting consumes it.
            None => unreachable!("group already submitted"),
        }
    }

    fn grow(&mut self, need: usize) {
        let wanted = if need <= IO_BYTES_MAX {
            padded(need.next_power_of_two()).min(IO_BYTES_MAX)
        } else {
            padded(need)
        };
        let used = self.start + self.end;
        let Some(old) = self.body.take() else { return };
        self.body = Some(match old {
            Body::Aligned(old) if wanted <= IO_BYTES_MAX => {
                let mut buf = self.inner.disk.alloc(wanted);
                buf.as_mut()[..used].copy_from_slice(&old.as_ref()[..used]);
                Body::Aligned(buf)
            }
            Body::Aligned(old) => {
                let mut bytes = vec![0; padded(need)];
                bytes[..used].copy_from_slice(&old.as_ref()[..used]);
                Body::Large(bytes)
            }
            Body::Large(mut old) => {
                old.resize(padded(need), 0);
                Body::Large(old)
            }
        });
    }

    pub(crate) fn store(&self) -> &Rc<Inner<D>> {
        &self.inner
    }
}

impl<D: Disk> Drop for GroupBuilder<D> {
    fn drop(&mut self) {
        let mut queued = std::mem::take(&mut self.others);
        queued.truncate(if self.body.is_some() {
            self.from_queue
        } else {
            0
        });
        self.inner
            .end_building(std::mem::take(&mut self.entries), queued);
    }
}
