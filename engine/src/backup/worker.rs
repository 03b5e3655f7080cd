//! The thread that takes the backups: waits until one is due, asks each shard in turn for a
//! checkpoint, copies what is not there, writes the manifest.
//!
//! Blocking; a thread of its own, below the cores in priority, so that a busy core loses next to
//! nothing to it. It copies at a bounded rate, so that it takes little of the disk; a clean stop
//! lifts the bound.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ankusa_recovery::backup::{
    MANIFEST_FORMAT, Meter, Owner, Prefix, Run, SendError, Sent, ShardDir, hex,
};
use ankusa_wal::home::{Home, StoreFacts, shard_dir};
use ankusa_wal::relocate::Pace;
use ankusa_wal::{BackupSource, Lsn, ShardId, mutations};

use super::pins::{self, Answer};
use super::{LastRun, Order, Place, Shared, wall_ms};
use crate::mesh::Mesh;
use crate::metrics::{BackupResult, Metric, Registry};
use crate::node::message::Message;

/// Bytes copied in a second, while the node serves.
const BYTES_PER_S: u64 = 64 << 20;
/// How long a shard may take for its checkpoint: everything in flight must become durable.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(120);
/// How often the age is told.
const AGE_EVERY: Duration = Duration::from_secs(1);
/// Below the cores, which have 0.
const NICE: i32 = 10;

/// What the thread is started with.
pub(super) struct Parts {
    pub(super) place: Place,
    pub(super) data_dir: PathBuf,
    pub(super) facts: StoreFacts,
    pub(super) interval: Duration,
    pub(super) keep: usize,
    pub(super) mesh: Mesh<Message>,
    pub(super) registry: Arc<Registry>,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Receiver<Order>,
}

/// Why a backup failed.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("shard {0}: no checkpoint: {1}")]
    Checkpoint(u16, String),
    #[error("{0}")]
    Facts(String),
}

impl RunError {
    fn word(&self) -> &'static str {
        match self {
            RunError::Send(error) => error.word(),
            RunError::Checkpoint(..) => "checkpoint",
            RunError::Facts(_) => "io",
        }
    }
}

pub(super) fn start(parts: Parts) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("backup".into())
        .spawn(move || {
            be_nice();
            Worker::new(parts).run();
        })
        .map(|_| ())
}

fn be_nice() {
    #[expect(unsafe_code, reason = "std does not set priorities")]
    // SAFETY: a plain system call on numbers; 0 is the calling thread.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if done != 0 {
        tracing::warn!("the thread of the backups keeps the priority of the cores");
    }
}

struct Worker {
    parts: Parts,
    prefix: Prefix,
    started_ms: u64,
    /// Where each shard ended in the last backup of this process.
    last_lsns: Vec<Option<Lsn>>,
}

impl Worker {
    fn new(parts: Parts) -> Worker {
        let mut writer = [0; 8];
        let _ = aws_lc_rs::rand::fill(&mut writer);
        let me = Owner {
            format: MANIFEST_FORMAT,
            node: parts.place.node.clone(),
            store: parts.facts.uuid,
            incarnation: parts.facts.incarnation,
            writer: hex(&writer),
            since_ms: wall_ms(),
        };
        let folder = Box::new(parts.place.folder());
        let prefix = Prefix::new(folder, parts.place.key.clone(), me, parts.keep);
        Worker {
            last_lsns: Vec::new(),
            prefix,
            started_ms: wall_ms(),
            parts,
        }
    }

