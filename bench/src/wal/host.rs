//! The store's view of the bench's core: time, tasks, randomness.
//!
//! The same as the node's in what matters to the store; all tasks share one queue here, because
//! nothing else runs. Runs on the bench's executor.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Host, TaskClass};

/// The host of the current executor.
pub(super) struct BenchHost {
    start: Instant,
    random: Cell<u64>,
}

impl BenchHost {
    pub(super) fn new() -> Rc<BenchHost> {
        Rc::new(BenchHost {
            start: Instant::now(),
            random: Cell::new(crate::sys::unix_us() | 1),
        })
    }
}

impl Host for BenchHost {
    fn wall_ms(&self) -> u64 {
        crate::sys::unix_us() / 1000
    }

    fn mono_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(async move {
            glommio::timer::sleep(duration).await;
        })
    }

    fn spawn(&self, _class: TaskClass, task: LocalFuture<()>) {
        glommio::spawn_local(task).detach();
    }

    fn must_yield(&self) -> bool {
        glommio::executor().need_preempt()
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(futures_lite::future::yield_now())
    }

    fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}
