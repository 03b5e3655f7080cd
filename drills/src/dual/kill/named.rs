//! Deaths at named points: the process kills itself where the code says so. What is dead then is
//! started, or called, again, and everything acked must still be there.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::points::{DualPoint, POINTS, Way};
use super::super::{DUAL, command, remove, until_ready};
use super::{AGAIN_PER_KILL, Run};
use crate::node::{Node, log_tail};

/// How long a node may take to come to a point.
const POINT_TIMEOUT: Duration = Duration::from_secs(30);
/// Hooks acked before a backup or a loss.
const SOME: usize = 60;

impl Run<'_> {
    /// The points of this round, in the table's order; those that leave another log behind are the
    /// business of [`Run::log_made_anew`].
    pub(super) fn named_points(&mut self, round: u32, rounds: u32) -> Result<()> {
        let all = POINTS.iter().filter(|point| point.way != Way::Anew);
        let mine = all
            .enumerate()
            .filter(|(at, _)| *at as u32 % rounds == round - 1);
        let mine: Vec<DualPoint> = mine.map(|(_, point)| *point).collect();
        for point in mine {
            self.die_at(&point)
                .with_context(|| format!("{} ({:?})", point.name, point.way))?;
        }
        Ok(())
    }

    /// Last of all: the log is made anew under the node, and the node dies on the way. What was acked
    /// and delivered before is only in the old one.
    pub(super) fn log_made_anew(&mut self) -> Result<()> {
        let points = POINTS.iter().filter(|point| point.way == Way::Anew);
        for (no, point) in points.enumerate() {
            self.anew = no as u64 + 1;
            self.die_at(point).with_context(|| point.name)?;
        }
        Ok(())
    }

    fn die_at(&mut self, point: &DualPoint) -> Result<()> {
        let began = self.number();
        let count = self.rng.range(1, point.count_max);
        let failpoint = format!("{}:{count}", point.name);
        let died = match point.way {
            Way::Load | Way::Refused | Way::Backup | Way::Anew => {
                self.node_dies(point.way, &failpoint)
            }
            Way::Boot => self.boot_dies(&failpoint),
            Way::Lost => {
                remove(&self.node.data_dir())?;
                // Of a store that is no more; the new one may not write over them.
                remove(&self.plan.dir.join("backup"))?;
                self.backed_up = None;
                self.allowed += began;
                self.boot_dies(&failpoint)
            }
            Way::Restore => self.restore_dies(&failpoint),
            Way::Recover => self.recover_dies(&failpoint),
        }?;
        match died {
            true => self.report.named += 1,
            false => self.report.missed.push(failpoint),
        }
        self.allowed += (self.number() - began).min(AGAIN_PER_KILL) + 16 * 16;
        Ok(())
    }

    /// A node under load, and what it is led to.
    fn node_dies(&mut self, way: Way, failpoint: &str) -> Result<bool> {
        let mut node = self.node.start(&[DUAL, ("ANKUSA_FAILPOINT", failpoint)])?;
        if !node.wait_ready()? {
            return node.has_died();
        }
        let load = self.load(&node);
        let died = self.lead(way, &mut node);
        node.kill()?;
        load.stop();
        self.log_does(&self.anew_order())?;
        died
    }

    fn lead(&mut self, way: Way, node: &mut Node) -> Result<bool> {
        let end = Instant::now() + POINT_TIMEOUT;
        loop {
            let pause = Duration::from_millis(300);
            match way {
                Way::Refused => {
                    // Long enough for some to fail, and short enough that some come through.
                    self.log_does("refuse")?;
                    std::thread::sleep(pause);
                    self.log_does("")?;
                    std::thread::sleep(3 * pause);
                }
                Way::Backup => {
                    std::thread::sleep(pause);
                    // The node dies while it is asked to.
                    let _ = command(&self.node, &["backup", "now"]);
                }
                Way::Anew => {
                    std::thread::sleep(pause);
                    self.log_does(&self.anew_order())?;
                    std::thread::sleep(pause);
                    // Delivered, perhaps, when the log was still the old one. What goes to the
                    // paused sink is in the store, and so it must be in the new log.
                    let rows = self.ledger.rows();
                    let unkeyed = rows.values().filter(|row| row.key.is_none());
                    let acked = unkeyed.filter_map(|row| row.acked().map(str::to_owned));
                    self.before = acked.collect();
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
            if node.has_died()? {
                return Ok(true);
            }
            if Instant::now() > end {
                return Ok(false);
            }
        }
    }

    fn anew_order(&self) -> String {
        match self.anew {
            0 => String::new(),
            no => format!("recreate {no}"),
        }
    }

    fn boot_dies(&mut self, failpoint: &str) -> Result<bool> {
        let mut node = self.node.start(&[DUAL, ("ANKUSA_FAILPOINT", failpoint)])?;
        let is_ready = node.wait_ready()?;
        let died = !is_ready && node.has_died()?;
        node.kill()?;
        Ok(died)
    }

    /// A backup is taken, more is acked, the host is lost.
    fn lose_with_backup(&mut self) -> Result<()> {
        let mut node = self.node.start(&[DUAL])?;
        until_ready(&mut node, &self.node)?;
        let load = self.load(&node);
        self.until_acked(SOME, &mut node)?;
        let number = self.number();
        command(&self.node, &["backup", "now"])?;
        self.backed_up = Some(number);
        self.until_acked(SOME, &mut node)?;
        node.kill()?;
        load.stop();
        self.allowed += self.number() - number;
        remove(&self.node.data_dir())
    }

    fn restore_dies(&mut self, failpoint: &str) -> Result<bool> {
        self.lose_with_backup()?;
        let died = self.command_dies("restore", failpoint)?;
        // It is begun again on what it left; one that was done is done.
        if !failpoint.starts_with("restore.finished") {
            command(&self.node, &["restore"])?;
        }
        Ok(died)
    }

    /// Offline: dies, is run again, and a third run has nothing left to do.
    fn recover_dies(&mut self, failpoint: &str) -> Result<bool> {
        self.lose_with_backup()?;
        command(&self.node, &["restore"])?;
        let died = self.command_dies("recover", failpoint)?;
        command(&self.node, &["recover"])?;
        let again = command(&self.node, &["recover"])?;
        let applied = again
            .split_whitespace()
            .find_map(|word| word.strip_prefix("applied="));
        match applied {
            Some("0") => Ok(died),
            _ => bail!("recovered already, and once more: {again}"),
        }
    }

    /// Whether `ankusa` with this word killed itself at the point.
    fn command_dies(&self, word: &str, failpoint: &str) -> Result<bool> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.node.log_file())?;
        let status = Command::new(&self.node.binary)
            .args([word, "--config", "ankusa.yml"])
            .current_dir(&self.node.dir)
            .env(DUAL.0, DUAL.1)
            .env("ANKUSA_FAILPOINT", failpoint)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()?;
        match status.signal() {
            Some(libc::SIGKILL) => Ok(true),
            None if status.success() => Ok(false),
            _ => bail!("{word}: {status}\n{}", log_tail(&self.node.log_file())),
        }
    }
}
