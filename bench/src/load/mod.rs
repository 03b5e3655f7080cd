//! The HTTP load generator: one thread, one epoll loop, keep-alive, no pipelining.
//!
//! Owns the plan (what to offer), the schedule (when), the requests (bytes, unique and signed),
//! the connections, and the tally of what came back. Open loop: a request's latency counts from
//! the moment it was *meant* to be sent, so a slow server cannot hide behind a waiting client.
//! Does not decide whether an answer was right; it records status and error word.
//!
//! Runs on one thread, pinned to a core of its own where there is one.

mod client;
mod connection;
mod ledger;
mod plan;
mod probe;
mod request;
mod response;
mod schedule;
mod sign;
mod tally;

#[cfg(test)]
mod tests;

pub use client::run;
pub use plan::{BodyPlan, LoadPlan, Pace, Stop};
pub use probe::{LoadError, NoProbe, Probe};
pub(crate) use request::sha256;
pub use request::{Prepared, RequestFactory};
pub use response::{Answer, Framing, ResponseError, parse};
pub use schedule::Schedule;
pub use sign::{Scheme, Signer};
pub use tally::{LATENCY_NS_MAX, LoadResult, Outcome, new_histogram};
