//! A recorded history, rebuilt at every flush boundary and, in between, with parts of what no
//! flush had covered.
//!
//! Each image is mounted (the file system recovers its journal), the store is opened on it in this
//! process on the blocking disk, and every hook that it holds is read back through the store and
//! given to the oracle, with what the node had delivered by then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::ready;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ankusa_wal::disk::blocking::{BlockingDisk, block_on};
use ankusa_wal::home::Home;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Envelope, Host, ShardId, Store, StoreConfig, TaskClass};
use anyhow::{Context, Result, anyhow};

use super::check::Image;
use super::cut::{CutKind, crash_image};
use super::device::{History, Marks, Write};
use super::host::{FsKind, Interrupt, LoopDevice, Mounted};
use super::pages::Pages;
use crate::ledger::{Ledger, Sent};
use crate::oracle::{Delivered, Verdict, judge};
use crate::rng::Rng;

/// What came of a history.
#[derive(Default)]
pub struct HistoryReport {
    /// Flush boundaries rebuilt.
    pub boundaries: usize,
    /// Images with a part of an epoch's writes.
    pub subsets: usize,
    /// Parts drawn that gave an image already checked.
    pub repeats: usize,
    /// Writes recorded.
    pub writes: usize,
    /// Groups of the log recorded.
    pub groups: usize,
    /// Headers of segments recorded.
    pub segments: usize,
    /// Writes into the file system's journal recorded.
    pub journal: usize,
    /// Acked at the first and at the last point.
    pub acked: (usize, usize),
    /// All verdicts, added up.
    pub sum: Verdict,
    /// Points at which a promise did not hold.
    pub bad: usize,
    /// How long the checks took.
    pub took: Duration,
}

struct Point {
    name: String,
    image: Pages,
    marks: Marks,
}

/// Where and how a history is checked.
pub struct HistoryCheck<'a> {
    /// Where to work.
    pub dir: PathBuf,
    /// The file system.
    pub fs: FsKind,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Parts of each epoch.
    pub subsets: usize,
    /// Checks at once.
    pub threads: usize,
    /// Seed of the parts.
    pub seed: u64,
    /// Set by a signal.
    pub interrupt: &'a Interrupt,
    /// What the client knows.
    pub ledger: &'a Ledger,
    /// What the node's own sink was given, all of it.
    pub delivered: &'a [Delivered],
}

