//! One connection: read a request, ask the handler, answer, again.
//!
//! Invariants: answers go out in the order of their requests, and the next request is looked at
//! only after the last was answered; after a refusal that puts the framing in doubt nothing more
//! is parsed; an idle connection holds no receive buffer; nothing is read while the handler runs.
//! Generic over the stream, so that TLS can lie under it.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsAcceptor;

use super::chunked::{ChunkDecoder, ChunkFault};
use super::core::{Core, Entry, Phase, Signal};
use super::head::{self, BodyFraming, Head, HeadFault, HeadScan, ParsedHead, Version};
use super::response::{ConnectionHeader, Encoding};
use super::{Handler, HeadDecision, Refusal, Request, Response};

/// One read of a large body.
const READ_BYTES_MAX: usize = 64 * 1024;
/// First buffer of a head that came in pieces.
const HEAD_BUFFER_BYTES: usize = 1024;
/// A body's buffer is first this large, then [`BODY_GROWTH`] times, then the announced length: a
/// claim alone costs nothing.
const BODY_BUFFER_BYTES: usize = 64 * 1024;
const BODY_GROWTH: usize = 16;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

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
            HeadFault::Malformed => Refusal::Malformed,
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

    /// Reads until the head is complete; answers its length in `buffer` and what it says.
    async fn read_head(&mut self) -> Result<(usize, ParsedHead), Stop> {
        let (bytes_max, headers_max) = {
            let limits = &self.core().limits;
            (limits.head_bytes_max, limits.headers_max)
        };
        let mut scan = HeadScan::default();
        let mut skipped_line = false;
        let mut phase = Phase::Idle;
        loop {
            if !skipped_line && self.buffer.starts_with(b"\r\n") {
                self.buffer.advance(2);
                skipped_line = true;
            }
            if !self.buffer.is_empty() {
                let lone_cr = !skipped_line && self.buffer[..] == *b"\r";
                if !lone_cr && let Some(head_len) = scan.advance(&self.buffer, bytes_max)? {
                    return Ok((
                        head_len,
                        head::parse(&self.buffer[..head_len], headers_max)?,
                    ));
                }
                if phase == Phase::Idle {
                    phase = Phase::Head;
                    self.entry.enter(Phase::Head);
                }
                self.own_buffer(HEAD_BUFFER_BYTES);
            }
            let want = self.buffer.capacity() - self.buffer.len();
            match self.read(want).await {
                Ok(_) => {}
                Err(End::Expired) if phase == Phase::Head => {
                    return Err(Stop::Refuse(Refusal::Timeout));
                }
                Err(end) => return Err(Stop::Quiet(end)),
            }
        }
    }

    /// Reads the body; answers the head's bytes and the body's.
    async fn read_body(
        &mut self,
        head_len: usize,
        parsed: &ParsedHead,
        bytes_max: u64,
    ) -> Result<(Bytes, Bytes), Stop> {
        let length = match parsed.body {
            BodyFraming::Length(length) => length,
            BodyFraming::Chunked => return self.read_chunks(head_len, parsed, bytes_max).await,
        };
        if length > bytes_max {
            return Err(Stop::Refuse(Refusal::BodyTooLarge { limit: bytes_max }));
        }
        if !self.entry.hold(length) {
            return Err(Stop::Refuse(Refusal::Overload));
        }
        let total = usize::try_from(length)
            .ok()
            .and_then(|n| n.checked_add(head_len));
        let total = total.ok_or(Stop::Refuse(Refusal::Malformed))?;
        if self.buffer.len() < total {
            self.entry.enter(Phase::Body);
            if parsed.expects_continue && self.buffer.len() == head_len {
                self.write(CONTINUE.to_vec()).await.map_err(Stop::Quiet)?;
            }
            self.read_length(total).await?;
        }
        let mut whole = self.buffer.split_to(total).freeze();
        let head = whole.split_to(head_len);
        Ok((head, whole))
    }

    /// Reads until `buffer` holds `total` bytes, and not one more.
    async fn read_length(&mut self, total: usize) -> Result<(), Stop> {
        let mut own = BytesMut::with_capacity(total.min(BODY_BUFFER_BYTES.max(self.buffer.len())));
        own.extend_from_slice(&self.buffer);
        self.buffer = own;
        while self.buffer.len() < total {
            let (len, capacity) = (self.buffer.len(), self.buffer.capacity());
            if len == capacity {
                self.buffer.reserve(total.min(capacity * BODY_GROWTH) - len);
            }
            let want = (total.min(self.buffer.capacity()) - len).min(READ_BYTES_MAX);
            self.read_of_body(want).await?;
        }
        Ok(())
    }

    async fn read_chunks(
        &mut self,
        head_len: usize,
        parsed: &ParsedHead,
        bytes_max: u64,
    ) -> Result<(Bytes, Bytes), Stop> {
        let mut head = self.buffer.split_to(head_len).freeze();
        let mut decoder = ChunkDecoder::new(bytes_max);
        let mut body = BytesMut::new();
        let mut began = false;
        loop {
            if !self.entry.hold(self.buffer.len() as u64) {
                return Err(Stop::Refuse(Refusal::Overload));
            }
            let fed = decoder.feed(&self.buffer, |run| body.extend_from_slice(run));
            let taken = fed.map_err(|fault| {
                Stop::Refuse(match fault {
                    ChunkFault::Malformed => Refusal::Malformed,
                    ChunkFault::TooLarge => Refusal::BodyTooLarge { limit: bytes_max },
                })
            })?;
            self.buffer.advance(taken);
            if decoder.is_done() {
                return Ok((head, body.freeze()));
            }
            // All of it was taken: give the shared buffer back before waiting for the client.
            self.buffer = BytesMut::new();
            if !began {
                began = true;
                head = Bytes::copy_from_slice(&head);
                self.entry.enter(Phase::Body);
                if parsed.expects_continue && taken == 0 {
                    self.write(CONTINUE.to_vec()).await.map_err(Stop::Quiet)?;
                }
            }
            self.read_of_body(0).await?;
        }
    }

    async fn read_of_body(&mut self, want: usize) -> Result<(), Stop> {
        match self.read(want).await {
            Ok(n) => {
                self.entry.slot.note_body_bytes(n);
                glommio::yield_if_needed().await;
                Ok(())
            }
            Err(End::Eof) => Err(Stop::Refuse(Refusal::BodyCut)),
            Err(End::Expired) => Err(Stop::Refuse(Refusal::Timeout)),
            Err(end) => Err(Stop::Quiet(end)),
        }
    }

    /// Drops a refused request whose body is here in full (or that has none), so that the
    /// connection can go on. False: the body is still to come, it cannot.
    fn skip_received(&mut self, head_len: usize, parsed: &ParsedHead) -> bool {
        let BodyFraming::Length(length) = parsed.body else {
            return false;
        };
        match usize::try_from(length)
            .ok()
            .and_then(|n| n.checked_add(head_len))
        {
            Some(total) if total <= self.buffer.len() => {
                self.buffer.advance(total);
                if self.buffer.is_empty() {
                    self.buffer = BytesMut::new();
                }
                true
            }
            _ => false,
        }
    }

    /// Moves what is received out of the shared slab, with room for more.
    fn own_buffer(&mut self, least: usize) {
        if self.buffer.len() == self.buffer.capacity() {
            let mut own = BytesMut::with_capacity(least.max(self.buffer.len() * 2));
            own.extend_from_slice(&self.buffer);
            self.buffer = own;
        }
    }

    /// Reads once: into the shared slab when `buffer` is empty, else up to `want` bytes after it.
    ///
    /// # Cancel safety
    /// Nothing is lost when dropped: the read is tried only when the socket is ready.
    async fn read(&mut self, want: usize) -> Result<usize, End> {
        poll_fn(|cx| self.poll_read(cx, want)).await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<Result<usize, End>> {
        if self.entry.slot.signal() == Signal::Expired {
            return Poll::Ready(Err(End::Expired));
        }
        let stream = Pin::new(&mut self.stream);
        let polled = if self.buffer.is_empty() {
            self.entry
                .core()
                .read_slab(|free| stream.poll_read(cx, free))
                .map_ok(|came| {
                    self.buffer = came;
                    self.buffer.len()
                })
        } else {
            let len = self.buffer.len();
            self.buffer.resize(len + want, 0);
            let polled = stream.poll_read(cx, &mut self.buffer[len..]);
            self.buffer.truncate(
                len + if let Poll::Ready(Ok(n)) = polled {
                    n
                } else {
                    0
                },
            );
            polled
        };
        match polled {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(End::Eof)),
            Poll::Ready(Ok(n)) => {
                self.core().gauges.bytes_in.add(n as u64);
                Poll::Ready(Ok(n))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(End::Broken)),
            Poll::Pending if self.entry.slot.signal() == Signal::Close => {
                Poll::Ready(Err(End::Closed))
            }
            Poll::Pending => {
                self.entry.slot.park(cx);
                Poll::Pending
            }
        }
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

    /// Writes an answer: one write from the core's scratch buffer, unless the socket is full.
    async fn answer(
        &mut self,
        response: &Response,
        connection: ConnectionHeader,
        without_body: bool,
    ) -> Result<(), End> {
        let rest = poll_fn(|cx| {
            let core = self.entry.core();
            let mut out = core.out.borrow_mut();
            out.clear();
            response.encode(
                &mut out,
                &Encoding {
                    date: core.clock.date(),
                    connection,
                    without_body,
                },
            );
            let rest = match Pin::new(&mut self.stream).poll_write(cx, &out) {
                Poll::Ready(Ok(n)) if n == out.len() => Vec::new(),
                Poll::Ready(Ok(n)) => return Poll::Ready(Ok(Some(out[n..].to_vec()))),
                Poll::Pending => return Poll::Ready(Ok(Some(out.clone()))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(End::Broken)),
            };
            Poll::Ready(match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => Ok(None),
                Poll::Ready(Err(_)) => Err(End::Broken),
                Poll::Pending => Ok(Some(rest)),
            })
        })
        .await?;
        if let Some(rest) = rest {
            self.entry.enter(Phase::Writing);
            self.write(rest).await?;
        }
        Ok(())
    }

    /// Writes all of `bytes` under the current phase's deadline.
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), End> {
        let mut written = 0;
        poll_fn(|cx| {
            if self.entry.slot.signal() == Signal::Expired {
                return Poll::Ready(Err(End::Broken));
            }
            while written < bytes.len() {
                match Pin::new(&mut self.stream).poll_write(cx, &bytes[written..]) {
                    Poll::Ready(Ok(n)) if n > 0 => written += n,
                    Poll::Ready(_) => return Poll::Ready(Err(End::Broken)),
                    Poll::Pending => {
                        self.entry.slot.park(cx);
                        return Poll::Pending;
                    }
                }
            }
            let flushed = Pin::new(&mut self.stream).poll_flush(cx);
            if flushed.is_pending() {
                self.entry.slot.park(cx);
            }
            flushed.map_err(|_| End::Broken)
        })
        .await
    }

    /// Ends our side and throws away what the client still sends, within bounds, so that closing
    /// does not reset the connection before the client has read the answer.
    async fn linger(&mut self) {
        self.buffer = BytesMut::new();
        self.entry.release();
        self.entry.enter(Phase::Draining);
        if poll_fn(|cx| self.poll_end(cx)).await.is_err() {
            return;
        }
        let mut left = self.core().limits.drain_bytes_max;
        while let Ok(n) = poll_fn(|cx| self.poll_drain(cx)).await {
            left = left.saturating_sub(n as u64);
            if n == 0 || left == 0 {
                return;
            }
            glommio::yield_if_needed().await;
        }
    }

    /// Tells the client that no more will come; TLS may have to wait for room to say so.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.entry.slot.signal() != Signal::None {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = Pin::new(&mut self.stream).poll_close(cx);
        if polled.is_pending() {
            self.entry.slot.park(cx);
        }
        polled
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.entry.slot.signal() != Signal::None {
            return Poll::Ready(Ok(0));
        }
        let stream = Pin::new(&mut self.stream);
        let polled = self
            .entry
            .core()
            .read_away(|free| stream.poll_read(cx, free));
        if polled.is_pending() {
            self.entry.slot.park(cx);
        }
        Poll::Ready(ready!(polled))
    }

    fn core(&self) -> &Rc<Core> {
        self.entry.core()
    }

    fn count_refusal(&self, refusal: Refusal) {
        let gauges = &self.core().gauges;
        match refusal {
            Refusal::Malformed => gauges.refused_malformed.add(1),
            Refusal::HeadTooLarge => gauges.refused_head_too_large.add(1),
            Refusal::BodyTooLarge { .. } => gauges.refused_body_too_large.add(1),
            Refusal::Timeout => gauges.refused_timeout.add(1),
            Refusal::Overload => gauges.refused_overload.add(1),
            Refusal::BodyCut => gauges.bodies_cut.add(1),
        }
    }
}

#[cfg(test)]
mod tests;
