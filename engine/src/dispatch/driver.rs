//! Obeys the [`Scheduler`]: reads hooks, hands them to their sinks, writes what became of them.
//!
//! One task per shard keeps time (due rows, breakers, deadlines) and takes up rows that
//! became durable; deliveries run on workers, each of which goes on with the next row when one is
//! done, so that under load no task is started per delivery. As many workers as rows in flight.
//!
//! Time is monotonic; the wall clock is read only to turn a persisted due time into a delay and
//! back. Restart: everything the store says is due is due again, so what was in flight is too.
//! A hook that cannot be read stays due: it is tried again later, loudly, and never dropped.
//!
//! Runs on the shard's core, in its dispatch class.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Delivery, DeliveryState, Host, ReadError, Seq, SinkNo, TaskClass};

use super::RowId;
use super::backlog::Backlog;
use super::breaker::BreakerState;
use super::deadlines::Deadlines;
use super::gauges::Gauges;
use super::lanes::{LaneConfig, LaneState, TenantNo};
use super::plan::{Plan, SinkTable};
use super::replayed::Replayed;
use super::scheduler::{Decision, Limits, Scheduler, Start};
use super::verdict::{DeadReason, Outcome, Verdict};
use crate::log_limited;
use crate::metrics::{CoreMetrics, DeliveryResult, Metric};
use crate::replay::ReplayId;

/// How often deadlines of attempts are looked at while some are in flight.
const SWEEP_MS: u64 = 200;
/// Rows taken up or brought forward before others get the core.
const SLICE_ROWS: u32 = 256;
/// How often the same kind of damage is said.
const SAME_LOG: Duration = Duration::from_secs(1);
/// When a hook that could not be read is tried again.
const UNREADABLE_AGAIN_MS: u64 = 30_000;

/// The dispatch of one shard. A clone is the same one.
pub struct Dispatch<B: Backlog> {
    inner: Rc<Inner<B>>,
}

impl<B: Backlog> Clone for Dispatch<B> {
    fn clone(&self) -> Self {
        Dispatch {
            inner: Rc::clone(&self.inner),
        }
    }
}

struct Inner<B: Backlog> {
    host: Rc<dyn Host>,
    backlog: B,
    metrics: Rc<CoreMetrics>,
    table: RefCell<Rc<dyn SinkTable>>,
    scheduler: RefCell<Scheduler>,
    /// By sink number; `None`: gone or not known.
    plans: RefCell<Vec<Option<Plan>>>,
    tenants: RefCell<HashMap<Box<[u8]>, TenantNo>>,
    /// Ranges of seqs whose rows are to be taken up. Neighbours are joined, so that it stays short
    /// however long nobody comes to it.
    durable: RefCell<VecDeque<(Seq, Seq)>>,
    deadlines: Deadlines,
    replayed: Replayed,
    is_woken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    is_stopping: Cell<bool>,
    transitions_seen: Cell<u64>,
}