impl HistoryCheck<'_> {
    /// Rebuilds and checks every point of `history`.
    pub fn run(&self, history: &History) -> Result<HistoryReport> {
        let started = Instant::now();
        let mut report = HistoryReport::default();
        let points = self.points(history, &mut report);
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|worker| {
                    let (points, next, results) = (&points, &next, &results);
                    scope.spawn(move || self.work(worker, points, next, results))
                })
                .collect();
            workers
                .into_iter()
                .map(|w| w.join().map_err(|_| anyhow!("a check panicked"))?)
                .collect::<Result<Vec<()>>>()
        })?;
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (point, verdict) in results {
            add(&mut report, &points[point].name, verdict);
        }
        report.took = started.elapsed();
        Ok(report)
    }

    fn points(&self, history: &History, report: &mut HistoryReport) -> Vec<Point> {
        let mut rng = Rng::new(self.seed);
        let mut stable = history.base.clone();
        let mut unflushed: BTreeMap<u64, Write> = BTreeMap::new();
        let mut points = Vec::new();
        for (number, epoch) in history.epochs.iter().enumerate() {
            report.writes += epoch.writes.len();
            report.groups += epoch.writes.iter().map(Write::groups).sum::<usize>();
            report.segments += epoch.writes.iter().filter(|w| w.is_segment()).count();
            report.journal += epoch.writes.iter().filter(|w| w.is_journal()).count();
            // What was acked up to the end of this epoch must be on the medium as the flush before
            // left it: this epoch's writes may all be lost.
            points.push(Point {
                name: format!("flush {number}"),
                image: stable.clone(),
                marks: epoch.marks,
            });
            report.boundaries += 1;
            unflushed.extend(epoch.writes.iter().map(|w| (w.number, w.clone())));
            let pending: Vec<Write> = unflushed.values().cloned().collect();
            self.subsets_of(
                number,
                &stable,
                &pending,
                epoch.marks,
                &mut rng,
                report,
                &mut points,
            );
            for number in &epoch.covered {
                if let Some(write) = unflushed.remove(number) {
                    stable.write(write.offset, &write.data);
                }
            }
        }
        if let (Some(first), Some(last)) = (history.epochs.first(), history.epochs.last()) {
            report.acked = (first.marks.acked, last.marks.acked);
        }
        points
    }

    #[expect(clippy::too_many_arguments, reason = "one step of one loop")]
    fn subsets_of(
        &self,
        epoch: usize,
        stable: &Pages,
        pending: &[Write],
        marks: Marks,
        rng: &mut Rng,
        report: &mut HistoryReport,
        points: &mut Vec<Point>,
    ) {
        let mut known: HashSet<Vec<u8>> = HashSet::new();
        known.insert(fingerprint(stable, pending));
        for i in 0..self.subsets {
            let kind = match i % 10 {
                0 => CutKind::All,
                1 => CutKind::Prefix,
                2 => CutKind::Suffix,
                3 => CutKind::AllButOne,
                4 => CutKind::Halves,
                5 => CutKind::OnlyLast,
                _ => CutKind::Half,
            };
            let (image, ..) = crash_image(stable, pending, kind, rng);
            if known.insert(fingerprint(&image, pending)) {
                report.subsets += 1;
                points.push(Point {
                    name: format!("epoch {epoch}, {}", kind.name()),
                    image,
                    marks,
                });
            } else {
                report.repeats += 1;
            }
        }
    }

    fn work(
        &self,
        worker: usize,
        points: &[Point],
        next: &AtomicUsize,
        results: &Mutex<Vec<(usize, Verdict)>>,
    ) -> Result<()> {
        let dir = self.dir.join(format!("history-{worker}"));
        let mut image = Image::new(&format!("history-{worker}"))?;
        image.fill(&Pages::new(points.first().map_or(0, |p| p.image.bytes())))?;
        let loop_device = LoopDevice::attach(image.path(), false)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(point) = points.get(at) else {
                return Ok(());
            };
            self.interrupt.check()?;
            image.fill(&point.image)?;
            let sent = self.ledger.rows_at(point.marks.acked);
            let verdict = self.check(&sent, point, &loop_device, &dir);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((at, verdict));
        }
    }

    fn check(
        &self,
        sent: &BTreeMap<u64, Sent>,
        point: &Point,
        loop_device: &LoopDevice,
        dir: &Path,
    ) -> Verdict {
        let before = &self.delivered[..point.marks.delivered.min(self.delivered.len())];
        let (held, trouble) = match recovered(self.fs, self.segment_bytes, loop_device, dir) {
            Ok(held) => (held, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let mut verdict = judge(sent, &[before, &held].concat(), usize::MAX);
        if let Some(trouble) = trouble {
            verdict.missing = verdict.missing.max(1);
            verdict.examples.insert(0, trouble);
        }
        verdict
    }
}

fn add(report: &mut HistoryReport, point: &str, verdict: Verdict) {
    let sum = &mut report.sum;
    sum.acked += verdict.acked;
    sum.recovered += verdict.recovered;
    sum.missing += verdict.missing;
    sum.altered += verdict.altered;
    sum.invented += verdict.invented;
    sum.duplicate_hooks += verdict.duplicate_hooks;
    if !verdict.holds() {
        report.bad += 1;
        for example in verdict.examples {
            if sum.examples.len() < 10 {
                sum.examples.push(format!("{point}: {example}"));
            }
        }
    }
}

/// The places of `pending` as they are in `image`.
fn fingerprint(image: &Pages, pending: &[Write]) -> Vec<u8> {
    let mut all = Vec::new();
    for write in pending {
        let mut bytes = vec![0; write.data.len()];
        image.read(write.offset, &mut bytes);
        all.extend_from_slice(&crate::ledger::sha256(&bytes));
    }
    all
}

/// Mounts the image, opens the store on it and reads back every live hook.
fn recovered(
    fs: FsKind,
    segment_bytes: u64,
    loop_device: &LoopDevice,
    dir: &Path,
) -> Result<Vec<Delivered>> {
    let mounted = Mounted::mount(fs, loop_device.path(), dir)?;
    let facts = Home::peek(mounted.dir())?;
    let shard = ShardId(0);
    let disk = BlockingDisk::open(&ankusa_wal::home::shard_dir(mounted.dir(), shard))?;
    let config = StoreConfig {
        shard,
        store_uuid: facts.uuid.0,
        hash_key: facts.hash_key.0,
        segment_bytes,
        min_free_bytes: 0,
        ..StoreConfig::default()
    };
    block_on(async {
        let (store, _) = Store::open(disk, Rc::new(StillHost), config).await?;
        let mut seqs = BTreeSet::new();
        {
            let state = store.state();
            for row in 0..state.row_ids_end() {
                let row = state.row(ankusa_wal::state::RowId(row));
                seqs.extend(state.hook(row.slot).map(|hook| hook.seq));
            }
        }
        let mut held = Vec::new();
        for seq in seqs {
            let stored = store.read(seq).await?;
            let envelope = Envelope::parse(&stored).context("an envelope")?;
            held.push(Delivered {
                id: envelope.id.to_string(),
                body: envelope.body.to_vec(),
                idempotency_key: String::new(),
            });
        }
        Ok(held)
    })
}

/// A host on which time stands still: the store is opened, read and dropped; its background tasks
/// never run.
struct StillHost;

impl Host for StillHost {
    fn wall_ms(&self) -> u64 {
        1
    }
    fn mono_us(&self) -> u64 {
        1
    }
    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(ready(()))
    }
    fn spawn(&self, _: TaskClass, _: LocalFuture<()>) {}
    fn must_yield(&self) -> bool {
        false
    }
    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(ready(()))
    }
    fn random(&self) -> u64 {
        // Salts must differ between two uses of a slot.
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0)
    }
}
