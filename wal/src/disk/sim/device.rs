//! The device: descriptors, the time and the faults of operations, their log, the observer.
//!
//! An operation is issued at the first poll of its future, takes its drawn time, has its effect
//! when it completes, and completes whether or not anybody still waits for it. The observer sees
//! the medium right before and right after every flush edge. Runs in tests and drills only.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::crash::{SimImage, SimSnapshot};
use super::fault::{Fault, FaultPlan, OpKind, SimCounters};
use super::medium::{Ino, Inode, Medium};
use crate::disk::{BLOCK_BYTES, DiskBuf};
use crate::sim::{SimRng, SimWorld};

/// How a simulated disk behaves.
#[derive(Clone, Debug)]
pub struct SimDiskConfig {
    /// Seed of latencies and drawn faults.
    pub seed: u64,
    /// Time of a write or read, microseconds; drawn, so that completions are reordered.
    pub io_us: Range<u64>,
    /// Time of a sync, microseconds.
    pub sync_us: Range<u64>,
    /// Bytes that fit; an extending write beyond gets what fits, then ENOSPC.
    pub capacity_bytes: u64,
    /// Faults.
    pub faults: FaultPlan,
}

impl SimDiskConfig {
    /// A sound disk of 1 TiB.
    pub fn new(seed: u64) -> SimDiskConfig {
        SimDiskConfig {
            seed,
            io_us: 20..200,
            sync_us: 50..500,
            capacity_bytes: 1 << 40,
            faults: FaultPlan::none(),
        }
    }

    /// With these faults.
    pub fn faults(mut self, faults: FaultPlan) -> SimDiskConfig {
        self.faults = faults;
        self
    }
}

/// An aligned length of bytes.
pub struct SimBuf(pub(super) Vec<u8>);

impl AsRef<[u8]> for SimBuf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl AsMut<[u8]> for SimBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
impl DiskBuf for SimBuf {
    fn truncate(&mut self, bytes: usize) {
        assert!(bytes.is_multiple_of(BLOCK_BYTES) && bytes <= self.0.len());
        self.0.truncate(bytes);
    }
}

/// An open file. Cloning means the same descriptor.
#[derive(Clone)]
pub struct SimFile(pub(super) Rc<Handle>);

pub(super) struct Handle {
    pub(super) ino: Ino,
    pub(super) name: Rc<str>,
    pub(super) dsync: bool,
    pub(super) sync_failed: Cell<bool>,
    pub(super) closed: Cell<bool>,
    shared: Rc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.open_files.set(self.shared.open_files.get() - 1);
        if !self.closed.get() {
            self.shared.count(|c| c.unclosed_files += 1);
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// Not yet.
    InFlight,
    /// With success; bytes for a read or write, else 0.
    Done(u64),
    /// With this errno.
    Failed(i32),
}

/// One line of the operation log.
#[derive(Clone, Debug)]
pub struct OpRecord {
    /// Number, from 0.
    pub op: u64,
    /// Kind.
    pub kind: OpKind,
    /// File name at the time of issue; empty for the directory.
    pub name: Rc<str>,
    /// Position.
    pub pos: u64,
    /// Length asked for.
    pub bytes: usize,
    /// Virtual time of issue.
    pub issued_us: u64,
    /// What it met.
    pub fault: Option<Fault>,
    /// How it ended.
    pub outcome: OpOutcome,
}

/// A moment at which something becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushEdge {
    /// Right before.
    Before,
    /// Right after; the caller has not been told yet.
    After,
}

type Observer = Rc<dyn Fn(FlushEdge, SimSnapshot)>;

