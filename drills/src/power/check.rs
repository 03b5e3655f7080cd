//! What a node makes of a crash image: the image on a loop device of its own, the file system's
//! recovery, the built binary with a sink of its own, and the oracle.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cut::Cut;
use super::host::{FsKind, Interrupt, LoopDevice, Mounted};
use super::pages::Pages;
use super::rig::{Rig, SEGMENT_BYTES};
use crate::node::{NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::sink::Sink;

/// How long deliveries may stand still before what is not there counts as missing.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Deliveries that may be repeated after a crash: what was in flight, and outcomes not yet
/// written.
const AGAIN: usize = 2 * 4096;

/// Where crash images live: memory, sparse.
pub fn image_file(name: &str) -> PathBuf {
    PathBuf::from(format!(
        "/dev/shm/ankusa-drill-{}-{name}",
        std::process::id()
    ))
}

/// A crash image as a file; removed when dropped.
pub struct Image {
    path: PathBuf,
    file: File,
    dirty: Vec<bool>,
}

impl Image {
    /// An empty image.
    pub fn new(name: &str) -> Result<Image> {
        let path = image_file(name);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Image {
            path,
            file,
            dirty: Vec::new(),
        })
    }

    /// Makes it hold `pages`.
    pub fn fill(&mut self, pages: &Pages) -> Result<()> {
        Ok(pages.store(&self.file, &mut self.dirty)?)
    }

    /// The file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Boots images.
pub struct Checker {
    /// The `ankusa` binary.
    pub binary: PathBuf,
    /// Where to work.
    pub dir: PathBuf,
    /// The file system on the images.
    pub fs: FsKind,
    /// Set by a signal.
    pub interrupt: Interrupt,
}

impl Checker {
    /// Boots the image of `cut` and judges what is delivered against the ledger at the cut.
    pub fn boot(&self, rig: &Rig, cut: &Cut) -> Result<Verdict> {
        self.boot_after(rig, cut, |_| Ok(()))
    }

    /// As [`Checker::boot`], after `prepare` has been given the mounted file system.
    pub fn boot_after(
        &self,
        rig: &Rig,
        cut: &Cut,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Verdict> {
        let mut image = Image::new("cut")?;
        image.fill(&cut.image)?;
        let sent = rig.ledger.rows_at(cut.marks.acked);
        let before = rig.delivered(cut.marks.delivered);
        let sink = Sink::start()?;
        let plan = NodePlan {
            binary: self.binary.clone(),
            dir: self.dir.clone(),
            sink: sink.address(),
            cores: 1,
            segment_bytes: SEGMENT_BYTES,
            keyed_paused: false,
            more: String::new(),
        };
        let loop_device = LoopDevice::attach(image.path(), false)?;
        let mut trouble = None;
        {
            let mounted = Mounted::mount(self.fs, loop_device.path(), &plan.data_dir())?;
            prepare(mounted.dir())?;
            // What an earlier boot had to say is of no interest.
            let _ = fs::remove_file(plan.log_file());
            let mut node = plan.start(&[])?;
            let up = node.wait_up();
            if matches!(up, Ok(true)) {
                let needed: BTreeSet<&str> = sent.values().filter_map(|row| row.acked()).collect();
                let known: BTreeSet<&str> = before.iter().map(|hook| hook.id.as_str()).collect();
                let needed = needed.difference(&known).copied().collect();
                self.drain(&sink, needed)?;
                if !node.stop()? {
                    trouble = Some("not a clean stop".to_owned());
                }
            } else {
                trouble = Some(format!("the node did not come up: {up:?}"));
            }
            let _ = node.kill();
        }
        sink.stop();
        let delivered = [before, sink.delivered()].concat();
        let mut verdict = judge(&sent, &delivered, AGAIN);
        if let Some(trouble) = trouble {
            verdict
                .examples
                .push(format!("{trouble}: {}", log_tail(&plan.log_file())));
            // A node that refuses its own disk after an ordinary power cut has lost everything
            // that was not delivered before, whatever the disk still holds.
            verdict.missing = verdict.missing.max(1);
        }
        Ok(verdict)
    }

    fn drain(&self, sink: &Sink, mut needed: BTreeSet<&str>) -> Result<()> {
        let (mut seen, mut since) = (0, Instant::now());
        while !needed.is_empty() && since.elapsed() < STANDSTILL {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(20));
            if sink.count() == seen {
                continue;
            }
            let delivered = sink.delivered();
            for hook in &delivered[seen..] {
                needed.remove(hook.id.as_str());
            }
            (seen, since) = (delivered.len(), Instant::now());
        }
        Ok(())
    }
}
