//! The reading half of a connection: heads, bodies, and into which memory.
//!
//! Small requests are parsed where they lie in the core's slab. What is still incomplete when the
//! client pauses moves to memory of its own, so that a slow client holds no slab.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use futures_lite::io::{AsyncRead, AsyncWrite};

use super::{Connection, End, Stop};
use crate::http1::chunked::{ChunkDecoder, ChunkFault};
use crate::http1::core::{Phase, Signal};
use crate::http1::head::{self, BodyFraming, Doubt, HeadScan, ParsedHead};
use crate::http1::{Handler, Refusal};

/// One read of a large body.
const READ_BYTES_MAX: usize = 64 * 1024;
/// First buffer of a head that came in pieces.
const HEAD_BUFFER_BYTES: usize = 1024;
/// A body's buffer is first this large, then [`BODY_GROWTH`] times, then the announced length: a
/// claim alone costs nothing.
const BODY_BUFFER_BYTES: usize = 64 * 1024;
const BODY_GROWTH: usize = 16;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl<H: Handler, S: AsyncRead + AsyncWrite + Unpin> Connection<H, S> {
    /// Reads until the head is complete; answers its length in `buffer` and what it says.
    pub(super) async fn read_head(&mut self) -> Result<(usize, ParsedHead), Stop> {
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
    pub(super) async fn read_body(
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
        // Room is taken as memory is: a length that is merely announced takes none from others.
        let held = length.min(BODY_BUFFER_BYTES.max(self.buffer.len()) as u64);
        if !self.entry.hold(held) {
            return Err(Stop::Refuse(Refusal::Overload));
        }
        let total = usize::try_from(length)
            .ok()
            .and_then(|n| n.checked_add(head_len));
        let total = total.ok_or(Stop::Refuse(Refusal::Malformed(Doubt::ContentLength)))?;
        if self.buffer.len() < total {
            self.entry.enter(Phase::Body);
            if parsed.expects_continue && self.buffer.len() == head_len {
                self.write(CONTINUE.to_vec()).await.map_err(Stop::Quiet)?;
            }
            self.read_length(total, length - held).await?;
        }
        let mut whole = self.buffer.split_to(total).freeze();
        let head = whole.split_to(head_len);
        Ok((head, whole))
    }

    /// Reads until `buffer` holds `total` bytes, and not one more. `unheld` of the body are not
    /// counted against the core's ceiling yet.
    pub(super) async fn read_length(&mut self, total: usize, mut unheld: u64) -> Result<(), Stop> {
        let mut own = BytesMut::with_capacity(total.min(BODY_BUFFER_BYTES.max(self.buffer.len())));
        own.extend_from_slice(&self.buffer);
        self.buffer = own;
        while self.buffer.len() < total {
            let (len, capacity) = (self.buffer.len(), self.buffer.capacity());
            if len == capacity {
                let more = total.min(capacity * BODY_GROWTH) - len;
                let held = unheld.min(more as u64);
                if !self.entry.hold(held) {
                    return Err(Stop::Refuse(Refusal::Overload));
                }
                unheld -= held;
                self.buffer.reserve(more);
            }
            let want = (total.min(self.buffer.capacity()) - len).min(READ_BYTES_MAX);
            self.read_of_body(want).await?;
        }
        Ok(())
    }

    pub(super) async fn read_chunks(
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
                    ChunkFault::Malformed => Refusal::Malformed(Doubt::Chunk),
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

    pub(super) async fn read_of_body(&mut self, want: usize) -> Result<(), Stop> {
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
    pub(super) fn skip_received(&mut self, head_len: usize, parsed: &ParsedHead) -> bool {
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
    pub(super) fn own_buffer(&mut self, least: usize) {
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
    pub(super) async fn read(&mut self, want: usize) -> Result<usize, End> {
        poll_fn(|cx| self.poll_read(cx, want)).await
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        want: usize,
    ) -> Poll<Result<usize, End>> {
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
}
