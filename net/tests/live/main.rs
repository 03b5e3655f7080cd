//! The servers and the client against real sockets on loopback.
//!
//! The server runs on a glommio core of its own thread; the tests talk to it with blocking
//! sockets, byte by byte where that matters.

#![allow(clippy::unwrap_used, missing_docs)]

mod harness;
mod http1;
