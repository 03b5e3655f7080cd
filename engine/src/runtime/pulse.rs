//! A pulse for every executor: woken from outside fifty times a second.
//!
//! glommio 0.9 can go to sleep with a task that is ready to run. Its loop polls for I/O, which wakes
//! the tasks of due timers and arms the preemption timer; when the thread then loses its CPU for
//! longer than that timer, `run_task_queues` stops before it ran anything and says that nothing ran;
//! the loop takes that for idleness and parks, and a park only ends with I/O or a timer that is
//! still to come. A lone timer that is awaited, as at a start, never comes then. With a preemption
//! timer of 1 ms, on two cores with eight busy threads, one start of an executor in about 300 hung
//! so; with the pulse none in 6,000.
//!
//! A wake from another thread brings the executor round, and it then runs what is ready; so nothing
//! is late by more than a beat for this reason. It costs a wake-up per beat and executor.
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

#[derive(Default)]
struct Listener {
    waker: AtomicWaker,
    is_due: AtomicBool,
}

type Listeners = Mutex<Vec<Weak<Listener>>>;

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
    loop {
        std::thread::sleep(BEAT);
        let mut all = listeners().lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listener| match listener.upgrade() {
            None => false,
            Some(listener) => {
                listener.is_due.store(true, Ordering::Release);
                listener.waker.wake();
                true
            }
        });
    }
}

/// Lets this executor be woken with every beat, for as long as it lives.
pub(crate) async fn follow() {
    let listener = Arc::new(Listener::default());
    let mut all = listeners().lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::downgrade(&listener));
    drop(all);
    loop {
        poll_fn(|cx| {
            listener.waker.register(cx.waker());
            match listener.is_due.swap(false, Ordering::AcqRel) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}
