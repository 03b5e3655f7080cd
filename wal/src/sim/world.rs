//! The executor, the timers and the clock of a simulated world.
//!
//! Invariant: nothing of a task is polled or dropped while an inner cell is borrowed, so a task
//! may spawn, sleep and wake from anywhere. Runs in tests and drills only.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::rng::SimRng;
use crate::host::{Host, LocalFuture, TaskClass};

/// Virtual wall clock at the start: 2026-01-01T00:00:00Z.
const WALL_START_MS: u64 = 1_767_225_600_000;
/// Steps after which a run counts as a livelock.
const STEPS_MAX: u64 = 200_000_000;
const ROOT: usize = usize::MAX;

/// Why a run could not reach what it was to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// Nothing can run, no timer is set, and tasks still wait.
    #[error("seed {seed}: deadlock, {blocked} tasks wait and nothing can wake them")]
    Deadlock {
        /// The world's seed.
        seed: u64,
        /// Tasks that wait.
        blocked: usize,
    },
    /// Steps went on without reaching it.
    #[error("seed {seed}: still running after {steps} steps")]
    StepLimit {
        /// The world's seed.
        seed: u64,
        /// Steps done.
        steps: u64,
    },
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A task ran.
    Ran,
    /// The clock moved to the next timer or event, which fired.
    Fired,
    /// Nothing to do now or later.
    Idle,
}

struct TaskWaker {
    slot: usize,
    birth: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<Arc<TaskWaker>>>);

impl Ready {
    fn push(&self, waker: Arc<TaskWaker>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(waker);
    }

    fn pop(&self, rng: &mut SimRng, shuffled: bool) -> Option<Arc<TaskWaker>> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shuffled && queue.len() > 1 {
            let pick = rng.below(queue.len() as u64) as usize;
            return queue.remove(pick);
        }
        queue.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let ready = Arc::clone(&self.ready);
            ready.push(self);
        }
    }
}

struct Task {
    process: u32,
    waker: Arc<TaskWaker>,
    future: Option<LocalFuture<()>>,
}

enum Due {
    Wake(Waker),
    Event(Box<dyn FnOnce()>),
}

struct Timer {
    at_us: u64,
    order: u64,
    due: Due,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.order) == (other.at_us, other.order)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.order).cmp(&(other.at_us, other.order))
    }
}

struct Inner {
    seed: u64,
    shuffled: Cell<bool>,
    rng: RefCell<SimRng>,
    now_us: Cell<u64>,
    wall_shift_ms: Cell<i64>,
    steps: Cell<u64>,
    births: Cell<u64>,
    processes: Cell<u32>,
    dead: RefCell<BTreeSet<u32>>,
    tasks: RefCell<Vec<Option<Task>>>,
    vacant: RefCell<Vec<usize>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    ready: Arc<Ready>,
}

/// A simulated world. Cloning is cheap and means the same world.
#[derive(Clone)]
pub struct SimWorld(Rc<Inner>);

impl SimWorld {
    /// A world whose every choice follows from `seed`.
    pub fn new(seed: u64) -> SimWorld {
        SimWorld(Rc::new(Inner {
            seed,
            shuffled: Cell::new(true),
            rng: RefCell::new(SimRng::stream(seed, 1)),
            now_us: Cell::new(0),
            wall_shift_ms: Cell::new(0),
            steps: Cell::new(0),
            births: Cell::new(0),
            processes: Cell::new(0),
            dead: RefCell::default(),
            tasks: RefCell::default(),
            vacant: RefCell::default(),
            timers: RefCell::default(),
            ready: Arc::default(),
        }))
    }

    /// Runs ready tasks first in, first out instead of in a drawn order.
    pub fn in_order(self) -> SimWorld {
        self.0.shuffled.set(false);
        self
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Virtual time, microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.0.now_us.get()
    }

    /// Steps done so far.
    pub fn steps(&self) -> u64 {
        self.0.steps.get()
    }

    /// Sets how far the wall clock is off the monotonic one.
    pub fn shift_wall_ms(&self, shift: i64) {
        self.0.wall_shift_ms.set(shift);
    }

