//! What may be typed. A repeated or unknown flag is an error.
//!
//! Pure; runs before the node starts, and offline.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Receives webhooks, keeps what it acknowledged, delivers it at least once.
#[derive(Debug, Parser)]
#[command(
    name = "ankusa",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 64 wrong command line, 78 wrong configuration."
)]
pub struct Cli {
    /// The configuration file [default: $ANKUSA_CONFIG, else /etc/ankusa/ankusa.yml, else the built-in try-out]
    #[arg(long, short, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node until a signal stops it
    Serve,
    /// Check the configuration and print every problem at once (code 78), or a summary
    CheckConfig {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print every key in effect, its value and where it came from
    PrintConfig {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Hide secrets; always on, and there is no way to show them
        #[arg(long)]
        redacted: bool,
    },
    /// Print the JSON Schema of the configuration file
    ConfigSchema,
    /// Print the reference page of the configuration, in Markdown
    ConfigReference,
    /// Print the version
    Version,
    /// Print a script for the completion of commands and flags in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}
