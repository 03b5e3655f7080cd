//! The command line: what may be typed, and what each command does with it.
//!
//! Owns the arguments, the commands about the configuration, and the exit code of every way out.
//! The bodies of the other commands live with what they work on. Runs before the node starts, and
//! offline; blocking.

mod admin_client;
mod args;
mod backup_commands;
mod config_commands;
mod node_commands;
mod recover_command;
mod restore_command;
#[cfg(test)]
mod tests;
mod wal_commands;

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
    // Not locked: a node writes there from many threads.
    let mut out = io::stdout();
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
    let loaded = || load_or_exit(file.as_deref(), &env);
    match cli.command {
        Command::Serve => Ok(match loaded() {
            Ok(loaded) => {
                for line in loaded.warning_lines() {
                    eprintln!("warning: {line}");
                }
                crate::node::serve_logged(loaded.config)
            }
            Err(exit) => exit,
        }),
        Command::Wal { command } => {
            let dir = match command.named_dir() {
                Some(dir) => Ok(dir.clone()),
                None => loaded().map(|loaded| loaded.config.node.data_dir),
            };
            match dir {
                Ok(dir) => wal_commands::wal(&dir, &command, out),
                Err(exit) => Ok(exit),
            }
        }
        Command::Hook { command } => match loaded() {
            Ok(loaded) => node_commands::hook(&loaded.config, &command, out),
            Err(exit) => Ok(exit),
        },
        Command::Replay { command } => match loaded() {
            Ok(loaded) => node_commands::replay(&loaded.config, &command, out),
            Err(exit) => Ok(exit),
        },
        Command::Backup { command } => match loaded() {
            Ok(loaded) => backup_commands::backup(&loaded.config, &command, out),
            Err(exit) => Ok(exit),
        },
        Command::Restore {
            from,
            manifest,
            json,
        } => match loaded() {
            Ok(loaded) => restore_command::restore(&loaded.config, from, manifest, json, out),
            Err(exit) => Ok(exit),
        },
        Command::Recover(args) => match loaded() {
            Ok(loaded) => recover_command::recover(loaded.config, args, out),
            Err(exit) => Ok(exit),
        },
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
            // Into memory first: the generator panics when it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ankusa", &mut script);
            out.write_all(&script).map(|()| Exit::Ok)
        }
    }
}

/// Loads the configuration for a command that needs one to go on. The problems go to standard
/// error; the warnings are the caller's to print.
///
/// # Errors
/// The exit code to end with.
pub fn load_or_exit(file: Option<&Path>, env: &Env) -> Result<Loaded, Exit> {
    config::load(file, env).map_err(|error| {
        eprintln!("{error}");
        Exit::Config
    })
}
