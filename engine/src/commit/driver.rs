//! Obeys the [`Committer`]: builds groups, hands them to the store (and the log), and passes on
//! what they settle as. One task per shard, on the shard's core.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ankusa_wal::{
    Disk, GroupBuilder, Host, LogOffset, Lsn, Outcome, Record, Refusal, Seq, Store, TaskClass,
    mutations,
};

use super::build::{Build, Marks};
pub use super::log_half::{Admitted, LogAnswer, LogHalf, NotTaken};
use super::own::OwnGroups;
pub use super::own::Written;
use super::{Carried, Committer, Item, QueueLimits, Taken, Verdict};

/// Records that no one waits for (delivery outcomes, marks) start a group of their own after
/// this, or when there are [`QUEUED_RECORDS`] of them.
const QUEUED_LINGER: Duration = Duration::from_millis(10);
const QUEUED_RECORDS: usize = 1024;

/// Answers of the log taken before others get the core: each may mean a copy of its record.
const ANSWERS_MAX: usize = 256;

/// With so many bytes waiting the next group begins while as many as may be are in flight.
const AHEAD_BYTES: usize = 16 << 10;

/// How often deadlines are looked at.
const SWEEP: Duration = Duration::from_millis(100);

/// What a shard's commit tells the rest of the core.
pub trait Listener {
    /// These hooks may be delivered from now on.
    fn durable(&self, seq: Seq);

    /// A group was handed to the store.
    fn group_started(&self, records: usize, bytes: usize);

    /// A group settled after so long.
    fn group_settled(&self, outcome: Outcome, micros: u64);
}

/// What became of an attempt to start a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Started,
    /// The store has no room for it yet.
    NoRoom,
    /// There was nothing to write.
    Nothing,
}

/// Ceilings of one group.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits {
    /// Most bytes.
    pub bytes_max: usize,
    /// Most records.
    pub records_max: usize,
}

/// The commit of one shard. A clone is the same commit.
pub struct Commit<D: Disk> {
    inner: Rc<Inner<D>>,
}

impl<D: Disk> Clone for Commit<D> {
    fn clone(&self) -> Self {
        Commit {
            inner: Rc::clone(&self.inner),
        }
    }
}

struct Inner<D: Disk> {
    store: Store<D>,
    host: Rc<dyn Host>,
    committer: RefCell<Committer>,
    own: RefCell<OwnGroups<D>>,
    /// A group of hooks that is not submitted yet.
    build: RefCell<Option<Build<D>>>,
    /// Bytes of the last group of hooks: what the next one is planned for when it begins early.
    last_bytes: Cell<usize>,
    group: GroupLimits,
    log: Option<Rc<dyn LogHalf>>,
    listener: Rc<dyn Listener>,
    waker: RefCell<Option<Waker>>,
    started: RefCell<std::collections::VecDeque<(Lsn, u64)>>,
    lingering: Cell<bool>,
    linger_over: Cell<bool>,
    closing: Cell<bool>,
    /// The marks are to be written although nothing else is.
    marks_due: Cell<bool>,
}

impl<D: Disk> Commit<D> {
    /// The commit over `store`. Call [`Commit::start`] to run it.
    pub fn new(
        store: Store<D>,
        host: Rc<dyn Host>,
        queue: QueueLimits,
        group: GroupLimits,
        log: Option<Rc<dyn LogHalf>>,
        listener: Rc<dyn Listener>,
    ) -> Commit<D> {
        Commit {
            inner: Rc::new(Inner {
                store,
                host,
                committer: RefCell::new(Committer::new(queue)),
                own: RefCell::default(),
                build: RefCell::new(None),
                last_bytes: Cell::new(0),
                group,
                log,
                listener,
                waker: RefCell::new(None),
                started: RefCell::default(),
                lingering: Cell::new(false),
                linger_over: Cell::new(false),
                closing: Cell::new(false),
                marks_due: Cell::new(false),
            }),
        }
    }

    /// Starts the driving task and the deadline sweep.
    pub fn start(&self) {
        let host = &self.inner.host;
        host.spawn(TaskClass::Commit, Box::pin(run(Rc::clone(&self.inner))));
        host.spawn(TaskClass::Commit, Box::pin(sweep(Rc::clone(&self.inner))));
    }

    /// Whether a request may be taken now; asked before anything is done for it.
    pub fn admit(&self) -> Result<(), Refusal> {
        if self.inner.closing.get() {
            return Err(Refusal::Closed);
        }
        self.inner.store.admit()
    }

