//! The tools over small logs that are built here byte by byte, then damaged in every way.
#![allow(clippy::unwrap_used)]

mod damage;
mod log;
mod repaired;
mod tools;

mod with_checkpoint;

mod with_store;
