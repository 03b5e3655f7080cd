//! A strict HTTP/1.1 server: the pure framer, the connection loop over it, and one listener per
//! core. HTTP/2, where TLS agrees on it, is hyper's and reaches the same handler.
//!
//! Owns framing, limits and deadlines. A request whose framing is in any doubt is refused and the
//! connection closed: nothing after it is ever read as a request. Bodies are handed over exactly
//! as received. Does not route, decompress, or know what a refusal is called ([`Handler::refusal`]).
//!
//! [`head`] and [`chunked`] are pure functions over bytes; the rest runs on a reactor core.

pub mod chunked;
mod clock;
mod connection;
mod core;
mod gauges;
pub mod head;
mod http2;
mod limits;
mod request;
mod response;
mod server;

pub use gauges::{Counter, Gauges};
pub use head::{Doubt, Head, Version};
pub use limits::{Limits, LimitsError};
pub use request::{Handler, HeadDecision, Refusal, Request};
pub use response::{Body, HeaderValue, InlineBody, Response};
pub use server::{Server, StopReport};
