//! What the connections of one core share: clock, receive slab, send scratch, gauges, and the
//! table the deadline sweep walks. Runs on its reactor core; every borrow is within one poll.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;

use super::clock::Clock;
use super::{Gauges, Limits, Refusal};

/// Receive memory shared by the connections of a core. A read lands at its front and what came
/// is split off; requests lie in it back to back, and it is freed when the last of them is.
const SLAB_BYTES: usize = 64 * 1024;
/// A new slab is begun when less than this is left.
const SLAB_LEFT_MIN: usize = 8 * 1024;
/// How long a stopping server waits for clients to end their side after their last answer.
const STOPPING_DRAIN_MS: u64 = 500;

pub(super) struct Core {
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) gauges: Arc<Gauges>,
    slab: RefCell<BytesMut>,
    /// Where answers are put together; empty between polls.
    pub(super) out: RefCell<Vec<u8>>,
    slots: RefCell<Slots>,
    stopping: Cell<bool>,
    open: Cell<usize>,
    held: Cell<u64>,
    phase_serial: Cell<u64>,
    /// The accept loop, waiting for a connection to end.
    accepting: Cell<Option<Waker>>,
    /// Whoever stops the server, waiting for the last connection to end.
    stopper: Cell<Option<Waker>>,
}

/// What a connection is doing, hence which deadline it is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No byte of the next request has come.
    Idle,
    Head,
    Body,
    /// The handler runs: no deadline here.
    Handling,
    Writing,
    Draining,
}

/// What the sweep told a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    None,
    /// Its phase's deadline passed.
    Expired,
    /// Close if still waiting for the client.
    Close,
}

/// One connection in the table.
pub(super) struct Slot {
    phase: Cell<Phase>,
    deadline_ms: Cell<u64>,
    /// Orders connections by when they entered their phase.
    phase_serial: Cell<u64>,
    body_start_ms: Cell<u64>,
    body_bytes: Cell<u64>,
    signal: Cell<Signal>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Slots {
    entries: Vec<Option<Rc<Slot>>>,
    free: Vec<usize>,
}

impl Slot {
    pub(super) fn signal(&self) -> Signal {
        self.signal.get()
    }

