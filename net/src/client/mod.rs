//! Calling other servers: HTTP/1.1, plain or TLS, with connections kept and reused.
//!
//! One [`Client`] per core. The caller names the address to dial (it resolves, and checks what it
//! resolved: [`crate::dns`]); nothing here resolves, follows a redirect, or keeps a cookie. Every
//! call has a deadline; what is read of an answer is bounded. Runs on a reactor core;
//! [`TlsClient::load`] reads files and belongs on a thread that may block.

mod body;
mod call;
mod pool;
mod stream;
mod tls;

pub use body::Chunks;
pub use call::{Answer, Call, CallError};
pub use pool::{Client, ClientConfig, ClientGauges, Destination, Scheme};
pub use tls::{TlsClient, TlsError};
