//! The checkpoints of a shard as the tools see them: whether each holds, what it says of the log,
//! and whether the hooks it points at are still there. Offline; reads only.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde_json::{Value, json};

use super::OfflineError;
use super::judge::CheckpointClaim;
use super::lost::LiveHook;
use super::scan::ShardScan;
use crate::checkpoint::{load, parse_name, read_manifest};
use crate::disk::{DirEntry, Disk};
use crate::host::{Host, LocalFuture, TaskClass};

/// One checkpoint file.
#[derive(Clone, Debug)]
pub struct CheckpointScan {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What it says, or what is wrong with it.
    pub claim: Result<CheckpointClaim, String>,
    /// The hooks that were live, with the place of each; of the newest that holds only.
    pub(crate) hooks: Vec<LiveHook>,
}

/// What loading a checkpoint asks of a host: randomness. Nothing else is called.
pub(super) struct StillHost;

impl Host for StillHost {
    fn wall_ms(&self) -> u64 {
        0
    }
    fn mono_us(&self) -> u64 {
        0
    }
    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn spawn(&self, _: TaskClass, _: LocalFuture<()>) {}
    fn must_yield(&self) -> bool {
        false
    }
    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn random(&self) -> u64 {
        RandomState::new().hash_one(0)
    }
}

/// Reads every checkpoint, newest first; the newest that holds is read whole.
pub(crate) async fn read_checkpoints<D: Disk>(
    disk: &D,
    scan: &ShardScan,
) -> Result<Vec<CheckpointScan>, OfflineError> {
    let mut files: Vec<(u64, &DirEntry)> = scan
        .others
        .iter()
        .filter_map(|f| Some((parse_name(&f.name)?, f)))
        .collect();
    files.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    let mut checkpoints = Vec::new();
    for (number, file) in files {
        let mut hooks = Vec::new();
        let claim = read_one(disk, number, &mut hooks).await;
        checkpoints.push(CheckpointScan {
            name: file.name.clone(),
            bytes: file.bytes,
            claim,
            hooks,
        });
    }
    Ok(checkpoints)
}

async fn read_one<D: Disk>(
    disk: &D,
    number: u64,
    hooks: &mut Vec<LiveHook>,
) -> Result<CheckpointClaim, String> {
    let (start, _) = read_manifest(disk, number)
        .await
        .map_err(|e| e.to_string())?;
    let loaded = load(disk, &StillHost, number, start.shard, start.store_uuid).await;
    let loaded = loaded.map_err(|e| e.to_string())?;
    for slot in loaded.state.hooks() {
        if let Some(hook) = loaded.state.hook(slot) {
            hooks.push(LiveHook {
                seq: hook.seq,
                id: hook.id,
                at: hook.location,
            });
        }
    }
    Ok(CheckpointClaim {
        store_uuid: start.store_uuid,
        shard: start.shard,
        start_lsn: start.start_lsn,
        end_lsn: loaded.end.end_lsn,
        needs: loaded.end.segments,
        slots: loaded.end.slots,
    })
}

/// The newest checkpoint that holds.
pub(crate) fn newest_valid(checkpoints: &[CheckpointScan]) -> Option<&CheckpointClaim> {
    checkpoints.iter().find_map(|c| c.claim.as_ref().ok())
}

impl CheckpointScan {
    pub(crate) fn to_json(&self) -> Value {
        match &self.claim {
            Ok(claim) => json!({
                "file": self.name,
                "bytes": self.bytes,
                "start_lsn": claim.start_lsn.0,
                "end_lsn": claim.end_lsn.0,
                "live_hooks": self.hooks.len(),
                "segments_needed": claim.needs.iter().map(|n| n.segment.0).collect::<Vec<_>>(),
            }),
            Err(error) => json!({ "file": self.name, "bytes": self.bytes, "error": error }),
        }
    }
}

impl fmt::Display for CheckpointScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.claim {
            Ok(claim) => write!(
                f,
                "{}: {} bytes, {} live hooks, holds everything up to LSN {}, needs {} segments",
                self.name,
                self.bytes,
                self.hooks.len(),
                claim.start_lsn,
                claim.needs.len()
            ),
            Err(error) => write!(f, "{}: not usable: {error}", self.name),
        }
    }
}
