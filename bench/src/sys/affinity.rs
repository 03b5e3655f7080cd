//! Which core a thread runs on, how precise its timers are, and when a child dies.
//!
//! Runs once at the start of a load thread or child process.

use std::io;

/// Pins the calling thread to one core.
#[expect(
    unsafe_code,
    reason = "no safe wrapper of sched_setaffinity among the dependencies"
)]
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} is out of range"),
        ));
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; `core` was checked against its size, and
    // the pointer is valid for the length given.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The calling thread is on one core until this is dropped; then it may run where it could before.
/// Processes and threads that it starts inherit where it may run.
pub struct Pinned {
    before: libc::cpu_set_t,
}

impl Pinned {
    /// Pins the calling thread.
    #[expect(
        unsafe_code,
        reason = "no safe wrapper of sched_getaffinity among the dependencies"
    )]
    pub fn to_core(core: usize) -> io::Result<Pinned> {
        // SAFETY: the set is a plain bit mask, zeroed, and the kernel writes at most the length
        // given.
        let before = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
                return Err(io::Error::last_os_error());
            }
            set
        };
        pin_to_core(core)?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    #[expect(
        unsafe_code,
        reason = "no safe wrapper of sched_setaffinity among the dependencies"
    )]
    fn drop(&mut self) {
        // SAFETY: the pointer is valid for the length given.
        unsafe {
            libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &self.before);
        }
    }
}

/// The cores this process may run on.
#[expect(
    unsafe_code,
    reason = "no safe wrapper of sched_getaffinity among the dependencies"
)]
pub fn usable_cores() -> io::Result<Vec<usize>> {
    // SAFETY: the set is a plain bit mask, zeroed, and the kernel writes at most the length given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((0..libc::CPU_SETSIZE as usize)
            .filter(|core| libc::CPU_ISSET(*core, &set))
            .collect())
    }
}

/// Lets this thread's sleeps end on time: the default slack of 50 µs would show in open-loop
/// latencies. Failure only costs precision.
#[expect(
    unsafe_code,
    reason = "prctl has no safe wrapper among the dependencies"
)]
pub fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}

/// Asks the kernel to end this process when the bench that started it is gone.
#[expect(
    unsafe_code,
    reason = "prctl has no safe wrapper among the dependencies"
)]
pub fn die_with_parent() {
    // SAFETY: PR_SET_PDEATHSIG takes one integer and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_is_let_go_again() {
        let before = usable_cores().unwrap();
        let pinned = Pinned::to_core(before[0]).unwrap();
        assert_eq!(usable_cores().unwrap(), [before[0]]);
        drop(pinned);
        assert_eq!(usable_cores().unwrap(), before);
    }
}
