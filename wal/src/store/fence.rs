//! Leaving a fence: a new segment in a new slot under a new number, cut at the frozen LSN.
//!
//! Runs once every operation in flight has been reaped. An attempt that fails is abandoned; the
//! next one takes another slot and another number. Nothing is written again to a descriptor
//! whose write or sync failed.

use std::io;
use std::rc::Rc;

use super::inner::{Current, Inner};
use crate::disk::{BLOCK_BYTES, Disk};
use crate::format::segment::SEGMENT_DATA_OFFSET;
use crate::ids::SegmentId;
use crate::slots::SlotNo;
use crate::writer::io::{sync, write_all};

/// Starts new segments until one stands.
pub(crate) async fn leave<D: Disk>(inner: Rc<Inner<D>>) {
    inner.leave_current();
    loop {
        if inner.is_closed.get() {
            break;
        }
        if let Some((slot, file, bytes)) = inner.spare_slot() {
            match start_segment(&inner, slot, file, bytes).await {
                Ok(segment) => {
                    tracing::warn!(shard = %inner.config.shard, %segment, "the fence is left");
                    break;
                }
                Err(error) => {
                    tracing::error!(shard = %inner.config.shard, %slot, %error, "no new segment");
                    inner.writer.borrow_mut().stats.io_failures += 1;
                    inner.slots.borrow_mut().abandon(slot);
                }
            }
        }
        inner.keeper.signal();
        inner.host.sleep(inner.retry_pause()).await;
    }
    inner.is_fencing.set(false);
    inner.keeper.signal();
    inner.progress.signal();
    inner.wake_ready();
    inner.arm_claim();
}

async fn start_segment<D: Disk>(
    inner: &Rc<Inner<D>>,
    slot: SlotNo,
    file: D::File,
    capacity: u64,
) -> io::Result<SegmentId> {
    let salt = inner.host.random();
    let (segment, header) = {
        let mut writer = inner.writer.borrow_mut();
        assert!(writer.pipeline.is_frozen() && writer.pipeline.inflight() == 0);
        let segment = writer.next_segment;
        writer.next_segment = segment.next();
        let first_lsn = writer.pipeline.applied().next();
        (
            segment,
            inner.header(writer.durable_end, segment, salt, first_lsn),
        )
    };
    let mut block = inner.disk.alloc(BLOCK_BYTES);
    header.encode(block.as_mut());
    write_all(&inner.disk, &file, Rc::new(block), 0).await?;
    sync(&inner.disk, &file, inner.config.sync).await?;
    let mut writer = inner.writer.borrow_mut();
    let mut slots = inner.slots.borrow_mut();
    slots.enter(slot, segment, salt);
    slots.forget_abandoned();
    writer.claimed = writer.claimed.max(header.cut.lsn);
    writer.current = Current {
        slot,
        file,
        segment,
        salt,
        pos: SEGMENT_DATA_OFFSET,
        capacity,
        is_header_due: false,
    };
    writer.pipeline.thaw();
    Ok(segment)
}

impl<D: Disk> Inner<D> {
    /// A ready slot and its descriptor.
    fn spare_slot(&self) -> Option<(SlotNo, D::File, u64)> {
        let slots = self.slots.borrow();
        let no = slots.spare(self.config.segment_bytes.min(SEGMENT_DATA_OFFSET + 1))?;
        let slot = slots.get(no)?;
        Some((no, slot.file.clone()?, slot.bytes))
    }

    /// The segment that failed stays part of the log when the next cut will name it; else its
    /// slot is abandoned. Either way its descriptor is never written again.
    fn leave_current(&self) {
        let writer = self.writer.borrow();
        let mut slots = self.slots.borrow_mut();
        let slot = writer.current.slot;
        if writer.durable_end.segment == writer.current.segment {
            slots.leave(slot, writer.durable_end.offset, writer.durable_end.lsn);
            if let Some(slot) = slots.get_mut(slot) {
                slot.is_tainted = true;
            }
        } else {
            slots.abandon(slot);
        }
    }
}
