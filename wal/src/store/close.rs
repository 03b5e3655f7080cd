//! A clean stop, and the checkpoint on demand.

use super::submit::Purpose;
use super::{CheckpointReport, Store};
use crate::disk::Disk;
use crate::error::{CheckpointError, CloseError};

impl<D: Disk> Store<D> {
    /// Takes a checkpoint now.
    pub async fn checkpoint(&self) -> Result<CheckpointReport, CheckpointError> {
        Err(CheckpointError::NotReady("checkpoint"))
    }

    /// Writes what is queued, claims everything durable and takes a last checkpoint. Nothing is
    /// admitted any more. Groups submitted before settle as ever: go on asking for them.
    ///
    /// # Cancel safety
    /// May be dropped: the store is then closed without its last claim.
    pub async fn close(&self) -> Result<(), CloseError> {
        let inner = &self.inner;
        inner.is_closed.set(true);
        loop {
            let (inflight, is_frozen, queued) = {
                let writer = inner.writer.borrow();
                let pipeline = &writer.pipeline;
                (
                    pipeline.inflight(),
                    pipeline.is_frozen(),
                    writer.queue.len(),
                )
            };
            if inflight > 0 {
                inner.progress.wait().await;
                continue;
            }
            if is_frozen {
                return Err(CloseError::Fenced);
            }
            if queued == 0 && inner.is_claimed() {
                return Ok(());
            }
            let group = (queued > 0).then(|| inner.begin(0, Purpose::Closing));
            match group {
                None if inner.claim_now() => {}
                Some(Some(group)) => {
                    inner.submit(group, true);
                }
                // The segment is full: its successor needs a slot.
                _ if inner.slots.borrow().spares() == 0 => {
                    inner.prepare_slot().await.map_err(CloseError::NoSlot)?;
                }
                _ => return Err(CloseError::GroupOpen),
            }
        }
    }
}
