//! The service: configuration, the ingest pipeline, claims, the committer, dispatch, sinks and
//! administration. The binary `ankusa` is a thin caller of this library.

pub mod admin;
pub mod backup;
pub mod claims;
pub mod cli;
pub mod commit;
pub mod config;
pub mod cpus;
pub mod dedupe;
pub mod dispatch;
pub mod dual;
pub mod egress;
pub mod exit;
pub mod ingest;
pub mod logging;
pub mod mesh;
pub mod metrics;
pub mod node;
pub mod recover;
pub mod reload;
pub mod replay;
pub mod runtime;
pub mod shard;
pub mod sinks;
pub mod verify;
