//! Connections of one core, kept by destination.
//!
//! Invariant: a connection is either in a call or idle in the pool, and counted until its task
//! ends. Bounds: connections per destination and in all, idle ones per destination, idle time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use futures_rustls::TlsConnector;
use glommio::net::TcpStream;
use glommio::timer::Timer;
use hyper::client::conn::http1::{self, SendRequest};
use rustls::pki_types::ServerName;

use super::body::Chunks;
use super::call::CallError;
use super::stream::Stream;
use super::tls::TlsClient;
use crate::hyper_io::HyperIo;

/// How often idle connections are looked at.
const SWEEP: Duration = Duration::from_secs(1);
/// Read buffer of one connection, hence the longest head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How to reach a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

/// Whom to call, and at which address. Connections are shared between equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// The name in the URL: it is what TLS verifies and what `Host` says.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address to dial, resolved and checked by the caller.
    pub ip: IpAddr,
}

/// Limits of one core's client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Trust for TLS; `None`: every call over TLS fails.
    pub tls: Option<TlsClient>,
    /// How long an idle connection is kept.
    pub idle_ms: u64,
    /// Idle connections kept per destination.
    pub idle_per_destination_max: usize,
    /// Connections per destination.
    pub connections_per_destination_max: usize,
    /// Connections in all.
    pub connections_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            tls: None,
            idle_ms: 30_000,
            idle_per_destination_max: 32,
            connections_per_destination_max: 256,
            connections_max: 8192,
        }
    }
}

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsClient({} roots)", self.roots_count())
    }
}

/// What one core's client counts.
#[derive(Debug, Default)]
pub struct ClientGauges {
    /// Connections open now.
    pub connections_open: Cell<u64>,
    /// Of them, idle.
    pub connections_idle: Cell<u64>,
    /// Connections made.
    pub connections_made: Cell<u64>,
    /// Calls that found an idle connection.
    pub reused: Cell<u64>,
    /// Calls sent again because the idle connection they took had been closed.
    pub resent: Cell<u64>,
}

fn bump(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// A connection that can take a call.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Chunks>,
    /// Bytes received on it so far.
    pub(super) received: Rc<Cell<u64>>,
    place: Rc<Place>,
}

/// A connection's place in the counts; dropped with its last owner.
struct Place {
    inner: Weak<Inner>,
    destination: Rc<Destination>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Host {
    open_count: usize,
    /// Oldest first.
    idle: Vec<Idle>,
}

pub(super) struct Inner {
    config: ClientConfig,
    hosts: RefCell<HashMap<Rc<Destination>, Host>>,
    pub(super) gauges: ClientGauges,
}

/// A client of one core. A clone is the same client.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Rc<Inner>,
}

impl Client {
    /// A client on the current core.
    pub fn new(config: ClientConfig) -> Client {
        let inner = Rc::new(Inner {
            config,
            hosts: RefCell::default(),
            gauges: ClientGauges::default(),
        });
        glommio::spawn_local(sweep(Rc::downgrade(&inner))).detach();
        Client { inner }
    }

    /// Its gauges and counters.
    pub fn gauges(&self) -> &ClientGauges {
        &self.inner.gauges
    }

    /// Closes every idle connection.
    pub fn close_idle(&self) {
        self.inner.keep_idle(|_| false);
    }

    /// An idle connection to `destination`, if there is one.
    pub(super) fn take_idle(&self, destination: &Destination) -> Option<Connection> {
        let mut dead = Vec::new();
        let mut hosts = self.inner.hosts.borrow_mut();
        let host = hosts.get_mut(destination)?;
        let found = loop {
            let Some(idle) = host.idle.pop() else {
                break None;
            };
            let gauge = &self.inner.gauges.connections_idle;
            gauge.set(gauge.get() - 1);
            if !idle.connection.sender.is_closed() {
                bump(&self.inner.gauges.reused);
                break Some(idle.connection);
            }
            dead.push(idle);
        };
        // A dropped connection enters `hosts` itself.
        drop(hosts);
        drop(dead);
        found
    }