    /// Queues a hook for the next group; its request was whole at `since_us`. It is settled exactly
    /// once after `Ok`, and never after an `Err`: then nothing was written.
    pub fn submit(&self, item: Rc<dyn Item>, since_us: u64) -> Result<(), NotTaken> {
        let inner = &self.inner;
        let bytes = item.record_bytes();
        let log = inner.log.as_ref().filter(|_| item.wants_log());
        let admitted = match log {
            None => None,
            Some(log) => {
                let exact = || exact_bytes(item.as_ref());
                Some((log, log.admit(bytes, &exact).map_err(NotTaken::Intake)?))
            }
        };
        let offered = inner
            .committer
            .borrow_mut()
            .offer(item, since_us, admitted.is_some());
        if offered.is_err() {
            if let Some((log, admitted)) = admitted {
                log.unadmit(bytes, admitted);
            }
            return Err(NotTaken::Queue);
        }
        inner.wake();
        Ok(())
    }

    /// The log half, where the mode has one.
    pub fn log(&self) -> Option<&Rc<dyn LogHalf>> {
        self.inner.log.as_ref()
    }

    /// Has the marks written with the next group, or in one of their own, where they moved.
    pub fn write_marks(&self) {
        self.inner.marks_due.set(true);
        self.inner.wake();
    }

