//! The I/O of one group, and what its end changes.

use std::io;
use std::rc::Rc;

use super::fence;
use super::inner::{Applied, Inner};
use crate::disk::{Disk, IO_BYTES_MAX};
use crate::host::TaskClass;
use crate::ids::Lsn;
use crate::mutations;
use crate::record::Record;
use crate::writer::cache::GroupBytes;
use crate::writer::io::{piece, sync, write_all};
use crate::writer::pipeline::{Pipeline, Step};

/// What the I/O of a group needs.
pub(crate) struct GroupIo<D: Disk> {
    pub(crate) lsn: Lsn,
    pub(crate) file: D::File,
    /// What is written, segment header included.
    pub(crate) bytes: GroupBytes<D>,
    pub(crate) pos: u64,
    pub(crate) started_us: u64,
}

/// Writes and syncs a group, then reaps it. Always runs to its end.
pub(crate) async fn run_group<D: Disk>(inner: Rc<Inner<D>>, io: GroupIo<D>) {
    if mutations::is("ack_before_write") {
        inner.reap(io.lsn, Ok(()), io.started_us);
        let _ = write_and_sync(&inner, &io).await;
        return;
    }
    if mutations::is("ack_before_sync") {
        let written = write(&inner, &io).await;
        let is_written = written.is_ok();
        inner.reap(io.lsn, written, io.started_us);
        if is_written {
            let _ = sync(&inner.disk, &io.file, inner.config.sync).await;
        }
        return;
    }
    let result = write_and_sync(&inner, &io).await;
    inner.reap(io.lsn, result, io.started_us);
}

async fn write_and_sync<D: Disk>(inner: &Inner<D>, io: &GroupIo<D>) -> io::Result<()> {
    write(inner, io).await?;
    inner.check_not_frozen()?;
    if mutations::is("skip_sync_of_two") && inner.is_behind_another(io.lsn) {
        return Ok(());
    }
    sync(&inner.disk, &io.file, inner.config.sync).await
}

async fn write<D: Disk>(inner: &Inner<D>, io: &GroupIo<D>) -> io::Result<()> {
    match &io.bytes {
        GroupBytes::Aligned(buf, _) => {
            inner.check_not_frozen()?;
            write_all(&inner.disk, &io.file, Rc::clone(buf), io.pos).await?;
        }
        GroupBytes::Large(bytes, _) => write_large(inner, io, bytes).await?,
    }
    if io.pos == 0 {
        mutations::point("segment.header_written");
    }
    Ok(())
}

async fn write_large<D: Disk>(inner: &Inner<D>, io: &GroupIo<D>, bytes: &[u8]) -> io::Result<()> {
    let mut pos = io.pos;
    for bytes in bytes.chunks(IO_BYTES_MAX) {
        inner.check_not_frozen()?;
        // Copied when its turn comes: all at once would hold the core.
        let buf = piece(&inner.disk, bytes);
        write_all(&inner.disk, &io.file, buf, pos).await?;
        pos += bytes.len() as u64;
    }
    Ok(())
}

impl<D: Disk> Inner<D> {
    /// Nothing more is issued to a segment once any operation on it failed.
    fn check_not_frozen(&self) -> io::Result<()> {
        if self.writer.borrow().pipeline.is_frozen() && !mutations::is("retry_failed_sync") {
            return Err(io::Error::other("the shard was fenced meanwhile"));
        }
        Ok(())
    }

    /// The mutation: the flush of the group before this one is in flight, and taken for both.
    fn is_behind_another(&self, lsn: Lsn) -> bool {
        lsn > self.writer.borrow().pipeline.durable().next()
    }

    /// The I/O of a group has ended.
    fn reap(self: &Rc<Self>, lsn: Lsn, result: io::Result<()>, started_us: u64) {
        let took_us = self.host.mono_us().saturating_sub(started_us);
        let mut writer = self.writer.borrow_mut();
        writer.stats.last_group_us = took_us;
        if let Err(error) = &result {
            writer.stats.io_failures += 1;
            tracing::error!(shard = %self.config.shard, %lsn, %error, "a group failed");
        }
        let step = writer.pipeline.complete(lsn, result.is_ok());
        if let Step::Durable(durable) = step {
            while writer
                .applied
                .front()
                .is_some_and(|group| group.lsn <= durable)
            {
                let Some(group) = writer.applied.pop_front() else {
                    break;
                };
                writer.durable_end = group.end;
                writer.claimed = writer.claimed.max(group.claims);
                writer.last_durable = Some(group);
            }
            assert_eq!(writer.durable_end.lsn, durable);
            writer.cache.trim(durable);
        }
        drop(writer);
        match step {
            Step::Waiting => {}
            Step::Durable(durable) => {
                let mut state = self.state.borrow_mut();
                state.settle(durable);
                let rows = state.take_dedupe_ready();
                drop(state);
                if !rows.is_empty() {
                    self.upkeep.borrow_mut().dedupe_rows.extend(rows);
                }
                self.wake_settled();
                self.arm_claim();
            }
            Step::Froze { durable } => {
                self.undo(durable);
                self.wake_settled();
            }
        }
        let writer = self.writer.borrow();
        let is_fence_due = writer.pipeline.is_frozen() && writer.pipeline.inflight() == 0;
        drop(writer);
        if is_fence_due && !self.is_fencing.replace(true) {
            self.host
                .spawn(TaskClass::Commit, Box::pin(fence::leave(Rc::clone(self))));
        }
        self.wake_ready();
        self.progress.signal();
    }

    /// Takes back every hook above the frozen mark and puts the other records of those groups
    /// back into the queue. No group at or below the mark is touched.
    fn undo(&self, durable: Lsn) {
        let mut writer = self.writer.borrow_mut();
        let mut state = self.state.borrow_mut();
        writer.stats.fences += 1;
        let undone = state.undo_above(durable);
        tracing::error!(
            shard = %self.config.shard, %durable, applied = %writer.pipeline.applied(),
            hooks_undone = undone.len(), "fenced after a failed write or sync"
        );
        // What was undone asks for no claim.
        writer.last_with_records = writer.last_with_records.min(durable);
        let groups: Vec<Applied> = writer.applied.drain(..).collect();
        let (mut names, mut others) = (Vec::new(), Vec::new());
        for group in groups.into_iter().rev() {
            assert!(group.lsn > durable, "a durable group in the undo set");
            for before in group.before.iter().rev() {
                state.apply(before, durable);
            }
            for record in group.others.into_iter().rev() {
                if let Record::Resequenced(mark) = &record {
                    state.forget_resequenced(mark);
                } else if let Record::SinkName(_) = record {
                    names.push(record);
                } else if is_kept_through_a_fence(&record) {
                    others.push(record);
                }
            }
        }
        // Names stay in front of all, also those that were queued since.
        writer.put_in_front += names.len() + others.len();
        let at = writer.names_queued();
        for record in others {
            writer.queue.insert(at, record);
        }
        for record in names {
            writer.queue.push_front(record);
        }
        if Pipeline::undo_above(durable) < durable
            && let Some(group) = writer.last_durable.take()
        {
            for seq in group.hooks {
                let gone = Record::Finished {
                    first: seq,
                    last: seq,
                };
                state.apply(&gone, durable);
            }
        }
        writer.cache.drop_above(durable);
    }
}

/// Whether a record of a fenced group is written again. An offset or watermark is put back to
/// what it was instead, since it may speak of hooks that were undone. (A re-sequencing goes with
/// its hook.)
fn is_kept_through_a_fence(record: &Record) -> bool {
    !matches!(record, Record::Offset(_) | Record::Watermark(_))
}
