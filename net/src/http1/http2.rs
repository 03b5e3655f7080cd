//! HTTP/2 of the same server, where TLS agrees on it: hyper's framing, our handler and limits.
//!
//! A request's head is written down as the HTTP/1.1 head it stands for and goes through the same
//! strict parser, so that the handler sees one kind of request. The handler runs in a task of its
//! own: a client that resets its stream, or goes away, does not end it. Runs on a reactor core.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_lite::FutureExt;
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::timer::Timer;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::HOST;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{http, rt};

use super::core::{Entry, Held, Phase, Signal};
use super::head::{self, BodyFraming, Doubt, Head, HeadFault, ParsedHead};
use super::{Handler, HeadDecision, Refusal, Request, Response};
use crate::hyper_io::HyperIo;

/// Requests at once on one connection.
const STREAMS_MAX: u32 = 128;
/// What a client may send ahead of our reading: of one body, and of all of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Answers waiting for the client, per stream.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// Serves a connection until its client ends it, it is idle too long, or the server stops.
pub(super) async fn run<H: Handler, S: AsyncRead + AsyncWrite + Unpin>(
    entry: Entry,
    handler: Rc<H>,
    stream: S,
    peer: SocketAddr,
) {
    let core = Rc::clone(entry.core());
    let slot = Rc::clone(&entry.slot);
    let streams = Rc::new(Streams {
        entry,
        handler,
        peer,
        open: Cell::new(0),
    });
    let service = {
        let streams = Rc::clone(&streams);
        service_fn(move |request| {
            let streams = Rc::clone(&streams);
            async move { Ok::<_, Infallible>(answer(streams, request).await) }
        })
    };
    let connection = http2::Builder::new(LocalExecutor)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(core.limits.head_bytes_max as u32)
        .max_send_buf_size(SEND_BYTES_MAX)
        .serve_connection(HyperIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut told = false;
    poll_fn(|cx| {
        let signal = slot.signal();
        if signal == Signal::Expired {
            return Poll::Ready(());
        }
        if !told && (signal == Signal::Close || core.is_stopping()) {
            told = true;
            connection.as_mut().graceful_shutdown();
            if streams.open.get() == 0 {
                streams.entry.enter(Phase::Draining);
            }
        }
        slot.park(cx);
        connection.as_mut().poll(cx).map(|end| {
            if let Err(error) = end {
                tracing::debug!(%error, "HTTP/2 connection");
                core.gauges.connections_broken.add(1);
            }
        })
    })
    .await;
}

/// What the streams of a connection share.
struct Streams<H> {
    entry: Entry,
    handler: Rc<H>,
    peer: SocketAddr,
    open: Cell<usize>,
}

/// A stream being answered: while there is one, the connection is under no deadline of its own.
struct OpenStream<H>(Rc<Streams<H>>);

impl<H> OpenStream<H> {
    fn new(streams: Rc<Streams<H>>) -> Self {
        if streams.open.replace(streams.open.get() + 1) == 0 {
            streams.entry.enter(Phase::Handling);
        }
        OpenStream(streams)
    }
}

impl<H> Drop for OpenStream<H> {
    fn drop(&mut self) {
        let streams = &self.0;
        streams.open.set(streams.open.get() - 1);
        if streams.open.get() == 0 {
            let stopping = streams.entry.core().is_stopping();
            streams.entry.enter(if stopping {
                Phase::Draining
            } else {
                Phase::Idle
            });
        }
    }
}

async fn answer<H: Handler>(
    streams: Rc<Streams<H>>,
    request: http::Request<Incoming>,
) -> http::Response<Full<Bytes>> {
    let without_body = request.method() == http::Method::HEAD;
    let _open = OpenStream::new(Rc::clone(&streams));
    let response = match exchange(&streams, request).await {
        Ok(response) => response,
        Err(refusal) => {
            streams.entry.core().count_refusal(refusal);
            streams.handler.refusal(refusal)
        }
    };
    response.into_http2(without_body)
}

async fn exchange<H: Handler>(
    streams: &Rc<Streams<H>>,
    request: http::Request<Incoming>,
) -> Result<Response, Refusal> {
    let core = streams.entry.core();
    let (parts, body) = request.into_parts();
    let head = head_bytes(&parts).ok_or(Refusal::Malformed(Doubt::Header))?;
    if head.len() > core.limits.head_bytes_max {
        return Err(Refusal::HeadTooLarge);
    }
    let mut parsed = head::parse(&head, core.limits.headers_max).map_err(|fault| match fault {
        HeadFault::Malformed(doubt) => Refusal::Malformed(doubt),
        HeadFault::TooLarge => Refusal::HeadTooLarge,
    })?;
    if parsed.body == BodyFraming::Length(0) && !body.is_end_stream() {
        // No length was announced, and there is a body.
        parsed.body = BodyFraming::Chunked;
    }
    let (bytes_max, admitted) =
        match streams
            .handler
            .on_head(&Head::new(&head, &parsed, streams.peer))
        {
            HeadDecision::Body {
                bytes_max,
                admitted,
            } => (bytes_max, admitted),
            HeadDecision::Refuse(response) => {
                core.gauges.refused_at_head.add(1);
                return Ok(response);
            }
        };
    core.gauges.bytes_in.add(head.len() as u64);
    let mut held = Held::new(core);
    let late = async {
        Timer::new(Duration::from_millis(core.limits.body_ms)).await;
        Err(Refusal::Timeout)
    };
    let body = if body.is_end_stream() {
        Bytes::new()
    } else {
        collect(body, &parsed, bytes_max, &mut held)
            .or(late)
            .await?
    };
    let request = Request {
        head,
        parsed,
        body,
        peer: streams.peer,
    };
    handle(streams, request, admitted, held)
        .await
        .ok_or(Refusal::Overload)
}

/// Has the handler answer in a task of its own, which goes on if nobody waits for it any more.
async fn handle<H: Handler>(
    streams: &Rc<Streams<H>>,
    request: Request,
    admitted: H::Admitted,
    held: Held,
) -> Option<Response> {
    let streams = Rc::clone(streams);
    let task = async move {
        let gauges = Arc::clone(&streams.entry.core().gauges);
        gauges.requests.add(1);
        gauges.requests_inflight.add(1);
        let response = streams.handler.handle(request, admitted).await;
        gauges.requests_inflight.sub(1);
        drop(held);
        response
    };
    glommio::spawn_local(task).detach().await
}

async fn collect(
    mut body: Incoming,
    parsed: &ParsedHead,
    bytes_max: u64,
    held: &mut Held,
) -> Result<Bytes, Refusal> {
    let too_large = Refusal::BodyTooLarge { limit: bytes_max };
    if let BodyFraming::Length(length) = parsed.body
        && length > bytes_max
    {
        return Err(too_large);
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::BodyCut)?.into_data() else {
            continue;
        };
        if (whole.len() + data.len()) as u64 > bytes_max {
            return Err(too_large);
        }
        if !held.add(data.len() as u64) {
            return Err(Refusal::Overload);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// The HTTP/1.1 head that a request stands for.
fn head_bytes(parts: &http::request::Parts) -> Option<Bytes> {
    let mut head = Vec::with_capacity(512);
    let mut push = |pieces: &[&[u8]]| {
        pieces
            .iter()
            .for_each(|piece| head.extend_from_slice(piece))
    };
    let target = parts.uri.path_and_query()?;
    push(&[
        parts.method.as_str().as_bytes(),
        b" ",
        target.as_str().as_bytes(),
        b" HTTP/1.1\r\n",
    ]);
    let authority = parts.uri.authority().map(|a| a.as_str());
    if let Some(authority) = authority {
        push(&[b"host: ", authority.as_bytes(), b"\r\n"]);
    }
    for (name, value) in &parts.headers {
        if name != HOST || authority.is_none() {
            push(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
    }
    push(&[b"\r\n"]);
    Some(Bytes::from(head))
}

/// Starts hyper's tasks on the current core.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future + 'static> rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        glommio::spawn_local(async move {
            task.await;
        })
        .detach();
    }
}

#[cfg(test)]
mod tests;
