//! The file sink: one message a line, confirmed when it is on the disk.
//!
//! A thread per path does the writing, for every core and every sink that names the path, so that
//! no core waits for a disk and lines never mix. It takes all lines that wait (up to a bound),
//! appends them with one write, syncs, and then confirms them; while it does, the next ones gather.
//!
//! Bounds: [`FILE_QUEUE_MAX`] lines and [`FILE_QUEUE_BYTES_MAX`] bytes waiting per path; over
//! either, the attempt is not made.
//!
//! Failures: a write or sync that fails confirms nothing of its batch, and the file is opened anew.
//! The lines come again, so one may be there twice. What a failed or interrupted write left of a
//! line is closed off with a line feed before the next: a torn line is a line of its own.
//! A file that was renamed or removed (log rotation) is left alone and its path opened anew.
//!
//! The queue's end runs on shard cores, the [`Writer`](run) on its own thread.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::io::{self, IoSlice, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::thread::Thread;

use ankusa_wal::host::Host;
use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

use super::Delivery;
use super::forward::ForwardRule;
use super::message::MessageWriter;
use super::outcome::{Cause, Outcome};
use super::stamp::{Signer, stamp};

/// Lines waiting for one file.
pub const FILE_QUEUE_MAX: usize = 1024;

/// Bytes waiting for one file.
pub const FILE_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Lines per write: what one `writev` takes.
const BATCH_MAX: usize = 512;

/// How soon a delivery that found the queue full is tried again.
const BUSY_AGAIN_MS: u64 = 250;

/// The writers of a process. Shared by all cores.
#[derive(Clone, Default)]
pub struct FileWriters {
    /// Touched when sinks are made, never by a delivery.
    by_path: Arc<Mutex<HashMap<PathBuf, Weak<FileWriter>>>>,
}

impl FileWriters {
    /// The writer of `path`; starts its thread when there is none yet. It ends with the last sink
    /// that uses it.
    pub fn writer(&self, path: &Path) -> io::Result<Arc<FileWriter>> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        by_path.retain(|_, writer| writer.strong_count() > 0);
        if let Some(writer) = by_path.get(path).and_then(Weak::upgrade) {
            return Ok(writer);
        }
        let writer = Arc::new(FileWriter::start(path)?);
        by_path.insert(path.to_owned(), Arc::downgrade(&writer));
        Ok(writer)
    }
}

/// The queue to one file's thread.
pub struct FileWriter {
    queue: Arc<Queue>,
    thread: Thread,
}

struct Queue {
    lines: ArrayQueue<Line>,
    waiting_bytes: AtomicUsize,
    is_closed: AtomicBool,
}

impl Queue {
    fn new() -> Queue {
        Queue {
            lines: ArrayQueue::new(FILE_QUEUE_MAX),
            waiting_bytes: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        }
    }
}

struct Line {
    bytes: Vec<u8>,
    receipt: Arc<Receipt>,
}

/// Tells the core what became of a line.
struct Receipt {
    /// 0 waiting, 1 on the disk, 2 failed.
    state: AtomicU8,
    waker: AtomicWaker,
}

impl FileWriter {
    fn start(path: &Path) -> io::Result<FileWriter> {
        let queue = Arc::new(Queue::new());
        let (path, theirs) = (path.to_owned(), Arc::clone(&queue));
        let thread = std::thread::Builder::new()
            .name("file-sink".into())
            .stack_size(256 * 1024)
            .spawn(move || run(&path, &theirs))?;
        Ok(FileWriter {
            queue,
            thread: thread.thread().clone(),
        })
    }

    /// One whose thread takes nothing.
    #[cfg(test)]
    pub(super) fn stalled() -> FileWriter {
        FileWriter {
            queue: Arc::new(Queue::new()),
            thread: std::thread::current(),
        }
    }

