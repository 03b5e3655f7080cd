//! Processes a bench starts: itself in another role, or the node.
//!
//! A child prints `listening <address>` when it is ready, dies with the bench, and is killed by
//! its own process id when dropped. Its processor time comes from `/proc/<pid>/stat`.
//!
//! Runs on the bench's main thread.

mod node;
mod process;

pub use node::{IntakePlan, Node, NodePlan, SinkPlan, get};
pub use process::{Child, ChildError, ThreadTimes, cpu_time, thread_times};