pub(super) struct Shared {
    world: SimWorld,
    io_us: Range<u64>,
    sync_us: Range<u64>,
    pub(super) capacity_bytes: Cell<u64>,
    pub(super) medium: RefCell<Medium>,
    plan: RefCell<FaultPlan>,
    faults_rng: RefCell<SimRng>,
    time_rng: RefCell<SimRng>,
    pub(super) fate_rng: RefCell<SimRng>,
    of_kind: RefCell<[u64; OpKind::COUNT]>,
    log: RefCell<Vec<OpRecord>>,
    counters: Cell<SimCounters>,
    pub(super) in_flight: RefCell<Vec<u64>>,
    hung: RefCell<Vec<Box<dyn FnOnce()>>>,
    observer: RefCell<Option<Observer>>,
    open_files: Cell<usize>,
}

impl Shared {
    pub(super) fn count(&self, f: impl FnOnce(&mut SimCounters)) {
        let mut counters = self.counters.get();
        f(&mut counters);
        self.counters.set(counters);
    }
}

/// A simulated directory. Cloning means the same directory.
#[derive(Clone)]
pub struct SimDisk(pub(super) Rc<Shared>);

/// What an effect is told.
pub(super) struct Ticket {
    pub(super) op: u64,
    pub(super) fault: Option<Fault>,
}

struct Reply<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl SimDisk {
    /// An empty directory.
    pub fn new(world: &SimWorld, config: SimDiskConfig) -> SimDisk {
        SimDisk::with_image(world, config, &SimImage::default())
    }

    /// A directory with this content, all of it durable.
    pub fn with_image(world: &SimWorld, config: SimDiskConfig, image: &SimImage) -> SimDisk {
        let mut medium = Medium::default();
        for (name, pages) in &image.files {
            let ino = medium.inodes.len() as Ino;
            let (cur, stable) = (pages.clone(), pages.clone());
            medium.inodes.push(Inode {
                cur,
                stable,
                ..Inode::default()
            });
            medium.names.insert(Rc::from(name.as_str()), ino);
        }
        medium.stable_names = medium.names.clone();
        let rng = |label| RefCell::new(SimRng::stream(config.seed, label));
        SimDisk(Rc::new(Shared {
            world: world.clone(),
            io_us: config.io_us,
            sync_us: config.sync_us,
            capacity_bytes: Cell::new(config.capacity_bytes),
            medium: RefCell::new(medium),
            plan: RefCell::new(config.faults),
            faults_rng: rng(10),
            time_rng: rng(11),
            fate_rng: rng(12),
            of_kind: RefCell::default(),
            log: RefCell::default(),
            counters: Cell::default(),
            in_flight: RefCell::default(),
            hung: RefCell::default(),
            observer: RefCell::default(),
            open_files: Cell::new(0),
        }))
    }

    /// Replaces the plan, for instance with none when the fault is over. Numbers go on.
    pub fn set_faults(&self, plan: FaultPlan) {
        *self.0.plan.borrow_mut() = plan;
    }

