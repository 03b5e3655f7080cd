//! Listening sockets: one per core on the same address, shared out by the kernel.
//!
//! Made with `SO_REUSEPORT`, a deep backlog and `TCP_NODELAY` (which accepted sockets inherit).
//! Runs on the reactor core that will accept, where nothing waits; [`ensure_unclaimed`] on the main
//! thread, before there are cores.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel completes for us before we accept them.
const BACKLOG: i32 = 4096;

/// Between two looks at an address that is taken.
const CLAIM_LOOK: Duration = Duration::from_millis(20);

/// A listening socket could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {step}: {source}")]
pub struct ListenError {
    /// The address that was asked for.
    pub address: SocketAddr,
    /// The call that failed.
    pub step: &'static str,
    /// Why.
    pub source: io::Error,
}

/// A bound, listening socket of this core.
pub struct Listener {
    /// The half that accepts.
    accepting: glommio::net::TcpListener,
    /// A second descriptor of the same socket: shutting it down ends a pending accept without
    /// cancelling it, so that no accepted descriptor can get lost.
    socket: Socket,
    address: SocketAddr,
}

impl Listener {
    /// Binds `address` and listens. Other sockets of the same user may share it (one per core).
    ///
    /// Must be called on the glommio core that will accept.
    pub fn bind(address: SocketAddr) -> Result<Listener, ListenError> {
        let fail = |step| {
            move |source| ListenError {
                address,
                step,
                source,
            }
        };
        let domain = Domain::for_address(address);
        let socket =
            Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(fail("socket"))?;
        socket.set_reuse_port(true).map_err(fail("SO_REUSEPORT"))?;
        // Connections of ours that linger in the kernel inherit it and then do not hold the port
        // against a plain bind ([`ensure_unclaimed`]).
        socket
            .set_reuse_address(true)
            .map_err(fail("SO_REUSEADDR"))?;
        socket.set_nodelay(true).map_err(fail("TCP_NODELAY"))?;
        socket.bind(&address.into()).map_err(fail("bind"))?;
        socket.listen(BACKLOG).map_err(fail("listen"))?;
        let bound = socket.local_addr().map_err(fail("getsockname"))?;
        let accepting = socket.try_clone().map_err(fail("dup"))?.into_raw_fd();
        #[expect(
            unsafe_code,
            reason = "glommio takes a configured listener only as a descriptor"
        )]
        // SAFETY: the descriptor was just taken out of a socket, so it is open, listening and
        // owned by nobody else.
        let accepting = unsafe { glommio::net::TcpListener::from_raw_fd(accepting) };
        Ok(Listener {
            accepting,
            socket,
            address: bound.as_socket().unwrap_or(address),
        })
    }

    /// The address that was bound, with the port the kernel chose if it was 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for one connection.
    ///
    /// # Cancel safety
    /// Not safe to drop while pending: a connection accepted meanwhile would be lost. End it with
    /// [`Listener::shut`] instead.
    pub(crate) async fn accept(&self) -> io::Result<glommio::net::TcpStream> {
        let accepted = self.accepting.shared_accept().await.map_err(io_error)?;
        Ok(accepted.bind_to_executor())
    }

    /// Stops listening. A pending and every later `accept` fails.
    pub(crate) fn shut(&self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Both) {
            tracing::debug!(%error, address = %self.address, "shutting a listener down");
        }
    }
}

/// Checks that no other socket listens on `address`: with one listener per core sharing it, a
/// second copy of the program would otherwise bind it silently and take half of the connections.
///
/// One that goes within `patience` is no other copy, but what is left of one that was just killed:
/// the kernel may hold its listener for a moment longer (pending accepts), and a port of the range
/// for outgoing connections may be in use by one of those. Best effort: the address is free again when
/// this returns. Blocking; not on a core.
pub fn ensure_unclaimed(address: SocketAddr, patience: Duration) -> Result<(), ListenError> {
    let end = Instant::now() + patience;
    loop {
        match std::net::TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(CLAIM_LOOK);
            }
            Err(source) => {
                return Err(ListenError {
                    address,
                    step: "bind",
                    source,
                });
            }
        }
    }
}

pub(crate) fn io_error(error: glommio::GlommioError<()>) -> io::Error {
    error.into()
}
