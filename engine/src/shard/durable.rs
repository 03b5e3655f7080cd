//! Writing records of the operator's orders and waiting until they are on the medium.
//!
//! Runs on a shard core, off the request path.

use std::time::Duration;

use ankusa_wal::{Disk, Host, Record, State};

use super::Shard;

/// How often it is looked whether the group is durable.
const LOOK: Duration = Duration::from_millis(1);

impl<D: Disk> Shard<D> {
    /// Queues `records`, in order, and completes when they are durable: true. `is_applied` tells
    /// from the state that the last of them was applied. False: not durable `within` that time,
    /// or the store was fenced meanwhile; the records may still come to be written.
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the writing.
    pub async fn write(
        &self,
        host: &dyn Host,
        records: Vec<Record>,
        is_applied: impl Fn(&State) -> bool,
        within: Duration,
    ) -> bool {
        let fences = self.store.stats().fences;
        for record in records {
            if !self.store.enqueue(record) {
                return false;
            }
        }
        self.commit.nudge();
        let end_us = host.mono_us() + within.as_micros() as u64;
        while !is_applied(&self.store.state()) {
            if host.mono_us() > end_us {
                return false;
            }
            host.sleep(LOOK).await;
        }
        self.settled(host, within).await && self.store.stats().fences == fences
    }

    /// Completes when everything that is applied now is durable or fenced; false after `within`.
    pub async fn settled(&self, host: &dyn Host, within: Duration) -> bool {
        let applied = self.store.applied_lsn();
        let end_us = host.mono_us() + within.as_micros() as u64;
        while self.store.durable_lsn() < applied {
            if host.mono_us() > end_us {
                return false;
            }
            host.sleep(LOOK).await;
        }
        true
    }
}
