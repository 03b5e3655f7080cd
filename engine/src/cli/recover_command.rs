//! `recover`: what was typed, handed to the work.
//!
//! Runs offline.

use std::io::{self, Write};

use super::args::RecoverArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::recover::offline::{self, Request};

/// Runs `recover`.
pub(super) fn recover(config: Config, args: RecoverArgs, out: &mut impl Write) -> io::Result<Exit> {
    let request = Request {
        node: args.node,
        start: args.from,
        dry_run: args.dry_run,
        allow_gap: args.allow_gap,
    };
    offline::recover(config, request, out)
}
