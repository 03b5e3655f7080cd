//! The store on the simulated disk: what is acked is there after whatever happens.
#![allow(clippy::unwrap_used)]

mod rig;

mod life;

mod checkpoints;

mod damage;

mod faults;

mod full;
mod given_up;

mod reads;

mod adversary;

mod replayed;

mod ahead;

#[cfg(feature = "mutations")]
mod mutations;

use rig::*;
