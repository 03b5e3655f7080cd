//! A pulse for every executor: woken from outside fifty times a second.
//!
//! glommio 0.9 can go to sleep with a task that is ready to run. Its loop polls for I/O, which wakes
//! the tasks of due timers and arms the preemption timer; when the thread then loses its CPU for
//! longer than that timer, `run_task_queues` stops before it ran anything and says that nothing ran;
//! the loop takes that for idleness and parks, and a park only ends with I/O or a timer that is
//! still to come. A lone timer that is awaited, as at a start, never comes then. With a preemption
//! timer of 1 ms, on two cores with eight busy threads, one start of an executor in about 400 hung
//! so; with the pulse none of 12,000.
//!
//! A wake from another thread brings the executor round, and it then runs what is ready; so nothing
//! is late by more than a beat for this reason. The wake may meet the same fate, and a waker that
//! was woken is gone until its task has run: so each executor has several tasks, woken in turn. It
//! costs a wake-up per beat and executor.
//!
//! What a beat cannot reach is an executor whose first task never ran: see `spawn_core`.
//!
//! One thread for the process, started with the first executor; it ends with the process. The
//! following side runs on each executor.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;

/// Between two beats.
const BEAT: Duration = Duration::from_millis(20);

/// Tasks of an executor that are woken in turn.
const LANES: usize = 4;

#[derive(Default)]
struct Lane {
    waker: AtomicWaker,
    is_due: AtomicBool,
}

type Listeners = Mutex<Vec<Weak<[Lane; LANES]>>>;

fn listeners() -> &'static Listeners {
    static LISTENERS: OnceLock<Listeners> = OnceLock::new();
    LISTENERS.get_or_init(|| {
        let thread = std::thread::Builder::new().name("ankusa-pulse".into());
        // Without it the executors run as they did before there was one.
        let _ = thread.spawn(beat);
        Mutex::default()
    })
}

fn beat() {
    let mut turn = 0;
    loop {
        std::thread::sleep(BEAT);
        turn = (turn + 1) % LANES;
        let mut all = listeners().lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|lanes| match lanes.upgrade() {
            None => false,
            Some(lanes) => {
                let lane = &lanes[turn];
                lane.is_due.store(true, Ordering::Release);
                lane.waker.wake();
                true
            }
        });
    }
}

/// Lets this executor be woken with every beat, for as long as it lives.
pub(crate) fn follow() {
    let lanes: Arc<[Lane; LANES]> = Arc::default();
    listeners()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Arc::downgrade(&lanes));
    for lane in 0..LANES {
        let lanes = Arc::clone(&lanes);
        glommio::spawn_local(async move {
            loop {
                lanes[lane].beaten().await;
            }
        })
        .detach();
    }
}

impl Lane {
    async fn beaten(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            match self.is_due.swap(false, Ordering::AcqRel) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
