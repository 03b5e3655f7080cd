//! Beginning and submitting a group.

use std::rc::Rc;
use std::time::Duration;

use super::inner::{Applied, Current, Inner, LogEnd, Writer};
use super::{StoreStats, settle};
use crate::disk::{BLOCK_BYTES, Disk, DiskBuf, IO_BYTES_MAX};
use crate::error::Refusal;
use crate::format::envelope::facts_of;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::format::record::RECORD_HEADER_BYTES;
use crate::format::segment::{Cut, SEGMENT_DATA_OFFSET, SegmentHeader};
use crate::format::{padded, record as codec};
use crate::host::TaskClass;
use crate::ids::{Lsn, SegmentId, SinkNo};
use crate::mutations;
use crate::record::{Location, Record};
use crate::slots::SlotUse;
use crate::writer::GroupBuilder;
use crate::writer::cache::GroupBytes;
use crate::writer::group::Body;

/// What a group is begun for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The store's one caller.
    Caller,
    /// The same, to be built while as many groups as may be are in flight.
    Ahead,
    /// An empty frame that claims.
    Claim,
    /// Live hooks of an old segment.
    Relocation,
    /// What is still queued at a clean stop.
    Closing,
}

impl<D: Disk> Inner<D> {
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        if self.is_closed.get() {
            return Err(Refusal::Closed);
        }
        let writer = self.writer.borrow();
        if writer.pipeline.is_frozen() {
            return Err(Refusal::Fenced);
        }
        if let Some(started_us) = writer.pipeline.oldest_us() {
            let waited_us = self.host.mono_us().saturating_sub(started_us);
            if waited_us > self.config.stall_ms * 1000 {
                return Err(Refusal::Stalled);
            }
        }
        let is_last_room = writer.current.room() as u64 <= writer.current.capacity / 4
            && self.slots.borrow().spares() == 0;
        let is_full = self.is_short_of_space.get()
            || is_last_room
            || self.state.borrow().live_hooks() >= self.config.max_live_hooks;
        if is_full { Err(Refusal::Full) } else { Ok(()) }
    }

    pub(crate) fn stats(&self) -> StoreStats {
        let writer = self.writer.borrow();
        let slots = self.slots.borrow();
        let oldest_us = writer.pipeline.oldest_us();
        StoreStats {
            inflight: writer.pipeline.inflight(),
            stalled_ms: oldest_us.map_or(0, |started| {
                self.host.mono_us().saturating_sub(started) / 1000
            }),
            slots: slots.count(),
            slots_spare: slots.spares(),
            cache_bytes: writer.cache.bytes(),
            ..writer.stats
        }
    }

    /// Whether what was last wanted can begin now.
    pub(crate) fn can_begin(&self) -> bool {
        let writer = self.writer.borrow();
        if self.is_closed.get() || writer.is_building || !writer.pipeline.has_room() {
            return false;
        }
        let need = writer.need(writer.wanted_bytes);
        if writer.current.room() >= need {
            return true;
        }
        writer.pipeline.inflight() == 0 && self.slots.borrow().spare(slot_need(need)).is_some()
    }

    pub(crate) fn begin(
        self: &Rc<Self>,
        planned: usize,
        first: usize,
        purpose: Purpose,
    ) -> Option<GroupBuilder<D>> {
        let mut writer = self.writer.borrow_mut();
        let is_callers = matches!(purpose, Purpose::Caller | Purpose::Ahead);
        if purpose == Purpose::Caller {
            writer.wanted_bytes = planned;
        }
        let has_room = match purpose {
            Purpose::Ahead => !writer.pipeline.is_frozen(),
            _ => writer.pipeline.has_room(),
        };
        let is_own = matches!(purpose, Purpose::Claim | Purpose::Closing);
        if self.is_closed.get() && !is_own || writer.is_building || !has_room {
            return None;
        }
        let need = writer.need(planned);
        if writer.current.room() < need {
            // A segment is left only when every group in it is durable.
            if writer.pipeline.inflight() > 0 || !self.switch_segment(&mut writer, need) {
                return None;
            }
        }
        if is_callers {
            writer.wanted_bytes = 0;
        }
        writer.is_building = true;
        writer.put_in_front = 0;
        let headroom = if writer.current.is_header_due {
            BLOCK_BYTES
        } else {
            0
        };
        let room = writer.current.room();
        let limit = self
            .config
            .group_bytes_max
            .min(IO_BYTES_MAX - headroom)
            .min(room);
        let limit = limit / BLOCK_BYTES * BLOCK_BYTES;
        let (queued, queued_bytes) = match purpose {
            Purpose::Claim | Purpose::Relocation => (Vec::new(), 0),
            Purpose::Caller | Purpose::Ahead | Purpose::Closing => {
                self.take_queued(&mut writer, planned.max(first), first, limit)
            }
        };
        let entries = writer.spare_entries.pop().unwrap_or_default();
        let segment = writer.current.segment;
        drop(writer);
        let planned = queued_bytes + planned;
        let mut group = GroupBuilder::new(Rc::clone(self), planned, headroom, limit, room, entries);
        group.segment = segment;
        for record in queued {
            group.record_from_queue(record);
        }
        Some(group)
    }

    /// The records of the queue that ride in a group with `planned` bytes of the caller's own:
    /// every name, and of the others as many as leave the caller its room.
    fn take_queued(
        &self,
        writer: &mut Writer<D>,
        planned: usize,
        first: usize,
        limit: usize,
    ) -> (Vec<Record>, usize) {
        let most = if planned == 0 { limit / 2 } else { limit / 4 };
        let most = most.saturating_sub(FRAME_HEADER_BYTES);
        // A record larger than a group has one to itself, but for the names.
        let share = most.min(limit.saturating_sub(FRAME_HEADER_BYTES + first));
        let room = writer.current.room().saturating_sub(FRAME_HEADER_BYTES);
        let room = room.saturating_sub(planned);
        let records_max = (self.config.group_records_max / 2).max(1);
        let (mut queued, mut bytes) = (Vec::new(), 0);
        while let Some(record) = writer.queue.front() {
            let end = bytes + codec::record_len(record);
            let is_name = matches!(record, Record::SinkName(_));
            // A large one goes alone.
            let is_large = queued.is_empty() && (first == 0 || end > most);
            let is_due = is_name || is_large || end <= share && queued.len() < records_max;
            if end > room || !is_due {
                break;
            }
            bytes = end;
            queued.extend(writer.queue.pop_front());
        }
        (queued, bytes)
    }

    /// Makes a spare slot the current segment; its header goes out with the first group.
    fn switch_segment(&self, writer: &mut Writer<D>, need: usize) -> bool {
        let mut slots = self.slots.borrow_mut();
        let Some(no) = slots.spare(slot_need(need)) else {
            self.keeper.signal();
            return false;
        };
        let segment = writer.next_segment;
        let Some(slot) = slots.get_mut(no) else {
            return false;
        };
        let Some(file) = slot.file.clone() else {
            return false;
        };
        let bytes = slot.bytes;
        let salt = self.host.random();
        slots.enter(no, segment, salt);
        // The one left behind is part of the log only when the next cut names it.
        let (left, end) = (&writer.current, writer.durable_end);
        if left.segment == end.segment {
            slots.leave(left.slot, end.offset, end.lsn);
        } else if let Some(slot) = slots.get_mut(left.slot) {
            slot.use_ = SlotUse::Free;
        }
        drop(slots);
        mutations::point("segment.chosen");
        writer.next_segment = segment.next();
        writer.since_checkpoint.1 += 1;
        writer.current = Current {
            slot: no,
            file,
            segment,
            salt,
            pos: SEGMENT_DATA_OFFSET,
            capacity: bytes,
            is_header_due: true,
        };
        self.keeper.signal();
        true
    }

    /// The header of a segment that starts after what is durable now.
    pub(crate) fn header(
        &self,
        end: LogEnd,
        segment: SegmentId,
        salt: u64,
        first_lsn: Lsn,
    ) -> SegmentHeader {
        SegmentHeader {
            store_uuid: self.config.store_uuid,
            shard: self.config.shard,
            flags: 0,
            segment,
            first_lsn,
            salt,
            cut: Cut {
                segment: end.segment,
                offset: end.offset,
                lsn: end.lsn,
            },
            next_seq: self.next_seq(),
            made_at_ms: self.host.wall_ms(),
            slots: self.slots.borrow().count(),
        }
    }

    /// Whether a group that was begun may be submitted; `None`: a fence or the end of the store
    /// overtook it.
    pub(crate) fn can_submit(&self, group: &GroupBuilder<D>) -> Option<bool> {
        let writer = self.writer.borrow();
        let is_lost = writer.pipeline.is_frozen()
            || writer.current.segment != group.segment
            || self.is_closed.get();
        (!is_lost).then(|| writer.pipeline.has_room())
    }

    pub(crate) fn submit(self: &Rc<Self>, mut group: GroupBuilder<D>, is_internal: bool) -> Lsn {
        assert!(Rc::ptr_eq(self, group.store()), "a group of another store");
        let now_us = self.host.mono_us();
        let mut writer = self.writer.borrow_mut();
        assert_eq!(
            writer.current.segment, group.segment,
            "a group that a fence overtook"
        );
        let lsn = writer.pipeline.submit(now_us, is_internal);
        let frame_bytes = padded(group.end);
        let pos = writer.current.pos;
        assert!(
            pos + frame_bytes as u64 <= writer.current.capacity,
            "a group beyond its segment"
        );
        self.finish_frame(&writer, &mut group, lsn);
        let total = group.start + frame_bytes;
        let bytes = seal_body(&mut group, total);
        let end = LogEnd {
            segment: writer.current.segment,
            offset: pos + frame_bytes as u64,
            lsn,
        };
        let claims = writer.pipeline.durable();
        let applied = self.apply(&mut group, bytes.frame(), end, pos, claims);
        if !group.entries.is_empty() {
            writer.last_with_records = lsn;
        }
        writer.applied.push_back(applied);
        writer.cache.push(end.segment, pos, lsn, bytes.clone());
        writer.current.pos = end.offset;
        writer.current.is_header_due = false;
        writer.since_checkpoint.0 += total as u64;
        writer.stats.groups += 1;
        writer.stats.records += group.entries.len() as u64;
        writer.stats.bytes += total as u64;
        let io = settle::GroupIo {
            lsn,
            file: writer.current.file.clone(),
            bytes,
            pos: pos - group.start as u64,
            started_us: now_us,
        };
        drop(writer);
        drop(group);
        let task = settle::run_group(Rc::clone(self), io);
        self.host.spawn(TaskClass::Commit, Box::pin(task));
        lsn
    }

    /// Writes the frame header and, when it is due, the segment's in front of it.
    fn finish_frame(&self, writer: &Writer<D>, group: &mut GroupBuilder<D>, lsn: Lsn) {
        let frame_bytes = padded(group.end);
        let (start, end) = (group.start, group.end);
        let header = FrameHeader {
            salt: writer.current.salt,
            lsn,
            durable_lsn: writer.pipeline.durable(),
            payload_bytes: (end - FRAME_HEADER_BYTES) as u32,
            records: group.entries.len() as u32,
            payload_sum: group.sum.finish(),
            store_tag: self.store_tag,
            next_seq: self.next_seq(),
            slots: self.slots.borrow().count(),
        };
        let segment_header = writer.current.is_header_due.then(|| {
            assert_eq!(writer.durable_end.lsn, writer.pipeline.durable());
            let current = &writer.current;
            self.header(writer.durable_end, current.segment, current.salt, lsn)
        });
        let Some(body) = &mut group.body else { return };
        let bytes = body.bytes_mut();
        header.encode(&mut bytes[start..]);
        bytes[start + end..start + frame_bytes].fill(0);
        if let Some(header) = segment_header {
            header.encode(&mut bytes[..BLOCK_BYTES]);
        }
    }

    /// Applies the group's records to the state, in order.
    fn apply(
        &self,
        group: &mut GroupBuilder<D>,
        frame: &[u8],
        end: LogEnd,
        pos: u64,
        claims: Lsn,
    ) -> Applied {
        let mut state = self.state.borrow_mut();
        let mut sinks: Vec<SinkNo> = Vec::new();
        let mut applied = Applied {
            lsn: end.lsn,
            end,
            claims,
            others: std::mem::take(&mut group.others),
            before: Vec::new(),
            hooks: Vec::new(),
        };
        for entry in &group.entries {
            if entry.seq.is_none() {
                let record: &Record = &applied.others[entry.extra_or_index as usize];
                applied.before.extend(state.before(record));
                state.apply(record, end.lsn);
                continue;
            }
            let from = entry.offset as usize + RECORD_HEADER_BYTES;
            let body = &frame[from..(entry.offset + entry.len) as usize];
            let (extra, envelope) = body.split_at(entry.extra_or_index as usize);
            let parsed = (codec::decode_extra(extra, &mut sinks), facts_of(envelope));
            let (Ok(extra), Ok(facts)) = parsed else {
                unreachable!("a hook that was encoded here does not decode");
            };
            let at = Location {
                segment: end.segment,
                offset: pos + u64::from(entry.offset),
                len: entry.len,
                lsn: end.lsn,
            };
            state.apply_hook(&facts, &extra, at);
            if mutations::is("undo_at_mark") {
                applied.hooks.push(facts.seq);
            }
        }
        applied
    }
}

/// The frame as it is written, and kept for reads.
fn seal_body<D: Disk>(group: &mut GroupBuilder<D>, total: usize) -> GroupBytes<D> {
    match group.body.take() {
        Some(Body::Aligned(mut buf)) => {
            buf.truncate(total);
            GroupBytes::Aligned(Rc::new(buf), group.start)
        }
        Some(Body::Large(mut bytes)) => {
            bytes.truncate(total);
            GroupBytes::Large(Rc::new(bytes), group.start)
        }
        None => GroupBytes::Large(Rc::new(Vec::new()), 0),
    }
}

/// Size of a slot for a group that needs this much.
fn slot_need(need: usize) -> u64 {
    SEGMENT_DATA_OFFSET + need as u64
}

impl<D: Disk> Inner<D> {
    /// A pause between attempts.
    pub(crate) fn retry_pause(&self) -> Duration {
        Duration::from_millis(self.config.fence_retry_ms.max(1))
    }
}
