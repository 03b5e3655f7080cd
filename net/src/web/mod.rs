//! A general HTTP/1.1 server on hyper, for the operator's port: whole requests in, whole answers
//! out, a body limit, deadlines. Not for the ingest port.
//!
//! Bounds: connections at once, body bytes, time for head, body and answer. Each connection looks
//! at its own deadline twice a second; the handler is under none. Runs on a reactor core.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_lite::FutureExt;
use glommio::net::TcpStream;
use glommio::timer::Timer;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};

use crate::Listener;
use crate::hyper_io::HyperIo;

/// How often a connection looks at its deadline.
const TICK: Duration = Duration::from_millis(500);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Read buffer of one connection, hence the longest head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Answers whole requests.
#[expect(
    async_fn_in_trait,
    reason = "single-threaded: the future needs no Send bound"
)]
pub trait WebService: 'static {
    /// Answers a request.
    async fn call(&self, request: Request<Bytes>) -> Response<Full<Bytes>>;

    /// The body of an answer the server gives itself: 413 or 408 (400: the body was cut).
    fn refusal(&self, status: StatusCode) -> Bytes;
}

/// Who sent a request: among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Limits of a [`WebServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebLimits {
    /// Connections at once; more wait in the kernel.
    pub connections_max: usize,
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// For a head to come (also: how long an idle connection stays), for a body to come, and for
    /// an answer to be taken.
    pub phase_ms: u64,
}

impl Default for WebLimits {
    fn default() -> Self {
        WebLimits {
            connections_max: 256,
            body_bytes_max: 1_000_000,
            phase_ms: 30_000,
        }
    }
}

struct Shared {
    limits: WebLimits,
    stopping: Cell<bool>,
    open: Cell<usize>,
    accepting: Cell<Option<Waker>>,
    stopper: Cell<Option<Waker>>,
    /// Wakers of connections, woken once when stopping. Bounded by `connections_max`.
    connections: RefCell<Vec<Rc<Deadline>>>,
}

/// When a connection must have got on. `None`: the handler runs.
#[derive(Default)]
struct Deadline {
    at: Cell<Option<Instant>>,
    waker: Cell<Option<Waker>>,
}

/// A running server. Dropping it leaves it running: it ends by [`WebServer::stop`].
pub struct WebServer {
    shared: Rc<Shared>,
    listener: Rc<Listener>,
}

