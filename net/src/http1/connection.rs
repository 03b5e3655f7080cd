//! One connection: read a request, ask the handler, answer, again.
//!
//! Invariants: answers go out in the order of their requests, and the next request is looked at
//! only after the last was answered; after a refusal that puts the framing in doubt nothing more
//! is parsed; an idle connection holds no receive buffer; nothing is read while the handler runs.
//! Generic over the stream, so that TLS can lie under it.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::BytesMut;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsAcceptor;

use super::core::{Core, Entry, Phase, Signal};
use super::head::{Head, HeadFault, ParsedHead, Version};
use super::http2;
use super::response::ConnectionHeader;
use super::{Handler, HeadDecision, Refusal, Request, Response};
use crate::tls::ALPN_HTTP2;

mod receive;
mod send;

/// Why reading or writing ended.
enum End {
    /// The client ended its side.
    Eof,
    /// The phase's deadline passed.
    Expired,
    /// Nothing to read, and the server wants the connection closed.
    Closed,
    /// The connection broke.
    Broken,
}

/// Why a request is not answered by the handler.
enum Stop {
    /// Nothing to answer: end the connection.
    Quiet(End),
    /// Refuse, then end the connection.
    Refuse(Refusal),
}

impl From<HeadFault> for Stop {
    fn from(fault: HeadFault) -> Stop {
        Stop::Refuse(match fault {
            HeadFault::Malformed(doubt) => Refusal::Malformed(doubt),
            HeadFault::TooLarge => Refusal::HeadTooLarge,
        })
    }
}

/// Agrees on TLS, under the deadline of a head, then serves. A handshake that fails ends quietly.
pub(super) async fn run_tls<H: Handler, S: AsyncRead + AsyncWrite + Unpin>(
    entry: Entry,
    handler: Rc<H>,
    stream: S,
    peer: SocketAddr,
    tls: TlsAcceptor,
) {
    entry.enter(Phase::Head);
    let slot = Rc::clone(&entry.slot);
    let mut handshake = Box::pin(tls.accept(stream));
    let agreed = poll_fn(|cx| {
        if slot.signal() != Signal::None {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut handshake).poll(cx);
        if polled.is_pending() {
            slot.park(cx);
        }
        polled.map(Result::ok)
    })
    .await;
    drop(handshake);
    match agreed {
        Some(stream) => {
            entry.enter_first();
            if stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2) {
                return http2::run(entry, handler, stream, peer).await;
            }
            run(entry, handler, stream, peer).await;
        }
        None => entry.core().gauges.handshakes_failed.add(1),
    }
}

pub(super) async fn run<H: Handler, S: AsyncRead + AsyncWrite + Unpin>(
    entry: Entry,
    handler: Rc<H>,
    stream: S,
    peer: SocketAddr,
) {
    let mut connection = Connection {
        entry,
        handler,
        stream,
        peer,
        buffer: BytesMut::new(),
    };
    loop {
        let outcome = match connection.read_head().await {
            // Boxed: what a request needs, the handler's future above all, is not part of an idle
            // connection. One allocation a request.
            Ok((head_len, parsed)) => Box::pin(connection.exchange(head_len, parsed)).await,
            Err(stop) => Err(stop),
        };
        match outcome {
            Ok(true) => glommio::yield_if_needed().await,
            Ok(false) => break connection.linger().await,
            Err(Stop::Refuse(refusal)) => {
                connection.count_refusal(refusal);
                let response = connection.handler.refusal(refusal);
                if connection
                    .answer(&response, ConnectionHeader::Close, false)
                    .await
                    .is_ok()
                {
                    connection.linger().await;
                }
                break;
            }
            Err(Stop::Quiet(End::Broken)) => {
                break connection.core().gauges.connections_broken.add(1);
            }
            Err(Stop::Quiet(End::Eof)) => break,
            // TLS wants a farewell, if there is room for it.
            Err(Stop::Quiet(End::Expired | End::Closed)) => {
                break poll_fn(|cx| {
                    let _ = Pin::new(&mut connection.stream).poll_close(cx);
                    Poll::Ready(())
                })
                .await;
            }
        }
    }
}

struct Connection<H, S> {
    entry: Entry,
    handler: Rc<H>,
    stream: S,
    peer: SocketAddr,
    /// Received and not yet used.
    buffer: BytesMut,
}

impl<H: Handler, S: AsyncRead + AsyncWrite + Unpin> Connection<H, S> {
    /// One request and its answer. `Ok(false)`: answered, and the connection is to end.
    async fn exchange(&mut self, head_len: usize, parsed: ParsedHead) -> Result<bool, Stop> {
        let head = Head::new(&self.buffer[..head_len], &parsed, self.peer);
        let without_body = head.method() == b"HEAD";
        let (bytes_max, admitted) = match self.handler.on_head(&head) {
            HeadDecision::Body {
                bytes_max,
                admitted,
            } => (bytes_max, admitted),
            HeadDecision::Refuse(response) => {
                self.core().gauges.refused_at_head.add(1);
                let keeps = self.skip_received(head_len, &parsed);
                return self.reply(&response, &parsed, keeps, without_body).await;
            }
        };
        let (head, body) = self.read_body(head_len, &parsed, bytes_max).await?;
        if self.buffer.is_empty() {
            // An empty rest would keep the whole slab alive.
            self.buffer = BytesMut::new();
        }
        let (version, keeps) = (parsed.version, parsed.keep_alive);
        let request = Request {
            head,
            parsed,
            body,
            peer: self.peer,
        };

        self.entry.enter(Phase::Handling);
        let gauges = &self.core().gauges;
        gauges.requests.add(1);
        gauges.requests_inflight.add(1);
        let response = self.handler.handle(request, admitted).await;
        self.core().gauges.requests_inflight.sub(1);
        self.entry.release();
        self.reply_as(&response, version, keeps, without_body).await
    }

    async fn reply(
        &mut self,
        response: &Response,
        parsed: &ParsedHead,
        keeps: bool,
        without_body: bool,
    ) -> Result<bool, Stop> {
        self.reply_as(
            response,
            parsed.version,
            keeps && parsed.keep_alive,
            without_body,
        )
        .await
    }

    async fn reply_as(
        &mut self,
        response: &Response,
        version: Version,
        keeps: bool,
        without_body: bool,
    ) -> Result<bool, Stop> {
        let keeps = keeps && !response.closes() && !self.core().is_stopping();
        let connection = match (keeps, version) {
            (false, _) => ConnectionHeader::Close,
            (true, Version::Http10) => ConnectionHeader::KeepAlive,
            (true, Version::Http11) => ConnectionHeader::None,
        };
        self.answer(response, connection, without_body)
            .await
            .map_err(Stop::Quiet)?;
        if keeps {
            self.entry.enter(if self.buffer.is_empty() {
                Phase::Idle
            } else {
                Phase::Head
            });
        }
        Ok(keeps)
    }

    fn core(&self) -> &Rc<Core> {
        self.entry.core()
    }

    fn count_refusal(&self, refusal: Refusal) {
        self.core().count_refusal(refusal);
    }
}

#[cfg(test)]
mod tests;
