//! The device served as one file of a FUSE file system, so that a loop device can be put on it.
//!
//! Every answer comes after a small delay, as from a real device: so writes and flushes of the
//! node overlap. Writes are answered in the order of their arrival by one thread, flushes by
//! another; a flush covers what was complete when it arrived. The session's thread never waits.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::device::{Device, DeviceFault, Flush};

/// Name of the file.
pub const FILE_NAME: &str = "disk";

const TTL: Duration = Duration::from_secs(3600);
const FILE: INodeNo = INodeNo(2);

/// The device, shared between the daemon and the drill.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Device>>);

impl Shared {
    /// Shares `device`.
    pub fn new(device: Device) -> Shared {
        Shared(Arc::new(Mutex::new(device)))
    }

    /// The device, held still.
    pub fn lock(&self) -> MutexGuard<'_, Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the device takes.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For a write.
    pub write: Duration,
    /// For a flush.
    pub flush: Duration,
}

/// Serves `device` under `mount`. It ends when the returned session is unmounted.
pub fn serve(device: Shared, timing: Timing, mount: &Path) -> io::Result<BackgroundSession> {
    let (reads, asked) = channel();
    let (writes, written) = channel();
    let (flushes, flushed) = channel();
    let (for_reads, for_writes, for_flushes) = (device.clone(), device.clone(), device.clone());
    std::thread::Builder::new()
        .name("device-reads".into())
        .spawn(move || answer_reads(&for_reads, &asked))?;
    std::thread::Builder::new()
        .name("device-writes".into())
        .spawn(move || answer_writes(&for_writes, &written))?;
    std::thread::Builder::new()
        .name("device-flushes".into())
        .spawn(move || answer_flushes(&for_flushes, &flushed))?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("ankusa-drill".into()), MountOption::RW];
    fuser::spawn_mount(
        Daemon {
            device,
            timing,
            reads: Mutex::new(reads),
            writes: Mutex::new(writes),
            flushes: Mutex::new(flushes),
        },
        mount,
        &config,
    )
}

struct PendingRead {
    offset: u64,
    bytes: usize,
    reply: ReplyData,
}

struct PendingWrite {
    due: Instant,
    /// Its number, or how it failed.
    result: Result<u64, DeviceFault>,
    bytes: u32,
    reply: ReplyWrite,
}

struct PendingFlush {
    due: Instant,
    flush: Flush,
    reply: ReplyEmpty,
}

/// Waits until the device answers.
fn wait_answering(device: &Shared) {
    while device.lock().is_hung() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The reads that arrived while the device answered nothing.
fn answer_reads(device: &Shared, asked: &Receiver<PendingRead>) {
    while let Ok(read) = asked.recv() {
        wait_answering(device);
        let mut out = vec![0; read.bytes];
        device.lock().read(read.offset, &mut out);
        read.reply.data(&out);
    }
}

fn answer_writes(device: &Shared, written: &Receiver<PendingWrite>) {
    while let Ok(write) = written.recv() {
        std::thread::sleep(write.due.saturating_duration_since(Instant::now()));
        wait_answering(device);
        match write.result {
            Ok(number) => {
                device.lock().completed(number);
                write.reply.written(write.bytes);
            }
            Err(fault) => write.reply.error(Errno::from_i32(fault.0)),
        }
    }
}

fn answer_flushes(device: &Shared, flushed: &Receiver<PendingFlush>) {
    while let Ok(pending) = flushed.recv() {
        std::thread::sleep(pending.due.saturating_duration_since(Instant::now()));
        wait_answering(device);
        let result = device.lock().flush_ends(&pending.flush);
        match result {
            Ok(()) => pending.reply.ok(),
            Err(_) => pending.reply.error(Errno::EIO),
        }
    }
}

struct Daemon {
    device: Shared,
    timing: Timing,
    reads: Mutex<Sender<PendingRead>>,
    writes: Mutex<Sender<PendingWrite>>,
    flushes: Mutex<Sender<PendingFlush>>,
}

impl Daemon {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        let size = if is_file {
            self.device.lock().bytes()
        } else {
            0
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 512,
            flags: 0,
        }
    }
}

impl Filesystem for Daemon {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without these, writes of one file wait for each other or are cut small.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE_NAME {
            reply.entry(&TTL, &self.attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(1), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let device = self.device.lock();
        let left = device.bytes().saturating_sub(offset);
        let bytes = (size as usize).min(usize::try_from(left).unwrap_or(usize::MAX));
        if device.is_hung() {
            drop(device);
            let reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
            let pending = PendingRead {
                offset,
                bytes,
                reply,
            };
            if let Err(unsent) = reads.send(pending) {
                unsent.0.reply.error(Errno::EIO);
            }
            return;
        }
        let mut out = vec![0; bytes];
        device.read(offset, &mut out);
        drop(device);
        reply.data(&out);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (result, delay) = {
            let mut device = self.device.lock();
            (device.write(offset, data), device.delay())
        };
        let pending = PendingWrite {
            due: Instant::now() + self.timing.write + delay,
            result,
            bytes: data.len() as u32,
            reply,
        };
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(unsent) = writes.send(pending) {
            unsent.0.reply.error(Errno::EIO);
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The close of a descriptor, not a flush of the device.
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _data: bool, reply: ReplyEmpty) {
        let (flush, delay) = {
            let mut device = self.device.lock();
            (device.flush_begins(), device.delay())
        };
        let pending = PendingFlush {
            due: Instant::now() + self.timing.flush + delay,
            flush,
            reply,
        };
        let flushes = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(unsent) = flushes.send(pending) {
            unsent.0.reply.error(Errno::EIO);
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }
}