    fn run(mut self) {
        match self.prefix.newest() {
            Ok(Some(newest)) => self.stands(newest.number, newest.began_at_ms),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the backups there are cannot be read"),
        }
        let mut due: Option<Instant> = None;
        loop {
            self.tell_age();
            let now = Instant::now();
            let left = due.map_or(AGE_EVERY, |due| due.saturating_duration_since(now));
            match self.parts.inbox.recv_timeout(left.min(AGE_EVERY)) {
                Ok(Order::Begin) => due = Some(Instant::now()),
                Ok(Order::Now) => {
                    let next = Instant::now() + self.parts.interval;
                    self.back_up();
                    due = due.map(|_| next);
                }
                Ok(Order::Last(done)) => {
                    self.back_up();
                    self.tell_age();
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if due.is_some_and(|due| due <= Instant::now()) {
                        due = Some(Instant::now() + self.parts.interval);
                        self.back_up();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn stands(&self, number: u64, began_at_ms: u64) {
        let shared = &self.parts.shared;
        shared.newest_number.store(number, Ordering::SeqCst);
        shared.newest_ms.store(began_at_ms.max(1), Ordering::SeqCst);
    }

    /// The age of the newest backup; of this process where there is none.
    fn tell_age(&self) {
        tell_age(&self.parts.shared, &self.parts.registry, self.started_ms);
    }

    fn back_up(&mut self) {
        let shared = Arc::clone(&self.parts.shared);
        let run = shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let began_at_ms = wall_ms();
        let result = self.attempt(began_at_ms);
        let mut last = LastRun {
            run,
            began_at_ms,
            ended_at_ms: wall_ms(),
            ..LastRun::default()
        };
        let counted = match result {
            Ok(sent) => {
                self.stands(sent.number, began_at_ms);
                (last.number, last.bytes) = (Some(sent.number), sent.bytes);
                last.bytes_whole = sent.bytes_whole;
                tracing::debug!(
                    number = sent.number,
                    bytes = sent.bytes,
                    objects = sent.objects,
                    removed = sent.removed,
                    ms = last.ended_at_ms.saturating_sub(began_at_ms),
                    "backed up"
                );
                BackupResult::Ok
            }
            Err(error) => {
                self.last_lsns.clear();
                tracing::error!(place = self.prefix.describe(), "no backup: {error}");
                last.error = Some((error.word(), error.to_string()));
                BackupResult::Failed
            }
        };
        let registry = &self.parts.registry;
        registry.node_add(Metric::BackupRuns, counted as usize, 1);
        *shared
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = last;
        shared.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn attempt(&mut self, began_at_ms: u64) -> Result<Sent, RunError> {
        let Worker {
            parts,
            prefix,
            last_lsns,
            started_ms,
        } = self;
        // The stamps of the intake log may have come since the boot.
        let facts = Home::peek(&parts.data_dir).map_err(|e| RunError::Facts(e.to_string()))?;
        last_lsns.resize(usize::from(facts.shards), None);
        let mut run = prefix.begin(began_at_ms)?;
        let mut meter = Rated {
            pace: Pace::new(BYTES_PER_S),
            began: Instant::now(),
            shared: &parts.shared,
            registry: &parts.registry,
            started_ms: *started_ms,
        };
        for shard in 0..facts.shards {
            let last = &mut last_lsns[usize::from(shard)];
            *last = Some(one_shard(parts, &mut run, shard, *last, &mut meter)?);
        }
        Ok(run.finish(&facts, wall_ms())?)
    }
}

fn tell_age(shared: &Shared, registry: &Registry, started_ms: u64) {
    let newest_ms = shared.newest_ms.load(Ordering::SeqCst);
    let since = if newest_ms == 0 {
        started_ms
    } else {
        newest_ms
    };
    registry.node_set(Metric::BackupAge, wall_ms().saturating_sub(since));
}

/// Backs a shard up and answers where it ends.
fn one_shard(
    parts: &Parts,
    run: &mut Run<'_>,
    shard: u16,
    last: Option<Lsn>,
    meter: &mut Rated<'_>,
) -> Result<Lsn, RunError> {
    let id = ShardId(shard);
    let mut answer = ask(parts, id, last)?;
    if let (Answer::Same, Some(lsn)) = (&answer, last) {
        if run.same_as_last(id, lsn.0) {
            return Ok(lsn);
        }
        answer = ask(parts, id, None)?;
    }
    let (source, pin): (Box<BackupSource>, u64) = match answer {
        Answer::Source(source, pin) => (source, pin),
        Answer::Failed(why) => return Err(RunError::Checkpoint(shard, why)),
        Answer::Same => return Err(RunError::Checkpoint(shard, "it gave none".into())),
    };
    mutations::point("backup.pinned");
    let files = ShardDir::new(&shard_dir(&parts.data_dir, id));
    let sent = run.shard(&files, &source, meter);
    call(parts, id, move |core| core.pins.release(pin));
    sent?;
    Ok(source.durable_lsn)
}

fn ask(parts: &Parts, shard: ShardId, last: Option<Lsn>) -> Result<Answer, RunError> {
    let (tell, told): (SyncSender<Answer>, _) = sync_channel(1);
    call(parts, shard, move |core| pins::ask(core, shard, last, tell));
    told.recv_timeout(CHECKPOINT_PATIENCE)
        .map_err(|_| RunError::Checkpoint(shard.0, "its core does not answer".into()))
}

/// Runs something on the core that owns a shard.
fn call(
    parts: &Parts,
    shard: ShardId,
    call: impl FnOnce(&std::rc::Rc<crate::node::core::Core>) + Send + 'static,
) {
    let core = usize::from(shard.0) % parts.mesh.cores().max(1);
    let mut message = Message::Call(Box::new(call));
    while let Err(back) = parts.mesh.inbox(core).push(message) {
        message = back;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A rate, until the node is on its way down.
struct Rated<'a> {
    pace: Pace,
    began: Instant,
    shared: &'a Shared,
    registry: &'a Registry,
    started_ms: u64,
}

impl Meter for Rated<'_> {
    fn spend(&mut self, bytes: u64) -> bool {
        tell_age(self.shared, self.registry, self.started_ms);
        let wait_us = self
            .pace
            .spend(self.began.elapsed().as_micros() as u64, bytes);
        let mut left = Duration::from_micros(wait_us);
        while !left.is_zero() && !self.shared.is_hurried.load(Ordering::SeqCst) {
            let nap = left.min(Duration::from_millis(50));
            std::thread::sleep(nap);
            left -= nap;
        }
        !self.shared.is_given_up.load(Ordering::SeqCst)
    }
}
