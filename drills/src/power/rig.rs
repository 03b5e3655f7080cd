//! A node on a simulated disk: FUSE file, loop device, file system, the built binary with its
//! data directory there, a client and a sink.
//!
//! The sink of the source `keyed` is paused, so half of all acked hooks are undelivered at every
//! cut and must be found on the image itself; the other half are delivered, so that outcomes are
//! in the log too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fuser::BackgroundSession;

use super::cut::{Cut, CutOrder};
use super::device::{Device, Marks};
use super::fuse::{FILE_NAME, Shared, Timing, serve};
use super::host::{FsKind, Interrupt, LoopDevice, Mounted, make_fs};
use crate::client::{Load, LoadPlan, post};
use crate::ledger::{Answer, Ledger, body};
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::Delivered;
use crate::sink::Sink;

/// Bytes of the device; xfs takes no less than 300 MB.
const DEVICE_BYTES: u64 = 320 << 20;

/// Connections of the client.
const CONNECTIONS: usize = 32;

/// Bytes of a body, unless the plan says otherwise.
pub const BODY_BYTES: usize = 600;

/// Bytes of a segment: small, so that many are started, sealed and used again.
pub const SEGMENT_BYTES: u64 = 2 << 20;

/// What a rig is built from.
#[derive(Clone)]
pub struct RigPlan {
    /// The `ankusa` binary.
    pub binary: PathBuf,
    /// Where to work.
    pub dir: PathBuf,
    /// The file system.
    pub fs: FsKind,
    /// A mutation to switch on: the negative control.
    pub mutation: Option<&'static str>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Variables that set configuration keys.
    pub env: Vec<(&'static str, String)>,
    /// Set by a signal.
    pub interrupt: Interrupt,
}

/// The rig. Fields are in the order in which they must be undone.
pub struct Rig {
    load: Option<Load>,
    node: Option<Node>,
    mounted: Option<Mounted>,
    loop_device: LoopDevice,
    _session: BackgroundSession,
    plan: RigPlan,
    /// The device.
    pub device: Shared,
    /// What the client knows.
    pub ledger: Ledger,
    numbers: Arc<AtomicU64>,
    sink: Sink,
}

impl Rig {
    /// Builds everything and waits until the node is ready.
    pub fn start(plan: &RigPlan) -> Result<Rig> {
        let ledger = Ledger::default();
        let sink = Sink::start()?;
        let (for_ledger, for_sink) = (ledger.clone(), sink.clone());
        let marks = move || Marks {
            acked: for_ledger.acked_count(),
            delivered: for_sink.count(),
        };
        let device = Shared::new(Device::new(DEVICE_BYTES, Box::new(marks)));
        let fuse_dir = plan.dir.join("fuse");
        fs::create_dir_all(&fuse_dir)?;
        let timing = Timing {
            write: Duration::from_micros(800),
            flush: Duration::from_micros(1500),
        };
        let session = serve(device.clone(), timing, &fuse_dir).context("mounting FUSE")?;
        let loop_device = LoopDevice::attach(&fuse_dir.join(FILE_NAME), true)?;
        make_fs(plan.fs, loop_device.path())?;
        let mut rig = Rig {
            load: None,
            node: None,
            mounted: None,
            loop_device,
            _session: session,
            plan: plan.clone(),
            device,
            ledger,
            numbers: Arc::new(AtomicU64::new(1)),
            sink,
        };
        rig.mount()?;
        rig.start_node()?;
        Ok(rig)
    }

    /// Mounts the file system.
    pub fn mount(&mut self) -> Result<()> {
        let data = self.node_plan().data_dir();
        self.mounted = Some(Mounted::mount(
            self.plan.fs,
            self.loop_device.path(),
            &data,
        )?);
        Ok(())
    }

    /// Unmounts it; the node must be gone.
    pub fn unmount(&mut self) {
        self.mounted = None;
    }

    /// Sends one hook over a connection of its own, whatever the load does.
    pub fn post_one(&mut self) -> Result<Answer> {
        let address = self.node()?.address();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let body = body(number, self.plan.body_bytes);
        self.ledger.sending(number, &body, None);
        let answer = post(&mut None, address, None, &body);
        self.ledger.ended(number, answer.as_ref().ok().cloned());
        Ok(answer?)
    }

    /// Whether the file system gave up: a flush or a write of its own journal has failed. Only a
    /// remount helps then, whatever the node does.
    pub fn file_system_gave_up(&self) -> Result<bool> {
        let path = self.mount_dir()?.join("drill-alive");
        let error = match fs::File::create(&path).and_then(|_| fs::remove_file(&path)) {
            Ok(()) => return Ok(false),
            Err(error) => error,
        };
        Ok(matches!(
            error.raw_os_error(),
            Some(libc::EIO | libc::EROFS | libc::ENODEV)
        ))
    }

    /// Waits until the node is ready; false: the file system gave up before.
    pub fn wait_ready_again(&mut self, most: Duration) -> Result<bool> {
        let (mut gave_up, mut asked) = (false, Instant::now());
        self.wait("the node is ready again", most, |rig| {
            if rig.node()?.is_ready() {
                return Ok(true);
            }
            if asked.elapsed() > Duration::from_millis(300) {
                gave_up = rig.file_system_gave_up()?;
                asked = Instant::now();
            }
            Ok(gave_up)
        })?;
        Ok(!gave_up)
    }

