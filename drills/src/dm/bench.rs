//! What sends and takes hooks around a node whose data directory lies on a mapped device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::power::host::{FsKind, Interrupt, Mounted, make_fs};
use crate::sink::Sink;

/// Bytes of a segment: small, so that segments are left, and slots and checkpoints made.
pub const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes of a body.
const BODY_BYTES: usize = 3000;
/// Connections of the client.
const CONNECTIONS: usize = 32;
/// How long deliveries may stand still before what is not there counts as missing; longer than
/// an attempt that failed on a slow guest waits for its next.
const STANDSTILL: Duration = Duration::from_secs(60);
/// How long anything may take; a guest without hardware help is slow.
const PATIENCE: Duration = Duration::from_secs(180);
/// Deliveries that may be repeated after each crash.
const AGAIN: usize = 2 * 4096;

/// The bench. Its node and its mount go first when it is dropped.
pub struct Bench {
    load: Option<Load>,
    node: Option<Node>,
    mounted: Option<Mounted>,
    device: PathBuf,
    fs: FsKind,
    mutation: Option<&'static str>,
    plan: NodePlan,
    /// What the client knows.
    pub ledger: Ledger,
    numbers: Arc<AtomicU64>,
    sink: Sink,
    interrupt: Interrupt,
    crashes: usize,
}

impl Bench {
    /// Makes a file system on `device`.
    pub fn new(
        binary: &Path,
        dir: &Path,
        (device, fs): (&Path, FsKind),
        mutation: Option<&'static str>,
        interrupt: &Interrupt,
    ) -> Result<Bench> {
        make_fs(fs, device)?;
        let sink = Sink::start()?;
        let plan = NodePlan {
            binary: binary.into(),
            dir: dir.into(),
            sink: sink.address(),
            cores: 1,
            segment_bytes: SEGMENT_BYTES,
            keyed_paused: true,
            more: String::new(),
        };
        Ok(Bench {
            load: None,
            node: None,
            mounted: None,
            device: device.into(),
            fs,
            mutation,
            plan,
            ledger: Ledger::default(),
            numbers: Arc::new(AtomicU64::new(1)),
            sink,
            interrupt: interrupt.clone(),
            crashes: 0,
        })
    }

    /// Mounts the file system.
    pub fn mount(&mut self) -> Result<()> {
        let mounted = Mounted::mount(self.fs, &self.device, &self.plan.data_dir())?;
        self.mounted = Some(mounted);
        Ok(())
    }

    /// Leaves the file system.
    pub fn unmount(&mut self) {
        self.mounted = None;
    }

    /// The power is gone: the node dies, the file system is left.
    pub fn die(&mut self) -> Result<()> {
        if let Some(mut node) = self.node.take() {
            node.kill()?;
        }
        if let Some(load) = self.load.take() {
            load.stop();
        }
        self.mounted = None;
        self.crashes += 1;
        Ok(())
    }

    /// Starts the node; the sink of the source `keyed` may be paused.
    pub fn start(&mut self, keyed_paused: bool) -> Result<()> {
        let env: Vec<(&str, &str)> = self
            .mutation
            .iter()
            .map(|name| ("ANKUSA_MUTATION", *name))
            .collect();
        let plan = NodePlan {
            keyed_paused,
            ..self.plan.clone()
        };
        let mut node = plan.start(&env)?;
        if !node.wait_ready()? {
            bail!("the node did not come up:\n{}", self.log());
        }
        self.node = Some(node);
        Ok(())
    }

    /// Starts the load; every `keyed_every`-th hook goes to the paused sink.
    pub fn load(&mut self, keyed_every: u64) -> Result<()> {
        let plan = LoadPlan {
            address: self.node()?.address(),
            connections: CONNECTIONS,
            body_bytes: BODY_BYTES,
            keyed_every,
        };
        let load = Load::start(plan, self.ledger.clone(), Arc::clone(&self.numbers));
        self.load = Some(load);
        Ok(())
    }

    /// The node.
    pub fn node(&self) -> Result<&Node> {
        self.node.as_ref().context("no node")
    }

    /// The end of the node's log.
    pub fn log(&self) -> String {
        log_tail(&self.plan.log_file())
    }

    /// Waits until `more` further hooks are acked; `each` is called again and again meanwhile.
    pub fn wait_acked(&self, more: usize, mut each: impl FnMut() -> Result<()>) -> Result<()> {
        let target = self.ledger.acked_count() + more;
        self.wait("enough is acked", || {
            each()?;
            Ok(self.ledger.acked_count() >= target)
        })
    }

    /// Waits until `is_so`.
    pub fn wait(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !is_so()? {
            self.interrupt.check()?;
            if Instant::now() > end {
                bail!(
                    "waiting until {what}: not after {PATIENCE:?}\n{}",
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Boots once more, lets everything be delivered, stops the node, and judges against the
    /// ledger as it was after `acked` acks.
    pub fn settle(&mut self, acked: usize) -> Result<Verdict> {
        self.mount()?;
        self.start(false)?;
        let rows = self.ledger.rows_at(acked);
        let (mut seen, mut since) = (self.sink.count(), Instant::now());
        while since.elapsed() < STANDSTILL {
            self.interrupt.check()?;
            if judge(&rows, &self.sink.delivered(), usize::MAX).missing == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            let now = self.sink.count();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        if let Some(mut node) = self.node.take()
            && !node.stop()?
        {
            bail!("not a clean stop:\n{}", self.log());
        }
        let allowed = self.crashes * AGAIN;
        let mut verdict = judge(&rows, &self.sink.delivered(), allowed);
        if !verdict.holds() {
            verdict
                .examples
                .push(format!("the node's log:\n{}", self.log()));
        }
        Ok(verdict)
    }

    /// Of the hooks acked after the first `acked`, those that were never delivered.
    pub fn lost_after(&self, acked: usize) -> usize {
        let all = judge(&self.ledger.rows(), &self.sink.delivered(), usize::MAX);
        let upto = judge(
            &self.ledger.rows_at(acked),
            &self.sink.delivered(),
            usize::MAX,
        );
        all.missing - upto.missing
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.die();
        self.sink.stop();
    }
}
