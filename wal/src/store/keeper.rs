//! The shard's housekeeping task: one spare slot always ready, free space watched.
//!
//! Ends when the store is closed or its last handle is gone. A failed attempt is repeated after
//! a pause; while no slot can be had the store refuses, it does not fail.

use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::inner::Inner;
use crate::config::SyncMode;
use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::host::TaskClass;
use crate::mutations;
use crate::slots::{Slot, SlotNo, SlotUse};
use crate::writer::io::write_all;

/// Between two looks at the free space.
const SPACE_EVERY: Duration = Duration::from_secs(1);

/// What a checkpoint takes for a live hook with two sinks, and what it takes without any.
const CHECKPOINT_BYTES_PER_HOOK: u64 = 64;
const CHECKPOINT_BYTES_LEAST: u64 = 32 << 10;

/// With this many slots that hold nothing a shard takes hooks whatever the disk has left: one to
/// go on in, one for the outcomes of deliveries that then free the others.
const REUSABLE_ENOUGH: u32 = 2;

/// Starts the task.
pub(crate) fn start<D: Disk>(inner: &Rc<Inner<D>>) {
    let weak = Rc::downgrade(inner);
    inner
        .host
        .spawn(TaskClass::Maintenance, Box::pin(run(weak)));
}

async fn run<D: Disk>(weak: Weak<Inner<D>>) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        if inner.is_closed.get() {
            return;
        }
        inner.look_at_space().await;
        inner.checkpoint_if_due();
        inner.relocate_if_due();
        let mut failed = false;
        if inner.slots.borrow().spares() == 0 {
            match inner.prepare_slot().await {
                Ok(slot) => {
                    tracing::debug!(shard = %inner.config.shard, %slot, "slot ready");
                    inner.wake_ready();
                }
                Err(error) => {
                    tracing::warn!(shard = %inner.config.shard, %error, "no slot ready");
                    failed = true;
                }
            }
        }
        inner.is_slotless.set(failed);
        let (host, signal, pause) = (
            Rc::clone(&inner.host),
            Rc::clone(&inner.keeper),
            inner.retry_pause().min(SPACE_EVERY),
        );
        // The task must not keep the store alive while it waits.
        drop(inner);
        if failed {
            host.sleep(pause).await;
        } else {
            futures_lite::future::or(signal.wait(), host.sleep(SPACE_EVERY)).await;
        }
    }
}

/// A slot is being made ready; over however that ends.
struct Preparing<'a, D: Disk>(&'a Inner<D>);

impl<D: Disk> Drop for Preparing<'_, D> {
    fn drop(&mut self) {
        self.0.is_preparing.set(false);
        self.0.progress.signal();
    }
}

impl<D: Disk> Inner<D> {
    async fn look_at_space(&self) {
        match self.disk.space().await {
            Ok(space) => {
                self.writer.borrow_mut().stats.free_bytes = space.free_bytes;
                let is_short = self.is_short(space.free_bytes);
                self.is_short_of_space.set(is_short);
            }
            Err(error) => {
                tracing::warn!(shard = %self.config.shard, %error, "free space unknown");
            }
        }
    }

    /// Whether what is left is for deliveries and checkpoints alone.
    ///
    /// Slots are never given back to the disk, so that a slot that may be used again is as good as
    /// free space: without that, a store that was full once would stay full, emptied or not. What
    /// checkpoints need is not free for slots.
    fn is_short(&self, free_bytes: u64) -> bool {
        let slots = self.slots.borrow();
        let (reusable, reusable_bytes) = slots.reusable(self.config.segment_bytes);
        let for_slots = free_bytes.saturating_sub(self.checkpoint_room());
        // With nothing but its current segment in use a shard is as empty as it can be.
        let enough = REUSABLE_ENOUGH.min(slots.count().saturating_sub(1)).max(1);
        for_slots + reusable_bytes < self.config.min_free_bytes && reusable < enough
    }

    /// Makes one slot ready: a free one, a suspect one that passes its probe, or a new one.
    pub(crate) async fn prepare_slot(&self) -> io::Result<SlotNo> {
        // One at a time: two would make the same slot, the second over the first.
        let is_free = || !self.is_preparing.replace(true);
        self.progress.until(|| is_free().then_some(())).await;
        let _preparing = Preparing(self);
        let next = self.slots.borrow().to_prepare();
        let ready = match next {
            Some((no, was)) => self.reuse_slot(no, was).await?,
            None => self.create_slot(self.config.segment_bytes).await?,
        };
        // The one that failed before may be looked at again.
        self.slots.borrow_mut().forget_abandoned();
        Ok(ready)
    }

    async fn reuse_slot(&self, no: SlotNo, was: SlotUse) -> io::Result<SlotNo> {
        let is_suspect = was == SlotUse::Suspect
            || self
                .slots
                .borrow()
                .get(no)
                .is_some_and(|slot| slot.is_tainted);
        if is_suspect {
            let old = self
                .slots
                .borrow_mut()
                .get_mut(no)
                .and_then(|slot| slot.file.take());
            if let Some(old) = old {
                self.disk.close(old).await;
            }
        }
        let have = self
            .slots
            .borrow()
            .get(no)
            .and_then(|slot| slot.file.clone());
        let file = match have {
            Some(file) => file,
            None => match open_slot(&self.disk, no, self.config.sync).await {
                Ok(file) => file,
                Err(error) => {
                    self.slots.borrow_mut().abandon(no);
                    return Err(error);
                }
            },
        };
        let readied = self.make_good(no, &file, is_suspect).await;
        let bytes = match readied {
            Ok(bytes) => bytes,
            Err(error) => {
                self.give_up(no);
                self.disk.close(file).await;
                return Err(error);
            }
        };
        if let Some(slot) = self.slots.borrow_mut().get_mut(no) {
            slot.file = Some(file);
            slot.bytes = bytes;
            slot.use_ = SlotUse::Spare;
            slot.is_tainted = false;
        }
        Ok(no)
    }

