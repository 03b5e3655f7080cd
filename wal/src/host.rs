//! The seam to time, tasks and randomness: what the heart may ask of the thread it runs on.
//!
//! The node's side is a glommio core; the simulation's side is a seeded single-thread scheduler
//! with its own clock. A trait object, so that nothing is generic over it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A boxed future that stays on its thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Which of the core's task queues a task belongs to, in falling order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskClass {
    /// Answering providers.
    Ingest,
    /// Group write, sync and what their completion wakes.
    Commit,
    /// Deliveries.
    Dispatch,
    /// Checkpoints, relocation, preparation of slots, sweeps.
    Maintenance,
}

/// Time, tasks and randomness of one core.
pub trait Host {
    /// Wall clock, milliseconds since the Unix epoch. May jump.
    fn wall_ms(&self) -> u64;

    /// Monotonic clock, microseconds since an arbitrary start.
    fn mono_us(&self) -> u64;

    /// Completes after at least `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> LocalFuture<()>;

    /// Starts a task on this core. It is detached: it ends when it ends.
    fn spawn(&self, class: TaskClass, task: LocalFuture<()>);

    /// True when the running task has used up its slice (1 ms at most) and should yield.
    fn must_yield(&self) -> bool;

    /// Lets other tasks of this core run.
    fn yield_now(&self) -> LocalFuture<()>;

    /// 64 random bits; not for secrets.
    fn random(&self) -> u64;
}
