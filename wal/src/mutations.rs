//! Promises broken on purpose, so that the simulation and the drills can show that they notice.
//!
//! Only with the feature `mutations`, which no release build has; without it every question is
//! answered `false` at compile time. One mutation at a time, named by `ANKUSA_MUTATION` or, in
//! the simulation, set for the thread.

/// The mutations of this crate.
pub const NAMES: [&str; 8] = [
    "ack_before_sync",
    "ack_before_write",
    "undo_at_mark",
    "skip_sync",
    "retry_failed_sync",
    "skip_frame_crc",
    "trust_above_mark",
    "recycle_early",
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
