//! The simulated thread: a seeded, deterministic single-thread scheduler with its own clock.
//!
//! Owns tasks, timers, the virtual clock and the randomness of one simulated world, and
//! implements [`Host`](crate::host::Host) for it. The same seed and the same program give the
//! same run, step by step. Virtual time moves only when nothing can run. Which of several ready
//! tasks runs next is drawn from the seed, so that many seeds explore many interleavings.
//!
//! A world holds one or more *processes* ([`SimHost`]); killing one drops its tasks where they
//! stand, which is what a crash does. What the disk still has in flight goes on: events belong to
//! the world, not to a process.
//!
//! Does not know the disk. Runs in tests and drills only, never in the node.

mod rng;
#[cfg(test)]
mod tests;
mod world;

pub use rng::SimRng;
pub use world::{SimHost, SimWorld, Step, Stuck};
