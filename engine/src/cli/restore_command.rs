//! `restore`: a store from a backup, into an empty data directory.
//!
//! Owns the order: read and check all of the backup, unpack, open and stamp each shard, then make
//! it a store. Killed anywhere, the directory is refused by a boot and begun again by the next
//! restore. Runs offline.

use std::io::{self, Write};
use std::rc::Rc;

use ankusa_recovery::restore::{self, Plan, RestoreError};
use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::Restoring;
use ankusa_wal::{Host, ShardId, mutations};
use serde_json::{Value, json};

use super::args::From;
use super::backup_commands::{hint, place};
use super::wal_commands::Progress;
use crate::config::Config;
use crate::exit::Exit;
use crate::runtime::{self, CoreHost};
use crate::shard::store_config;

/// Runs `restore`.
pub(super) fn restore(
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
    match carry_out(config, &place, asked) {
        Ok(plan) => {
            let view = view(config, &plan);
            if as_json {
                writeln!(out, "{view:#}")?;
            } else {
                writeln!(
                    out,
                    "restored backup {} of node {} into {}: {} shards, incarnation {}",
                    plan.manifest.number,
                    plan.manifest.node,
                    config.node.data_dir.display(),
                    plan.facts.shards,
                    plan.facts.incarnation
                )?;
            }
            Ok(Exit::Ok)
        }
        Err(error) => {
            eprintln!("ankusa: {error}");
            if let RestoreError::Backup(error) = &error
                && let Some(hint) = hint(&place, error)
            {
                eprintln!("ankusa: {hint}");
            }
            Ok(Exit::Failure)
        }
    }
}

fn view(config: &Config, plan: &Plan) -> Value {
    json!({
        "restored": plan.manifest.number,
        "node": plan.manifest.node,
        "data_dir": config.node.data_dir,
        "began_at": plan.manifest.began_at_ms,
        "incarnation": plan.facts.incarnation,
        "shards": plan.facts.shards,
        "offset": plan.manifest.offset(),
        "bytes": plan.manifest.bytes(),
    })
}

fn carry_out(
    config: &Config,
    place: &crate::backup::Place,
    asked: Option<u64>,
) -> Result<Plan, RestoreError> {
    let (dir, folder) = (&config.node.data_dir, place.folder());
    Restoring::check(dir)?;
    let mut bar = Progress::new("reading".into());
    let plan = restore::plan(&folder, &place.key, &place.node, asked, &mut |n, of| {
        bar.show(n, of);
    });
    bar.end();
    let plan = plan?;
    let into = Restoring::begin(dir, plan.facts.shards)?;
    mutations::point("restore.begun");
    let mut bar = Progress::new("writing".into());
    let unpacked = restore::unpack(&folder, &plan.manifest, &into, &mut |n, of| bar.show(n, of));
    bar.end();
    unpacked?;
    mutations::point("restore.unpacked");
    stamp(config, &plan, &into)?;
    into.finish(&plan.facts)?;
    mutations::point("restore.finished");
    Ok(plan)
}

/// Opens every shard, on an executor of its own, and stamps it.
fn stamp(config: &Config, plan: &Plan, into: &Restoring) -> Result<(), RestoreError> {
    let (config, plan) = (config.clone(), plan.clone());
    let dirs: Vec<_> = (0..plan.facts.shards)
        .map(|shard| into.shard_dir(ShardId(shard)))
        .collect();
    let failed = |why: String| RestoreError::Stamp {
        shard: ShardId(0),
        why,
    };
    let opening = runtime::spawn_core("restore", None, move || async move {
        let host = CoreHost::new();
        for (shard, dir) in dirs.iter().enumerate() {
            let id = ShardId(shard as u16);
            let disk = GlommioDisk::open(dir).map_err(|source| RestoreError::Io {
                doing: "opening",
                path: dir.display().to_string(),
                source,
            })?;
            let store = store_config(&config, &plan.facts, id);
            // One event of the node, in its first shard.
            let event = (shard == 0).then(|| event(&plan, host.wall_ms()));
            let host = Rc::clone(&host) as Rc<dyn Host>;
            restore::stamp(disk, host, store, plan.facts.incarnation, event).await?;
        }
        Ok(())
    });
    match opening.map_err(failed)?.join() {
        Ok(stamped) => stamped,
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The lifecycle event, a CloudEvent.
fn event(plan: &Plan, at_ms: u64) -> Box<[u8]> {
    let manifest = &plan.manifest;
    let at = jiff::Timestamp::from_millisecond(at_ms as i64).unwrap_or_default();
    let uuid = ankusa_recovery::backup::hex(&plan.facts.uuid.0);
    let event = json!({
        "specversion": "1.0",
        "type": "io.ankusa.instance.restored",
        "source": format!("/ankusa/{}", manifest.node),
        "id": format!("{uuid}-{}", plan.facts.incarnation),
        "time": at.to_string(),
        "data": {
            "node": manifest.node,
            "incarnation": plan.facts.incarnation,
            "backup": manifest.number,
            "backup_began_at": manifest.began_at_ms,
            "offset": manifest.offset(),
        },
    });
    event.to_string().into_bytes().into()
}