    /// Completes when the marks are durable as they stand; false when that was not so `within` that
    /// time.
    pub async fn settle_marks(&self, within: Duration) -> bool {
        let inner = &self.inner;
        let end_us = inner.host.mono_us() + within.as_micros() as u64;
        while inner.have_marks_moved() || inner.store.durable_lsn() < inner.store.applied_lsn() {
            if inner.host.mono_us() > end_us {
                return false;
            }
            self.write_marks();
            inner.host.sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Tells the driver that records were put in the store's queue.
    pub fn nudge(&self) {
        if !self.inner.lingering.get() {
            self.inner.wake();
        }
    }

    /// Writes a group of the caller's own, in its turn: `encode` puts records into the builder in
    /// the slice in which the group is begun, when the state may be looked at, and the group is
    /// applied at once. `bytes` is what it means to put in, `first_bytes` what its first record
    /// takes. Names of sinks and other queued records may go ahead: it must ask
    /// [`GroupBuilder::fits`] before each record and keep what does not fit for another group. An
    /// `encode` that puts nothing in costs no write, and is [`Outcome::Durable`].
    ///
    /// [`Outcome::Fenced`]: nothing of its hooks is in the store (other records of it are written
    /// again, offsets and watermarks excepted); also when the store is fenced or closed already.
    /// Hooks of a durable group are delivered from then on. Nothing goes to the log.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the writing.
    pub fn write_group(
        &self,
        bytes: usize,
        first_bytes: usize,
        encode: impl FnOnce(&mut GroupBuilder<D>) + 'static,
    ) -> Written {
        let encode = Box::new(encode);
        let written = self.inner.own.borrow_mut().push(bytes, first_bytes, encode);
        self.inner.wake();
        written
    }

    /// Hooks waiting, their bytes, groups in flight.
    pub fn depth(&self) -> (usize, usize, usize) {
        let committer = self.inner.committer.borrow();
        (
            committer.waiting(),
            committer.waiting_bytes(),
            committer.inflight(),
        )
    }

    /// The store.
    pub fn store(&self) -> &Store<D> {
        &self.inner.store
    }

    /// Writes and syncs a record that changes nothing. False when it was not durable `within` that
    /// time, or the store was fenced meanwhile.
    pub async fn probe(&self, within: Duration) -> bool {
        let inner = &self.inner;
        let (fences, started_us) = (inner.store.stats().fences, inner.host.mono_us());
        let applied = inner.store.applied_lsn();
        let next = inner.store.state().next_seq();
        inner.store.enqueue(Record::NextSeq(next));
        inner.linger_over.set(true);
        inner.wake();
        while inner.store.durable_lsn() <= applied {
            let waited_us = inner.host.mono_us().saturating_sub(started_us);
            if u128::from(waited_us) > within.as_micros() || inner.store.stats().fences != fences {
                return false;
            }
            inner.host.sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// True when every record that was in the store's queue is durable, false when that was not so
    /// `within` that time.
    pub async fn flush(&self, within: Duration) -> bool {
        let inner = &self.inner;
        let started_us = inner.host.mono_us();
        while inner.store.queued() > 0
            || inner.build.borrow().is_some()
            || inner.store.durable_lsn() < inner.store.applied_lsn()
        {
            let waited_us = inner.host.mono_us().saturating_sub(started_us);
            if u128::from(waited_us) > within.as_micros() {
                return false;
            }
            inner.linger_over.set(true);
            inner.wake();
            inner.host.sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Takes no more, and completes when nothing waits and nothing is in flight. The store is
    /// not closed.
    pub async fn drain(&self) {
        self.inner.closing.set(true);
        self.inner.wake();
        loop {
            let idle = {
                let committer = self.inner.committer.borrow();
                let own = self.inner.own.borrow();
                let is_built = self.inner.build.borrow().is_some();
                committer.waiting() == 0 && committer.inflight() == 0 && own.is_idle() && !is_built
            };
            if idle {
                return;
            }
            self.inner.host.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What the hook's envelope takes, exactly.
fn exact_bytes(item: &dyn Item) -> usize {
    let mut bytes = 0;
    item.draft(&mut |draft| bytes = ankusa_wal::format::envelope::encoded_len(draft));
    bytes
}

async fn run<D: Disk>(inner: Rc<Inner<D>>) {
    poll_fn(|cx| inner.poll(cx)).await
}

/// Upper bound of the bytes that a mark takes in a group.
fn mark_bytes(mark: &Record) -> usize {
    match mark {
        Record::Watermark(mark) => 128 + 8 * mark.exceptions.len(),
        _ => 128,
    }
}

async fn sweep<D: Disk>(inner: Rc<Inner<D>>) {
    loop {
        inner.host.sleep(SWEEP).await;
        let now_us = inner.host.mono_us();
        let mut committer = inner.committer.borrow_mut();
        committer.expire(now_us);
        if let Some(build) = &mut *inner.build.borrow_mut() {
            committer.expire_taken(&mut build.taken, now_us);
        }
        if !inner.store.is_fenced() {
            committer.cut();
        }
        drop(committer);
        inner.give_back();
    }
}

impl<D: Disk> Inner<D> {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn poll(self: &Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        self.settle_local(cx);
        self.settle_log(cx);
        if self.store.is_fenced() {
            // Nothing of what waits was issued: it is refused, not held back.
            let mut committer = self.committer.borrow_mut();
            committer.refuse_waiting(Verdict::StoreUnavailable);
            drop(committer);
            self.own.borrow_mut().refuse_waiting();
        } else {
            self.committer.borrow_mut().cut();
        }
        if self.build.borrow().is_some() {
            self.go_on(cx);
            self.give_back();
            return Poll::Pending;
        }
        self.give_back();
        let others = self.wants_group();
        let is_own = self.own.borrow().is_due(others);
        if is_own || others {
            self.begin(is_own, cx);
        } else {
            self.linger();
        }
        Poll::Pending
    }

    fn settle_local(&self, cx: &mut Context<'_>) {
        while let Poll::Ready(settled) = self.store.poll_settled(cx) {
            mutations::point("commit.settled");
            let now_us = self.host.mono_us();
            let mut started = self.started.borrow_mut();
            while let Some((lsn, at_us)) = started.front().copied() {
                if lsn > settled.lsn {
                    break;
                }
                started.pop_front();
                if lsn == settled.lsn {
                    self.listener
                        .group_settled(settled.outcome, now_us.saturating_sub(at_us));
                }
            }
            drop(started);
            // A group of a caller's own is none of the committer's; it only keeps the order.
            let mut own = self.own.borrow_mut();
            own.settled(settled.lsn, settled.outcome, &mut |seq| {
                self.listener.durable(seq)
            });
            drop(own);
            self.committer.borrow_mut().local(
                settled.lsn,
                settled.outcome,
                &mut |seq| self.listener.durable(seq),
                &mut |carried| self.carry(carried),
            );
        }
    }

    fn settle_log(&self, cx: &mut Context<'_>) {
        let Some(log) = &self.log else {
            return;
        };
        for _ in 0..ANSWERS_MAX {
            let Poll::Ready(answer) = log.poll_answer(cx) else {
                return;
            };
            let mut committer = self.committer.borrow_mut();
            let carry = &mut |carried: &Carried<'_>| self.carry(carried);
            let in_flight = committer.log(answer.seq, answer.outcome(), carry);
            drop(committer);
            log.answered(&answer, in_flight);
        }
        cx.waker().wake_by_ref();
    }

    fn carry(&self, carried: &Carried<'_>) {
        if let Some(log) = &self.log {
            log.carry(carried);
        }
    }

    /// What was admitted to the log and is settled for good no longer counts there.
    fn give_back(&self) {
        if let Some(log) = &self.log {
            let (records, bytes) = self.committer.borrow_mut().take_freed();
            if records > 0 {
                log.free(records, bytes);
            }
        }
    }

    /// The marks that moved. `taken`: the hooks of a group that is not handed over yet; nothing
    /// says anything of them.
    fn marks(&self, taken: Option<&Taken>) -> [Option<Record>; 2] {
        let Some(log) = &self.log else {
            return [None, None];
        };
        let open = self.committer.borrow_mut().open();
        let first = taken.and_then(|taken| taken.seqs().next());
        let next_seq = first.unwrap_or_else(|| self.store.next_seq());
        log.marks(&self.store.state(), open, next_seq)
    }

    fn have_marks_moved(&self) -> bool {
        let build = self.build.borrow();
        let marks = self.marks(build.as_ref().map(|build| &build.taken));
        marks.iter().any(Option::is_some)
    }

    fn wants_group(&self) -> bool {
        if self.committer.borrow().waiting() > 0 || self.marks_due.get() {
            return true;
        }
        let queued = self.store.queued();
        queued >= QUEUED_RECORDS || (queued > 0 && (self.linger_over.get() || self.closing.get()))
    }

    /// Arms the linger for records that no one waits for.
    fn linger(self: &Rc<Self>) {
        if self.store.queued() == 0 || self.lingering.replace(true) {
            return;
        }
        let inner = Rc::clone(self);
        let sleep = self.host.sleep(QUEUED_LINGER);
        self.host.spawn(
            TaskClass::Commit,
            Box::pin(async move {
                sleep.await;
                inner.lingering.set(false);
                inner.linger_over.set(true);
                inner.wake();
            }),
        );
    }

    /// Begins the next group, one of a caller's own or one of hooks.
    fn begin(&self, is_own: bool, cx: &mut Context<'_>) {
        let is_ready = self.store.poll_ready(cx).is_ready();
        let begun = match (is_ready, is_own) {
            (true, true) => self.start_own(),
            (true, false) => self.begin_group(false),
            (false, true) => return,
            // NOTE: whatever comes of it, this task is woken when there is room.
            (false, false) if self.begin_group(true) == Begun::Started => Begun::Started,
            (false, false) => return,
        };
        match begun {
            Begun::Started if is_own => cx.waker().wake_by_ref(),
            Begun::Started => self.go_on(cx),
            // NOTE: the store knows only now how much room was wanted: ask again, or nobody would
            // wake this task when there is as much.
            Begun::NoRoom if self.store.poll_ready(cx).is_ready() => cx.waker().wake_by_ref(),
            Begun::NoRoom => {}
            Begun::Nothing if is_own => {}
            Begun::Nothing => self.own.borrow_mut().others_went(),
        }
    }

    fn start_own(&self) -> Begun {
        let Some((bytes, first)) = self.own.borrow().next_bytes() else {
            return Begun::Nothing;
        };
        let Some(mut builder) = self.store.try_begin_with(bytes, first) else {
            if self.store.admit() == Err(Refusal::Closed) {
                self.own.borrow_mut().refuse_waiting();
            }
            return Begun::NoRoom;
        };
        let Some(waiting) = self.own.borrow_mut().take() else {
            return Begun::Nothing;
        };
        let ticket = waiting.encode(&mut builder);
        let (records, bytes) = (builder.records(), builder.bytes());
        if records == 0 {
            ticket.nothing();
            return Begun::Started;
        }
        self.linger_over.set(false);
        let now_us = self.host.mono_us();
        let lsn = self.store.submit(builder);
        self.own.borrow_mut().started(lsn, ticket);
        self.started.borrow_mut().push_back((lsn, now_us));
        self.listener.group_started(records, bytes);
        Begun::Started
    }

    /// Begins a group of hooks; `ahead`: before there is room for it in flight.
    fn begin_group(&self, ahead: bool) -> Begun {
        if ahead && self.committer.borrow().waiting_bytes() < AHEAD_BYTES {
            return Begun::NoRoom;
        }
        let moved = self.marks(None);
        let marks = Marks {
            records: moved.iter().flatten().count(),
            bytes: moved.iter().flatten().map(mark_bytes).sum(),
            is_due: self.marks_due.replace(false),
        };
        let mut committer = self.committer.borrow_mut();
        let is_alone = marks.is_due && committer.waiting() == 0 && self.store.queued() == 0;
        if is_alone && marks.records == 0 {
            return Begun::Nothing;
        }
        let bytes_max = self.group.bytes_max;
        let planned = committer.next_group_bytes(bytes_max, self.group.records_max);
        let first = committer.next_bytes().unwrap_or(0);
        let builder = if ahead {
            // More will come before its turn.
            let planned = planned.max(self.last_bytes.get().min(bytes_max));
            self.store.try_begin_ahead(planned, first)
        } else {
            self.store.try_begin_with(planned, first)
        };
        let Some(builder) = builder else {
            self.marks_due.set(marks.is_due);
            return Begun::NoRoom;
        };
        self.linger_over.set(false);
        let build = Build::new(builder, committer.begin(), marks);
        *self.build.borrow_mut() = Some(build);
        Begun::Started
    }

    /// Fills the group that is being built and submits it once it may go.
    fn go_on(&self, cx: &mut Context<'_>) {
        let Some(mut build) = self.build.take() else {
            return;
        };
        let may_go = self.store.poll_submit(&build.builder, cx);
        if may_go == Poll::Ready(false) {
            self.give_up(build);
            cx.waker().wake_by_ref();
            return;
        }
        let is_filled = {
            let mut committer = self.committer.borrow_mut();
            let records_max = self.group.records_max;
            build.fill(&mut committer, &self.store, records_max, &*self.host)
        };
        if is_filled {
            self.mutate(&mut build.taken);
        }
        if is_filled && may_go.is_ready() {
            self.submit_group(build);
        } else {
            *self.build.borrow_mut() = Some(build);
            if is_filled {
                // Woken when there is room, and when more hooks wait.
                return;
            }
        }
        // One group, or one slice of it, then let others run.
        cx.waker().wake_by_ref();
    }

    /// A fence overtook the group: its own records go back into the store's queue, its hooks were
    /// never issued.
    fn give_up(&self, build: Build<D>) {
        if build.marks.is_due {
            self.marks_due.set(true);
        }
        drop(build.builder);
        let mut committer = self.committer.borrow_mut();
        committer.refuse_taken(build.taken, Verdict::StoreUnavailable);
    }

    fn submit_group(&self, build: Build<D>) {
        let Build {
            mut builder, taken, ..
        } = build;
        // IMPORTANT: as they are in this slice, and before its own hooks: until now the log may
        // have been lost, and what it had confirmed with it.
        for mark in self.marks(Some(&taken)).into_iter().flatten() {
            if builder.fits(mark_bytes(&mark)) {
                builder.record(mark);
            }
        }
        let (records, bytes) = (builder.records(), builder.bytes());
        self.last_bytes.set(bytes);
        // Both halves start now, side by side: the log's from the same bytes as the store's.
        let floor = self.publish(&builder, &taken);
        let now_us = self.host.mono_us();
        mutations::point("commit.built");
        let lsn = self.store.submit(builder);
        mutations::point("commit.submitted");
        let mut committer = self.committer.borrow_mut();
        committer.started(lsn, taken, floor, now_us);
        drop(committer);
        self.started.borrow_mut().push_back((lsn, now_us));
        self.listener.group_started(records, bytes);
        self.own.borrow_mut().others_went();
    }

    fn publish(&self, builder: &GroupBuilder<D>, taken: &Taken) -> LogOffset {
        let Some(log) = self.log.as_ref().filter(|_| !taken.is_empty()) else {
            return LogOffset(u64::MAX);
        };
        let newest = taken.seqs().last().unwrap_or_default();
        let incarnation = self.store.state().meta().incarnation_of(newest);
        let hooks = builder.hooks().zip(taken.logged());
        let mut records = hooks.filter(|(_, logged)| *logged).map(|(hook, _)| hook);
        log.publish(incarnation.unwrap_or(0), builder.bytes(), &mut records)
    }

    #[cfg(feature = "mutations")]
    fn mutate(&self, taken: &mut Taken) {
        if mutations::is("ack_before_write") {
            taken.lie();
        }
    }

    #[cfg(not(feature = "mutations"))]
    fn mutate(&self, _taken: &mut Taken) {}
}
