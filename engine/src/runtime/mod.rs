//! The node's side of [`ankusa_wal::Host`]: one glommio executor per core.
//!
//! With the disk and the sockets this is one of the few places that name glommio. Task queues
//! keep classes of work apart; all of them ask for latency, because only a queue that
//! does is preempted for, and only into such a queue a wake from another thread arrives within
//! a millisecond on a busy core.
//!
//! Runs on a shard core.

pub(crate) mod pulse;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Host, TaskClass};
use glommio::{Latency, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle};

/// How long a task may run before the executor wants it to yield.
pub const SLICE: Duration = Duration::from_millis(1);

/// How long an executor's own queue may run: there is nothing in it but what [`spawn_core`] starts.
const BOOTSTRAP: Duration = Duration::from_secs(10);

/// Time, tasks and randomness of the glommio core this is created on.
pub struct CoreHost {
    start: Instant,
    queues: [TaskQueueHandle; 4],
    random: Cell<u64>,
}

impl CoreHost {
    /// The host of the current executor. Must be called on one.
    pub fn new() -> Rc<CoreHost> {
        let executor = glommio::executor();
        let urgent = Latency::Matters(SLICE);
        let queue = |shares, latency, name| {
            executor.create_task_queue(Shares::Static(shares), latency, name)
        };
        let seed = seed_from_os();
        Rc::new(CoreHost {
            start: Instant::now(),
            queues: [
                queue(1000, urgent, "ingest"),
                queue(1000, urgent, "commit"),
                queue(400, urgent, "dispatch"),
                queue(100, urgent, "maintenance"),
            ],
            random: Cell::new(seed | 1),
        })
    }

    /// Executor time spent running tasks since the start, for the busy share.
    pub fn busy(&self) -> Duration {
        glommio::executor().executor_stats().executor_runtime()
    }

    fn queue(&self, class: TaskClass) -> TaskQueueHandle {
        self.queues[match class {
            TaskClass::Ingest => 0,
            TaskClass::Commit => 1,
            TaskClass::Dispatch => 2,
            TaskClass::Maintenance => 3,
        }]
    }

    /// Runs a future in a task queue and waits for it: what it starts stays in that queue. `None`
    /// when the queue is gone.
    pub async fn within<T: 'static>(
        &self,
        class: TaskClass,
        task: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        match glommio::spawn_local_into(task, self.queue(class)) {
            Ok(task) => Some(task.await),
            Err(_) => None,
        }
    }

    /// Like [`Host::spawn`] without boxing the future.
    pub fn start(&self, class: TaskClass, task: impl Future<Output = ()> + 'static) {
        if let Ok(task) = glommio::spawn_local_into(task, self.queue(class)) {
            task.detach();
        }
    }
}

impl Host for CoreHost {
    fn wall_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64)
    }

    fn mono_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(async move {
            glommio::timer::sleep(duration).await;
        })
    }

    fn spawn(&self, class: TaskClass, task: LocalFuture<()>) {
        self.start(class, task);
    }

    fn must_yield(&self) -> bool {
        glommio::executor().need_preempt()
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(futures_lite::future::yield_now())
    }

    fn random(&self) -> u64 {
        // xorshift64*, G. Marsaglia 2003, S. Vigna 2016. Not for secrets.
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

fn seed_from_os() -> u64 {
    let mut seed = [0u8; 8];
    if aws_lc_rs::rand::fill(&mut seed).is_err() {
        return 0x9E37_79B9_7F4A_7C15;
    }
    u64::from_le_bytes(seed)
}

/// Starts an executor on its own thread, pinned to `cpu` when one is given, and runs `main` on it.
pub fn spawn_core<F, T>(
    name: &str,
    cpu: Option<usize>,
    main: impl FnOnce() -> F + Send + 'static,
) -> Result<glommio::ExecutorJoinHandle<T>, String>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let placement = match cpu {
        Some(cpu) => Placement::Fixed(cpu),
        None => Placement::Unbound,
    };
    LocalExecutorBuilder::new(placement)
        .name(name)
        // IMPORTANT: long. A thread that loses its CPU for longer than this before it ran its very
        // first task sleeps forever, see [`pulse`]. Every queue with work of ours has its own slice.
        .preempt_timer(BOOTSTRAP)
        .spawn(move || {
            let main = main();
            async move {
                pulse::follow();
                // NOTE: the first timer of an executor can be tens of milliseconds late.
                glommio::spawn_local(glommio::timer::sleep(Duration::from_micros(10))).detach();
                let urgent = Latency::Matters(SLICE);
                let queue =
                    glommio::executor().create_task_queue(Shares::Static(1000), urgent, "main");
                match glommio::spawn_local_into(main, queue) {
                    Ok(main) => main.await,
                    Err(gone) => unreachable!("the queue was made just now: {gone}"),
                }
            }
        })
        .map_err(|e| format!("cannot start core {name}: {e}"))
}