    /// 64 random bits of this world.
    pub fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next_u64()
    }

    /// A new process: tasks spawned through it die together.
    pub fn host(&self) -> Rc<SimHost> {
        let process = self.0.processes.get();
        self.0.processes.set(process + 1);
        Rc::new(SimHost {
            world: self.clone(),
            process,
        })
    }

    /// Starts a task that belongs to no process.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawn_in(u32::MAX, Box::pin(task));
    }

    fn spawn_in(&self, process: u32, future: LocalFuture<()>) {
        if self.0.dead.borrow().contains(&process) {
            return;
        }
        let vacant = self.0.vacant.borrow_mut().pop();
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = vacant.unwrap_or(tasks.len());
        let birth = self.0.births.get();
        self.0.births.set(birth + 1);
        let ready = Arc::clone(&self.0.ready);
        let waker = Arc::new(TaskWaker {
            slot,
            birth,
            queued: AtomicBool::new(false),
            ready,
        });
        let task = Task {
            process,
            waker: Arc::clone(&waker),
            future: Some(future),
        };
        if slot == tasks.len() {
            tasks.push(Some(task));
        } else {
            tasks[slot] = Some(task);
        }
        drop(tasks);
        waker.wake();
    }

    /// Runs `event` at `delay_us` from now, whatever happens to the processes.
    pub fn after(&self, delay_us: u64, event: impl FnOnce() + 'static) {
        self.push_timer(delay_us, Due::Event(Box::new(event)));
    }

    fn push_timer(&self, delay_us: u64, due: Due) {
        let order = self.0.births.get();
        self.0.births.set(order + 1);
        let at_us = self.now_us().saturating_add(delay_us);
        self.0
            .timers
            .borrow_mut()
            .push(Reverse(Timer { at_us, order, due }));
    }

    /// Completes after `delay_us` of virtual time.
    pub fn sleep_us(&self, delay_us: u64) -> impl Future<Output = ()> + use<> {
        Sleep {
            world: self.clone(),
            until_us: self.now_us().saturating_add(delay_us),
            set: false,
        }
    }

    /// Lets every other ready task run first, as far as the draw has it.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        YieldNow { done: false }
    }

    /// One step: runs one ready task, or else moves the clock to the next timer.
    pub fn step(&self) -> Step {
        match self.step_or_root() {
            Some(_) => Step::Ran,
            None => self.fire_next(),
        }
    }

    /// Runs one ready task; `Some(true)` means that it is the root future's turn.
    fn step_or_root(&self) -> Option<bool> {
        self.0.steps.set(self.0.steps.get() + 1);
        let woken = {
            let mut rng = self.0.rng.borrow_mut();
            self.0.ready.pop(&mut rng, self.0.shuffled.get())?
        };
        woken.queued.store(false, Ordering::Relaxed);
        if woken.slot == ROOT {
            return Some(true);
        }
        let future = {
            let mut tasks = self.0.tasks.borrow_mut();
            match tasks.get_mut(woken.slot).and_then(Option::as_mut) {
                Some(task) if task.waker.birth == woken.birth => task.future.take(),
                _ => None,
            }
        };
        let Some(mut future) = future else {
            return Some(false);
        };
        let waker = Waker::from(Arc::clone(&woken));
        let done = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        let leftover = {
            let mut tasks = self.0.tasks.borrow_mut();
            match tasks.get_mut(woken.slot) {
                Some(Some(task)) if task.waker.birth == woken.birth && !done => {
                    task.future = Some(future);
                    None
                }
                Some(entry @ Some(_)) if done => {
                    let own = entry.as_ref().is_some_and(|t| t.waker.birth == woken.birth);
                    let task = if own { entry.take() } else { None };
                    if own {
                        self.0.vacant.borrow_mut().push(woken.slot);
                    }
                    Some((task, future))
                }
                // Its process was killed by the task itself.
                _ => Some((None, future)),
            }
        };
        drop(leftover);
        Some(false)
    }

    fn fire_next(&self) -> Step {
        let Some(Reverse(timer)) = self.0.timers.borrow_mut().pop() else {
            return Step::Idle;
        };
        if timer.at_us > self.now_us() {
            self.0.now_us.set(timer.at_us);
        }
        match timer.due {
            Due::Wake(waker) => waker.wake(),
            Due::Event(event) => event(),
        }
        Step::Fired
    }

    /// Runs until nothing is left to run and no timer is set. Answers how many tasks still wait
    /// (0: all have ended).
    pub fn run_until_idle(&self) -> Result<usize, Stuck> {
        let start = self.steps();
        while self.step() != Step::Idle {
            self.check_steps(start)?;
        }
        Ok(self.blocked())
    }

    /// Steps until `reached` holds, which is asked before every step.
    pub fn run_until(&self, mut reached: impl FnMut() -> bool) -> Result<(), Stuck> {
        let start = self.steps();
        while !reached() {
            if self.step() == Step::Idle {
                return Err(Stuck::Deadlock {
                    seed: self.0.seed,
                    blocked: self.blocked(),
                });
            }
            self.check_steps(start)?;
        }
        Ok(())
    }

    /// Runs for `duration` of virtual time, or until idle.
    pub fn run_for(&self, duration: Duration) {
        let end_us = self.now_us().saturating_add(duration.as_micros() as u64);
        loop {
            let next = self.0.timers.borrow().peek().map(|t| t.0.at_us);
            if self.0.ready.is_empty() && next.is_none_or(|at| at > end_us) {
                break;
            }
            self.step();
        }
        self.0.now_us.set(end_us.max(self.now_us()));
    }

    /// Runs the world until `future` is done. Not to be nested.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Stuck> {
        let ready = Arc::clone(&self.0.ready);
        let root = Arc::new(TaskWaker {
            slot: ROOT,
            birth: 0,
            queued: AtomicBool::new(true),
            ready,
        });
        self.0.ready.push(Arc::clone(&root));
        let waker = Waker::from(root);
        let mut future = pin!(future);
        let start = self.steps();
        loop {
            match self.step_or_root() {
                Some(true) => {
                    if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        return Ok(out);
                    }
                }
                Some(false) => {}
                None if self.fire_next() == Step::Idle => {
                    return Err(Stuck::Deadlock {
                        seed: self.0.seed,
                        blocked: self.blocked() + 1,
                    });
                }
                None => {}
            }
            self.check_steps(start)?;
        }
    }

    fn check_steps(&self, start: u64) -> Result<(), Stuck> {
        let steps = self.steps() - start;
        if steps > STEPS_MAX {
            return Err(Stuck::StepLimit {
                seed: self.0.seed,
                steps,
            });
        }
        Ok(())
    }

    /// Tasks that have not ended.
    pub fn blocked(&self) -> usize {
        self.0.tasks.borrow().iter().flatten().count()
    }

    /// Drops every task of `host`'s process where it stands; later spawns through it are ignored.
    pub fn kill(&self, host: &SimHost) {
        self.0.dead.borrow_mut().insert(host.process);
        let mut dropped = Vec::new();
        {
            let mut tasks = self.0.tasks.borrow_mut();
            for (slot, entry) in tasks.iter_mut().enumerate() {
                if entry.as_ref().is_some_and(|t| t.process == host.process) {
                    dropped.push(entry.take());
                    self.0.vacant.borrow_mut().push(slot);
                }
            }
        }
        drop(dropped);
    }

    /// Drops every task, timer and event: the power is gone. The clock and the randomness stay,
    /// so that the next process of the same world goes on from here.
    pub fn crash(&self) {
        for process in 0..self.0.processes.get() {
            self.0.dead.borrow_mut().insert(process);
        }
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        self.0.vacant.borrow_mut().clear();
        drop(tasks);
        let timers = std::mem::take(&mut *self.0.timers.borrow_mut());
        drop(timers);
    }
}