    /// Gives a connection back after a call whose answer was read to its end.
    pub(super) fn give_back(&self, connection: Connection) {
        let inner = &self.inner;
        let mut hosts = inner.hosts.borrow_mut();
        let surplus = match hosts.get_mut(&*connection.place.destination) {
            Some(host) if !connection.sender.is_closed() => {
                host.idle.push(Idle {
                    connection,
                    since: Instant::now(),
                });
                bump(&inner.gauges.connections_idle);
                (host.idle.len() > inner.config.idle_per_destination_max)
                    .then(|| host.idle.remove(0).connection)
            }
            _ => None,
        };
        drop(hosts);
        if surplus.is_some() {
            inner
                .gauges
                .connections_idle
                .set(inner.gauges.connections_idle.get() - 1);
        }
    }

    /// Makes a connection. The caller bounds the time.
    ///
    /// # Cancel safety
    /// Dropping it closes what was begun.
    pub(super) async fn connect(
        &self,
        destination: &Rc<Destination>,
    ) -> Result<Connection, CallError> {
        let place = self
            .inner
            .enter(destination)
            .ok_or(CallError::TooManyConnections)?;
        let address = SocketAddr::new(destination.ip, destination.port);
        let tcp = TcpStream::connect(address)
            .await
            .map_err(|e| CallError::Connect(e.into()))?;
        tcp.set_nodelay(true)
            .map_err(|e| CallError::Connect(e.into()))?;
        let stream = match destination.scheme {
            Scheme::Http => Stream::Plain(tcp),
            Scheme::Https => {
                let tls = self.inner.config.tls.as_ref().ok_or(CallError::NoTls)?;
                let name = ServerName::try_from(destination.host.clone())
                    .map_err(|_| CallError::HostName)?;
                let connector = TlsConnector::from(std::sync::Arc::clone(&tls.config));
                let stream = connector.connect(name, tcp).await.map_err(CallError::Tls)?;
                Stream::Tls(Box::new(stream))
            }
        };
        let io = HyperIo::new(stream);
        let received = io.received();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake::<_, Chunks>(io)
            .await
            .map_err(CallError::Http)?;
        let place = Rc::new(place);
        let held = Rc::clone(&place);
        glommio::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, host = held.destination.host, "connection to a destination");
            }
        })
        .detach();
        bump(&self.inner.gauges.connections_made);
        Ok(Connection {
            sender,
            received,
            place,
        })
    }
}

impl Inner {
    fn enter(self: &Rc<Self>, destination: &Rc<Destination>) -> Option<Place> {
        if self.gauges.connections_open.get() >= self.config.connections_max as u64 {
            return None;
        }
        let mut hosts = self.hosts.borrow_mut();
        let host = hosts.entry(Rc::clone(destination)).or_default();
        if host.open_count >= self.config.connections_per_destination_max {
            return None;
        }
        host.open_count += 1;
        bump(&self.gauges.connections_open);
        Some(Place {
            inner: Rc::downgrade(self),
            destination: Rc::clone(destination),
        })
    }

    /// Closes the idle connections for which `keep` is false.
    fn keep_idle(&self, keep: impl Fn(&Idle) -> bool) {
        let mut dropped = Vec::new();
        for host in self.hosts.borrow_mut().values_mut() {
            dropped.extend(host.idle.extract_if(.., |idle| !keep(idle)));
        }
        self.gauges
            .connections_idle
            .set(self.gauges.connections_idle.get() - dropped.len() as u64);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        inner
            .gauges
            .connections_open
            .set(inner.gauges.connections_open.get() - 1);
        let mut hosts = inner.hosts.borrow_mut();
        if let Some(host) = hosts.get_mut(&*self.destination) {
            host.open_count -= 1;
            if host.open_count == 0 && host.idle.is_empty() {
                hosts.remove(&*self.destination);
            }
        }
    }
}

async fn sweep(inner: Weak<Inner>) {
    loop {
        Timer::new(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        let kept = Duration::from_millis(inner.config.idle_ms);
        inner.keep_idle(|idle| idle.since.elapsed() < kept && !idle.connection.sender.is_closed());
    }
}
