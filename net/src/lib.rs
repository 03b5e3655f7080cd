//! HTTP serving and calling on a glommio core, generic over a handler.
//!
//! - [`http1`]: the strict HTTP/1.1 server of the ingest port.
//!
//! Knows nothing of the product: which paths exist, what an error is called and what a request
//! means is the handler's. Everything here is single-threaded and runs on a reactor core.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod http1;
mod listen;

pub use listen::{ListenError, Listener, ensure_unclaimed};
