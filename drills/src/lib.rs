//! Drills: the promise put to the test from outside, and the simulation of the heart.
//!
//! Every live drill has the same shape: a client that writes down what it sent and what it was
//! told ([`ledger`]), a sink that writes down what it was given ([`sink`]), a node that is hurt
//! ([`node`]), and an oracle that compares ([`oracle`]). The oracle shares no code with what it
//! judges. Every drill has a negative control: the promise is broken on purpose, and must be
//! caught, else the drill proves nothing.
//!
//! Nothing here runs on a reactor core: plain threads and blocking sockets.

pub mod all;
pub mod client;
pub mod cores;
pub mod disk;
pub mod dm;
pub mod dual;
pub mod kill;
pub mod ledger;
pub mod node;
pub mod oracle;
pub mod power;
pub mod rng;
pub mod shutdown;
pub mod sim;
pub mod sink;
