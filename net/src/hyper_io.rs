//! hyper's I/O traits over any single-threaded stream. Runs on a reactor core.
//!
//! Reads go through a buffer on the stack, so that no uninitialised memory is handed out: one copy
//! of at most 8 KiB. Short writes of several slices are joined into one system call, long ones go
//! out uncopied.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_lite::io::{AsyncRead, AsyncWrite};
use hyper::rt::ReadBufCursor;

/// Buffer of one read, and the most that is joined into one write.
const BUFFER_BYTES: usize = 8 * 1024;

/// A stream as hyper wants it.
pub(crate) struct HyperIo<S> {
    stream: S,
    /// Bytes read so far, for whoever asks whether anything came.
    received: Rc<Cell<u64>>,
}

impl<S> HyperIo<S> {
    pub(crate) fn new(stream: S) -> Self {
        HyperIo {
            stream,
            received: Rc::default(),
        }
    }

    pub(crate) fn received(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.received)
    }
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for HyperIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffer = [0u8; BUFFER_BYTES];
        let want = into.remaining().min(BUFFER_BYTES);
        let n = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer[..want]))?;
        into.put_slice(&buffer[..n]);
        self.received.set(self.received.get() + n as u64);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for HyperIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|s| !s.is_empty());
        let total: usize = slices.iter().map(|s| s.len()).sum();
        match first {
            Some(first) if first.len() == total || total > BUFFER_BYTES => {
                Pin::new(&mut self.stream).poll_write(cx, first)
            }
            Some(_) => {
                let mut joined = [0u8; BUFFER_BYTES];
                let mut len = 0;
                for slice in slices {
                    joined[len..len + slice.len()].copy_from_slice(slice);
                    len += slice.len();
                }
                Pin::new(&mut self.stream).poll_write(cx, &joined[..len])
            }
            None => Poll::Ready(Ok(0)),
        }
    }
}
