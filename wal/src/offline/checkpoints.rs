//! The checkpoints of a shard as the tools see them: whether each holds, and what it says of the
//! log. Offline; reads only.

use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::judge::CheckpointClaim;
use super::scan::ShardScan;
use crate::disk::Disk;

/// One checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointScan {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What it says, or what is wrong with it.
    pub claim: Result<CheckpointClaim, String>,
}

/// True for the name of a checkpoint.
pub fn is_checkpoint(name: &str) -> bool {
    name.ends_with(".ckpt")
}

/// Reads every checkpoint, newest first.
pub(crate) async fn read_checkpoints<D: Disk>(
    _disk: &D,
    scan: &ShardScan,
) -> Result<Vec<CheckpointScan>, OfflineError> {
    let files = scan.others.iter().filter(|f| is_checkpoint(&f.name));
    let mut checkpoints: Vec<CheckpointScan> = files
        .map(|file| CheckpointScan {
            name: file.name.clone(),
            bytes: file.bytes,
            claim: Err("not read".to_owned()),
        })
        .collect();
    checkpoints.reverse();
    Ok(checkpoints)
}

/// What the newest checkpoint that holds says.
pub(crate) fn newest_valid(checkpoints: &[CheckpointScan]) -> Option<CheckpointClaim> {
    checkpoints
        .iter()
        .find_map(|c| c.claim.as_ref().ok().copied())
}

impl CheckpointScan {
    pub(crate) fn to_json(&self) -> Value {
        match &self.claim {
            Ok(claim) => json!({
                "file": self.name,
                "bytes": self.bytes,
                "start_lsn": claim.start_lsn.0,
                "end_lsn": claim.end_lsn.0,
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
                "{}: {} bytes, holds everything up to LSN {}",
                self.name, self.bytes, claim.start_lsn
            ),
            Err(error) => write!(f, "{}: not usable: {error}", self.name),
        }
    }
}