impl WebServer {
    /// Begins to accept and serve.
    pub fn start<S: WebService>(
        listener: Listener,
        service: Rc<S>,
        limits: WebLimits,
    ) -> WebServer {
        let shared = Rc::new(Shared {
            limits,
            stopping: Cell::new(false),
            open: Cell::new(0),
            accepting: Cell::new(None),
            stopper: Cell::new(None),
            connections: RefCell::default(),
        });
        let listener = Rc::new(listener);
        glommio::spawn_local(accept(Rc::clone(&shared), Rc::clone(&listener), service)).detach();
        WebServer { shared, listener }
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Stops listening, closes idle connections, and returns when the others have ended or `grace`
    /// is over: how many were left.
    pub async fn stop(self, grace: Duration) -> usize {
        self.shared.stopping.set(true);
        self.listener.shut();
        let wakers = self
            .shared
            .connections
            .borrow()
            .iter()
            .filter_map(|d| d.waker.take())
            .collect::<Vec<_>>();
        wakers
            .into_iter()
            .chain(self.shared.accepting.take())
            .for_each(Waker::wake);
        let late = async {
            Timer::new(grace).await;
        };
        let empty = poll_fn(|cx| {
            self.shared.stopper.set(Some(cx.waker().clone()));
            if self.shared.open.get() == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        empty.or(late).await;
        self.shared.open.get()
    }
}

async fn accept<S: WebService>(shared: Rc<Shared>, listener: Rc<Listener>, service: Rc<S>) {
    loop {
        poll_fn(|cx| {
            shared.accepting.set(Some(cx.waker().clone()));
            let room = shared.open.get() < shared.limits.connections_max;
            if room || shared.stopping.get() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        if shared.stopping.get() {
            return;
        }
        match listener.accept().await {
            Ok(stream) => {
                let entry = Entry::new(&shared);
                glommio::spawn_local(serve(entry, stream, Rc::clone(&service))).detach();
            }
            Err(_) if shared.stopping.get() => return,
            Err(error) => {
                tracing::warn!(%error, address = %listener.local_addr(), "accepting a connection");
                Timer::new(ACCEPT_PAUSE).await;
            }
        }
        glommio::yield_if_needed().await;
    }
}

/// A connection's place among the open ones.
struct Entry {
    shared: Rc<Shared>,
    deadline: Rc<Deadline>,
}

impl Entry {
    fn new(shared: &Rc<Shared>) -> Entry {
        shared.open.set(shared.open.get() + 1);
        let deadline = Rc::<Deadline>::default();
        shared.connections.borrow_mut().push(Rc::clone(&deadline));
        Entry {
            shared: Rc::clone(shared),
            deadline,
        }
    }

    fn restart(&self) {
        self.deadline.at.set(Some(
            Instant::now() + Duration::from_millis(self.shared.limits.phase_ms),
        ));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.open.set(self.shared.open.get() - 1);
        self.shared
            .connections
            .borrow_mut()
            .retain(|d| !Rc::ptr_eq(d, &self.deadline));
        self.shared
            .accepting
            .take()
            .into_iter()
            .chain(self.shared.stopper.take())
            .for_each(Waker::wake);
    }
}

async fn serve<S: WebService>(entry: Entry, stream: TcpStream, service: Rc<S>) {
    let Ok(peer) = stream.peer_addr() else { return };
    let peer = Peer(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
    entry.restart();
    let answer = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let (service, entry) = (&service, &entry);
        async move {
            let response = answer(entry, &**service, request).await;
            entry.restart();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true)
        .serve_connection(HyperIo::new(stream), answer);
    let mut connection = pin!(connection);
    let mut told = false;
    let mut tick = Timer::new(TICK);
    let ended = poll_fn(|cx| {
        if entry.shared.stopping.get() && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(end) = connection.as_mut().poll(cx) {
            return Poll::Ready(Some(end));
        }
        entry.deadline.waker.set(Some(cx.waker().clone()));
        if poll_tick(&mut tick, cx, || {
            entry
                .deadline
                .at
                .get()
                .is_some_and(|at| at <= Instant::now())
        }) {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await;
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "operator connection"),
        None => tracing::debug!("operator connection too slow"),
    }
}

/// Polls the ticker until it is pending; true: `late` held at a tick.
fn poll_tick(tick: &mut Timer, cx: &mut Context<'_>, late: impl Fn() -> bool) -> bool {
    while Pin::new(&mut *tick).poll(cx).is_ready() {
        if late() {
            return true;
        }
        *tick = Timer::new(TICK);
    }
    false
}

async fn answer<S: WebService>(
    entry: &Entry,
    service: &S,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let limits = &entry.shared.limits;
    let late = async {
        Timer::new(Duration::from_millis(limits.phase_ms)).await;
        Err(StatusCode::REQUEST_TIMEOUT)
    };
    entry.deadline.at.set(None);
    match collect(body, limits.body_bytes_max).or(late).await {
        Ok(body) => service.call(Request::from_parts(parts, body)).await,
        Err(status) => {
            let mut response = Response::new(Full::new(service.refusal(status)));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            headers.insert(
                hyper::header::CONNECTION,
                hyper::header::HeaderValue::from_static("close"),
            );
            headers.insert(
                hyper::header::CONTENT_TYPE,
                hyper::header::HeaderValue::from_static("application/json"),
            );
            response
        }
    }
}

async fn collect(mut body: Incoming, bytes_max: usize) -> Result<Bytes, StatusCode> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > bytes_max {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
