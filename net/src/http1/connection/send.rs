//! The writing half of a connection, and its end.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use futures_lite::io::{AsyncRead, AsyncWrite};

use super::{Connection, End};
use crate::http1::core::{Phase, Signal};
use crate::http1::response::{ConnectionHeader, Encoding};
use crate::http1::{Handler, Response};

impl<H: Handler, S: AsyncRead + AsyncWrite + Unpin> Connection<H, S> {
    /// Writes an answer: one write from the core's scratch buffer, unless the socket is full.
    pub(super) async fn answer(
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
    pub(super) async fn write(&mut self, bytes: Vec<u8>) -> Result<(), End> {
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
    pub(super) async fn linger(&mut self) {
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
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.entry.slot.signal() != Signal::None {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = Pin::new(&mut self.stream).poll_close(cx);
        if polled.is_pending() {
            self.entry.slot.park(cx);
        }
        polled
    }

    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
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
}
