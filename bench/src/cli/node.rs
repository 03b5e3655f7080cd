//! Options of every bench that starts a node, and where the node's data goes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::child::NodePlan;

/// Which node, and how it writes.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// The `ankusa` program [default: next to this one]
    #[arg(long, value_name = "FILE")]
    pub ankusa: Option<PathBuf>,
    /// Directory for the node's data, on the disk to be measured; emptied first
    #[arg(long, default_value = "bench-data", value_name = "DIR")]
    pub data: PathBuf,
    /// `wal.sync` of the node: fdatasync or dsync
    #[arg(long, default_value = "fdatasync", value_name = "MODE", value_parser = ["fdatasync", "dsync"])]
    pub sync: String,
    /// `wal.groups_inflight` of the node
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub groups_inflight: u32,
    /// Leave the node's data behind
    #[arg(long)]
    pub keep: bool,
}

impl NodeArgs {
    /// Empties the data directory and makes the plan of a node in it.
    pub fn plan(&self, core: usize) -> anyhow::Result<NodePlan> {
        let dir = self.fresh_dir()?.join("node");
        let mut plan = NodePlan::new(self.program()?, dir, core);
        plan.sync.clone_from(&self.sync);
        plan.groups_inflight = self.groups_inflight;
        Ok(plan)
    }

    /// Makes the data directory anew. Only one that an earlier bench made, or an empty one, is
    /// emptied.
    pub fn fresh_dir(&self) -> anyhow::Result<PathBuf> {
        fresh_dir(&self.data)
    }

    /// Removes the data, unless it is to be kept.
    pub fn clean(&self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }

    fn program(&self) -> anyhow::Result<PathBuf> {
        let program = match &self.ankusa {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .context("finding this program")?
                .with_file_name("ankusa"),
        };
        if !program.is_file() {
            bail!(
                "{} is not there: build it with `cargo build --release -p ankusa-engine`, or name it with --ankusa",
                program.display()
            );
        }
        Ok(program)
    }
}

const MARK: &str = ".ankusa-bench";

/// Makes a directory of the bench's own anew, and refuses one that holds anything else.
pub fn fresh_dir(dir: &Path) -> anyhow::Result<PathBuf> {
    let mark = dir.join(MARK);
    let used = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if used {
        if !mark.is_file() {
            bail!(
                "{} holds something that no bench made: choose another directory with --data",
                dir.display()
            );
        }
        std::fs::remove_dir_all(dir).with_context(|| format!("emptying {}", dir.display()))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    std::fs::write(&mark, "made by ankusa-bench; emptied by the next bench\n")?;
    dir.canonicalize()
        .with_context(|| format!("finding {}", dir.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_with_something_else_in_it_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("ankusa-fresh-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        std::fs::write(dir.join("old"), "x").unwrap();
        fresh_dir(&dir).unwrap();
        assert!(!dir.join("old").exists());
        std::fs::remove_file(dir.join(MARK)).unwrap();
        std::fs::write(dir.join("mine"), "x").unwrap();
        assert!(fresh_dir(&dir).is_err());
        assert!(dir.join("mine").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
