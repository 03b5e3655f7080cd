//! The device with nothing around it: direct writes and fdatasyncs of one size at one depth.
//!
//! The yardstick of `wal` and `lone`. The file is of the same kind as a segment of the store:
//! same length, written whole before use, opened for direct I/O, written in order and around.
//!
//! Runs on a thread of its own: a glommio executor pinned to the server's core.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;

use crate::child::cpu_time;
use crate::load::new_histogram;
use crate::measure::{device_of, flushes};

/// Length of the file: that of a segment.
pub const FILE_BYTES: u64 = 128 << 20;
const PREPARE_BYTES: usize = 1 << 20;

/// How each write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sync {
    /// A write, then `fdatasync`.
    Fdatasync,
    /// A write on a descriptor opened with `O_DSYNC`.
    Dsync,
}

/// What to write.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// A file prepared with [`prepare`].
    pub file: PathBuf,
    /// Core to run on.
    pub core: usize,
    /// Bytes of one write; a multiple of 4 KiB, at most 1 MiB.
    pub write_bytes: usize,
    /// Writes in flight.
    pub depth: usize,
    /// How they are synced.
    pub sync: Sync,
    /// Not recorded.
    pub warmup: Duration,
    /// Recorded.
    pub duration: Duration,
}

/// What the device did.
#[derive(Clone, Debug)]
pub struct DeviceResult {
    /// Synced writes per second.
    pub rate: f64,
    /// From the start of the write to the end of the sync, nanoseconds.
    pub latency: Histogram<u64>,
    /// Processor time of the process for each write, kernel workers of it included, microseconds.
    pub cpu_us: f64,
    /// Flushes the device completed for each write, those of other processes included; 0 when
    /// there is no device to ask.
    pub flushes: f64,
}

/// Makes the file, written whole and synced.
pub fn prepare(dir: &Path, core: usize) -> anyhow::Result<PathBuf> {
    let path = dir.join("device.bin");
    let file_path = path.clone();
    on_core(core, move || async move {
        let file = DmaFile::create(&file_path).await.map_err(plain)?;
        for pos in (0..FILE_BYTES).step_by(PREPARE_BYTES) {
            let mut buffer = file.alloc_dma_buffer(PREPARE_BYTES);
            buffer.as_bytes_mut().fill(0);
            file.write_at(buffer, pos).await.map_err(plain)?;
        }
        file.fdatasync().await.map_err(plain)?;
        file.close().await.map_err(plain)?;
        Ok(())
    })
    .with_context(|| format!("preparing {}", path.display()))?;
    Ok(path)
}

/// Writes and syncs for the planned time.
pub fn run(plan: &DevicePlan) -> anyhow::Result<DeviceResult> {
    let plan = plan.clone();
    on_core(plan.core, move || run_here(plan))
}

struct Loop {
    plan: DevicePlan,
    file: DmaFile,
    next: Cell<u64>,
    from: Instant,
    to: Instant,
    latency: RefCell<Histogram<u64>>,
    /// Inside the window.
    writes: Cell<u64>,
    /// Warm-up included.
    all_writes: Cell<u64>,
}

/// The same on the current executor, whatever core it is on.
pub async fn run_here(plan: DevicePlan) -> anyhow::Result<DeviceResult> {
    let flags = if plan.sync == Sync::Dsync {
        libc::O_DSYNC
    } else {
        0
    };
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .dma_open(&plan.file)
        .await
        .map_err(plain)?;
    let from = Instant::now() + plan.warmup;
    let shared = Rc::new(Loop {
        to: from + plan.duration,
        from,
        file,
        next: Cell::new(0),
        latency: RefCell::new(new_histogram()),
        writes: Cell::new(0),
        all_writes: Cell::new(0),
        plan,
    });
    let cpu = cpu_time(std::process::id())?;
    let device = shared.plan.file.parent().and_then(device_of);
    let flushed = device.as_deref().map_or(0, flushes);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..shared.plan.depth)
        .map(|_| glommio::spawn_local(lane(Rc::clone(&shared))))
        .collect();
    for task in tasks {
        task.await?;
    }
    // The warm-up costs the same per write as the rest.
    let cpu_share =
        (cpu_time(std::process::id())? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    let writes = shared.writes.get();
    let flushed = device.as_deref().map_or(0, flushes).saturating_sub(flushed);
    let result = DeviceResult {
        rate: writes as f64 / shared.plan.duration.as_secs_f64(),
        latency: shared.latency.borrow().clone(),
        cpu_us: cpu_share * shared.plan.duration.as_secs_f64() * 1e6 / writes.max(1) as f64,
        flushes: flushed as f64 / shared.all_writes.get().max(1) as f64,
    };
    if let Ok(done) = Rc::try_unwrap(shared) {
        done.file.close().await.map_err(plain)?;
    }
    Ok(result)
}

async fn lane(shared: Rc<Loop>) -> anyhow::Result<()> {
    let bytes = shared.plan.write_bytes;
    let mut buffer = shared.file.alloc_dma_buffer(bytes);
    buffer.as_bytes_mut().fill(0x5a);
    let buffer = Rc::new(buffer);
    loop {
        let started = Instant::now();
        if started >= shared.to {
            return Ok(());
        }
        let pos = shared.next.get();
        let after = pos + bytes as u64;
        shared.next.set(if after + bytes as u64 > FILE_BYTES {
            0
        } else {
            after
        });
        let written = shared
            .file
            .write_rc_at(Rc::clone(&buffer), pos)
            .await
            .map_err(plain)?;
        anyhow::ensure!(written == bytes, "short write: {written} of {bytes} bytes");
        if shared.plan.sync == Sync::Fdatasync {
            shared.file.fdatasync().await.map_err(plain)?;
        }
        let ended = Instant::now();
        shared.all_writes.set(shared.all_writes.get() + 1);
        if ended >= shared.from && ended < shared.to {
            shared.writes.set(shared.writes.get() + 1);
            shared
                .latency
                .borrow_mut()
                .saturating_record((ended - started).as_nanos() as u64);
        }
    }
}

/// Runs a task to its end on a new executor pinned to a core.
pub fn on_core<T, F>(core: usize, main: impl FnOnce() -> F + Send + 'static) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>> + 'static,
{
    LocalExecutorBuilder::new(Placement::Fixed(core))
        .name("bench-device")
        .preempt_timer(Duration::from_millis(1))
        .spawn(main)
        .map_err(|e| anyhow::anyhow!("cannot start an executor on core {core}: {e}"))?
        .join()
        .map_err(|e| anyhow::anyhow!("the executor on core {core} ended: {e}"))?
}

fn plain(error: glommio::GlommioError<()>) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}
