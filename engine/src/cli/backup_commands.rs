//! `backup now | list | verify`.
//!
//! `now` asks the running node; the others read the folder, with or without a node. Runs offline.

use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use ankusa_recovery::backup::{
    BackupDisk, CatalogError, Folder, LocalFolder, Manifest, catalog, check_objects,
};
use ankusa_wal::ShardId;
use ankusa_wal::disk::blocking::block_on;
use ankusa_wal::offline::{self, judge::Expect};
use serde_json::{Value, json};

use super::admin_client::{call, for_people};
use super::args::{BackupCommand, From};
use super::wal_commands::Progress;
use crate::backup::Place;
use crate::config::Config;
use crate::exit::Exit;

/// Between two looks at a backup under way.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs `backup …`.
pub(super) fn backup(
    config: &Config,
    command: &BackupCommand,
    out: &mut impl Write,
) -> io::Result<Exit> {
    match command {
        BackupCommand::Now { json } => now(config, *json, out),
        BackupCommand::List { json } => list(config, *json, out),
        BackupCommand::Verify {
            from,
            manifest,
            json,
        } => verify(config, *from, *manifest, *json, out),
    }
}

/// Where the backups are, or the exit code of a configuration that does not say.
pub(super) fn place(config: &Config, from: From) -> Result<Place, Exit> {
    let fault = |text: &str| {
        eprintln!("ankusa: {text}");
        Exit::Config
    };
    match from {
        From::Primary => Place::of(config).map_err(fault),
        From::Secondary => Err(fault(
            "backup.secondary: a second place for backups is not in this version yet",
        )),
    }
}

/// Why there is no backup to be found there, as far as can be told.
pub(super) fn hint(place: &Place, error: &CatalogError) -> Option<String> {
    if !matches!(error, CatalogError::None { .. }) {
        return None;
    }
    let nodes = LocalFolder::nodes(&place.root).ok()?;
    let nodes: Vec<String> = nodes.into_iter().filter(|n| *n != place.node).collect();
    let key = "node.name (intake.node_id under wal.type: dual)";
    match nodes.is_empty() {
        true => None,
        false => Some(format!(
            "{} holds backups of {}; this node is {}, as {key} says",
            place.root.display(),
            nodes.join(", "),
            place.node
        )),
    }
}

fn now(config: &Config, as_json: bool, out: &mut impl Write) -> io::Result<Exit> {
    let failed = |error: super::admin_client::CallError| {
        eprintln!("ankusa: {error}");
        Ok(Exit::Failure)
    };
    let run = match call(&config.admin, "POST", "/v1/backups", Some(&json!({}))) {
        Ok(answer) => answer["run"].as_u64().unwrap_or(0),
        Err(error) => return failed(error),
    };
    let last = loop {
        match call(&config.admin, "GET", "/v1/backups", None) {
            Ok(view) if view["runs_ended"].as_u64() >= Some(run) => break view["last"].clone(),
            Ok(_) => std::thread::sleep(LOOK_EVERY),
            Err(error) => return failed(error),
        }
    };
    if as_json {
        writeln!(out, "{last:#}")?;
    } else {
        write!(out, "{}", for_people(&last))?;
    }
    Ok(match last["failed"] {
        Value::Null => Exit::Ok,
        _ => Exit::Failure,
    })
}

fn list(config: &Config, as_json: bool, out: &mut impl Write) -> io::Result<Exit> {
    let place = match place(config, From::Primary) {
        Ok(place) => place,
        Err(exit) => return Ok(exit),
    };
    let folder = place.folder();
    let listed = match catalog::list(&folder, &place.key) {
        Ok(listed) => listed,
        Err(error) => {
            eprintln!("ankusa: {error}");
            return Ok(Exit::Failure);
        }
    };
    let views: Vec<Value> = listed
        .iter()
        .map(|backup| match &backup.manifest {
            Ok(manifest) => view(manifest),
            Err(error) => json!({ "backup": backup.number, "unusable": error.to_string() }),
        })
        .collect();
    if as_json {
        writeln!(
            out,
            "{:#}",
            json!({ "place": folder.describe(), "items": views })
        )?;
        return Ok(Exit::Ok);
    }
    if views.is_empty() {
        writeln!(out, "no backups in {}", folder.describe())?;
        let none = CatalogError::None {
            prefix: String::new(),
            what: String::new(),
        };
        if let Some(hint) = hint(&place, &none) {
            writeln!(out, "{hint}")?;
        }
    }
    for backup in &listed {
        match &backup.manifest {
            Ok(m) => writeln!(
                out,
                "{:>10}  {}  {} shards, {} hooks, {} MiB, incarnation {}, offset {}",
                m.number,
                time(m.began_at_ms),
                m.shards.len(),
                m.shards.iter().map(|s| s.hooks).sum::<u64>(),
                m.bytes() >> 20,
                m.store.incarnation,
                m.offset().map_or("-".into(), |offset| offset.to_string()),
            )?,
            Err(error) => writeln!(out, "{:>10}  UNUSABLE: {error}", backup.number)?,
        }
    }
    Ok(Exit::Ok)
}

