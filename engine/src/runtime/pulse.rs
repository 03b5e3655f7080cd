//! A pulse for every executor: woken from outside ten times a second.
//!
//! An executor that sleeps in its ring was seen not to wake for a timer or a completion that was
//! due, now and then, on a busy machine. A wake from another thread brings it round, and it then
//! sees everything that is due; so nothing is late by more than a beat. Costs a wake-up per beat.
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
const BEAT: Duration = Duration::from_millis(100);

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
pub(super) async fn follow() {
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