/// One process of a simulated world.
pub struct SimHost {
    world: SimWorld,
    process: u32,
}

impl SimHost {
    /// The world it lives in.
    pub fn world(&self) -> &SimWorld {
        &self.world
    }
}

impl Host for SimHost {
    fn wall_ms(&self) -> u64 {
        let ms = WALL_START_MS + self.world.now_us() / 1000;
        ms.saturating_add_signed(self.world.0.wall_shift_ms.get())
    }

    fn mono_us(&self) -> u64 {
        self.world.now_us()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(self.world.sleep_us(duration.as_micros() as u64))
    }

    fn spawn(&self, _class: TaskClass, task: LocalFuture<()>) {
        self.world.spawn_in(self.process, task);
    }

    fn must_yield(&self) -> bool {
        self.world.0.rng.borrow_mut().below(16) == 0
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(self.world.yield_now())
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}

struct Sleep {
    world: SimWorld,
    until_us: u64,
    set: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.world.now_us();
        if self.set && now >= self.until_us {
            return Poll::Ready(());
        }
        // NOTE: a poll by another waker sets one more timer; the stale one wakes in vain.
        self.set = true;
        let delay = self.until_us.saturating_sub(now);
        self.world.push_timer(delay, Due::Wake(cx.waker().clone()));
        Poll::Pending
    }
}

struct YieldNow {
    done: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        self.done = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
