//! A request's body: the caller's chunks, sent as they are.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Chunks of a body, of known total length. A clone shares their memory.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    chunks: VecDeque<Bytes>,
    left: u64,
}

impl Chunks {
    /// A body of these chunks.
    pub fn new(chunks: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks: VecDeque<Bytes> = chunks.into_iter().filter(|c| !c.is_empty()).collect();
        let left = chunks.iter().map(|c| c.len() as u64).sum();
        Chunks { chunks, left }
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Chunks::new([bytes])
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.pop_front();
        self.left -= chunk.as_ref().map_or(0, |c| c.len() as u64);
        Poll::Ready(chunk.map(|c| Ok(Frame::data(c))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
