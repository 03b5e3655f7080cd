//! One core's way into the log: its publisher, the answers' way to the shards, and the clocks of
//! what the node shares.
//!
//! Everything that is timed is timed here, every [`TICK`]: deadlines of attempts, the breaker's
//! pause, the shards' reconcilers and marks, the sums. Runs on a shard core, in two tasks.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use ankusa_intake::{Answer, Class, Failure, Publisher};
use ankusa_wal::{Host, TaskClass};

use super::breaker::{BreakerState, Event};
use super::claims::ClaimStore;
use super::node_log::{NodeLog, PendingSums};
use super::quota::Lease;
use super::shard_log::ShardLog;
use crate::commit::driver::{Admitted, LogAnswer};
use crate::metrics::{CoreMetrics, IntakeRefusal};

/// How often time is looked at.
pub const TICK: Duration = Duration::from_millis(20);

/// An attempt that was handed over to a log that has been lost since.
const ANOTHER_LOG: Failure = Failure {
    class: Class::Unavailable,
    reason: "the log went back",
};

/// What a core's side of the log is made of.
pub struct CoreLogParts {
    /// The node's.
    pub node: Arc<NodeLog>,
    /// The core's number.
    pub core: usize,
    /// The core's publisher, pinned to the node's partition.
    pub publisher: Rc<dyn Publisher>,
    /// Time and tasks.
    pub host: Rc<dyn Host>,
    /// Where claims are settled.
    pub claims: Rc<dyn ClaimStore>,
    /// The core's cells.
    pub metrics: Rc<CoreMetrics>,
}

/// One core's side of the log.
pub struct CoreLog {
    parts: CoreLogParts,
    pub(super) lease: Lease,
    shards: RefCell<Vec<Weak<ShardLog>>>,
    /// The epoch that this core's publisher and shards have taken note of.
    epoch: Cell<u64>,
    head_told: Cell<u64>,
    /// The breaker's last change that this core saw, and when.
    seen: Cell<(u32, u64)>,
    stopped: Cell<bool>,
}

impl CoreLog {
    /// Puts it together. [`CoreLog::start`] runs it.
    pub fn new(parts: CoreLogParts) -> Rc<CoreLog> {
        Rc::new(CoreLog {
            epoch: Cell::new(parts.node.epoch()),
            parts,
            lease: Lease::default(),
            shards: RefCell::default(),
            head_told: Cell::new(0),
            seen: Cell::new((0, 0)),
            stopped: Cell::new(false),
        })
    }

    /// Starts its tasks, once.
    pub fn start(self: &Rc<Self>) {
        let host = &self.parts.host;
        host.spawn(TaskClass::Commit, Box::pin(receive(Rc::clone(self))));
        host.spawn(TaskClass::Commit, Box::pin(tick(Rc::clone(self))));
    }

    /// Ends its tasks; attempts under way are not answered any more.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// The node's.
    pub fn node(&self) -> &Arc<NodeLog> {
        &self.parts.node
    }

    /// The core's publisher.
    pub fn publisher(&self) -> &Rc<dyn Publisher> {
        &self.parts.publisher
    }

    pub(super) fn host(&self) -> &Rc<dyn Host> {
        &self.parts.host
    }

    pub(super) fn claims(&self) -> &Rc<dyn ClaimStore> {
        &self.parts.claims
    }

    pub(super) fn metrics(&self) -> &CoreMetrics {
        &self.parts.metrics
    }

