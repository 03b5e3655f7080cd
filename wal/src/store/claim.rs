//! The claim of an idle shard: one empty frame that says the last groups are durable, so that
//! damage to them cannot be mistaken for a torn tail. An empty frame asks for none itself.

use std::rc::{Rc, Weak};
use std::time::Duration;

use super::inner::Inner;
use super::submit::Purpose;
use crate::disk::Disk;
use crate::host::TaskClass;
use crate::ids::Lsn;

impl<D: Disk> Inner<D> {
    /// True when some frame on the medium claims every frame with records.
    pub(crate) fn is_claimed(&self) -> bool {
        let writer = self.writer.borrow();
        writer.claimed >= writer.last_with_records
    }

    /// Starts the wait when something is unclaimed and none runs yet.
    pub(crate) fn arm_claim(self: &Rc<Self>) {
        let mut writer = self.writer.borrow_mut();
        if writer.is_claim_armed || writer.claimed >= writer.last_with_records {
            return;
        }
        writer.is_claim_armed = true;
        let applied = writer.pipeline.applied();
        drop(writer);
        let task = wait_and_claim(
            Rc::downgrade(self),
            self.idle_claim(),
            applied,
            Rc::clone(&self.host),
        );
        self.host.spawn(TaskClass::Maintenance, Box::pin(task));
    }

    fn idle_claim(&self) -> Duration {
        Duration::from_millis(self.config.idle_claim_ms.max(1))
    }

    /// Writes an empty frame when the last groups are durable and unclaimed. True when done or
    /// not needed.
    pub(crate) fn claim_now(self: &Rc<Self>) -> bool {
        {
            let writer = self.writer.borrow();
            if writer.claimed >= writer.last_with_records {
                return true;
            }
            if writer.pipeline.inflight() > 0
                || writer.pipeline.durable() < writer.last_with_records
            {
                return false;
            }
        }
        match self.begin(0, 0, Purpose::Claim) {
            Some(group) => {
                self.submit(group, true);
                true
            }
            None => false,
        }
    }
}

async fn wait_and_claim<D: Disk>(
    weak: Weak<Inner<D>>,
    pause: Duration,
    mut applied: Lsn,
    host: Rc<dyn crate::host::Host>,
) {
    loop {
        host.sleep(pause).await;
        let Some(inner) = weak.upgrade() else { return };
        let now = inner.writer.borrow().pipeline.applied();
        let is_idle = now == applied;
        applied = now;
        let is_frozen = inner.writer.borrow().pipeline.is_frozen();
        if inner.is_closed.get() || is_frozen || is_idle && inner.claim_now() {
            inner.writer.borrow_mut().is_claim_armed = false;
            return;
        }
    }
}
