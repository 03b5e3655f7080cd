//! Start, watch and end one child process.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::sys;

/// A child process; killed and reaped when dropped.
pub struct Child {
    inner: std::process::Child,
    what: String,
}

/// What went wrong with a child.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It ended before it was ready.
    #[error("{what} ended before it was ready: {last_line}")]
    Ended {
        /// Which child.
        what: String,
        /// The last thing it said.
        last_line: String,
    },
    /// It did not become ready.
    #[error("{what} was not ready after {after:?}: {state}")]
    NotReady {
        /// Which child.
        what: String,
        /// How long was waited.
        after: Duration,
        /// What was seen last.
        state: String,
    },
    /// A file of it could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Child {
    /// Starts a command whose death is tied to the bench's; output as the command says.
    #[expect(
        unsafe_code,
        reason = "a child must be told before exec to die with its parent and where to run"
    )]
    pub fn start(
        mut command: Command,
        what: &str,
        core: Option<usize>,
    ) -> Result<Child, ChildError> {
        use std::os::unix::process::CommandExt as _;
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl and
        // sched_setaffinity, no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                sys::die_with_parent();
                match core {
                    Some(core) => sys::pin_to_core(core),
                    None => Ok(()),
                }
            });
        }
        let program = PathBuf::from(command.get_program());
        let inner = command
            .spawn()
            .map_err(|source| ChildError::Start { program, source })?;
        Ok(Child {
            inner,
            what: what.to_owned(),
        })
    }

    /// Starts this program in another role, pinned, and waits for its `listening` line.
    pub fn start_self(args: &[&str], core: usize) -> Result<(Child, SocketAddr), ChildError> {
        let program = std::env::current_exe().map_err(|source| ChildError::Io {
            what: "finding this program".to_owned(),
            source,
        })?;
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = Child::start(
            command,
            args.first().copied().unwrap_or("child"),
            Some(core),
        )?;
        let address = child.wait_listening()?;
        Ok((child, address))
    }

    fn wait_listening(&mut self) -> Result<SocketAddr, ChildError> {
        let ended = |last_line: &str| ChildError::Ended {
            what: self.what.clone(),
            last_line: last_line.to_owned(),
        };
        let Some(stdout) = self.inner.stdout.take() else {
            return Err(ended("it has no output"));
        };
        let mut line = String::new();
        let mut reader = BufReader::new(stdout);
        let _ = reader.read_line(&mut line);
        line.trim()
            .strip_prefix("listening ")
            .and_then(|a| a.parse().ok())
            .ok_or_else(|| ended(line.trim()))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.inner.try_wait(), Ok(None))
    }

    /// Asks it to stop and waits; kills it after `patience`. True when it ended by itself with 0.
    #[expect(
        unsafe_code,
        reason = "kill has no safe wrapper among the dependencies"
    )]
    pub fn stop(&mut self, patience: Duration) -> bool {
        // SAFETY: the process is our unreaped child, so its id cannot mean another process.
        unsafe {
            libc::kill(self.inner.id() as libc::pid_t, libc::SIGTERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.inner.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        false
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

/// User and system time of a process, all threads.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/pid/stat");
    // The second field is the name in parentheses, which may hold anything.
    let after = &stat[stat.rfind(')').ok_or_else(bad)? + 1..];
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|f| f.parse::<u64>().ok())
            .ok_or_else(bad)
    };
    Ok(Duration::from_millis(
        (ticks(11)? + ticks(12)?) * 1000 / ticks_per_second(),
    ))
}

/// Processor time of a process's threads, exact to the nanosecond where the kernel keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Of the threads that run a reactor core (named `core-…`).
    pub cores: Duration,
    /// Of all of them, kernel workers of their I/O included.
    pub all: Duration,
}

/// What the threads of a process have used so far. Threads that are gone do not count.
pub fn thread_times(pid: u32) -> ThreadTimes {
    let mut times = ThreadTimes::default();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return times;
    };
    for task in tasks.flatten() {
        let text = crate::hostfacts::read(task.path().join("schedstat"));
        let ns = text.split(' ').next().and_then(|n| n.parse().ok());
        let used = Duration::from_nanos(ns.unwrap_or(0));
        times.all += used;
        if crate::hostfacts::read(task.path().join("comm")).starts_with("core-") {
            times.cores += used;
        }
    }
    times
}

#[expect(
    unsafe_code,
    reason = "sysconf has no safe wrapper among the dependencies"
)]
fn ticks_per_second() -> u64 {
    // SAFETY: sysconf reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as u64 } else { 100 }
}
