//! A clean stop: everything written, claimed and checkpointed.

use super::Store;
use super::submit::Purpose;
use crate::disk::Disk;
use crate::error::CloseError;
use crate::mutations;

impl<D: Disk> Store<D> {
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
                let is_idle = || inner.writer.borrow().pipeline.inflight() == 0;
                inner.progress.until(|| is_idle().then_some(())).await;
                continue;
            }
            if is_frozen {
                return Err(CloseError::Fenced);
            }
            if queued == 0 && inner.is_claimed() {
                break;
            }
            let group = (queued > 0).then(|| inner.begin(0, 0, Purpose::Closing));
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
        mutations::point("close.claimed");
        self.checkpoint().await?;
        mutations::point("close.done");
        Ok(())
    }
}
