//! The driver over shards on simulated disks and a log in memory: what a boot, a second boot, a
//! restore and a process that dies anywhere leave behind.
#![allow(clippy::unwrap_used)]

mod rig;

mod log;

mod replay;

mod refusals;

mod killed;

#[cfg(feature = "mutations")]
mod mutations;

use std::rc::Rc;

use ankusa_wal::{HookId, Host, Seq};

use crate::apply::{Applied, Batch};
use crate::boot::{Options, Refusal};
use rig::*;
