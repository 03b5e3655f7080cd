//! The command line: what may be typed, and what each command does with it.
//!
//! Owns the arguments, the commands about the configuration, and the exit code of every way out.
//! The bodies of the other commands live with what they work on. Runs before the node starts, and
//! offline; blocking.

mod args;
mod config_commands;
#[cfg(test)]
mod tests;

pub use args::{Cli, Command};

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::{CommandFactory, Parser};

use crate::config::{self, Env, Loaded};
use crate::exit::Exit;

/// Parses the arguments and runs the command. The only caller is `main`.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Help and version are asked for; everything else is a mistake.
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Ok
            };
        }
    };
    let mut out = io::stdout().lock();
    let done = command(cli, &mut out).and_then(|exit| out.flush().map(|()| exit));
    match done {
        Ok(exit) => exit,
        // The reader of a pipe had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            eprintln!("ankusa: {error}");
            Exit::Failure
        }
    }
}

fn command(cli: Cli, out: &mut impl Write) -> io::Result<Exit> {
    let env = Env::process();
    let file = config::file_of(cli.config.as_deref(), &env);
    match cli.command {
        Command::Serve => Ok(match load_or_exit(file.as_deref(), &env) {
            Ok(loaded) => crate::node::serve_logged(loaded.config),
            Err(exit) => exit,
        }),
        Command::CheckConfig { json } => config_commands::check(file.as_deref(), &env, json, out),
        Command::PrintConfig { json, redacted: _ } => {
            config_commands::print(file.as_deref(), &env, json, out)
        }
        Command::ConfigSchema => config_commands::schema(out),
        Command::ConfigReference => config_commands::reference(out),
        Command::Version => {
            writeln!(out, "ankusa {}", env!("CARGO_PKG_VERSION")).map(|()| Exit::Ok)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "ankusa", out);
            Ok(Exit::Ok)
        }
    }
}

/// Loads the configuration for a command that needs one to go on. The problems go to standard
/// error, and so do the warnings.
///
/// # Errors
/// The exit code to end with.
pub fn load_or_exit(file: Option<&Path>, env: &Env) -> Result<Loaded, Exit> {
    match config::load(file, env) {
        Ok(loaded) => {
            for line in loaded.warning_lines() {
                eprintln!("warning: {line}");
            }
            Ok(loaded)
        }
        Err(error) => {
            eprintln!("{error}");
            Err(Exit::Config)
        }
    }
}
