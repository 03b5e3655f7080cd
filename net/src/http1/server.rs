//! One core's server: accepting, the deadline sweep, stopping.
//!
//! Runs on the reactor core that started it, in the task queue it was started from.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use glommio::timer::Timer;

use super::core::Core;
use super::limits::SWEEP_MS;
use super::{Gauges, Handler, Limits, LimitsError, connection};
use crate::Listener;
use crate::tls::CurrentIdentity;

/// Connections accepted in a row before other tasks get their turn.
const ACCEPT_RUN_MAX: u32 = 32;
/// Pauses after a failed accept, shortest and longest.
const ACCEPT_PAUSE_MS: (u64, u64) = (10, 1000);

/// A running server of this core.
///
/// Dropping it leaves it running: it ends by [`Server::stop`].
pub struct Server {
    core: Rc<Core>,
    listener: Rc<Listener>,
}

/// How a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReport {
    /// Connections that were still busy when the time was up.
    pub connections_left: usize,
}

impl Server {
    /// Begins to accept and serve plain HTTP.
    pub fn start<H: Handler>(
        listener: Listener,
        handler: Rc<H>,
        limits: Limits,
    ) -> Result<Server, LimitsError> {
        Server::start_with(listener, handler, limits, None)
    }

    /// Begins to accept and serve HTTP over TLS. What `identity` holds when a connection comes is
    /// what it is shown.
    pub fn start_tls<H: Handler>(
        listener: Listener,
        handler: Rc<H>,
        limits: Limits,
        identity: Rc<CurrentIdentity>,
    ) -> Result<Server, LimitsError> {
        Server::start_with(listener, handler, limits, Some(identity))
    }

    fn start_with<H: Handler>(
        listener: Listener,
        handler: Rc<H>,
        limits: Limits,
        identity: Option<Rc<CurrentIdentity>>,
    ) -> Result<Server, LimitsError> {
        limits.check()?;
        let core = Rc::new(Core::new(limits));
        let listener = Rc::new(listener);
        glommio::spawn_local(sweep(Rc::clone(&core))).detach();
        glommio::spawn_local(accept(
            Rc::clone(&core),
            Rc::clone(&listener),
            handler,
            identity,
        ))
        .detach();
        Ok(Server { core, listener })
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Its gauges and counters.
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.core.gauges)
    }

    /// Stops listening, closes idle connections, lets requests in flight end with their real
    /// answer, and returns when all have or `grace` is over. What is left then goes on.
    pub async fn stop(self, grace: Duration) -> StopReport {
        self.core.begin_stop();
        self.listener.shut();
        let late = async {
            Timer::new(grace).await;
        };
        poll_fn(|cx| self.core.poll_empty(cx)).or(late).await;
        StopReport {
            connections_left: self.core.open_count(),
        }
    }
}

async fn sweep(core: Rc<Core>) {
    while !(core.is_stopping() && core.open_count() == 0) {
        Timer::new(Duration::from_millis(SWEEP_MS)).await;
        core.sweep();
    }
}

async fn accept<H: Handler>(
    core: Rc<Core>,
    listener: Rc<Listener>,
    handler: Rc<H>,
    identity: Option<Rc<CurrentIdentity>>,
) {
    let mut pause_ms = ACCEPT_PAUSE_MS.0;
    let mut run = 0;
    loop {
        poll_fn(|cx| core.poll_room(cx)).await;
        if core.is_stopping() {
            return;
        }
        match listener.accept().await {
            Ok(stream) => {
                pause_ms = ACCEPT_PAUSE_MS.0;
                match stream.peer_addr() {
                    Ok(peer) => {
                        let entry = core.open();
                        let handler = Rc::clone(&handler);
                        let peer = canonical(peer);
                        match &identity {
                            None => {
                                glommio::spawn_local(connection::run(entry, handler, stream, peer))
                                    .detach()
                            }
                            Some(identity) => {
                                let tls = identity.acceptor();
                                glommio::spawn_local(connection::run_tls(
                                    entry, handler, stream, peer, tls,
                                ))
                                .detach()
                            }
                        };
                    }
                    // The client is gone already.
                    Err(error) => tracing::debug!(%error, "accepted connection without a peer"),
                }
            }
            Err(_) if core.is_stopping() => return,
            Err(error) => {
                core.gauges.accept_failures.add(1);
                if pause_ms == ACCEPT_PAUSE_MS.0 {
                    tracing::warn!(%error, address = %listener.local_addr(), "accepting a connection");
                }
                Timer::new(Duration::from_millis(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(ACCEPT_PAUSE_MS.1);
            }
        }
        run += 1;
        if run == ACCEPT_RUN_MAX {
            run = 0;
            glommio::executor().yield_task_queue_now().await;
        }
    }
}

/// An IPv4 client of a socket bound to `::` is told by its IPv4 address.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
