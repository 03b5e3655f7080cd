//! Processor time of the calling thread, and the wall clock.
//!
//! Pure readings; runs anywhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Processor time the calling thread has used.
#[expect(
    unsafe_code,
    reason = "no safe wrapper of the thread clock among the dependencies"
)]
pub fn thread_cpu() -> Duration {
    let mut spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the timespec is valid for the write; the clock id is a constant of the platform.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut spec) };
    if result != 0 {
        return Duration::ZERO;
    }
    Duration::new(spec.tv_sec as u64, spec.tv_nsec as u32)
}

/// Microseconds since the Unix epoch.
pub fn unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros() as u64)
}
