//! A request as the handler gets it, and the handler itself.

use std::net::SocketAddr;

use bytes::Bytes;

use super::Response;
use super::head::{self, Doubt, Head, ParsedHead};
use super::limits::Limits;

/// A whole request. Head and body are slices of what was received, not copies.
pub struct Request {
    pub(crate) head: Bytes,
    pub(crate) parsed: ParsedHead,
    /// The body, exactly as sent (chunks joined).
    pub body: Bytes,
    /// The other end of the connection.
    pub peer: SocketAddr,
}

impl Request {
    /// The request whose head (up to and with the empty line) and body these are, for whoever
    /// drives a handler without a connection. `None` when the server would not take the head.
    pub fn of(head: Bytes, body: Bytes, peer: SocketAddr) -> Option<Request> {
        let parsed = head::parse(&head, Limits::default().headers_max).ok()?;
        Some(Request {
            head,
            parsed,
            body,
            peer,
        })
    }

    /// Method, target and headers.
    pub fn head(&self) -> Head<'_> {
        Head::new(&self.head, &self.parsed, self.peer)
    }

    /// The bytes the head was parsed from: sub-slices of it can be kept without copying
    /// ([`Bytes::slice_ref`]). Keeping any of it keeps the whole receive buffer (64 KiB).
    pub fn head_bytes(&self) -> &Bytes {
        &self.head
    }
}

/// What to do with a request, told by its head.
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once; a box would be an allocation"
)]
pub enum HeadDecision<A> {
    /// Read the body, then call [`Handler::handle`].
    Body {
        /// Most bytes of body; more is refused with [`Refusal::BodyTooLarge`].
        bytes_max: u64,
        /// What the handler found out about the request, given back to it with the body.
        admitted: A,
    },
    /// Answer this and do not read the body.
    Refuse(Response),
}

/// Why the server itself refuses a request. The handler says what that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 400: its syntax or framing is in doubt. The connection closes.
    Malformed(Doubt),
    /// 431: too many header lines or bytes of them. The connection closes.
    HeadTooLarge,
    /// 413: the body is over this limit. The connection closes.
    BodyTooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// 408: head or body did not come in time. The connection closes.
    Timeout,
    /// 400: the client ended its side inside the body. Likely nobody reads the answer.
    BodyCut,
    /// 503: this core holds as many bytes of bodies as it may. The connection closes.
    Overload,
}

/// The service behind a server. Shared by all connections of a core.
#[expect(
    async_fn_in_trait,
    reason = "single-threaded: the future needs no Send bound"
)]
pub trait Handler: 'static {
    /// What [`Handler::on_head`] found out, for [`Handler::handle`]; `()` if nothing.
    type Admitted;

    /// Looks at a request before any byte of its body is read. Must not take long: it runs
    /// between two reads.
    fn on_head(&self, head: &Head<'_>) -> HeadDecision<Self::Admitted>;

    /// Answers a whole request. Runs to its end even if the client is gone; its deadline is the
    /// handler's own affair. While it runs nothing more is read from the connection.
    async fn handle(&self, request: Request, admitted: Self::Admitted) -> Response;

    /// The answer to a request that the server itself refuses.
    fn refusal(&self, refusal: Refusal) -> Response;
}
