//! The store of one shard as the engine uses it.
//!
//! Runs on the shard core, single-threaded; every handle is a clone of one `Rc`.

use std::cell::{Ref, RefCell, RefMut};
use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::config::StoreConfig;
use crate::disk::Disk;
use crate::error::{CheckpointError, CloseError, OpenError, ReadError, Refusal};
use crate::hook::{HookDraft, HookExtra};
use crate::host::Host;
use crate::ids::{Lsn, Seq};
use crate::record::Record;
use crate::state::State;

/// What became of a submitted group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// On the medium: its hooks may be acked.
    Durable,
    /// A write or sync failed at or before it: its hooks are undone, its other records wait in
    /// the store's queue again (offsets and watermarks are put back instead).
    Fenced,
}

/// The fate of one submitted group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The group's LSN, as [`Store::submit`] returned it.
    pub lsn: Lsn,
    /// Its fate.
    pub outcome: Outcome,
}

/// What an open found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// True when the directory held no store.
    pub fresh: bool,
    /// The highest LSN that anything intact claimed durable.
    pub durable_claimed: Lsn,
    /// The last LSN kept.
    pub last_lsn: Lsn,
    /// Frames above the claim that were kept and written again.
    pub frames_rewritten: u64,
    /// Frames above the claim that were dropped with a torn one.
    pub frames_dropped: u64,
    /// Frames read.
    pub frames_scanned: u64,
    /// Bytes read.
    pub bytes_scanned: u64,
    /// Live hooks.
    pub live_hooks: u64,
    /// The first seq this open may hand out.
    pub next_seq: Seq,
}

/// What a checkpoint wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointReport {
    /// Everything up to here is in it.
    pub lsn: Lsn,
    /// Its size.
    pub bytes: u64,
    /// Slots that became free.
    pub slots_freed: u32,
}

/// Gauges and counters of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    /// Groups written.
    pub groups: u64,
    /// Records written.
    pub records: u64,
    /// Bytes appended, padding included.
    pub bytes: u64,
    /// Writes and syncs that failed.
    pub io_failures: u64,
    /// Fences so far.
    pub fences: u64,
    /// Groups in flight.
    pub inflight: usize,
    /// Longest time a group in flight has waited, milliseconds.
    pub stalled_ms: u64,
    /// Last write and sync of a group, microseconds.
    pub last_group_us: u64,
    /// Slots in all.
    pub slots: u32,
    /// Slots ready for use.
    pub slots_spare: u32,
    /// Free bytes of the file system, as last asked.
    pub free_bytes: u64,
    /// Bytes held for reads right after an ack.
    pub cache_bytes: usize,
    /// Reads served from there.
    pub cache_hits: u64,
    /// Reads that went to the disk.
    pub cache_misses: u64,
}

/// The envelope of a stored hook, checksum verified; dereferences to its bytes.
pub struct StoredHook<D: Disk> {
    bytes: Vec<u8>,
    _disk: PhantomData<D>,
}

impl<D: Disk> Deref for StoredHook<D> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Inner<D: Disk> {
    _disk: D,
    state: RefCell<State>,
}

/// The store of one shard. A clone is the same store.
pub struct Store<D: Disk> {
    inner: Rc<Inner<D>>,
}

impl<D: Disk> Clone for Store<D> {
    fn clone(&self) -> Self {
        Store {
            inner: Rc::clone(&self.inner),
        }
    }
}

/// A group being built. Dropping it gives back nothing but its buffer: the seqs it took are
/// skipped.
pub struct GroupBuilder<D: Disk> {
    _disk: PhantomData<D>,
}

impl<D: Disk> Store<D> {
    /// Opens the store in `disk`'s directory, or creates it in an empty one. What the returned
    /// store holds is durable.
    pub async fn open(
        _disk: D,
        _host: Rc<dyn Host>,
        _config: StoreConfig,
    ) -> Result<(Store<D>, OpenReport), OpenError> {
        Err(OpenError::NotReady("store"))
    }