    /// The operator's part after a file system gave up: stop the node, mount again, start it.
    pub fn remount(&mut self) -> Result<()> {
        self.kill_node()?;
        self.stop_load();
        self.unmount();
        self.mount()?;
        self.start_node()
    }

    /// The mount point.
    pub fn mount_dir(&self) -> Result<&Path> {
        Ok(self.mounted.as_ref().context("not mounted")?.dir())
    }

    fn node_plan(&self) -> NodePlan {
        NodePlan {
            binary: self.plan.binary.clone(),
            dir: self.plan.dir.join("node"),
            sink: self.sink.address(),
            cores: 1,
            segment_bytes: self.plan.segment_bytes,
            keyed_paused: true,
            more: String::new(),
        }
    }

    /// Starts the node and waits until it is ready.
    pub fn start_node(&mut self) -> Result<()> {
        let env: Vec<(&str, &str)> = self
            .plan
            .mutation
            .iter()
            .map(|name| ("ANKUSA_MUTATION", *name))
            .chain(
                self.plan
                    .env
                    .iter()
                    .map(|(key, value)| (*key, value.as_str())),
            )
            .collect();
        let plan = self.node_plan();
        let mut node = plan.start(&env)?;
        if !node.wait_ready()? {
            bail!("the node did not come up:\n{}", log_tail(&plan.log_file()));
        }
        self.node = Some(node);
        Ok(())
    }

    /// The node.
    pub fn node(&mut self) -> Result<&mut Node> {
        self.node.as_mut().context("no node")
    }

    /// Kills the node.
    pub fn kill_node(&mut self) -> Result<()> {
        if let Some(mut node) = self.node.take() {
            node.kill()?;
        }
        Ok(())
    }

    /// Starts the load, if it does not run.
    pub fn start_load(&mut self) -> Result<()> {
        if self.load.is_none() {
            let plan = LoadPlan {
                address: self.node()?.address(),
                connections: CONNECTIONS,
                body_bytes: self.plan.body_bytes,
                keyed_every: 2,
            };
            let load = Load::start(plan, self.ledger.clone(), Arc::clone(&self.numbers));
            self.load = Some(load);
        }
        Ok(())
    }

    /// Stops it.
    pub fn stop_load(&mut self) {
        if let Some(load) = self.load.take() {
            load.stop();
        }
    }

    /// Waits for `is_so`.
    pub fn wait(
        &mut self,
        what: &str,
        most: Duration,
        mut is_so: impl FnMut(&mut Rig) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + most;
        while !is_so(self)? {
            self.plan.interrupt.check()?;
            let log = self.node_plan().log_file();
            if self.node()?.has_ended()? {
                bail!(
                    "waiting until {what}: the node ended by itself\n{}",
                    log_tail(&log)
                );
            }
            if Instant::now() > end {
                bail!(
                    "waiting until {what}: not after {most:?}\n{}",
                    log_tail(&log)
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits until `more` further requests are acked.
    pub fn wait_acked(&mut self, more: usize) -> Result<()> {
        let target = self.ledger.acked_count() + more;
        self.wait("enough is acked", Duration::from_secs(120), |rig| {
            Ok(rig.ledger.acked_count() >= target)
        })
    }

    /// As [`Rig::wait_acked`]; false: the file system gave up before.
    pub fn wait_acked_again(&mut self, more: usize) -> Result<bool> {
        let target = self.ledger.acked_count() + more;
        let (mut gave_up, mut asked) = (false, Instant::now());
        self.wait("enough is acked", Duration::from_secs(120), |rig| {
            if asked.elapsed() > Duration::from_millis(500) {
                gave_up = rig.file_system_gave_up()?;
                asked = Instant::now();
            }
            Ok(gave_up || rig.ledger.acked_count() >= target)
        })?;
        Ok(!gave_up)
    }

    /// Cuts as ordered; `at_once`: whatever the moment.
    pub fn cut(&mut self, order: CutOrder, at_once: bool) -> Result<Cut> {
        let (done, taken) = channel();
        self.device.lock().arm_cut(order, done);
        if at_once {
            self.device.lock().cut_now();
        }
        let end = Instant::now() + Duration::from_secs(8);
        loop {
            self.plan.interrupt.check()?;
            match taken.recv_timeout(Duration::from_millis(100)) {
                Ok(cut) => return Ok(cut),
                // Nothing moves on the device: then this moment is as good as another.
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                    self.device.lock().cut_now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the cut was lost"),
            }
        }
    }

    /// The first `count` deliveries to the node's own sink.
    pub fn delivered(&self, count: usize) -> Vec<Delivered> {
        let mut delivered = self.sink.delivered();
        delivered.truncate(count);
        delivered
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        {
            let mut device = self.device.lock();
            device.set_fault(None);
            device.set_delay(Duration::ZERO);
            // IMPORTANT: a process whose I/O gets no answer cannot be killed.
            device.set_hung(false);
        }
        let _ = self.kill_node();
        self.stop_load();
        self.sink.stop();
    }
}
