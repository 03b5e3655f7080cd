//! The log half of one shard: publishes its groups, keeps what is carried, moves its marks.
//!
//! The committer's driver calls it as [`LogHalf`]; the shard's reconciler ([`super::work`]) and
//! feeder use the rest. Not generic over the disk: it never touches the store. Runs on the shard
//! core; no borrow outlives a call.

mod half;

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ankusa_intake::{Class, Outgoing, PermanentAbout};
use ankusa_wal::format::envelope;
use ankusa_wal::{HookId, Seq, ShardId, mutations};
use bytes::Bytes;

use super::breaker::Event;
use super::claims::{Held, Hold};
use super::core_log::{CoreLog, Token};
use super::node_log::PendingSums;
use super::pending::{Entry, Kept, PendingSet, Progress, Refused};
use super::reconciler::{Actions, Reconciler};
use crate::commit::driver::{LogAnswer, LogHalf};
use crate::metrics::{Half, IntakeClass, PublishOutcome};

/// What a carried record costs beside its own bytes: the entry and its place in the indexes.
pub(super) const ENTRY_BYTES: u64 = 512;

/// How a hook stands in both places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// Its seq.
    pub seq: Seq,
    /// `both_pending`, `half_local` or `half_log`.
    pub state: &'static str,
    /// Past its deadline, or refused for good.
    pub stuck: bool,
    /// For how long, milliseconds.
    pub age_ms: u64,
}

/// What a shard's side of the log looks like from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// Carried records.
    pub carried: u64,
    /// Of them stuck.
    pub stuck: u64,
    /// Bytes that they count.
    pub carried_bytes: u64,
    /// Age of the oldest, milliseconds.
    pub oldest_ms: u64,
    /// Hooks that could not be read to be published again.
    pub unreadable: u64,
}

/// The log half of one shard.
pub struct ShardLog {
    id: ShardId,
    core: Rc<CoreLog>,
    pending: RefCell<PendingSet>,
    reconciler: RefCell<Reconciler>,
    answers: RefCell<VecDeque<LogAnswer>>,
    /// The committer's driver.
    waker: RefCell<Option<Waker>>,
    /// The shard's reconciler.
    work_waker: RefCell<Option<Waker>>,
    work_due: Cell<bool>,
    flushed_us: Cell<u64>,
    flush_due: Cell<bool>,
    /// Records of one publish: where each lies in their common buffer.
    spans: RefCell<Vec<(Seq, usize, usize)>>,
    /// The marks may move: not before what a boot or a log that went back asks for is done.
    watermark_on: Cell<bool>,
    offset_on: Cell<bool>,
    /// The epoch in which the marks stand.
    pub(super) epoch: Cell<u64>,
    /// What the log confirmed below it, it confirmed before it went back.
    stale_below: Cell<Seq>,
    /// Never confirmed and not to be read here: named as exceptions for good.
    unreadable: RefCell<std::collections::BTreeSet<Seq>>,
    closed: Cell<bool>,
}

impl ShardLog {
    pub(crate) fn new(id: ShardId, core: Rc<CoreLog>) -> Rc<ShardLog> {
        let shard = Rc::new(ShardLog {
            id,
            epoch: Cell::new(core.node().epoch()),
            core,
            pending: RefCell::default(),
            reconciler: RefCell::default(),
            answers: RefCell::default(),
            waker: RefCell::new(None),
            work_waker: RefCell::new(None),
            work_due: Cell::new(false),
            flushed_us: Cell::new(0),
            flush_due: Cell::new(false),
            spans: RefCell::default(),
            watermark_on: Cell::new(false),
            offset_on: Cell::new(false),
            stale_below: Cell::new(Seq(0)),
            unreadable: RefCell::default(),
            closed: Cell::new(false),
        });
        shard.core.attach(&shard);
        shard
    }

    /// The shard.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The core's side.
    pub fn core(&self) -> &Rc<CoreLog> {
        &self.core
    }

