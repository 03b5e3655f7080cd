//! The command line: what is refused, and with which code.
#![allow(clippy::unwrap_used)]

use clap::CommandFactory;

use super::args::Cli;

#[test]
fn the_declared_commands_are_consistent() {
    Cli::command().debug_assert();
}
