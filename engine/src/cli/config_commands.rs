//! `check-config`, `print-config`, `config-schema`, `config-reference`.
//!
//! What was asked for goes to standard output, also the problems of `check-config`, since they are
//! its result; `print-config` sends them to standard error. Runs offline.

use std::io::{self, Write};
use std::path::Path;

use crate::config::{self, Env};
use crate::exit::Exit;

/// Checks a file, or the try-out where there is none.
pub(super) fn check(
    file: Option<&Path>,
    env: &Env,
    json: bool,
    out: &mut impl Write,
) -> io::Result<Exit> {
    match config::load(file, env) {
        Ok(loaded) if json => {
            writeln!(out, "{:#}", loaded.summary_json())?;
            Ok(Exit::Ok)
        }
        Ok(loaded) => {
            for line in loaded.warning_lines() {
                writeln!(out, "warning: {line}")?;
            }
            for line in loaded.summary() {
                writeln!(out, "{line}")?;
            }
            writeln!(out, "ok")?;
            Ok(Exit::Ok)
        }
        Err(error) => {
            if json {
                writeln!(out, "{:#}", error.to_json())
            } else {
                writeln!(out, "{error}")
            }?;
            Ok(Exit::Config)
        }
    }
}

/// Prints every key in effect.
pub(super) fn print(
    file: Option<&Path>,
    env: &Env,
    json: bool,
    out: &mut impl Write,
) -> io::Result<Exit> {
    match config::load(file, env) {
        Ok(loaded) => {
            if json {
                writeln!(out, "{:#}", loaded.config.to_json())
            } else {
                write!(out, "{}", loaded.config.to_yaml())
            }?;
            Ok(Exit::Ok)
        }
        Err(error) if json => {
            writeln!(out, "{:#}", error.to_json())?;
            Ok(Exit::Config)
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(Exit::Config)
        }
    }
}

/// Prints the JSON Schema.
pub(super) fn schema(out: &mut impl Write) -> io::Result<Exit> {
    writeln!(out, "{:#}", config::json_schema())?;
    Ok(Exit::Ok)
}

/// Prints the reference page.
pub(super) fn reference(out: &mut impl Write) -> io::Result<Exit> {
    write!(out, "{}", config::reference())?;
    Ok(Exit::Ok)
}
