//! Backups of a simulated shard into a folder that loses what was not synced.
#![allow(clippy::unwrap_used)]

mod crashes;
mod folder;
mod refusals;
mod rig;
mod round_trip;