impl<B: Backlog + 'static> Dispatch<B> {
    /// Dispatch over `backlog`. Call [`Dispatch::start`] to run it.
    pub fn new(
        host: Rc<dyn Host>,
        backlog: B,
        table: Rc<dyn SinkTable>,
        limits: Limits,
        metrics: Rc<CoreMetrics>,
    ) -> Dispatch<B> {
        let now_ms = host.mono_us() / 1_000;
        Dispatch {
            inner: Rc::new(Inner {
                host,
                backlog,
                metrics,
                table: RefCell::new(table),
                scheduler: RefCell::new(Scheduler::new(limits, now_ms)),
                plans: RefCell::default(),
                tenants: RefCell::default(),
                durable: RefCell::default(),
                deadlines: Deadlines::default(),
                replayed: Replayed::default(),
                is_woken: Cell::new(false),
                waker: RefCell::new(None),
                is_stopping: Cell::new(false),
                transitions_seen: Cell::new(0),
            }),
        }
    }

    /// Starts dispatching: first everything the store holds that is due, and from then on what
    /// [`Dispatch::durable`] names.
    pub fn start(&self) {
        let inner = Rc::clone(&self.inner);
        // What is there now is found by the scan; what comes later is told.
        let end = inner.backlog.next_seq();
        self.inner
            .host
            .spawn(TaskClass::Dispatch, Box::pin(run(inner, end)));
    }

    /// The hook is durable (or has rows again that are due, after a replay): deliver it. Cheap,
    /// called on the commit path; a hook without rows may be named too.
    pub fn durable(&self, seq: Seq) {
        let mut ranges = self.inner.durable.borrow_mut();
        match ranges.back_mut() {
            Some((_, last)) if last.next() == seq => *last = seq,
            _ => ranges.push_back((seq, seq)),
        }
        drop(ranges);
        self.inner.wake();
    }

    /// A replay made the hook's row of this sink due again: deliver it, and name the replay.
    pub fn replayed(&self, seq: Seq, sink: SinkNo, replay: ReplayId) {
        self.inner.replayed.note(seq, sink, replay);
        self.durable(seq);
    }

    /// Other sinks from now on (reload). Rows, breakers and attempts in flight stay.
    pub fn set_table(&self, table: Rc<dyn SinkTable>) {
        *self.inner.table.borrow_mut() = table;
        for sink in self.inner.backlog.sinks() {
            self.inner.learn(sink);
        }
        self.inner.wake();
    }

    /// Other bounds from now on (reload).
    pub fn set_limits(&self, limits: Limits) {
        self.inner.scheduler.borrow_mut().set_limits(limits);
        self.inner.wake();
    }

    /// Pauses or resumes a sink until the next reload; false when it is not configured.
    pub fn set_paused(&self, sink: SinkNo, paused: bool) -> bool {
        let is_known = self.inner.scheduler.borrow_mut().set_paused(sink, paused);
        self.inner.wake();
        is_known
    }

    /// Where a sink's breaker stands on this core.
    pub fn breaker(&self, sink: SinkNo) -> BreakerState {
        self.inner.scheduler.borrow().breaker(sink)
    }

    /// What a sink is today.
    pub fn sink_state(&self, sink: SinkNo) -> LaneState {
        if self.inner.scheduler.borrow().sink(sink) == LaneState::Unknown {
            self.inner.learn(sink);
        }
        self.inner.scheduler.borrow().sink(sink)
    }

    /// Rows of a sink that could start, and rows under way.
    pub fn sink_load(&self, sink: SinkNo) -> (u32, u32) {
        self.inner.scheduler.borrow().sink_load(sink)
    }

    /// Gauges of this shard, as of now. Walks the sinks: about once a second, not more.
    pub fn gauges(&self) -> Gauges {
        let scheduler = self.inner.scheduler.borrow();
        let backlog = &self.inner.backlog;
        let oldest = scheduler
            .heads()
            .filter_map(|(_, row)| backlog.due_since_ms(row))
            .min();
        Gauges {
            counts: scheduler.counts(),
            dead_count: backlog.dead_count(),
            oldest_due_age_ms: oldest
                .map_or(0, |since| self.inner.host.wall_ms().saturating_sub(since)),
        }
    }

    /// Starts no more deliveries from now on; those in flight go on.
    pub fn begin_stop(&self) {
        self.inner.is_stopping.set(true);
        self.inner.wake();
    }

    /// Starts no more deliveries, and completes when none is in flight or `patience` is over.
    /// True in the first case. What is left stays due in the store.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.begin_stop();
        let end_us = self.inner.host.mono_us() + patience.as_micros() as u64;
        loop {
            if self.inner.scheduler.borrow().inflight().rows == 0 {
                return true;
            }
            if self.inner.host.mono_us() >= end_us {
                return false;
            }
            self.inner.host.sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn run<B: Backlog + 'static>(inner: Rc<Inner<B>>, end: Seq) {
    let mut scan_from = Some(0);
    for sink in inner.backlog.sinks() {
        inner.learn(sink);
    }
    let mut timer: Option<(u64, LocalFuture<()>)> = None;
    let mut sweep_at = 0;
    while !inner.is_stopping.get() {
        inner.is_woken.set(false);
        let now_ms = inner.now_ms();
        if let Some(from) = scan_from {
            scan_from = inner.scan(from, end);
        }
        let mut has_more = scan_from.is_some();
        has_more |= inner.take_up();
        has_more |= inner.advance(now_ms);
        if now_ms >= sweep_at {
            inner.deadlines.sweep(now_ms);
            sweep_at = now_ms + SWEEP_MS;
        }
        has_more |= inner.start_workers();
        if has_more {
            inner.host.yield_now().await;
            continue;
        }
        let mut wake_at = inner.scheduler.borrow().next_wake_ms();
        if inner.scheduler.borrow().inflight().rows > 0 {
            wake_at = Some(wake_at.map_or(sweep_at, |at_ms| at_ms.min(sweep_at)));
        }
        inner.wait(&mut timer, wake_at).await;
    }
    // Deadlines go on while attempts end.
    while inner.scheduler.borrow().inflight().rows > 0 {
        inner.deadlines.sweep(inner.now_ms());
        inner.host.sleep(Duration::from_millis(SWEEP_MS)).await;
    }
}