    /// The replay of the log is done: from now on the offset follows what is settled. Without it
    /// the offset stays where the store has it.
    pub fn offset_may_move(&self) {
        self.offset_on.set(true);
    }

    /// A hook whose halves are not both done, when it is carried.
    pub fn halves(&self, id: HookId) -> Option<Halves> {
        let pending = self.pending.borrow();
        let (seq, entry) = pending.by_id(id)?;
        let age_us = self.now_us().saturating_sub(entry.kept.first_us);
        Some(Halves {
            seq,
            state: entry.done().word(),
            stuck: entry.is_stuck(),
            age_ms: age_us / 1000,
        })
    }

    /// How it stands.
    pub fn facts(&self) -> ShardFacts {
        let pending = self.pending.borrow();
        let age = |first_us| self.now_us().saturating_sub(first_us) / 1000;
        ShardFacts {
            carried: pending.len() as u64,
            stuck: pending.stuck() as u64,
            carried_bytes: pending.quota_bytes(),
            oldest_ms: pending.oldest_us().map_or(0, age),
            unreadable: self.unreadable.borrow().len() as u64,
        }
    }

    pub(super) fn now_us(&self) -> u64 {
        self.core.host().mono_us()
    }

    pub(super) fn pending(&self) -> Ref<'_, PendingSet> {
        self.pending.borrow()
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake_work();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// An answer for one of this shard's records. [`ShardLog::wake`] follows.
    pub(super) fn receive(&self, answer: LogAnswer) {
        self.answers.borrow_mut().push_back(answer);
    }