    /// The epoch in which this core hands records over.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    pub(super) fn attach(&self, shard: &Rc<ShardLog>) {
        self.shards.borrow_mut().push(Rc::downgrade(shard));
    }

    /// Whether a hook of so many bytes may be taken on: breaker, then ceilings.
    pub(super) fn admit(&self, bytes: u64) -> Result<Admitted, IntakeRefusal> {
        let node = &self.parts.node;
        let state = node.breaker();
        if state == BreakerState::Open || state == BreakerState::Probing {
            return Err(IntakeRefusal::Breaker);
        }
        if state == BreakerState::HalfOpen && node.has_probes() {
            // The reconciler's republish is the probe.
            return Err(IntakeRefusal::Breaker);
        }
        if !self.lease.take(&node.ceilings, bytes) {
            return Err(IntakeRefusal::Backlog);
        }
        let is_probe = state == BreakerState::HalfOpen;
        if is_probe && !node.breaker_on(Event::ProbeTaken) {
            // Another core was first.
            self.lease.give(&node.ceilings, 1, bytes);
            return Err(IntakeRefusal::Breaker);
        }
        Ok(Admitted { is_probe })
    }

    pub(super) fn unadmit(&self, bytes: u64, admitted: Admitted) {
        self.free(1, bytes);
        if admitted.is_probe {
            self.parts.node.breaker_on(Event::ProbeGivenBack);
        }
    }

    pub(super) fn free(&self, records: u64, bytes: u64) {
        self.lease.give(&self.parts.node.ceilings, records, bytes);
    }

    fn route(&self, answers: &mut Vec<Answer>) {
        let shards = self.shards.borrow();
        for answer in answers.drain(..) {
            let (token, result, is_late, went_back) = match answer {
                Answer::Confirmed {
                    token,
                    confirm,
                    late,
                } => (token, Ok(()), late, confirm.log_went_back()),
                Answer::Failed { token, failure } => (token, Err(failure), false, false),
            };
            let token = Token::unpack(token);
            // What an earlier log said of a record says nothing of this one.
            let is_stale = token.epoch != Token::epoch_of(self.epoch.get());
            if is_stale && is_late {
                continue;
            }
            if went_back && !is_stale {
                self.parts.node.log_went_back(None, self.epoch.get());
            }
            let is_this = |s: &Rc<ShardLog>| s.id().0 == token.shard;
            if let Some(shard) = shards.iter().filter_map(Weak::upgrade).find(is_this) {
                shard.receive(LogAnswer {
                    seq: ankusa_wal::Seq(token.seq),
                    result: if is_stale { Err(ANOTHER_LOG) } else { result },
                    is_late,
                });
            }
        }
        for shard in shards.iter().filter_map(Weak::upgrade) {
            shard.wake();
        }
    }

    fn tick(&self, answers: &mut Vec<Answer>) {
        let now_us = self.parts.host.mono_us();
        self.parts.publisher.tick(now_us, answers);
        self.route(answers);
        self.follow_epoch();
        self.follow_head();
        self.time_breaker(now_us);
        self.shards.borrow_mut().retain(|s| s.strong_count() > 0);
        let shards: Vec<_> = self
            .shards
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let (mut sums, mut probes) = (PendingSums::default(), 0);
        for shard in &shards {
            shard.tick(now_us);
            probes += shard.add_to(&mut sums, now_us);
        }
        (sums.records, sums.bytes) = self.lease.used();
        self.parts.node.set_pending(self.parts.core, &sums, probes);
        self.lease.rest(&self.parts.node.ceilings);
    }

    /// The log went back: the publisher forgets the head it knew; the shards see it on their own.
    fn follow_epoch(&self) {
        let epoch = self.parts.node.epoch();
        if self.epoch.replace(epoch) != epoch {
            self.parts.publisher.forget_head();
            self.head_told.set(0);
        }
    }

    fn follow_head(&self) {
        if let Some(head) = self.parts.node.head()
            && self.head_told.replace(head.0) != head.0
        {
            self.parts.publisher.note_head(head.0);
        }
    }

    /// An open breaker becomes half open, and a probe that was never published is given up.
    fn time_breaker(&self, now_us: u64) {
        let node = &self.parts.node;
        let breaker = node.breaker_value();
        if self.seen.get().0 != breaker.changes {
            self.seen.set((breaker.changes, now_us));
        }
        let since_us = now_us.saturating_sub(self.seen.get().1);
        let settings = node.settings();
        let is_over = match breaker.state {
            BreakerState::Open => since_us >= settings.probe_us && node.may_answer(),
            BreakerState::Probing => since_us >= settings.publish_timeout_us + settings.probe_us,
            BreakerState::Closed | BreakerState::HalfOpen => false,
        };
        if is_over {
            node.breaker_on(Event::Elapsed);
        }
    }
}

async fn receive(core: Rc<CoreLog>) {
    let mut answers = Vec::new();
    while !core.stopped.get() {
        poll_fn(|cx| core.parts.publisher.poll_answers(cx, &mut answers)).await;
        core.route(&mut answers);
        // NOTE: one poll is bounded; others get the core before the next.
        core.parts.host.yield_now().await;
    }
}

async fn tick(core: Rc<CoreLog>) {
    let mut answers = Vec::new();
    while !core.stopped.get() {
        core.parts.host.sleep(TICK).await;
        core.tick(&mut answers);
    }
}

/// Names an attempt in its answers: shard, the log's epoch, seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) shard: u16,
    pub(super) epoch: u8,
    pub(super) seq: u64,
}

const SEQ_BITS: u32 = 44;
const EPOCH_BITS: u32 = 4;

impl Token {
    /// The part of an epoch that fits: two that differ by 16 would have to have an answer between
    /// them.
    pub(super) fn epoch_of(epoch: u64) -> u8 {
        (epoch & ((1 << EPOCH_BITS) - 1)) as u8
    }

    pub(super) fn pack(self) -> u64 {
        assert!(self.seq < 1 << SEQ_BITS, "a seq beyond all reach");
        u64::from(self.shard) << (SEQ_BITS + EPOCH_BITS)
            | u64::from(self.epoch) << SEQ_BITS
            | self.seq
    }

    pub(super) fn unpack(token: u64) -> Token {
        Token {
            shard: (token >> (SEQ_BITS + EPOCH_BITS)) as u16,
            epoch: (token >> SEQ_BITS) as u8 & ((1 << EPOCH_BITS) - 1),
            seq: token & ((1 << SEQ_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_what_it_was_made_of() {
        for shard in [0, 1, u16::MAX] {
            for epoch in [0, 1, 15, 16, u64::MAX] {
                for seq in [0, 1, (1 << SEQ_BITS) - 1] {
                    let token = Token {
                        shard,
                        epoch: Token::epoch_of(epoch),
                        seq,
                    };
                    assert_eq!(Token::unpack(token.pack()), token);
                }
            }
        }
    }
}