async fn work<B: Backlog + 'static>(inner: Rc<Inner<B>>, first: Start) {
    let mut next = Some(first);
    while let Some(start) = next {
        let seq = inner.backlog.seq_of(start.row);
        let outcome = inner.attempt(&start, seq).await;
        inner.finish(start, seq, outcome);
        if inner.host.must_yield() {
            inner.host.yield_now().await;
        }
        next = inner.next_start();
        // The end of one may have made room for more than one.
        if next.is_some() && inner.start_workers() {
            inner.wake();
        }
    }
}

impl<B: Backlog + 'static> Inner<B> {
    fn now_ms(&self) -> u64 {
        self.host.mono_us() / 1_000
    }

    fn wake(&self) {
        if !self.is_woken.replace(true)
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    async fn wait(&self, timer: &mut Option<(u64, LocalFuture<()>)>, wake_at_ms: Option<u64>) {
        if let Some(wake_at_ms) = wake_at_ms
            && timer.as_ref().is_none_or(|(at_ms, _)| *at_ms > wake_at_ms)
        {
            let left_ms = wake_at_ms.saturating_sub(self.now_ms()).max(1);
            *timer = Some((wake_at_ms, self.host.sleep(Duration::from_millis(left_ms))));
        }
        poll_fn(|cx| {
            if self.is_woken.get() {
                return Poll::Ready(());
            }
            if let Some((_, sleep)) = timer
                && sleep.as_mut().poll(cx).is_ready()
            {
                *timer = None;
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Brings time forward by a slice; true when there is more to do.
    fn advance(&self, now_ms: u64) -> bool {
        let mut scheduler = self.scheduler.borrow_mut();
        let has_more = scheduler.advance(now_ms, &self.backlog, SLICE_ROWS);
        self.count_transitions(&scheduler);
        has_more
    }

    fn count_transitions(&self, scheduler: &Scheduler) {
        let now = scheduler.breaker_transitions();
        let seen = self.transitions_seen.replace(now);
        if now > seen {
            self.metrics
                .add(Metric::DispatchBreakerTransitions, now - seen);
        }
    }

    /// Says what a breaker did: at most once per open period and sink.
    fn tell_breaker(&self, sink: SinkNo, state: BreakerState, now_ms: u64) {
        let Some(name) = self.backlog.sink_name(sink) else {
            return;
        };
        let [source, sink] = [&name.source, &name.name].map(|part| String::from_utf8_lossy(part));
        let (source, sink) = (&*source, &*sink);
        match state {
            BreakerState::Open { until_ms } => {
                let for_ms = until_ms.saturating_sub(now_ms);
                tracing::warn!(source, sink, for_ms, "the sink fails; its deliveries wait");
            }
            BreakerState::Closed => tracing::info!(source, sink, "the sink works again"),
            BreakerState::HalfOpen | BreakerState::Probing => {}
        }
    }

    /// Looks a sink up in today's table.
    fn learn(&self, sink: SinkNo) {
        let Some(name) = self.backlog.sink_name(sink) else {
            return;
        };
        let plan = self.table.borrow().plan(&name);
        let state = match &plan {
            None => LaneState::Gone,
            Some(plan) => LaneState::Live(LaneConfig {
                tenant: self.tenant_no(&name.tenant),
                concurrency: plan.concurrency,
                retry: plan.retry,
                paused: plan.paused,
            }),
        };
        let mut plans = self.plans.borrow_mut();
        if plans.len() <= usize::from(sink.0) {
            plans.resize(usize::from(sink.0) + 1, None);
        }
        plans[usize::from(sink.0)] = plan;
        self.scheduler.borrow_mut().set_sink(sink, state);
    }

    fn tenant_no(&self, tenant: &[u8]) -> TenantNo {
        let mut tenants = self.tenants.borrow_mut();
        let next = TenantNo(tenants.len() as u32);
        match tenants.get(tenant) {
            Some(no) => *no,
            None => *tenants.entry(tenant.into()).or_insert(next),
        }
    }

    fn add(&self, row: RowId, sink: SinkNo, due_ms: u64) {
        if self.scheduler.borrow().sink(sink) == LaneState::Unknown {
            self.learn(sink);
        }
        let left_ms = due_ms.saturating_sub(self.host.wall_ms());
        let now_ms = self.now_ms();
        self.scheduler
            .borrow_mut()
            .add(row, left_ms, now_ms, &self.backlog);
    }

    fn scan(&self, from: u32, end: Seq) -> Option<u32> {
        let mut found = Vec::new();
        let next = self.backlog.scan(from, end, &mut |row, sink, due_ms| {
            found.push((row, sink, due_ms));
        });
        for (row, sink, due_ms) in found {
            self.add(row, sink, due_ms);
        }
        next
    }

    /// Takes up rows of hooks that became durable; true when some are left.
    fn take_up(&self) -> bool {
        let mut found = Vec::new();
        for _ in 0..SLICE_ROWS {
            let mut ranges = self.durable.borrow_mut();
            let Some((first, last)) = ranges.front_mut() else {
                break;
            };
            let seq = *first;
            *first = first.next();
            if *first > *last {
                ranges.pop_front();
            }
            drop(ranges);
            self.backlog.due_rows(seq, &mut |row, sink, due_ms| {
                found.push((row, sink, due_ms))
            });
            for (row, sink, due_ms) in found.drain(..) {
                self.add(row, sink, due_ms);
            }
        }
        !self.durable.borrow().is_empty()
    }

    /// Starts what may start, each on a worker; true when the slice was used up before that.
    fn start_workers(self: &Rc<Self>) -> bool {
        for _ in 0..SLICE_ROWS {
            let Some(start) = self.next_start() else {
                return false;
            };
            let worker = work(Rc::clone(self), start);
            self.host.spawn(TaskClass::Dispatch, Box::pin(worker));
        }
        true
    }

    /// The next delivery to make. Rows of sinks that are gone are buried on the way.
    fn next_start(&self) -> Option<Start> {
        for _ in 0..SLICE_ROWS {
            if self.is_stopping.get() {
                return None;
            }
            let decision = self.scheduler.borrow_mut().next(&self.backlog)?;
            match decision {
                Decision::Start(start) => return Some(start),
                Decision::SinkGone(row, sink) => {
                    let attempts = self.attempts_of(row);
                    self.bury(row, sink, attempts, DeadReason::SinkGone);
                }
            }
        }
        // A slice of burials: the rest in another turn.
        self.wake();
        None
    }

    fn attempts_of(&self, row: RowId) -> u32 {
        self.backlog.facts(row).map_or(0, |facts| facts.attempts)
    }

    /// One attempt. Whatever happens to it, the row is still due in the store.
    async fn attempt(&self, start: &Start, seq: Option<Seq>) -> Outcome {
        let began_us = self.host.mono_us();
        let plan = self
            .plans
            .borrow()
            .get(usize::from(start.sink.0))
            .cloned()
            .flatten();
        let (Some(plan), Some(seq)) = (plan, seq) else {
            return Outcome::NotMade { again_ms: 0 };
        };
        let deadline_ms = began_us / 1_000 + plan.timeout_ms;
        let bytes = match self
            .deadlines
            .bound(deadline_ms, self.backlog.read(seq))
            .await
        {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => return self.unreadable(seq, &error),
            None => {
                return Outcome::NotMade {
                    again_ms: UNREADABLE_AGAIN_MS,
                };
            }
        };
        let replay = self.replayed.of(seq, start.sink);
        let outcome = self
            .deadlines
            .bound(deadline_ms, plan.target.deliver(&bytes, replay))
            .await
            .unwrap_or(Outcome::Retry { after_ms: None });
        let result = match outcome {
            Outcome::Delivered => Some(DeliveryResult::Delivered),
            Outcome::Retry { .. } => Some(DeliveryResult::Retry),
            Outcome::Permanent => Some(DeliveryResult::Permanent),
            Outcome::NotMade { .. } => None,
        };
        if let Some(result) = result {
            self.metrics.delivery(plan.label, result);
            let took_us = self.host.mono_us().saturating_sub(began_us);
            self.metrics
                .observe(Metric::DispatchAttemptDuration, took_us);
        }
        outcome
    }

    fn unreadable(&self, seq: Seq, error: &ReadError) -> Outcome {
        self.metrics.inc(Metric::DispatchReadFailures);
        log_limited!(
            error,
            SAME_LOG,
            %seq,
            %error,
            "a hook cannot be read for delivery; it stays due"
        );
        Outcome::NotMade {
            again_ms: UNREADABLE_AGAIN_MS,
        }
    }

    fn finish(&self, start: Start, seq: Option<Seq>, outcome: Outcome) {
        let (row, sink, attempt) = (start.row, start.sink, start.attempt);
        let (now_ms, random) = (self.now_ms(), self.host.random());
        let mut scheduler = self.scheduler.borrow_mut();
        let before = scheduler.breaker(sink);
        let verdict = scheduler.finish(start, outcome, now_ms, random);
        let after = scheduler.breaker(sink);
        self.count_transitions(&scheduler);
        drop(scheduler);
        if before != after {
            self.tell_breaker(sink, after, now_ms);
        }
        let seq_now = self.backlog.seq_of(row);
        if seq_now != seq {
            if let Some(seq) = seq {
                self.replayed.forget(seq, sink);
            }
            // IMPORTANT: the row was finished from elsewhere and its number names another hook by
            // now: what became of the first says nothing of that one, which is to be taken up.
            if let Some(other) = seq_now {
                self.durable.borrow_mut().push_back((other, other));
            }
            self.wake();
            return;
        }
        match verdict {
            Verdict::Delivered => {
                self.write(row, sink, attempt, DeliveryState::Delivered, 0, 0);
            }
            Verdict::RetryIn { attempts, delay_ms } => {
                self.write(row, sink, attempts, DeliveryState::Due, delay_ms, 0);
                self.wake();
            }
            Verdict::Dead { attempts, reason } => self.bury(row, sink, attempts, reason),
            Verdict::Unchanged => self.wake(),
        }
    }

    fn bury(&self, row: RowId, sink: SinkNo, attempts: u32, reason: DeadReason) {
        self.metrics.inc(Metric::DispatchDeadLettered);
        self.write(row, sink, attempts, DeliveryState::Dead, 0, reason.code());
    }

    fn write(
        &self,
        row: RowId,
        sink: SinkNo,
        attempts: u32,
        state: DeliveryState,
        delay_ms: u64,
        reason: u8,
    ) {
        let Some(seq) = self.backlog.seq_of(row) else {
            return;
        };
        if state != DeliveryState::Due {
            self.replayed.forget(seq, sink);
        }
        self.backlog.write(Delivery {
            seq,
            sink,
            attempts: attempts.min(u32::from(u16::MAX)) as u16,
            due_ms: self.host.wall_ms().saturating_add(delay_ms),
            state,
            reason,
        });
    }
}
