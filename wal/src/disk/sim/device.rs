//! The disk as the store sees it: operations, their time, their faults, their log.
//!
//! An operation is issued at the first poll of its future, takes its drawn time, has its effect
//! when it completes, and completes whether or not anybody still waits for it. The observer sees
//! the medium right before and right after every flush edge. Runs in tests and drills only.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::crash::{SimImage, SimSnapshot};
use super::fault::{Fate, Fault, FaultPlan, OpKind, SimCounters};
use super::medium::{Ino, Inode, Medium};
use crate::disk::{BLOCK_BYTES, DirEntry, Disk, DiskBuf, IO_BYTES_MAX, Space};
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
pub struct SimBuf(Vec<u8>);

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
pub struct SimFile(Rc<Handle>);

struct Handle {
    ino: Ino,
    name: Rc<str>,
    dsync: bool,
    sync_failed: Cell<bool>,
    closed: Cell<bool>,
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

struct Shared {
    world: SimWorld,
    io_us: Range<u64>,
    sync_us: Range<u64>,
    capacity_bytes: Cell<u64>,
    medium: RefCell<Medium>,
    plan: RefCell<FaultPlan>,
    faults_rng: RefCell<SimRng>,
    time_rng: RefCell<SimRng>,
    fate_rng: RefCell<SimRng>,
    of_kind: RefCell<[u64; OpKind::COUNT]>,
    log: RefCell<Vec<OpRecord>>,
    counters: Cell<SimCounters>,
    in_flight: RefCell<Vec<u64>>,
    hung: RefCell<Vec<Box<dyn FnOnce()>>>,
    observer: RefCell<Option<Observer>>,
    open_files: Cell<usize>,
}

impl Shared {
    fn count(&self, f: impl FnOnce(&mut SimCounters)) {
        let mut counters = self.counters.get();
        f(&mut counters);
        self.counters.set(counters);
    }
}

/// A simulated directory. Cloning means the same directory.
#[derive(Clone)]
pub struct SimDisk(Rc<Shared>);

/// What an effect is told.
struct Ticket {
    op: u64,
    fault: Option<Fault>,
}

struct Reply<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

fn errno(code: i32) -> io::Error {
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

    fn handle(&self, ino: Ino, name: &str, dsync: bool) -> SimFile {
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
    async fn run<T: 'static>(
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

    fn edge(&self, edge: FlushEdge) {
        let observer = self.0.observer.borrow().clone();
        if let Some(observer) = observer {
            observer(edge, self.snapshot());
        }
    }

    /// Bytes of a write that may land: all, fewer when the space ends, an error when none.
    fn fits(&self, ino: Ino, pos: u64, bytes: u64) -> io::Result<u64> {
        let medium = self.0.medium.borrow();
        let len = medium.inodes[ino as usize]
            .cur
            .len
            .next_multiple_of(BLOCK_BYTES as u64);
        let grows = (pos + bytes).saturating_sub(len);
        let free = self
            .0
            .capacity_bytes
            .get()
            .saturating_sub(medium.used_bytes());
        if grows <= free {
            return Ok(bytes);
        }
        let landed = bytes.saturating_sub(grows - free) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        drop(medium);
        self.0.count(|c| c.enospc += 1);
        if landed == 0 {
            Err(errno(libc::ENOSPC))
        } else {
            Ok(landed)
        }
    }

    fn finish_write(
        &self,
        file: &SimFile,
        id: u64,
        pos: u64,
        bytes: u64,
        t: &Ticket,
    ) -> io::Result<u64> {
        let shared = &self.0;
        if shared.in_flight.borrow().iter().any(|other| *other < t.op) {
            shared.count(|c| c.reordered += 1);
        }
        let ino = file.0.ino;
        let late = std::mem::take(&mut shared.medium.borrow_mut().inode(ino).late_error);
        let (landed, fate, error) = match t.fault {
            Some(Fault::Error(code, fate)) => (bytes, Some(fate), Some(code)),
            _ if late => (bytes, Some(Fate::Drawn), Some(libc::EIO)),
            Some(Fault::Short(at)) => {
                let last = (bytes - 1) / 512 * 512;
                (last.min(u64::from(at) / 512 * 512), None, None)
            }
            _ => match self.fits(ino, pos, bytes) {
                Ok(landed) => (landed, None, None),
                Err(_) => (0, None, Some(libc::ENOSPC)),
            },
        };
        let durable = file.0.dsync;
        if durable {
            self.edge(FlushEdge::Before);
        }
        let lost = {
            let mut rng = shared.fate_rng.borrow_mut();
            let mut medium = shared.medium.borrow_mut();
            medium.complete_write(ino, id, landed, fate, durable && error.is_none(), &mut rng)
        };
        shared.count(|c| c.sectors_lost += lost);
        if durable {
            self.edge(FlushEdge::After);
        }
        match error {
            Some(code) => Err(errno(code)),
            None => Ok(landed),
        }
    }

    fn finish_sync(
        &self,
        file: &SimFile,
        covered: &super::medium::Covered,
        t: &Ticket,
    ) -> io::Result<()> {
        let shared = &self.0;
        let ino = file.0.ino;
        let late = std::mem::take(&mut shared.medium.borrow_mut().inode(ino).late_error);
        let (fails, error) = match t.fault {
            Some(Fault::Error(code, fate)) => (Some(fate), Some(code)),
            _ if late => (Some(Fate::Drawn), Some(libc::EIO)),
            Some(Fault::Lie) => return Ok(()),
            Some(Fault::Late(Fate::Kept)) => (None, None),
            Some(Fault::Late(fate)) => (Some(fate), None),
            _ => (None, None),
        };
        self.edge(FlushEdge::Before);
        match fails {
            None => shared.medium.borrow_mut().complete_sync(ino, covered),
            Some(fate) => {
                let mut rng = shared.fate_rng.borrow_mut();
                let lost = shared.medium.borrow_mut().fail_sync(ino, fate, &mut rng);
                shared.count(|c| c.sectors_lost += lost);
            }
        }
        if matches!(t.fault, Some(Fault::Late(_))) && error.is_none() {
            shared.medium.borrow_mut().inode(ino).late_error = true;
        }
        self.edge(FlushEdge::After);
        match error {
            Some(code) => {
                file.0.sync_failed.set(true);
                Err(errno(code))
            }
            None => Ok(()),
        }
    }

    async fn name_op<T: 'static>(
        &self,
        kind: OpKind,
        name: &str,
        change: impl FnOnce(&SimDisk, &mut Medium) -> io::Result<T> + 'static,
    ) -> io::Result<T> {
        let effect = move |disk: &SimDisk, t: &Ticket| {
            if let Some(Fault::Error(code, _)) = t.fault {
                return Err(errno(code));
            }
            let mut medium = disk.0.medium.borrow_mut();
            change(disk, &mut medium).map(|value| (0, value))
        };
        self.run(kind, (Rc::from(name), 0, 0), |_| {}, effect).await
    }

    fn find(medium: &Medium, name: &str) -> io::Result<Ino> {
        medium
            .names
            .get(name)
            .copied()
            .ok_or_else(|| errno(libc::ENOENT))
    }
}

fn check_aligned(pos: u64, bytes: usize) -> io::Result<()> {
    let aligned = pos.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES);
    if aligned && bytes > 0 && bytes <= IO_BYTES_MAX {
        Ok(())
    } else {
        Err(errno(libc::EINVAL))
    }
}

