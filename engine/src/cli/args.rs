//! What may be typed. A repeated or unknown flag is an error.
//!
//! Pure; runs before the node starts, and offline.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    /// Look into a store at rest, check it, repair it; measure its disk
    Wal {
        /// What to do.
        #[command(subcommand)]
        command: WalCommand,
    },
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
    /// Take a backup now, list the backups, check one
    Backup {
        /// What to do.
        #[command(subcommand)]
        command: BackupCommand,
    },
    /// Write the store of a backup into an empty data directory; the node must not run
    Restore {
        /// Which of the places that backups go to
        #[arg(long, value_enum, default_value_t = From::Primary)]
        from: From,
        /// The backup, by its number [default: the newest]
        #[arg(long, value_name = "ID")]
        manifest: Option<u64>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring a stopped store up to what the intake log has, as a boot under `wal.type: dual` does
    Recover(RecoverArgs),
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

/// `recover`; the store must not be in use.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The node that is meant; must be `intake.node_id` [default: not asked]
    #[arg(long)]
    pub node: Option<String>,
    /// Where to start: a position of the log, `earliest`, or `backup` for what the store has
    #[arg(long, default_value = "backup", value_parser = recover_from)]
    pub from: ankusa_recovery::Start,
    /// Read and count; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Go on although records that were never in this store are gone from the log; written down in
    /// the audit trail
    #[arg(long)]
    pub allow_gap: bool,
}

fn recover_from(text: &str) -> Result<ankusa_recovery::Start, String> {
    use ankusa_recovery::Start;
    match text {
        "backup" => Ok(Start::Stored),
        "earliest" => Ok(Start::Earliest),
        position => match position.parse() {
            Ok(position) => Ok(Start::Position(position)),
            Err(_) => Err("a position of the log, `earliest` or `backup`".into()),
        },
    }
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

/// `backup …`; `now` asks the running node, the others read the place where backups lie.
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Take a backup now and wait for it; what was acked before is in it
    Now {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the backups, newest first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read a backup again: its signature, every hash, and whether its shards open
    Verify {
        /// Which of the places that backups go to
        #[arg(long, value_enum, default_value_t = From::Primary)]
        from: From,
        /// The backup, by its number [default: the newest]
        #[arg(long, value_name = "ID")]
        manifest: Option<u64>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// A place that backups go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// `backup.store`
    Primary,
    /// `backup.secondary`
    Secondary,
}

/// `wal …`; the node must not run, except for `bench`.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Read everything and say whether it is whole; ends with 1 where it is not
    Verify {
        /// Where.
        #[command(flatten)]
        at: WalWhere,
    },
    /// Say what fills the store
    Stat {
        /// Where.
        #[command(flatten)]
        at: WalWhere,
    },
    /// Print slots and frames, and their records where asked; with --json one object a line
    Dump {
        /// Where.
        #[command(flatten)]
        at: WalWhere,
        /// Only this file of the shard
        #[arg(long, value_name = "NAME")]
        file: Option<String>,
        /// Only frames from this LSN on
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Only frames up to this LSN
        #[arg(long, value_name = "LSN")]
        to: Option<u64>,
        /// Print the records of each frame
        #[arg(long)]
        records: bool,
        /// Print the bodies of hooks too, which are the senders' data
        #[arg(long)]
        bodies: bool,
    },
    /// Give up what is damaged so that the shard opens: shows the plan, asks, keeps copies
    Repair {
        /// The data directory [default: node.data_dir of the configuration]
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// The shard
        #[arg(long, value_name = "N")]
        shard: u16,
        /// Carry the plan out without asking: what it gives up is gone
        #[arg(long = "yes-give-up-what-is-damaged")]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure a disk and recommend wal.sync and wal.groups_inflight for it
    Bench {
        /// The directory to write a file of 64 MiB in [default: node.data_dir of the configuration]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// How long to measure, in seconds
        #[arg(long, value_name = "S", default_value_t = 45, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl WalCommand {
    /// The directory that a flag named: no configuration is needed then.
    pub fn named_dir(&self) -> Option<&PathBuf> {
        match self {
            WalCommand::Verify { at } | WalCommand::Stat { at } | WalCommand::Dump { at, .. } => {
                at.data_dir.as_ref()
            }
            WalCommand::Repair { data_dir, .. } => data_dir.as_ref(),
            WalCommand::Bench { dir, .. } => dir.as_ref(),
        }
    }
}

/// Which store, which part of it, and how to print.
#[derive(Debug, Args)]
pub struct WalWhere {
    /// The data directory [default: node.data_dir of the configuration]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Only this shard [default: all]
    #[arg(long, value_name = "N")]
    pub shard: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
