//! A level-triggered epoll with tokens and nanosecond timeouts.
//!
//! One thread; the descriptors registered are owned by the caller and must be open while they
//! are registered (closing one removes it).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Input, or the peer's end.
    Read,
    /// Input and room to write.
    ReadWrite,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token it was registered with.
    pub token: u64,
    /// There is input, an end or an error: read to find out.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

/// The poller.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
        };
        bits as u32
    }
}

impl Epoll {
    /// A poller that reports up to `events_max` descriptors at a time.
    #[expect(
        unsafe_code,
        reason = "epoll has no safe wrapper among the dependencies"
    )]
    pub fn new(events_max: usize) -> io::Result<Epoll> {
        // SAFETY: epoll_create1 takes a flag; a result that is not negative is a descriptor that
        // nobody else owns.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Epoll {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; events_max.max(1)],
        })
    }

    /// Registers a descriptor under a token.
    pub fn add(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes what a registered descriptor waits for.
    pub fn modify(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Waits until something is ready or the timeout passes (`None`: for ever) and returns how
    /// many are; read them with [`Epoll::ready`].
    #[expect(
        unsafe_code,
        reason = "epoll has no safe wrapper among the dependencies"
    )]
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let spec = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs() as libc::time_t,
            tv_nsec: t.subsec_nanos() as libc::c_long,
        });
        let spec_ptr = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the events buffer is valid for the length given, the timespec (or null) lives
        // across the call, and a null signal mask is allowed.
        let count = unsafe {
            libc::epoll_pwait2(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                spec_ptr,
                std::ptr::null(),
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            e => Err(e),
        }
    }

    /// The `index`th descriptor of the last [`Epoll::wait`].
    pub fn ready(&self, index: usize) -> Ready {
        let event = self.events[index];
        let bits = event.events;
        Ready {
            token: event.u64,
            readable: bits & !(libc::EPOLLOUT as u32) != 0,
            writable: bits & libc::EPOLLOUT as u32 != 0,
        }
    }

    #[expect(
        unsafe_code,
        reason = "epoll has no safe wrapper among the dependencies"
    )]
    fn control(
        &self,
        op: libc::c_int,
        fd: &impl AsRawFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: token,
        };
        // SAFETY: both descriptors are open (the caller owns `fd`), and the event lives across
        // the call.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &mut event) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
