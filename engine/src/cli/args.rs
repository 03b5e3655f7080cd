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
    /// Find one hook: the state of each of its deliveries
    Hook {
        /// What to do with it.
        #[command(subcommand)]
        command: HookCommand,
    },
    /// Deliver dead letters again
    Replay {
        /// What to do.
        #[command(subcommand)]
        command: ReplayCommand,
    },
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

/// `hook …`; asks the running node.
#[derive(Debug, Subcommand)]
pub enum HookCommand {
    /// Show a hook by its id
    Show {
        /// Its id, a UUID, as the 201 gave it
        #[arg(value_parser = hook_id)]
        id: String,
        /// Show its body too, in base64
        #[arg(long)]
        body: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `replay …`; asks the running node. A replay is a job that survives a restart.
#[derive(Debug, Subcommand)]
pub enum ReplayCommand {
    /// Start delivering dead letters again; all of them, or those that the flags name
    Start {
        /// Only of this tenant
        #[arg(long, value_parser = name)]
        tenant: Option<String>,
        /// Only of this source
        #[arg(long, value_parser = name)]
        source: Option<String>,
        /// Only of this sink
        #[arg(long, value_parser = name)]
        sink: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the replays
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one replay
    Show {
        /// Its id
        #[arg(value_parser = name)]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a replay wait
    Pause {
        /// Its id
        #[arg(value_parser = name)]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a waiting replay go on
    Resume {
        /// Its id
        #[arg(value_parser = name)]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End a replay; what it has moved stays moved
    Cancel {
        /// Its id
        #[arg(value_parser = name)]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// An id that can stand in a path.
fn name(text: &str) -> Result<String, String> {
    if crate::config::is_name(text) {
        Ok(text.to_string())
    } else {
        Err("not a name of 1 to 64 letters, digits, - and _".to_string())
    }
}

/// The id of a hook.
fn hook_id(text: &str) -> Result<String, String> {
    match uuid::Uuid::try_parse(text) {
        Ok(id) => Ok(id.hyphenated().to_string()),
        Err(_) => Err("not the id of a hook (a UUID)".to_string()),
    }
}
