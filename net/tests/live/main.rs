//! The servers and the client against real sockets on loopback.
//!
//! A glommio core runs on a thread of its own; the other side is blocking sockets, byte by byte
//! where that matters.

#![allow(clippy::unwrap_used, missing_docs)]

mod ceilings;
mod client;
mod dns;
mod harness;
mod http1;
mod web;
