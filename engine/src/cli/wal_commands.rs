//! `wal dump | verify | repair | stat | bench`: the tools for a store at rest, and for its disk.
//!
//! Owns which directory and which shards, the lock for the time of the work, and the printing; the
//! work is the storage crate's. A store that a node is using is refused with the node's pid. Runs
//! offline.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ankusa_wal::disk::blocking::{BlockingDisk, block_on};
use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::{Home, HomeError};
use ankusa_wal::offline::judge::Expect;
use ankusa_wal::offline::{self, BenchConfig, DumpOptions, OfflineError, RepairPlan};
use ankusa_wal::{Lsn, ShardId};
use serde_json::{Value, json};

use super::args::{WalCommand, WalWhere};
use crate::exit::Exit;

/// Why a tool ended early.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error("no store in {0}: it has no store.json")]
    NoStore(PathBuf),
    #[error("the store has {has} shards; there is no shard {asked}")]
    NoShard { asked: u16, has: u16 },
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error("{0}: {1}")]
    Disk(PathBuf, io::Error),
    #[error(transparent)]
    Print(#[from] io::Error),
}

/// Runs `wal …` on the store of this directory, which a flag may have named.
pub(super) fn wal(data_dir: &Path, command: &WalCommand, out: &mut impl Write) -> io::Result<Exit> {
    let done = match command {
        WalCommand::Verify { at } => verify(data_dir, at, out),
        WalCommand::Stat { at } => stat(data_dir, at, out),
        WalCommand::Dump {
            at,
            file,
            from,
            to,
            records,
            bodies,
        } => {
            let options = DumpOptions {
                file: file.clone(),
                from_lsn: from.map(Lsn),
                to_lsn: to.map(Lsn),
                records: *records || *bodies,
                bodies: *bodies,
            };
            dump(data_dir, at, &options, out)
        }
        WalCommand::Repair {
            data_dir: _,
            shard,
            yes,
            json,
        } => repair(data_dir, *shard, *yes, *json, out),
        WalCommand::Bench { dir, seconds, json } => {
            bench(dir.as_deref().unwrap_or(data_dir), *seconds, *json, out)
        }
    };
    match done {
        Ok(exit) => Ok(exit),
        Err(ToolError::Print(error)) => Err(error),
        Err(error) => {
            eprintln!("ankusa: {error}");
            Ok(Exit::Failure)
        }
    }
}

/// A store that is ours for the time of the work.
fn hold(data_dir: &Path) -> Result<Home, ToolError> {
    if !data_dir.join("store.json").exists() {
        return Err(ToolError::NoStore(data_dir.to_path_buf()));
    }
    let facts = Home::peek(data_dir)?;
    // It exists: nothing is made up for it.
    Ok(Home::open(data_dir, facts.shards, |_| {})?)
}

/// The shard asked for, or all of them.
fn shards(home: &Home, asked: Option<u16>) -> Result<Vec<ShardId>, ToolError> {
    let has = home.facts().shards;
    match asked {
        Some(asked) if asked >= has => Err(ToolError::NoShard { asked, has }),
        Some(asked) => Ok(vec![ShardId(asked)]),
        None => Ok((0..has).map(ShardId).collect()),
    }
}

fn expect(home: &Home, shard: ShardId) -> Expect {
    Expect {
        store_uuid: Some(home.facts().uuid.0),
        shard: Some(shard),
    }
}

fn open(home: &Home, shard: ShardId) -> Result<BlockingDisk, ToolError> {
    let dir = home.shard_dir(shard);
    BlockingDisk::open_read_only(&dir).map_err(|e| ToolError::Disk(dir, e))
}

fn verify(data_dir: &Path, at: &WalWhere, out: &mut impl Write) -> Result<Exit, ToolError> {
    let home = hold(data_dir)?;
    let mut sound = true;
    let mut all = Vec::new();
    for shard in shards(&home, at.shard)? {
        let disk = open(&home, shard)?;
        let mut bar = Progress::new(format!("shard {}", shard.0));
        let report = block_on(offline::verify(
            &disk,
            expect(&home, shard),
            &mut |n, of| bar.show(n, of),
        ))?;
        bar.end();
        sound &= report.is_sound();
        if at.json {
            all.push(of_shard(shard, report.to_json()));
        } else {
            writeln!(out, "shard {}:\n{report}", shard.0)?;
        }
    }
    if at.json {
        writeln!(out, "{:#}", json!({ "sound": sound, "shards": all }))?;
    }
    Ok(if sound { Exit::Ok } else { Exit::Failure })
}

