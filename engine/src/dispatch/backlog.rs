//! What dispatch needs of the store: facts of a row, the bytes of a hook, a place for outcomes.
//!
//! Owns the seam ([`Backlog`]) and its real side over [`Store`]. Invariant: a row of a hook whose
//! group is not durable is never handed out; that is asserted where the facts are read.
//! Outcomes are queued with the store and ride in a later group; nobody waits for its sync:
//! losing one means a redelivery. Runs on the shard's core; no borrow of the state outlives a
//! call.

use std::ops::Deref;
use std::rc::Rc;

use ankusa_wal::state::RowState;
use ankusa_wal::{Delivery, Disk, ReadError, Record, Seq, SinkName, SinkNo, Store, StoredHook};

use super::RowId;
use super::scheduler::{RowFacts, Rows};

/// The store's side of dispatch.
pub trait Backlog: Rows {
    /// The bytes of a hook's envelope, held while it is delivered.
    type Bytes: Deref<Target = [u8]>;

    /// The hook of a row that is queued here or in flight.
    fn seq_of(&self, row: RowId) -> Option<Seq>;

    /// Calls `each` for the rows of a durable hook that are to be delivered, with their persisted
    /// due time (wall clock, milliseconds; 0: at once).
    fn due_rows(&self, seq: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64));

    /// The same for every live hook below `end` from the place `from` on: a slice of work that
    /// fits a turn. Where to go on, or `None` when all has been seen.
    fn scan(&self, from: u32, end: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64)) -> Option<u32>;

    /// The first seq that was not handed out before now.
    fn next_seq(&self) -> Seq;

    /// Since when the row has been due, wall clock milliseconds.
    fn due_since_ms(&self, row: RowId) -> Option<u64>;

    /// What a sink's number stands for.
    fn sink_name(&self, sink: SinkNo) -> Option<SinkName>;

    /// Every sink number there is.
    fn sinks(&self) -> Vec<SinkNo>;

    /// Dead letters.
    fn dead_count(&self) -> u64;

    /// Reads a hook.
    ///
    /// # Cancel safety
    /// Dropping it gives up the read and nothing else.
    fn read(&self, seq: Seq) -> impl Future<Output = Result<Self::Bytes, ReadError>>;

    /// Queues the outcome of an attempt.
    fn write(&self, delivery: Delivery);
}

/// The real side: a shard's store, and how its committer learns that a record waits.
pub struct StoreBacklog<D: Disk> {
    store: Store<D>,
    queued: Rc<dyn Fn()>,
}

impl<D: Disk> StoreBacklog<D> {
    /// A backlog over `store`; `queued` is called after each record put in its queue.
    pub fn new(store: Store<D>, queued: Rc<dyn Fn()>) -> StoreBacklog<D> {
        StoreBacklog { store, queued }
    }

    fn each_due(
        state: &ankusa_wal::State,
        slot: ankusa_wal::state::HookSlot,
        each: &mut dyn FnMut(RowId, SinkNo, u64),
    ) {
        for row_id in state.rows(slot) {
            let row = state.row(row_id);
            if let RowState::Due { due_ms } = row.state {
                each(row_id, row.sink, due_ms);
            }
        }
    }
}

impl<D: Disk> Rows for StoreBacklog<D> {
    fn facts(&self, row_id: RowId) -> Option<RowFacts> {
        let state = self.store.state();
        let row = state.row(row_id);
        let hook = state.hook(row.slot)?;
        if !matches!(row.state, RowState::Due { .. }) {
            return None;
        }
        // IMPORTANT: applied is not durable, and nothing leaves the host on the strength of what
        // is not durable.
        assert!(
            hook.is_durable,
            "row of seq {} in dispatch before its group is durable",
            hook.seq
        );
        Some(RowFacts {
            sink: row.sink,
            bytes: hook.location.len,
            attempts: u32::from(row.attempts),
        })
    }
}

impl<D: Disk> Backlog for StoreBacklog<D> {
    type Bytes = StoredHook<D>;

    fn seq_of(&self, row: RowId) -> Option<Seq> {
        let state = self.store.state();
        state.hook(state.row(row).slot).map(|hook| hook.seq)
    }

    fn due_rows(&self, seq: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64)) {
        let state = self.store.state();
        if let Some(slot) = state.slot_of_seq(seq)
            && state.hook(slot).is_some_and(|hook| hook.is_durable)
        {
            Self::each_due(&state, slot, each);
        }
    }

    fn scan(&self, from: u32, end: Seq, each: &mut dyn FnMut(RowId, SinkNo, u64)) -> Option<u32> {
        const SLICE_HOOKS: usize = 512;
        let state = self.store.state();
        let mut from = from;
        for _ in 0..SLICE_HOOKS {
            match state.next_hook(from) {
                Ok(Some(slot)) => {
                    if state
                        .hook(slot)
                        .is_some_and(|hook| hook.is_durable && hook.seq < end)
                    {
                        Self::each_due(&state, slot, each);
                    }
                    from = slot.0 + 1;
                }
                Ok(None) => return None,
                Err(next) => return Some(next),
            }
        }
        Some(from)
    }

    fn next_seq(&self) -> Seq {
        self.store.state().next_seq()
    }

    fn due_since_ms(&self, row_id: RowId) -> Option<u64> {
        let state = self.store.state();
        let row = state.row(row_id);
        let RowState::Due { due_ms } = row.state else {
            return None;
        };
        // A hook's id begins with the time of its receipt.
        let id = state.hook(row.slot)?.id.0;
        let received_ms = u64::from_be_bytes([0, 0, id[0], id[1], id[2], id[3], id[4], id[5]]);
        Some(due_ms.max(received_ms))
    }

    fn sink_name(&self, sink: SinkNo) -> Option<SinkName> {
        self.store.state().names().get(sink).cloned()
    }

    fn sinks(&self) -> Vec<SinkNo> {
        self.store
            .state()
            .names()
            .iter()
            .map(|name| name.sink)
            .collect()
    }

    fn dead_count(&self) -> u64 {
        self.store.state().counts().rows_dead
    }

    async fn read(&self, seq: Seq) -> Result<StoredHook<D>, ReadError> {
        self.store.read(seq).await
    }

    fn write(&self, delivery: Delivery) {
        self.store.enqueue(Record::Delivery(delivery));
        (self.queued)();
    }
}
