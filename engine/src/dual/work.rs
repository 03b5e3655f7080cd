//! Obeys a shard's reconciler: publishes again, writes missing local halves, and takes note of a
//! log that lost what it held.
//!
//! One task per shard, woken by a new entry, an answer, or the core's tick. Runs on the shard core.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_wal::{
    Disk, GroupBuilder, HookId, Host, IntakeOffset, Outcome, Record, Seq, State, Store, TaskClass,
    Watermark, mutations,
};

use super::feeder;
use super::pending::Kept;
use super::shard_log::ShardLog;
use crate::commit::driver::Commit;

/// Between two attempts to write down that the log went back.
const AGAIN: Duration = Duration::from_millis(100);

/// Bytes that a hook's record takes beside its envelope and its sinks.
const RECORD_BYTES: usize = 128;

/// A shard's reconciler at work.
pub(crate) struct Work<D: Disk> {
    pub(crate) log: Rc<ShardLog>,
    pub(super) commit: Commit<D>,
    pub(super) host: Rc<dyn Host>,
    /// The store's key of dedupe hashes.
    pub(super) hash_key: [u8; 16],
    is_resetting: Cell<bool>,
}

impl<D: Disk> Work<D> {
    /// Puts it together. [`Work::start`] runs it.
    pub(crate) fn new(
        log: Rc<ShardLog>,
        commit: Commit<D>,
        host: Rc<dyn Host>,
        hash_key: [u8; 16],
    ) -> Rc<Work<D>> {
        Rc::new(Work {
            log,
            commit,
            host,
            hash_key,
            is_resetting: Cell::new(false),
        })
    }

    /// Starts its task.
    pub(crate) fn start(self: &Rc<Self>) {
        let task = run(Rc::clone(self));
        self.host.spawn(TaskClass::Commit, Box::pin(task));
    }

    pub(super) fn store(&self) -> &Store<D> {
        self.commit.store()
    }

    fn turn(self: &Rc<Self>) {
        self.follow_epoch();
        if self.log.take_flush() {
            self.commit.write_marks();
            mutations::point("dual.marks_due");
        }
        let actions = self.log.decide();
        self.log.release(&actions.release);
        if actions.more {
            self.log.wake_work();
        }
        if actions.renew {
            self.log.renew();
        }
        if !actions.republish.is_empty() {
            let state = self.store().state();
            let of = |seq| state.meta().incarnation_of(seq).unwrap_or(0);
            self.log.republish(&actions.republish, &of);
        }
        if !actions.complete_local.is_empty() {
            let task = complete_local(Rc::clone(self), actions.complete_local);
            self.host.spawn(TaskClass::Commit, Box::pin(task));
        }
    }

    /// The log lost what it held: the marks stand still from this slice on.
    fn follow_epoch(self: &Rc<Self>) {
        let epoch = self.log.core().epoch();
        if self.log.epoch.get() == epoch || self.is_resetting.replace(true) {
            return;
        }
        let limit = self.store().next_seq();
        let was_moving = self.log.freeze(limit);
        let task = start_over(Rc::clone(self), epoch, limit, was_moving);
        self.host.spawn(TaskClass::Commit, Box::pin(task));
    }
}

async fn run<D: Disk>(work: Rc<Work<D>>) {
    loop {
        poll_fn(|cx| work.log.poll_work(cx)).await;
        if work.log.is_closed() {
            return;
        }
        work.turn();
        // NOTE: a turn is bounded; others get the core before the next.
        work.host.yield_now().await;
    }
}

/// Whether the hook is in the store, applied or finished.
fn is_here(state: &State, seq: Seq, id: HookId) -> bool {
    match state.slot_of_seq(seq).and_then(|slot| state.hook(slot)) {
        Some(hook) => {
            assert_eq!(hook.id, id, "another hook at the seq of a carried one");
            true
        }
        None => state.finished().contains(seq),
    }
}