    /// Changes how much fits.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.capacity_bytes.set(bytes);
    }

    /// Is told about every flush edge, with the medium as it is then.
    pub fn observe(&self, observer: impl Fn(FlushEdge, SimSnapshot) + 'static) {
        *self.0.observer.borrow_mut() = Some(Rc::new(observer));
    }

    /// Lets everything that hangs complete now. Answers how many.
    pub fn release_hangs(&self) -> usize {
        let hung = std::mem::take(&mut *self.0.hung.borrow_mut());
        let count = hung.len();
        for complete in hung {
            complete();
        }
        count
    }

    /// The medium now.
    pub fn snapshot(&self) -> SimSnapshot {
        let medium = self.0.medium.borrow().clone();
        SimSnapshot {
            medium,
            op: self.ops(),
            at_us: self.0.world.now_us(),
        }
    }

    /// Operations issued so far.
    pub fn ops(&self) -> u64 {
        self.0.log.borrow().len() as u64
    }

    /// The operation log.
    pub fn log(&self) -> Vec<OpRecord> {
        self.0.log.borrow().clone()
    }

    /// What was met so far.
    pub fn counters(&self) -> SimCounters {
        self.0.counters.get()
    }

    /// Descriptors not closed.
    pub fn open_files(&self) -> usize {
        self.0.open_files.get()
    }

    pub(super) fn handle(&self, ino: Ino, name: &str, dsync: bool) -> SimFile {
        self.0.open_files.set(self.0.open_files.get() + 1);
        SimFile(Rc::new(Handle {
            ino,
            name: Rc::from(name),
            dsync,
            sync_failed: Cell::new(false),
            closed: Cell::new(false),
            shared: Rc::clone(&self.0),
        }))
    }

    /// Issues an operation and waits for it. `effect` runs when it completes.
    pub(super) async fn run<T: 'static>(
        &self,
        kind: OpKind,
        (name, pos, bytes): (Rc<str>, u64, usize),
        issue: impl FnOnce(&mut Medium),
        effect: impl FnOnce(&SimDisk, &Ticket) -> io::Result<(u64, T)> + 'static,
    ) -> io::Result<T> {
        let (op, fault, delay_us) = self.begin(kind, name, pos, bytes);
        issue(&mut self.0.medium.borrow_mut());
        let reply = Rc::new(RefCell::new(Reply {
            result: None,
            waker: None,
        }));
        let complete = {
            let (disk, reply) = (self.clone(), Rc::clone(&reply));
            move || {
                disk.0.in_flight.borrow_mut().retain(|other| *other != op);
                let result = effect(&disk, &Ticket { op, fault });
                disk.end(op, &result);
                let mut reply = reply.borrow_mut();
                reply.result = Some(result.map(|(_, value)| value));
                if let Some(waker) = reply.waker.take() {
                    waker.wake();
                }
            }
        };
        if fault == Some(Fault::Hang) {
            self.0.hung.borrow_mut().push(Box::new(complete));
        } else {
            self.0.world.after(delay_us, complete);
        }
        poll_fn(move |cx| {
            let mut reply = reply.borrow_mut();
            if let Some(result) = reply.result.take() {
                return Poll::Ready(result);
            }
            reply.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn begin(
        &self,
        kind: OpKind,
        name: Rc<str>,
        pos: u64,
        bytes: usize,
    ) -> (u64, Option<Fault>, u64) {
        let shared = &self.0;
        let op = self.ops();
        let nth = {
            let mut of_kind = shared.of_kind.borrow_mut();
            let cell = &mut of_kind[kind as usize];
            *cell += 1;
            *cell - 1
        };
        let fault = {
            let mut rng = shared.faults_rng.borrow_mut();
            shared
                .plan
                .borrow_mut()
                .decide(op, kind, nth, bytes, &mut rng)
        };
        shared.count(|c| {
            c.ops += 1;
            if let Some(fault) = fault {
                c.count(kind, fault);
            }
        });
        if kind == OpKind::Write {
            shared.in_flight.borrow_mut().push(op);
        }
        let span = match kind {
            OpKind::SyncData | OpKind::SyncDir => &shared.sync_us,
            _ => &shared.io_us,
        };
        let mut delay_us = shared
            .time_rng
            .borrow_mut()
            .between(span.start, span.end.max(span.start + 1) - 1);
        if let Some(Fault::Delay(more)) = fault {
            delay_us += more;
        }
        let issued_us = shared.world.now_us();
        let outcome = OpOutcome::InFlight;
        let record = OpRecord {
            op,
            kind,
            name,
            pos,
            bytes,
            issued_us,
            fault,
            outcome,
        };
        shared.log.borrow_mut().push(record);
        (op, fault, delay_us)
    }

    fn end<T>(&self, op: u64, result: &io::Result<(u64, T)>) {
        let outcome = match result {
            Ok((bytes, _)) => OpOutcome::Done(*bytes),
            Err(error) => OpOutcome::Failed(error.raw_os_error().unwrap_or(0)),
        };
        self.0.log.borrow_mut()[op as usize].outcome = outcome;
    }

    pub(super) fn edge(&self, edge: FlushEdge) {
        let observer = self.0.observer.borrow().clone();
        if let Some(observer) = observer {
            observer(edge, self.snapshot());
        }
    }
}