    /// A slot that could not be made ready: another is tried first, this one later through a new
    /// descriptor.
    fn give_up(&self, no: SlotNo) {
        let mut slots = self.slots.borrow_mut();
        slots.abandon(no);
        if let Some(slot) = slots.get_mut(no) {
            slot.file = None;
        }
    }

    /// Probes a slot that is in doubt, and brings a short one (cut, or made under a smaller
    /// setting) to its length, written and synced. Answers its length.
    async fn make_good(&self, no: SlotNo, file: &D::File, is_suspect: bool) -> io::Result<u64> {
        if is_suspect {
            self.probe(file).await?;
        }
        let have = self.slots.borrow().get(no).map_or(0, |slot| slot.bytes);
        let wanted = self.config.segment_bytes;
        if have >= wanted {
            return Ok(have);
        }
        fill(&self.disk, file, have..wanted, || self.host.yield_now()).await?;
        self.disk.sync_data(file).await?;
        Ok(wanted)
    }

    /// Writes zeros over the header and syncs: the disk takes writes to this file again.
    async fn probe(&self, file: &D::File) -> io::Result<()> {
        let mut block = self.disk.alloc(BLOCK_BYTES);
        block.as_mut().fill(0);
        write_all(&self.disk, file, Rc::new(block), 0).await?;
        self.disk.sync_data(file).await
    }

    /// About what checkpoints take: the two that are kept, the next one, and as much for dedupe
    /// rows.
    fn checkpoint_room(&self) -> u64 {
        let hooks = self.state.borrow().live_hooks() * CHECKPOINT_BYTES_PER_HOOK;
        let upkeep = self.upkeep.borrow();
        let last = upkeep.newest.as_ref().map_or(0, |named| named.bytes);
        4 * (CHECKPOINT_BYTES_LEAST + hooks.max(last))
    }

    /// What a new slot leaves of the disk: the segment that the next open of each shard starts, and
    /// the checkpoints that free other slots. Without them a store that ran full would not open,
    /// or stay full for good. The way out of a fence and a clean stop may take it.
    fn room_to_leave(&self) -> u64 {
        if self.is_fencing.get() || self.is_closed.get() {
            return 0;
        }
        let shards = u64::from(self.config.shards_on_disk.max(1));
        shards * (self.config.segment_bytes + self.checkpoint_room())
    }

    async fn create_slot(&self, bytes: u64) -> io::Result<SlotNo> {
        let slots_max = self.config.slots_max;
        let no = self.slots.borrow().next_no();
        if slots_max > 0 && no.0 >= slots_max {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let space = self.disk.space().await?;
        if space.free_bytes < bytes + self.room_to_leave() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let result = create_slot(&self.disk, no, bytes, || self.host.yield_now()).await;
        if let Err(error) = result {
            let _ = self.disk.remove(&no.temp_name()).await;
            return Err(error);
        }
        let file = open_slot(&self.disk, no, self.config.sync).await?;
        let slot = Slot {
            no,
            use_: SlotUse::Spare,
            bytes,
            file: Some(file),
            is_tainted: false,
            salt: 0,
            end: 0,
            last_lsn: None,
        };
        self.slots.borrow_mut().push(slot);
        Ok(no)
    }
}

/// Opens a slot for writing in the way that groups are synced.
pub(crate) async fn open_slot<D: Disk>(
    disk: &D,
    no: SlotNo,
    mode: SyncMode,
) -> io::Result<D::File> {
    match mode {
        SyncMode::Fdatasync => disk.open(&no.file_name()).await,
        SyncMode::Dsync => disk.reopen_dsync(&no.file_name()).await,
    }
}

/// Writes a slot full of zeros, syncs it, and only then gives it its name.
pub(crate) async fn create_slot<D: Disk>(
    disk: &D,
    no: SlotNo,
    bytes: u64,
    pause: impl Fn() -> crate::host::LocalFuture<()>,
) -> io::Result<()> {
    let temp = no.temp_name();
    let file = disk.create(&temp).await?;
    let filled = fill(disk, &file, 0..bytes, pause).await;
    mutations::point("slot.filled");
    // IMPORTANT: content → name → directory; a slot that has its name is whole.
    let synced = match filled {
        Ok(()) => disk.sync_data(&file).await,
        Err(error) => Err(error),
    };
    disk.close(file).await;
    synced?;
    disk.rename(&temp, &no.file_name()).await?;
    mutations::point("slot.renamed");
    disk.sync_dir().await
}

async fn fill<D: Disk>(
    disk: &D,
    file: &D::File,
    span: std::ops::Range<u64>,
    pause: impl Fn() -> crate::host::LocalFuture<()>,
) -> io::Result<()> {
    let bytes = span.end - span.start;
    let piece = IO_BYTES_MAX.min(usize::try_from(bytes).unwrap_or(IO_BYTES_MAX));
    let mut zeros = disk.alloc(piece);
    zeros.as_mut().fill(0);
    let zeros = Rc::new(zeros);
    let mut pos = span.start;
    while pos < span.end {
        if span.end - pos >= piece as u64 {
            write_all(disk, file, Rc::clone(&zeros), pos).await?;
        } else {
            let rest = usize::try_from(span.end - pos).unwrap_or(piece);
            let mut last = disk.alloc(rest);
            last.as_mut().fill(0);
            write_all(disk, file, Rc::new(last), pos).await?;
        }
        pos += piece as u64;
        pause().await;
    }
    Ok(())
}