/// Whether it is so in a group at or below the durable mark.
fn is_durable_here(state: &State, seq: Seq, id: HookId) -> bool {
    let hook = state.slot_of_seq(seq).and_then(|slot| state.hook(slot));
    is_here(state, seq, id) && hook.is_none_or(|hook| hook.is_durable)
}

/// Writes the local halves of carried records, with their seqs, in one group. Each is looked up
/// first, in the slice that writes: applying one twice must be impossible.
async fn complete_local<D: Disk>(work: Rc<Work<D>>, seqs: Vec<Seq>) {
    let kept: Vec<(Seq, Kept)> = {
        let pending = work.log.pending();
        let entries = seqs
            .iter()
            .filter_map(|seq| Some((*seq, pending.get(*seq)?)));
        entries.map(|(seq, e)| (seq, e.kept.clone())).collect()
    };
    let record_bytes = |kept: &Kept| RECORD_BYTES + kept.envelope.len() + 2 * kept.sinks.len();
    let bytes = kept.iter().map(|(_, kept)| record_bytes(kept)).sum();
    let first = kept.first().map_or(0, |(_, kept)| record_bytes(kept));
    let ids: Vec<(Seq, HookId)> = kept.iter().map(|(seq, kept)| (*seq, kept.id)).collect();
    let store = work.store().clone();
    let encode = move |builder: &mut GroupBuilder<D>| {
        for (seq, kept) in &kept {
            let is_there = is_here(&store.state(), *seq, kept.id);
            if !is_there && builder.fits(record_bytes(kept)) {
                builder.hook_again(*seq, &kept.envelope, &kept.extra());
            }
        }
    };
    work.commit.write_group(bytes, first, encode).await;
    let durable: Vec<Seq> = {
        let state = work.store().state();
        let here = ids
            .iter()
            .filter(|(seq, id)| is_durable_here(&state, *seq, *id));
        here.map(|(seq, _)| *seq).collect()
    };
    // NOTE: what is applied by another group and not durable yet is looked at again after a pause:
    // without one this would go round until that group's sync ends.
    work.log.wrote(&seqs, &durable);
}

/// Writes down that nothing of what the log confirmed counts, then publishes everything again.
async fn start_over<D: Disk>(work: Rc<Work<D>>, epoch: u64, limit: Seq, was_moving: bool) {
    let in_flight = work.store().applied_lsn();
    loop {
        let identity = work.log.core().node().identity();
        let written = work.commit.write_group(1024, 1024, move |builder| {
            builder.record(Record::Offset(IntakeOffset::default()));
            builder.record(Record::Watermark(Watermark::default()));
            if let Some(identity) = identity {
                builder.record(Record::IntakeIdentity(identity));
            }
        });
        if written.await == Outcome::Durable {
            break;
        }
        if work.log.is_closed() {
            return;
        }
        work.host.sleep(AGAIN).await;
    }
    mutations::point("dual.log_forgotten");
    // IMPORTANT: a group handed over to the log that was lost capped the offset with a head that
    // says nothing of this one: the offset moves only when all of those are settled here.
    while work.store().durable_lsn() < in_flight {
        work.host.sleep(Duration::from_millis(1)).await;
    }
    work.log.epoch.set(epoch);
    if was_moving {
        work.log.offset_may_move();
    }
    let node = Arc::clone(work.log.core().node());
    while node.is_unsure() && !work.log.is_closed() {
        work.host.sleep(AGAIN).await;
    }
    // Else it went back once more meanwhile: the next turn starts over.
    if node.epoch() == epoch {
        let fed = feeder::feed(&work, limit, &|_| false).await;
        tracing::info!(
            shard = %work.log.id(), records = fed.records, unreadable = fed.unreadable,
            "what the store holds was published to the intake log again"
        );
    }
    mutations::point("dual.published_again");
    work.is_resetting.set(false);
    work.log.wake_work();
}