    /// Remembers whom to wake at a signal. The same task each time, so seldom a clone.
    pub(super) fn park(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    pub(super) fn note_body_bytes(&self, n: usize) {
        self.body_bytes.set(self.body_bytes.get() + n as u64);
    }

    fn tell(&self, signal: Signal) {
        self.signal.set(signal);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn is_late(&self, now_ms: u64, limits: &Limits) -> bool {
        if self.phase.get() == Phase::Handling || self.signal.get() == Signal::Expired {
            return false;
        }
        if now_ms >= self.deadline_ms.get() {
            return true;
        }
        let body_ms = now_ms.saturating_sub(self.body_start_ms.get());
        self.phase.get() == Phase::Body
            && body_ms > limits.body_rate_grace_ms
            && self.body_bytes.get() < limits.body_rate_min.saturating_mul(body_ms) / 1000
    }
}

impl Core {
    pub(super) fn new(limits: Limits) -> Core {
        Core {
            limits,
            clock: Clock::new(),
            gauges: Arc::default(),
            slab: RefCell::new(BytesMut::new()),
            out: RefCell::new(Vec::with_capacity(4096)),
            slots: RefCell::default(),
            stopping: Cell::new(false),
            open: Cell::new(0),
            held: Cell::new(0),
            phase_serial: Cell::new(0),
            accepting: Cell::new(None),
            stopper: Cell::new(None),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Reads with `read` into the shared slab and splits off what came.
    pub(super) fn read_slab<E>(
        &self,
        read: impl FnOnce(&mut [u8]) -> Poll<Result<usize, E>>,
    ) -> Poll<Result<BytesMut, E>> {
        let mut slab = self.slab.borrow_mut();
        if slab.len() < SLAB_LEFT_MIN {
            *slab = BytesMut::zeroed(SLAB_BYTES);
        }
        read(&mut slab).map_ok(|n| slab.split_to(n))
    }

    /// Reads with `read` into the shared slab and forgets what came.
    pub(super) fn read_away<E>(
        &self,
        read: impl FnOnce(&mut [u8]) -> Poll<Result<usize, E>>,
    ) -> Poll<Result<usize, E>> {
        let mut slab = self.slab.borrow_mut();
        if slab.len() < SLAB_LEFT_MIN {
            *slab = BytesMut::zeroed(SLAB_BYTES);
        }
        read(&mut slab)
    }

    /// Enters a connection into the table.
    pub(super) fn open(self: &Rc<Self>) -> Entry {
        let slot = Rc::new(Slot {
            phase: Cell::new(Phase::Idle),
            deadline_ms: Cell::new(self.clock.now_ms() + self.limits.first_byte_ms),
            phase_serial: Cell::new(self.next_phase_serial()),
            body_start_ms: Cell::new(0),
            body_bytes: Cell::new(0),
            signal: Cell::new(Signal::None),
            waker: RefCell::new(None),
        });
        let mut slots = self.slots.borrow_mut();
        let at = slots.free.pop().unwrap_or_else(|| {
            slots.entries.push(None);
            slots.entries.len() - 1
        });
        slots.entries[at] = Some(Rc::clone(&slot));
        self.open.set(self.open.get() + 1);
        self.gauges.connections_open.add(1);
        self.gauges.connections_accepted.add(1);
        Entry {
            core: Rc::clone(self),
            slot,
            at,
            held: Held::new(self),
        }
    }

    /// Moves the clock and signals every connection whose deadline passed.
    pub(super) fn sweep(&self) {
        self.clock.tick();
        let now_ms = self.clock.now_ms();
        for slot in self.slots.borrow().entries.iter().flatten() {
            if slot.is_late(now_ms, &self.limits) {
                slot.tell(Signal::Expired);
            }
        }
    }

    /// No new request is begun from here on; idle connections close.
    pub(super) fn begin_stop(&self) {
        self.stopping.set(true);
        let drained_ms = self.clock.now_ms() + STOPPING_DRAIN_MS;
        for slot in self.slots.borrow().entries.iter().flatten() {
            match slot.phase.get() {
                Phase::Idle | Phase::Handling => slot.tell(Signal::Close),
                Phase::Draining => slot.deadline_ms.set(slot.deadline_ms.get().min(drained_ms)),
                Phase::Head | Phase::Body | Phase::Writing => {}
            }
        }
        if let Some(waker) = self.accepting.take() {
            waker.wake();
        }
    }

    /// Ready when another connection may be opened or the server stops. At the ceiling it asks some
    /// that only wait to close.
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if self.open.get() < self.limits.connections_max || self.stopping.get() {
            return Poll::Ready(());
        }
        self.evict();
        self.accepting.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Asks connections that wait for their client to close: those already answered, then those
    /// that have waited longest for a request or the rest of a head.
    fn evict(&self) {
        let slots = self.slots.borrow();
        let mut waiting: Vec<(bool, u64, &Rc<Slot>)> = slots
            .entries
            .iter()
            .flatten()
            .filter(|slot| slot.signal.get() == Signal::None)
            .filter_map(|slot| match slot.phase.get() {
                Phase::Draining => Some((false, slot.phase_serial.get(), slot)),
                Phase::Idle | Phase::Head => Some((true, slot.phase_serial.get(), slot)),
                Phase::Body | Phase::Handling | Phase::Writing => None,
            })
            .collect();
        waiting.sort_unstable_by_key(|(unanswered, serial, _)| (*unanswered, *serial));
        for (_, _, slot) in waiting.iter().take(self.limits.connections_max / 64 + 1) {
            slot.tell(Signal::Close);
            self.gauges.connections_evicted.add(1);
        }
    }

    /// Ready when no connection is open.
    pub(super) fn poll_empty(&self, cx: &Context<'_>) -> Poll<()> {
        if self.open.get() == 0 {
            return Poll::Ready(());
        }
        self.stopper.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    pub(super) fn count_refusal(&self, refusal: Refusal) {
        let gauges = &self.gauges;
        match refusal {
            Refusal::Malformed(_) => gauges.refused_malformed.add(1),
            Refusal::HeadTooLarge => gauges.refused_head_too_large.add(1),
            Refusal::BodyTooLarge { .. } => gauges.refused_body_too_large.add(1),
            Refusal::Timeout => gauges.refused_timeout.add(1),
            Refusal::Overload => gauges.refused_overload.add(1),
            Refusal::BodyCut => gauges.bodies_cut.add(1),
        }
    }

    fn next_phase_serial(&self) -> u64 {
        self.phase_serial.set(self.phase_serial.get() + 1);
        self.phase_serial.get()
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.get()
    }
}

/// A connection's place in the table; leaving it frees what the connection held.
pub(super) struct Entry {
    core: Rc<Core>,
    pub(super) slot: Rc<Slot>,
    at: usize,
    held: Held,
}

impl Entry {
    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    pub(super) fn enter(&self, phase: Phase) {
        let limits = &self.core.limits;
        let now_ms = self.core.clock.now_ms();
        let allowed_ms = match phase {
            Phase::Idle => limits.idle_ms,
            Phase::Head => limits.head_ms,
            Phase::Body => limits.body_ms,
            Phase::Handling => 0,
            Phase::Writing => limits.write_ms,
            Phase::Draining if self.core.stopping.get() => limits.drain_ms.min(STOPPING_DRAIN_MS),
            Phase::Draining => limits.drain_ms,
        };
        self.slot.phase.set(phase);
        self.slot.signal.set(Signal::None);
        self.slot.deadline_ms.set(now_ms + allowed_ms);
        self.slot.phase_serial.set(self.core.next_phase_serial());
        if phase == Phase::Body {
            self.slot.body_start_ms.set(now_ms);
            self.slot.body_bytes.set(0);
        }
    }

    /// Waits for the first byte of a new connection: idle, but not for as long.
    pub(super) fn enter_first(&self) {
        self.enter(Phase::Idle);
        let first_ms = self.core.clock.now_ms() + self.core.limits.first_byte_ms;
        self.slot.deadline_ms.set(first_ms);
    }

    /// Counts `bytes` of body against the core's ceiling; false: there is no room.
    pub(super) fn hold(&mut self, bytes: u64) -> bool {
        self.held.add(bytes)
    }

    /// Gives back what [`Entry::hold`] counted.
    pub(super) fn release(&mut self) {
        self.held.release();
    }
}

/// Bytes of bodies counted against their core's ceiling, given back when dropped.
pub(super) struct Held {
    core: Rc<Core>,
    bytes: u64,
}

impl Held {
    pub(super) fn new(core: &Rc<Core>) -> Held {
        Held {
            core: Rc::clone(core),
            bytes: 0,
        }
    }

    /// Counts `bytes` more; false: there is no room.
    pub(super) fn add(&mut self, bytes: u64) -> bool {
        let held = self.core.held.get().saturating_add(bytes);
        if held > self.core.limits.body_bytes_held_max {
            return false;
        }
        self.core.held.set(held);
        self.core.gauges.body_bytes_held.add(bytes);
        self.bytes += bytes;
        true
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.core.held.set(self.core.held.get() - bytes);
        self.core.gauges.body_bytes_held.sub(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut slots = self.core.slots.borrow_mut();
        slots.entries[self.at] = None;
        slots.free.push(self.at);
        drop(slots);
        self.core.open.set(self.core.open.get() - 1);
        self.core.gauges.connections_open.sub(1);
        if let Some(waker) = self.core.accepting.take() {
            waker.wake();
        }
        if self.core.open.get() == 0
            && let Some(waker) = self.core.stopper.take()
        {
            waker.wake();
        }
    }
}