    /// Whether a request may be taken at all. Cheap: asked per request.
    pub fn admit(&self) -> Result<(), Refusal> {
        Err(Refusal::Fenced)
    }

    /// Begins a group: `None` while as many as `groups_inflight` are in flight, while fenced, or
    /// while a segment switch is waiting. [`Store::poll_ready`] tells when to ask again.
    pub fn try_begin(&self) -> Option<GroupBuilder<D>> {
        None
    }

    /// The same with the bytes that the caller means to put in, so that the buffer has its size
    /// from the start.
    pub fn try_begin_sized(&self, _planned_bytes: usize) -> Option<GroupBuilder<D>> {
        None
    }

    /// Applies the group and starts its write. It is durable only once it settles so.
    pub fn submit(&self, _group: GroupBuilder<D>) -> Lsn {
        Lsn(0)
    }

    /// The next settled group, in LSN order, each exactly once. One caller.
    pub fn poll_settled(&self, _cx: &mut Context<'_>) -> Poll<Settled> {
        Poll::Pending
    }

    /// Ready when [`Store::try_begin`] would answer. One caller.
    pub fn poll_ready(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Every group at or below it is durable.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn(0)
    }

    /// The last group applied to the state.
    pub fn applied_lsn(&self) -> Lsn {
        Lsn(0)
    }

    /// True from a failed write or sync until a new segment has been started.
    pub fn is_fenced(&self) -> bool {
        true
    }

    /// Puts a record in the store's queue: it is applied and written with the next group, and
    /// again with a later one when that is fenced. Nothing is promised until then.
    pub fn enqueue(&self, _record: Record) {}

    /// Records waiting in the queue.
    pub fn queued(&self) -> usize {
        0
    }

    /// The state. Never hold it across an await.
    pub fn state(&self) -> Ref<'_, State> {
        self.inner.state.borrow()
    }

    /// The state, for what only the engine changes. Never hold it across an await.
    pub fn state_mut(&self) -> RefMut<'_, State> {
        self.inner.state.borrow_mut()
    }

    /// Reads a live hook: from recent groups, else with one direct read. The checksum is
    /// verified either way the bytes come from the disk.
    pub async fn read(&self, seq: Seq) -> Result<StoredHook<D>, ReadError> {
        Err(ReadError::NotFound(seq))
    }

    /// Gauges and counters.
    pub fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// Takes a checkpoint now.
    pub async fn checkpoint(&self) -> Result<CheckpointReport, CheckpointError> {
        Err(CheckpointError::NotReady("checkpoint"))
    }

    /// Writes what is queued, claims everything durable and takes a last checkpoint. Nothing is
    /// admitted any more.
    pub async fn close(&self) -> Result<(), CloseError> {
        Ok(())
    }
}

impl<D: Disk> GroupBuilder<D> {
    /// Encodes a new hook and returns its seq.
    pub fn hook(&mut self, _draft: &HookDraft<'_>) -> Seq {
        Seq(0)
    }

    /// Encodes a hook that already has its seq and envelope: a carried local half, a replayed
    /// record, a relocation.
    pub fn hook_again(&mut self, _seq: Seq, _envelope: &[u8], _extra: &HookExtra<'_>) {}

    /// Adds another record.
    pub fn record(&mut self, _record: Record) {}

    /// Whether a record of `encoded_bytes` still belongs into this group.
    pub fn fits(&self, _encoded_bytes: usize) -> bool {
        false
    }

    /// Records so far.
    pub fn records(&self) -> usize {
        0
    }

    /// Bytes so far, header included.
    pub fn bytes(&self) -> usize {
        0
    }

    /// The envelope of a hook of this group, as it goes to the intake log.
    pub fn envelope_of(&self, _seq: Seq) -> Option<&[u8]> {
        None
    }
}