fn stat(data_dir: &Path, at: &WalWhere, out: &mut impl Write) -> Result<Exit, ToolError> {
    let home = hold(data_dir)?;
    let mut all = Vec::new();
    for shard in shards(&home, at.shard)? {
        let disk = open(&home, shard)?;
        let mut bar = Progress::new(format!("shard {}", shard.0));
        let report = block_on(offline::stat(&disk, expect(&home, shard), &mut |n, of| {
            bar.show(n, of)
        }))?;
        bar.end();
        if at.json {
            all.push(of_shard(shard, report.to_json()));
        } else {
            writeln!(out, "shard {}:\n{report}", shard.0)?;
        }
    }
    if at.json {
        writeln!(out, "{:#}", json!({ "shards": all }))?;
    }
    Ok(Exit::Ok)
}

fn dump(
    data_dir: &Path,
    at: &WalWhere,
    options: &DumpOptions,
    out: &mut impl Write,
) -> Result<Exit, ToolError> {
    let home = hold(data_dir)?;
    let asked = shards(&home, at.shard)?;
    let mut absent = None;
    let mut shown = 0;
    for shard in &asked {
        let shard = *shard;
        let disk = open(&home, shard)?;
        if !at.json {
            writeln!(out, "shard {}:", shard.0)?;
        }
        // The callback cannot fail: what printing said first is kept.
        let mut printed: io::Result<()> = Ok(());
        let dumped = block_on(offline::dump(&disk, options, &mut |item| {
            if printed.is_ok() {
                printed = if at.json {
                    writeln!(out, "{}", of_shard(shard, item.to_json()))
                } else {
                    writeln!(out, "{item}")
                };
            }
        }));
        printed?;
        match dumped {
            Ok(()) => shown += 1,
            // Another shard may have it.
            Err(error @ OfflineError::NoSlot(_)) => absent = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match absent.filter(|_| shown == 0) {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Ok),
    }
}

fn repair(
    data_dir: &Path,
    shard: u16,
    yes: bool,
    json: bool,
    out: &mut impl Write,
) -> Result<Exit, ToolError> {
    let home = hold(data_dir)?;
    let shard = shards(&home, Some(shard))?[0];
    let dir = home.shard_dir(shard);
    let disk = BlockingDisk::open(&dir).map_err(|e| ToolError::Disk(dir, e))?;
    let mut agree = |plan: &RepairPlan| {
        eprintln!("{plan}");
        yes || asked()
    };
    let report = block_on(offline::repair(&disk, expect(&home, shard), &mut agree))?;
    if json {
        writeln!(out, "{:#}", report.to_json())
    } else {
        writeln!(out, "{report}")
    }?;
    Ok(if report.after.is_sound() {
        Exit::Ok
    } else {
        Exit::Failure
    })
}

/// Only the whole word will do: what is given up is gone.
fn asked() -> bool {
    eprint!("Write yes to carry this out: ");
    let mut line = String::new();
    io::stdin().read_line(&mut line).is_ok() && line.trim() == "yes"
}

fn bench(dir: &Path, seconds: u64, json: bool, out: &mut impl Write) -> Result<Exit, ToolError> {
    let defaults = BenchConfig::default();
    let cells = 2 * defaults.sizes.len() * defaults.inflight.len();
    let whole = Duration::from_secs(seconds) / defaults.rounds;
    let config = BenchConfig {
        cell: whole / u32::try_from(cells).unwrap_or(u32::MAX),
        ..defaults
    };
    let path = dir.to_path_buf();
    let failed = |e: String| ToolError::Disk(dir.to_path_buf(), io::Error::other(e));
    let report = glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .spawn(move || async move {
            let disk = GlommioDisk::open(&path).map_err(|e| ToolError::Disk(path, e))?;
            let mut bar = Progress::new("bench".into());
            let report =
                offline::device_bench(&disk, &config, &mut |n, of| bar.show(n, of)).await?;
            bar.end();
            Ok::<_, ToolError>(report)
        })
        .map_err(|e| failed(e.to_string()))?
        .join()
        .map_err(|e| failed(e.to_string()))??;
    if json {
        writeln!(out, "{:#}", report.to_json())
    } else {
        writeln!(out, "{report}")
    }?;
    Ok(Exit::Ok)
}

fn of_shard(shard: ShardId, mut value: Value) -> Value {
    if let Value::Object(map) = &mut value {
        map.insert("shard".into(), json!(shard.0));
    }
    value
}

/// A percentage on standard error, where that is a terminal.
pub(super) struct Progress {
    what: String,
    shown: Option<u64>,
}

impl Progress {
    pub(super) fn new(what: String) -> Progress {
        Progress {
            what,
            shown: io::stderr().is_terminal().then_some(u64::MAX),
        }
    }

    pub(super) fn show(&mut self, done: u64, of: u64) {
        let percent = (u128::from(done) * 100)
            .checked_div(u128::from(of))
            .unwrap_or(100) as u64;
        if let Some(shown) = &mut self.shown
            && *shown != percent
        {
            *shown = percent;
            eprint!("\r{}: {percent} %", self.what);
        }
    }

    pub(super) fn end(&mut self) {
        if self.shown.take().is_some_and(|shown| shown != u64::MAX) {
            eprint!("\r\x1b[K");
        }
    }
}