    /// Room for a line of so many bytes, which [`FileWriter::append`] then takes.
    fn reserve(&self, bytes: usize) -> bool {
        let waiting = &self.queue.waiting_bytes;
        let before = waiting.fetch_add(bytes, Ordering::Relaxed);
        // An empty queue takes any line, or a large one would never go.
        if before > 0 && before + bytes > FILE_QUEUE_BYTES_MAX {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Appends a line for which room was reserved. True: it is on the disk. `None`: the queue is
    /// full.
    async fn append(&self, bytes: Vec<u8>) -> Option<bool> {
        let receipt = Arc::new(Receipt {
            state: AtomicU8::new(0),
            waker: AtomicWaker::new(),
        });
        let line = Line {
            bytes,
            receipt: Arc::clone(&receipt),
        };
        if let Err(line) = self.queue.lines.push(line) {
            self.queue
                .waiting_bytes
                .fetch_sub(line.bytes.len(), Ordering::Relaxed);
            return None;
        }
        self.thread.unpark();
        let waiting = Waiting(receipt);
        let state = poll_fn(|cx| {
            waiting.0.waker.register(cx.waker());
            match waiting.0.state.load(Ordering::Acquire) {
                0 => Poll::Pending,
                state => Poll::Ready(state),
            }
        });
        Some(state.await == 1)
    }
}

/// A core that waits for a receipt. Takes its waker back when it stops waiting, so that the thread
/// never holds the last handle of a task.
struct Waiting(Arc<Receipt>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waker.take();
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.queue.is_closed.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A file of newline-delimited JSON.
pub struct FileSink {
    writer: Arc<FileWriter>,
    forward: ForwardRule,
    host: Rc<dyn Host>,
    unsigned: Signer,
}

impl FileSink {
    /// A sink that appends through `writer`.
    pub fn new(writer: Arc<FileWriter>, forward: ForwardRule, host: Rc<dyn Host>) -> FileSink {
        FileSink {
            writer,
            forward,
            host,
            unsigned: Signer::default(),
        }
    }

    /// Makes one attempt.
    ///
    /// # Cancel safety
    /// A line that was queued is written all the same.
    pub async fn deliver(&self, delivery: &Delivery<'_>) -> Outcome {
        let host = &*self.host;
        let stamp = stamp(host, &self.unsigned, "", 0, delivery.hook.body, false).await;
        let mut message = MessageWriter::begin(delivery, &self.forward, &stamp.sha256, 1);
        while message.step() {
            if host.must_yield() {
                host.yield_now().await;
            }
        }
        let mut line = message.finish();
        line.push(b'\n');
        let busy = Outcome::NotMade {
            cause: Cause::Busy,
            again_ms: BUSY_AGAIN_MS,
        };
        if !self.writer.reserve(line.len()) {
            return busy;
        }
        match self.writer.append(line).await {
            None => busy,
            Some(true) => Outcome::Delivered,
            Some(false) => Outcome::retry(Cause::File),
        }
    }
}

/// The thread: until the last handle is gone and the queue is empty.
fn run(path: &Path, queue: &Queue) {
    let mut open: Option<OpenFile> = None;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        // Read before the queue: what was pushed before it was set is still taken.
        let is_closed = queue.is_closed.load(Ordering::Acquire);
        while batch.len() < BATCH_MAX
            && let Some(line) = queue.lines.pop()
        {
            batch.push(line);
        }
        if batch.is_empty() {
            if is_closed {
                return;
            }
            std::thread::park();
            continue;
        }
        let written = append_batch(path, &mut open, &batch);
        if let Err(error) = &written {
            tracing::warn!(%error, path = %path.display(), lines = batch.len(), "file sink");
            open = None;
        }
        for line in batch.drain(..) {
            queue
                .waiting_bytes
                .fetch_sub(line.bytes.len(), Ordering::Relaxed);
            let state = if written.is_ok() { 1 } else { 2 };
            line.receipt.state.store(state, Ordering::Release);
            line.receipt.waker.wake();
        }
    }
}

struct OpenFile {
    file: File,
    device: u64,
    inode: u64,
    /// What is at the end is part of a line.
    ends_torn: bool,
}

impl OpenFile {
    fn open(path: &Path) -> io::Result<OpenFile> {
        let is_new = !path.exists();
        // Never blocks on a pipe; payloads are their owner's alone.
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        if is_new {
            // IMPORTANT: the name must be on the disk before a line in the file is confirmed.
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        let mut last = *b"\n";
        if facts.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        Ok(OpenFile {
            file,
            device: facts.dev(),
            inode: facts.ino(),
            ends_torn: last != *b"\n",
        })
    }

    fn is_at(&self, path: &Path) -> bool {
        std::fs::metadata(path)
            .is_ok_and(|facts| facts.dev() == self.device && facts.ino() == self.inode)
    }
}

/// Appends and syncs. Nothing of the batch is confirmed on an error.
fn append_batch(path: &Path, open: &mut Option<OpenFile>, batch: &[Line]) -> io::Result<()> {
    open.take_if(|file| !file.is_at(path));
    let target = match open {
        Some(target) => target,
        None => open.insert(OpenFile::open(path)?),
    };
    let mut slices = Vec::with_capacity(batch.len() + 1);
    if target.ends_torn {
        slices.push(IoSlice::new(b"\n"));
    }
    slices.extend(batch.iter().map(|line| IoSlice::new(&line.bytes)));
    write_all(&mut target.file, &mut slices)?;
    target.ends_torn = false;
    target.file.sync_data()
}

fn write_all(file: &mut File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
