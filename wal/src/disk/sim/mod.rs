//! A simulated directory on a simulated medium, with faults at every operation.
//!
//! Owns what a disk may do to a program: completed writes that are not durable, names that are
//! not durable, writes in flight at a cut, failures that leave content unknown, and syncs that
//! lie. Everything follows from the world's clock and the disk's seed.
//!
//! The medium (module `medium`): per file a stable image and an ordered list of writes not yet
//! flushed. A sync makes durable every write of that file that had *completed before it was
//! issued*, and the length. Names are durable only after `sync_dir`. A failed sync leaves every
//! unflushed sector either durable or lost for good, and no later success changes that.
//! A cut (module `crash`) keeps any subset of unflushed sectors. Faults are in module `fault`.
//!
//! Beyond faults it watches the contract of [`Disk`](super::Disk): overlapping writes in flight,
//! a sync repeated after it failed, a descriptor never closed, all counted in [`SimCounters`].
//!
//! Runs in tests and drills only.

mod crash;
mod device;
mod fault;
mod medium;
mod ops;
#[cfg(test)]
mod tests;

pub use crash::{CrashMode, Grain, LenFate, NameFate, SimImage, SimSnapshot, WriteFate};
pub use device::{FlushEdge, OpOutcome, OpRecord, SimBuf, SimDisk, SimDiskConfig, SimFile};
pub use fault::{Fate, Fault, FaultPlan, FaultRates, OpKind, SimCounters};