impl Disk for SimDisk {
    type File = SimFile;
    type Buf = SimBuf;

    fn alloc(&self, bytes: usize) -> SimBuf {
        // Not zeros: what is left in a buffer must not look like padding by chance.
        SimBuf(vec![0xa5; bytes.next_multiple_of(BLOCK_BYTES)])
    }

    async fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.name_op(OpKind::List, "", |_, medium| {
            let entry = |(name, ino): (&Rc<str>, &Ino)| DirEntry {
                name: name.to_string(),
                bytes: medium.inodes[*ino as usize].cur.len,
            };
            Ok(medium.names.iter().map(entry).collect())
        })
        .await
    }

    async fn open(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let found = self
            .name_op(OpKind::Open, name, move |_, m| SimDisk::find(m, &key))
            .await;
        found.map(|ino| self.handle(ino, name, false))
    }

    async fn create(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let made = self.name_op(OpKind::Create, name, move |_, medium| {
            if medium.names.contains_key(key.as_str()) {
                return Err(errno(libc::EEXIST));
            }
            Ok(medium.create(&key))
        });
        made.await.map(|ino| self.handle(ino, name, false))
    }

    async fn len(&self, file: &SimFile) -> io::Result<u64> {
        let ino = file.0.ino;
        self.name_op(OpKind::Len, &file.0.name, move |_, m| {
            Ok(m.inode(ino).cur.len)
        })
        .await
    }

    async fn write_at(&self, file: &SimFile, buf: Rc<SimBuf>, pos: u64) -> io::Result<usize> {
        let bytes = buf.0.len();
        check_aligned(pos, bytes)?;
        let id = Rc::new(Cell::new(0));
        let issue = {
            let (disk, id, ino) = (self.clone(), Rc::clone(&id), file.0.ino);
            move |medium: &mut Medium| {
                let (stamp, overlaps) = medium.issue_write(ino, pos, &buf.0);
                id.set(stamp);
                disk.0
                    .count(|c| c.overlapping_writes += u64::from(overlaps));
            }
        };
        let target = file.clone();
        let effect = move |disk: &SimDisk, t: &Ticket| {
            let landed = disk.finish_write(&target, id.get(), pos, bytes as u64, t)?;
            Ok((landed, landed as usize))
        };
        self.run(
            OpKind::Write,
            (Rc::clone(&file.0.name), pos, bytes),
            issue,
            effect,
        )
        .await
    }

    async fn read_at(&self, file: &SimFile, pos: u64, bytes: usize) -> io::Result<(SimBuf, usize)> {
        check_aligned(pos, bytes)?;
        let ino = file.0.ino;
        let mut buf = self.alloc(bytes);
        let effect = move |disk: &SimDisk, t: &Ticket| {
            if let Some(Fault::Error(code, _)) = t.fault {
                return Err(errno(code));
            }
            let medium = disk.0.medium.borrow();
            let cur = &medium.inodes[ino as usize].cur;
            let filled = cur.len.saturating_sub(pos).min(bytes as u64) as usize;
            cur.read(pos, &mut buf.0[..filled]);
            if let Some(Fault::FlipRead(bit)) = t.fault
                && filled > 0
            {
                let bit = bit as usize % (filled * 8);
                buf.0[bit / 8] ^= 1 << (bit % 8);
            }
            Ok((filled as u64, (buf, filled)))
        };
        self.run(
            OpKind::Read,
            (Rc::clone(&file.0.name), pos, bytes),
            |_| {},
            effect,
        )
        .await
    }

    async fn sync_data(&self, file: &SimFile) -> io::Result<()> {
        if file.0.sync_failed.get() {
            self.0.count(|c| c.syncs_after_failure += 1);
        }
        let covered = Rc::new(Cell::new(None));
        let issue = {
            let (covered, ino) = (Rc::clone(&covered), file.0.ino);
            move |medium: &mut Medium| covered.set(Some(medium.issue_sync(ino)))
        };
        let target = file.clone();
        let effect = move |disk: &SimDisk, t: &Ticket| {
            let covered = covered.take().ok_or_else(|| errno(libc::EIO))?;
            disk.finish_sync(&target, &covered, t).map(|()| (0, ()))
        };
        self.run(
            OpKind::SyncData,
            (Rc::clone(&file.0.name), 0, 0),
            issue,
            effect,
        )
        .await
    }

    async fn reopen_dsync(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let found = self
            .name_op(OpKind::ReopenDsync, name, move |_, m| {
                SimDisk::find(m, &key)
            })
            .await;
        found.map(|ino| self.handle(ino, name, true))
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (old, new) = (from.to_owned(), to.to_owned());
        self.name_op(OpKind::Rename, from, move |_, medium| {
            let ino = SimDisk::find(medium, &old)?;
            medium.change_names(Some(Rc::from(old)), Some((Rc::from(new), ino)));
            Ok(())
        })
        .await
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        let key = name.to_owned();
        self.name_op(OpKind::Remove, name, move |_, medium| {
            SimDisk::find(medium, &key)?;
            medium.change_names(Some(Rc::from(key)), None);
            Ok(())
        })
        .await
    }

    async fn sync_dir(&self) -> io::Result<()> {
        let upto = Rc::new(Cell::new(0));
        let issue = {
            let upto = Rc::clone(&upto);
            move |medium: &mut Medium| upto.set(medium.stamp())
        };
        let effect = move |disk: &SimDisk, t: &Ticket| {
            match t.fault {
                // NOTE: a failed directory sync leaves the names as they were: lost or kept
                // at the cut, each by itself.
                Some(Fault::Error(code, _)) => return Err(errno(code)),
                Some(Fault::Lie) => return Ok((0, ())),
                _ => {}
            }
            disk.edge(FlushEdge::Before);
            disk.0.medium.borrow_mut().sync_names(upto.get());
            disk.edge(FlushEdge::After);
            Ok((0, ()))
        };
        self.run(OpKind::SyncDir, (Rc::from(""), 0, 0), issue, effect)
            .await
    }

    async fn space(&self) -> io::Result<Space> {
        self.name_op(OpKind::Space, "", |disk, medium| {
            let total_bytes = disk.0.capacity_bytes.get();
            Ok(Space {
                free_bytes: total_bytes.saturating_sub(medium.used_bytes()),
                total_bytes,
            })
        })
        .await
    }

    fn close(&self, file: SimFile) -> impl Future<Output = ()> {
        file.0.closed.set(true);
        drop(file);
        std::future::ready(())
    }
}
