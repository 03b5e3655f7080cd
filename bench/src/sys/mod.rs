//! The few system calls the generator makes itself: epoll, pinning, timer slack.
//!
//! Thin and blocking; no policy. Runs on the load thread and in the little servers.

mod affinity;
mod clock;
mod epoll;

pub use affinity::{Pinned, die_with_parent, pin_to_core, precise_timers, usable_cores};
pub use clock::{thread_cpu, unix_us};
pub use epoll::{Epoll, Interest, Ready};
