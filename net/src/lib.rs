//! HTTP serving and calling on a glommio core, generic over a handler.
//!
//! - [`http1`]: the strict HTTP/1.1 server of the ingest port.
//! - [`web`]: a general server on hyper, for the operator's port.
//! - [`client`]: calls to other servers, with connections kept.
//! - [`tls`]: who a server is.
//! - [`dns`]: names to addresses on threads of their own.
//!
//! Knows nothing of the product: which paths exist, what an error is called and what a request
//! means is the handler's. Everything but [`dns`]'s threads is single-threaded and runs on a
//! reactor core.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
pub mod dns;
pub mod http1;
mod hyper_io;
mod listen;
pub mod tls;
pub mod web;

pub use listen::{ListenError, Listener, ensure_unclaimed};

/// The HTTP types that [`client`] and [`web`] speak in.
pub mod types {
    pub use http_body_util::Full;
    pub use hyper::header::{HeaderMap, HeaderName, HeaderValue};
    pub use hyper::http::uri::PathAndQuery;
    pub use hyper::{Method, Request, Response, StatusCode, Uri};
}
