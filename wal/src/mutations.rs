//! Promises broken on purpose, so that the simulation and the drills can show that they notice.
//!
//! Only with the feature `mutations`, which no release build has; without it every question is
//! answered `false` at compile time. One mutation at a time, named by `ANKUSA_MUTATION` or, in
//! the simulation, set for the thread.

/// The mutations of this crate.
pub const NAMES: [&str; 14] = [
    "ack_before_sync",
    "ack_before_write",
    "undo_at_mark",
    "skip_sync",
    "skip_sync_of_two",
    "retry_failed_sync",
    "skip_frame_crc",
    "trust_above_mark",
    "recycle_early",
    "checkpoint_rename_without_sync",
    "checkpoint_named_early",
    "move_before_durable",
    "refuse_torn_tail",
    "cut_damage",
];

#[cfg(feature = "mutations")]
mod on {
    use std::cell::RefCell;
    use std::sync::OnceLock;

    thread_local! {
        static HERE: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// True when this mutation is switched on.
    pub fn is(name: &str) -> bool {
        static ENV: OnceLock<String> = OnceLock::new();
        if HERE.with_borrow(|here| here.as_deref() == Some(name)) {
            return true;
        }
        ENV.get_or_init(|| std::env::var("ANKUSA_MUTATION").unwrap_or_default()) == name
    }

    /// Switches a mutation on (or, with `None`, off) for this thread.
    pub fn set(name: Option<&str>) {
        HERE.with_borrow_mut(|here| *here = name.map(str::to_owned));
    }
}

#[cfg(feature = "mutations")]
pub use on::{is, set};

/// True when this mutation is switched on: never, in this build.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn is(_name: &str) -> bool {
    false
}

/// A named point of the code. With the feature, `ANKUSA_FAILPOINT=name:n` kills the process the
/// n-th time it comes here; without it this is nothing.
#[cfg(feature = "mutations")]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("ANKUSA_FAILPOINT").ok()?;
        let (name, count) = text.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((wanted, count)) = wanted
        && wanted == name
        && COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        #[expect(unsafe_code, reason = "only SIGKILL ends a process as a crash does")]
        // SAFETY: signals this process; nothing is borrowed.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
}

/// A named point of the code: nothing, in this build.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn point(_name: &str) {}

/// What every `fdatasync` of a shard's log takes longer, for benches: `ANKUSA_SYNC_DELAY_MS`.
#[cfg(feature = "mutations")]
pub fn sync_delay() -> Option<std::time::Duration> {
    use std::sync::OnceLock;
    static DELAY: OnceLock<Option<std::time::Duration>> = OnceLock::new();
    *DELAY.get_or_init(|| {
        let ms = std::env::var("ANKUSA_SYNC_DELAY_MS").ok()?.parse().ok()?;
        Some(std::time::Duration::from_millis(ms))
    })
}

/// What every `fdatasync` of a shard's log takes longer: nothing, in this build.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn sync_delay() -> Option<std::time::Duration> {
    None
}
