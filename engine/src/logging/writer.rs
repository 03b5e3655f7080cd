//! The queue of lines and the thread that writes them.
//!
//! Invariants: putting a line in the queue never waits and makes no system call unless the thread
//! sleeps; the queue is bounded by lines and by bytes; every line is written whole, dropped and
//! counted, or (its output broken) counted. Runs: the queue on any thread, the writing on its own.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines waiting.
pub const QUEUE_LINES_MAX: usize = 8192;
/// Most bytes waiting.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

struct Shared {
    queue: ArrayQueue<Vec<u8>>,
    queued_bytes: AtomicUsize,
    dropped: AtomicU64,
    is_asleep: AtomicBool,
    is_closing: AtomicBool,
}

/// The queue's end that lines go into.
#[derive(Clone)]
pub struct LineWriter {
    shared: Arc<Shared>,
    thread: Thread,
}

/// The thread's handle.
pub struct WriterThread {
    lines: LineWriter,
    ended: Receiver<()>,
}

/// Starts the thread that writes to `out`. `note` makes the line that says how many were dropped.
pub fn start(
    out: impl Write + Send + 'static,
    note: fn(u64) -> String,
) -> io::Result<(LineWriter, WriterThread)> {
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(QUEUE_LINES_MAX),
        queued_bytes: AtomicUsize::new(0),
        dropped: AtomicU64::new(0),
        is_asleep: AtomicBool::new(false),
        is_closing: AtomicBool::new(false),
    });
    let (end, ended) = channel();
    let its = Arc::clone(&shared);
    let handle = thread::Builder::new()
        .name("log".into())
        .spawn(move || write_all_lines(&its, out, note, &end))?;
    let lines = LineWriter {
        shared,
        thread: handle.thread().clone(),
    };
    Ok((lines.clone(), WriterThread { lines, ended }))
}

impl LineWriter {
    /// Lines dropped so far.
    pub fn dropped_count(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Puts a whole line in the queue, or drops and counts it.
    pub fn put(&self, line: &[u8]) {
        let shared = &self.shared;
        let before = shared.queued_bytes.fetch_add(line.len(), Ordering::Relaxed);
        let fits = before + line.len() <= QUEUE_BYTES_MAX;
        if !fits || shared.queue.push(line.to_vec()).is_err() {
            shared.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Sequentially consistent on both sides: either the thread sees the line before it sleeps,
        // or this sees that it sleeps.
        if shared.is_asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl WriterThread {
    /// The queue it writes from.
    pub fn lines(&self) -> LineWriter {
        self.lines.clone()
    }

    /// Lets the thread write what is queued and end, waiting at most `patience`.
    pub fn close(self, patience: Duration) {
        self.lines.shared.is_closing.store(true, Ordering::SeqCst);
        self.lines.thread.unpark();
        // Not in time: the process ends without the rest.
        _ = self.ended.recv_timeout(patience);
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        self.clone()
    }
}

/// The formatter hands over a whole line at a time.
impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all_lines(
    shared: &Shared,
    mut out: impl Write,
    note: fn(u64) -> String,
    end: &Sender<()>,
) {
    let mut noted = 0;
    loop {
        while let Some(line) = shared.queue.pop() {
            shared.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            if write_line(&mut out, &line).is_err() {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = shared.dropped.load(Ordering::Relaxed);
        if dropped > noted && write_line(&mut out, note(dropped - noted).as_bytes()).is_ok() {
            noted = dropped;
        }
        if shared.is_closing.load(Ordering::SeqCst) && shared.queue.is_empty() {
            _ = out.flush();
            _ = end.send(());
            return;
        }
        shared.is_asleep.store(true, Ordering::SeqCst);
        if shared.queue.is_empty() && !shared.is_closing.load(Ordering::SeqCst) {
            thread::park();
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
    }
}

/// A whole line, also to an output that was made non-blocking by somebody else.
fn write_line(out: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