fn time(ms: u64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms as i64);
    at.map_or_else(|_| ms.to_string(), |at| format!("{at:.0}"))
}

fn view(manifest: &Manifest) -> Value {
    let shards: Vec<Value> = manifest
        .shards
        .iter()
        .map(|s| {
            json!({
                "shard": s.shard, "durable_lsn": s.durable_lsn, "next_seq": s.next_seq,
                "hooks": s.hooks, "watermark": s.watermark, "offset": s.offset, "hold": s.hold,
                "bytes": s.files.iter().map(|f| f.bytes).sum::<u64>(),
            })
        })
        .collect();
    json!({
        "backup": manifest.number,
        "began_at": manifest.began_at_ms,
        "made_at": manifest.made_at_ms,
        "node": manifest.node,
        "incarnation": manifest.store.incarnation,
        "partition": manifest.store.intake_partition,
        "log": manifest.store.intake_log,
        "offset": manifest.offset(),
        "bytes": manifest.bytes(),
        "release": manifest.release,
        "shards": shards,
    })
}

fn verify(
    config: &Config,
    from: From,
    asked: Option<u64>,
    as_json: bool,
    out: &mut impl Write,
) -> io::Result<Exit> {
    let place = match place(config, from) {
        Ok(place) => place,
        Err(exit) => return Ok(exit),
    };
    let folder = Rc::new(place.folder());
    let read = catalog::pick(&*folder, &place.key, asked).and_then(|manifest| {
        let mut bar = Progress::new(format!("backup {}", manifest.number));
        let checked = check_objects(&*folder, &manifest, &mut |n, of| bar.show(n, of));
        bar.end();
        checked.map(|()| manifest)
    });
    let manifest = match read {
        Ok(manifest) => manifest,
        Err(error) => {
            eprintln!("ankusa: {error}");
            if let Some(hint) = hint(&place, &error) {
                eprintln!("ankusa: {hint}");
            }
            return Ok(Exit::Failure);
        }
    };
    let mut sound = true;
    let mut views = Vec::new();
    for shard in &manifest.shards {
        let disk = BackupDisk::new(Rc::clone(&folder) as Rc<dyn Folder>, shard);
        let expect = Expect {
            store_uuid: Some(manifest.store.uuid.0),
            shard: Some(ShardId(shard.shard)),
        };
        let mut bar = Progress::new(format!("shard {}", shard.shard));
        let report = block_on(offline::verify(&disk, expect, &mut |n, of| bar.show(n, of)));
        bar.end();
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                eprintln!("ankusa: shard {}: {error}", shard.shard);
                return Ok(Exit::Failure);
            }
        };
        let is_whole = report.judgement.last_kept().0 >= shard.durable_lsn;
        sound &= report.is_sound() && is_whole;
        if as_json {
            views.push(report.to_json());
        } else {
            writeln!(out, "shard {}:\n{report}", shard.shard)?;
            if !is_whole {
                writeln!(out, "it ends before LSN {}", shard.durable_lsn)?;
            }
        }
    }
    if as_json {
        let view = json!({ "sound": sound, "backup": view(&manifest), "shards": views });
        writeln!(out, "{view:#}")?;
    } else {
        let word = if sound { "sound" } else { "NOT sound" };
        writeln!(
            out,
            "backup {} of {}: signature and {} MiB of objects are right; its shards are {word}",
            manifest.number,
            time(manifest.began_at_ms),
            manifest.bytes() >> 20
        )?;
    }
    Ok(if sound { Exit::Ok } else { Exit::Failure })
}