    pub(super) fn wake(&self) {
        if !self.answers.borrow().is_empty()
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    pub(super) fn wake_work(&self) {
        self.work_due.set(true);
        if let Some(waker) = self.work_waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Ready when the reconciler has something to look at.
    pub(super) fn poll_work(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.work_due.replace(false) {
            return Poll::Ready(());
        }
        *self.work_waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the shard has durably begun this epoch: nothing of an earlier log counts.
    pub fn is_in(&self, epoch: u64) -> bool {
        self.epoch.get() == epoch
    }

    /// True once per flush interval: the marks are to be written though nothing else is.
    pub(super) fn take_flush(&self) -> bool {
        self.flush_due.replace(false)
    }

    pub(super) fn tick(&self, now_us: u64) {
        let settings = self.core.node().settings();
        if now_us.saturating_sub(self.flushed_us.get()) >= settings.offset_flush_us {
            self.flushed_us.set(now_us);
            self.flush_due.set(true);
        }
        let is_behind = self.epoch.get() != self.core.epoch();
        if self.flush_due.get() || is_behind || !self.pending.borrow().is_empty() {
            self.wake_work();
        }
    }

    /// Adds its numbers; how many entries will probe a breaker.
    pub(super) fn add_to(&self, sums: &mut PendingSums, now_us: u64) -> u64 {
        let pending = self.pending.borrow();
        sums.carried += pending.len() as u64;
        sums.stuck += pending.stuck() as u64;
        let oldest = pending.oldest_us();
        let oldest_ms = oldest.map_or(0, |at| now_us.saturating_sub(at) / 1000);
        sums.oldest_ms = sums.oldest_ms.max(oldest_ms);
        pending.probes() as u64
    }

    /// What the reconciler is to do now.
    pub(super) fn decide(&self) -> Actions {
        let settings = self.core.node().settings();
        self.reconciler.borrow_mut().decide(
            &mut self.pending.borrow_mut(),
            self.now_us(),
            settings.reconcile_deadline_us,
            settings.group_bytes_max,
        )
    }

    /// Publishes carried records again, one attempt each. `incarnation_of` tells who handed out a
    /// seq.
    pub(super) fn republish(&self, seqs: &[Seq], incarnation_of: &dyn Fn(Seq) -> u32) {
        let pending = self.pending.borrow();
        let found = seqs.iter().filter_map(|seq| {
            let entry = pending.get(*seq)?;
            Some((*seq, entry.kept.envelope.clone()))
        });
        let records: Vec<(Seq, Bytes)> = found.collect();
        drop(pending);
        let mut records = records.iter().map(|(seq, value)| {
            let (id, tenant, source) = envelope::peek(value);
            let incarnation = incarnation_of(*seq);
            self.outgoing(*seq, id, incarnation, tenant, source, value.clone())
        });
        self.hand_over(&mut records);
        mutations::point("dual.republished");
    }

    fn outgoing<'a>(
        &self,
        seq: Seq,
        id: HookId,
        incarnation: u32,
        tenant: &'a [u8],
        source: &'a [u8],
        value: Bytes,
    ) -> Outgoing<'a> {
        let token = Token {
            shard: self.id.0,
            epoch: Token::epoch_of(self.core.epoch()),
            seq: seq.0,
        };
        Outgoing {
            token: token.pack(),
            shard: self.id.0,
            seq: seq.0,
            id: id.0,
            incarnation,
            tenant: if tenant.is_empty() {
                b"default"
            } else {
                tenant
            },
            source,
            value,
        }
    }

    fn hand_over(&self, records: &mut dyn Iterator<Item = Outgoing<'_>>) {
        let now_us = self.now_us();
        let deadline_us = now_us + self.core.node().settings().publish_timeout_us;
        self.core.publisher().publish(records, now_us, deadline_us);
        mutations::point("dual.published");
    }

    /// The local write of these has ended: those of them that are durable here.
    pub(super) fn wrote(&self, seqs: &[Seq], durable: &[Seq]) {
        for seq in seqs {
            if !durable.contains(seq) {
                self.pending.borrow_mut().put_back(*seq);
                continue;
            }
            let progress = self.pending.borrow_mut().landed(*seq);
            if !matches!(progress, Progress::Unknown) {
                self.core.metrics().reconciled(Half::Local);
            }
            self.progressed(progress);
        }
        let settings = self.core.node().settings();
        let (now_us, most_us) = (self.now_us(), settings.probe_us);
        let mut reconciler = self.reconciler.borrow_mut();
        reconciler.wrote(!durable.is_empty(), now_us, most_us);
        drop(reconciler);
        self.wake_work();
    }

    /// Settles a record that is complete: its claim is promoted, its place given back.
    fn progressed(&self, progress: Progress) {
        let Progress::Complete(entry) = progress else {
            return;
        };
        self.promote(&entry);
        mutations::point("dual.completed");
        self.core.free(1, entry.kept.quota_bytes);
    }

    fn promote(&self, entry: &Entry) {
        if let Some(held) = entry.claim() {
            let now_s = (self.core.host().wall_ms() / 1000) as u32;
            // A key that another hook holds by now is left alone.
            self.core.claims().promote(held.claim, held.expiry_s, now_s);
        }
    }

    pub(super) fn release(&self, claims: &[Held]) {
        let now_s = (self.core.host().wall_ms() / 1000) as u32;
        for held in claims {
            self.core.claims().give_up(held.claim, now_s);
        }
    }

    /// Puts a record of a hook that is durable here in line to be published; false when there is no
    /// room for it now. Should it get stuck, `held` is given up: no `duplicate` for a hook that is
    /// safe in one place only.
    pub(super) fn feed(&self, seq: Seq, mut kept: Kept, held: Option<Held>) -> bool {
        kept.quota_bytes = kept.envelope.len() as u64 + ENTRY_BYTES;
        if self.pending.borrow().get(seq).is_some() {
            return true;
        }
        let node = self.core.node();
        if !self.core.lease.take(&node.ceilings, kept.quota_bytes) {
            return false;
        }
        let id = kept.id;
        let mut pending = self.pending.borrow_mut();
        pending.carry(seq, kept, true, false);
        if let Some(held) = held {
            pending.hold(id, held);
        }
        drop(pending);
        self.wake_work();
        true
    }

    pub(super) fn note_unreadable(&self, seq: Seq) {
        self.unreadable.borrow_mut().insert(seq);
    }

    /// The marks stand still from now on; what the log confirmed below `next_seq` so far counts no
    /// more. Whether the offset was moving.
    pub(super) fn freeze(&self, next_seq: Seq) -> bool {
        self.watermark_on.set(false);
        self.stale_below.set(next_seq);
        self.pending.borrow_mut().log_went_back();
        self.offset_on.replace(false)
    }

    /// Renews the claims that carried records hold.
    pub(super) fn renew(&self) {
        for held in self.pending.borrow().held() {
            self.core.claims().renew(held.claim);
        }
    }

    pub(super) fn watermark_may_move(&self) {
        self.watermark_on.set(true);
    }

    fn count(&self, answer: &LogAnswer, started_us: u64) {
        let metrics = self.core.metrics();
        let us = self.now_us().saturating_sub(started_us);
        let Err(failure) = answer.result else {
            metrics.publish(PublishOutcome::Ok, us);
            return;
        };
        let (outcome, class) = match failure.class {
            Class::NotFound => (PublishOutcome::NotFound, IntakeClass::NotFound),
            Class::Unavailable => (PublishOutcome::Unavailable, IntakeClass::Unavailable),
            Class::Throttled { .. } => (PublishOutcome::Throttled, IntakeClass::Throttled),
            Class::Permanent(_) => (PublishOutcome::Permanent, IntakeClass::Permanent),
        };
        metrics.publish(outcome, us);
        metrics.intake_failure(class);
    }

    /// What the breaker hears of an attempt.
    fn tell_breaker(&self, answer: &LogAnswer, counts: bool) {
        let node = self.core.node();
        match answer.result {
            Ok(()) => {
                node.breaker_on(Event::Confirmed);
            }
            Err(failure) if failure.class == Class::Permanent(PermanentAbout::Access) => {
                node.breaker_on(Event::Denied);
            }
            Err(_) if counts => {
                node.breaker_on(Event::Failed);
            }
            Err(_) => {}
        }
    }

    /// An answer that no group waits for: of a republish, or a late confirm.
    fn answered_carried(&self, answer: &LogAnswer) {
        let (now_us, pause_us) = (self.now_us(), self.core.node().settings().probe_us);
        let is_batch = !answer.is_late && self.reconciler.borrow().is_republishing(answer.seq);
        match answer.result {
            Ok(()) => {
                self.tell_breaker(answer, false);
                let progress = self.pending.borrow_mut().confirmed(answer.seq);
                if !matches!(progress, Progress::Unknown) {
                    self.core.metrics().reconciled(Half::Log);
                }
                self.progressed(progress);
                if is_batch {
                    let mut reconciler = self.reconciler.borrow_mut();
                    reconciler.confirmed(answer.seq, now_us, pause_us);
                }
            }
            Err(failure) if is_batch => {
                let failed = self.reconciler.borrow_mut().failed(
                    &mut self.pending.borrow_mut(),
                    answer.seq,
                    failure.class,
                    now_us,
                    pause_us,
                );
                self.tell_breaker(answer, failed.counts);
                if let Refused::Stuck(claim) = failed.refused {
                    self.say_stuck(answer, failure.reason, now_us);
                    self.release(claim.as_slice());
                }
            }
            Err(_) => {}
        }
        self.wake_work();
    }

    fn say_stuck(&self, answer: &LogAnswer, reason: &'static str, now_us: u64) {
        if self.reconciler.borrow_mut().is_time_to_say(now_us) {
            let stuck = self.pending.borrow().stuck();
            tracing::error!(
                shard = %self.id, seq = %answer.seq, reason, stuck,
                "the intake log refuses a record for good; it is kept and tried again every minute"
            );
        }
    }
}

/// Settles the claim of a hook whose halves are not both done as the caller's item knows it.
pub(crate) fn settle_carried(log: &dyn LogHalf, id: HookId, held: Held, half: bool) -> Hold {
    if half && mutations::is("promote_on_one_half") {
        return Hold::Completed;
    }
    log.hold(id, held)
}
