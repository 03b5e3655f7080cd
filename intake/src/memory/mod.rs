//! The memory adapter: a log in files of its own, fsynced, for tests and try-outs.
//!
//! It behaves like a real log: an identity, partitions, positions, retention, truncation, a confirm
//! that comes after a sync and wakes the core; and unlike one it can be told what to do wrong.
//! It is *not* a second home: it dies with this host. Invariants and where things run: `worker`.
//! The publishing side takes a short lock per batch, which a real adapter must not.

mod fault;
mod file;
mod publisher;
#[cfg(test)]
mod tests;
mod worker;

pub use fault::Fault;
pub use publisher::MemoryPublisher;

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;

use self::file::{PartitionFile, sync_dir};
use self::worker::{Op, Shared, Store};
use crate::ask::{Asked, Feed, question, stream};
use crate::log::{
    AskError, Bounds, From, IntakeLog, Readiness, Replay, ReplayRequest, partition_of,
};
use crate::replay::Chunker;
use crate::verify::{Expected, TopicFacts, Verified};

/// How a memory log is opened.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Its directory; made when missing.
    pub dir: PathBuf,
    /// Partitions of a new log.
    pub partitions: u32,
    /// False: not fsynced (benches only).
    pub sync: bool,
    /// Drops the oldest records once a partition holds twice this.
    pub retention_bytes: Option<u64>,
}

struct Closer(Arc<Shared>, Option<std::thread::JoinHandle<()>>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.close();
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// A memory log. Cloned handles share it; the last one closes it.
#[derive(Clone)]
pub struct MemoryLog {
    shared: Arc<Shared>,
    ready: Arc<AtomicU8>,
    unclean: Arc<AtomicBool>,
    dir: PathBuf,
    _closer: Arc<Closer>,
}

impl MemoryLog {
    /// Opens or creates the log and starts its thread. Blocking: at boot only.
    pub fn open(options: MemoryOptions) -> io::Result<MemoryLog> {
        std::fs::create_dir_all(&options.dir)?;
        let guard = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(options.dir.join("lock"))?;
        guard.try_lock().map_err(|error| {
            io::Error::other(format!("{} is in use: {error}", options.dir.display()))
        })?;
        let (identity, partitions) = identity(&options.dir, options.partitions)?;
        let partitions = (0..partitions)
            .map(|n| PartitionFile::open(options.dir.join(format!("p{n}.log"))))
            .collect::<io::Result<Vec<_>>>()?;
        let store = Store {
            dir: options.dir.clone(),
            identity,
            partitions,
            sync: options.sync,
            retention_bytes: options.retention_bytes,
            broken: None,
        };
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ankusa-memlog".into())
            .spawn(move || {
                worker::run(&for_thread, store);
                drop(guard);
            })?;
        Ok(MemoryLog {
            ready: Arc::new(AtomicU8::new(Readiness::Up as u8)),
            unclean: Arc::default(),
            dir: options.dir,
            _closer: Arc::new(Closer(Arc::clone(&shared), Some(thread))),
            shared,
        })
    }

    /// One core's way into a partition.
    pub fn publisher(&self, partition: u32, node: &str) -> MemoryPublisher {
        MemoryPublisher::new(self.clone(), partition, node)
    }

    /// Every confirm takes at least this long from now on.
    pub fn set_latency(&self, latency: Duration) {
        crate::ask::lock(&self.shared.plan).latency = latency;
    }

    /// The next so many records go wrong this way, after those injected before.
    pub fn inject(&self, fault: Fault, records: u64) {
        crate::ask::lock(&self.shared.plan).push(fault, records);
    }

    /// Every record goes wrong this way until told otherwise; readiness is not touched.
    pub fn always(&self, fault: Option<Fault>) {
        crate::ask::lock(&self.shared.plan).set_always(fault);
    }

    /// What [`IntakeLog::ready`] answers from now on.
    pub fn set_ready(&self, ready: Readiness) {
        self.ready.store(ready as u8, Ordering::Release);
    }

    /// Whether its settings are as they must be, from now on: [`IntakeLog::verify`] has a finding
    /// when not.
    pub fn set_as_it_must_be(&self, good: bool) {
        self.unclean.store(!good, Ordering::Release);
    }

    /// Retention: drops the records below a position.
    pub fn drop_below(&self, partition: u32, position: u64) -> Asked<()> {
        self.on_partition(partition, move |file| file.drop_below(position))
    }

    /// Loses the records at and above a position, as brokers that lost power together may.
    pub fn lose_from(&self, partition: u32, position: u64) -> Asked<()> {
        self.on_partition(partition, move |file| file.lose_from(position))
    }

    /// Deletes the log and makes it anew: another identity, from position 0.
    pub fn recreate(&self) -> Asked<()> {
        self.ask(|store| {
            store.identity = new_identity();
            let count = store.partitions.len();
            write_identity(&store.dir, &store.identity, count as u32).map_err(broken)?;
            store
                .partitions
                .iter_mut()
                .try_for_each(PartitionFile::recreate)
                .map_err(broken)
        })
    }

    /// Appends a record with any headers, as another writer of the topic may.
    pub fn append_raw(
        &self,
        partition: u32,
        headers: Vec<(String, Vec<u8>)>,
        value: Bytes,
    ) -> Asked<u64> {
        let (answering, asked) = question();
        let job = move |store: &mut Store| {
            let sync = store.sync;
            answering.answer(match store.partitions.get_mut(partition as usize) {
                None => Err(no_partition(partition)),
                Some(file) => {
                    let headers = headers.iter().map(|(n, v)| (n.as_str(), &v[..]));
                    let position = file.append(headers, &value, 0);
                    file.flush(sync).map(|()| position).map_err(broken)
                }
            });
        };
        self.shared.send([Op::Ask(Box::new(job))].into_iter());
        asked
    }

    fn on_partition(
        &self,
        partition: u32,
        work: impl FnOnce(&mut PartitionFile) -> io::Result<()> + Send + 'static,
    ) -> Asked<()> {
        self.ask(move |store| {
            let file = store.partitions.get_mut(partition as usize);
            work(file.ok_or_else(|| no_partition(partition))?).map_err(broken)
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, AskError> + Send + 'static,
    ) -> Asked<T> {
        let (answering, asked) = question();
        let job = move |store: &mut Store| answering.answer(work(store));
        self.shared.send([Op::Ask(Box::new(job))].into_iter());
        asked
    }
}

fn no_partition(partition: u32) -> AskError {
    AskError::NotFound(format!("partition {partition}"))
}

fn broken(error: io::Error) -> AskError {
    AskError::Damaged(error.to_string())
}

fn new_identity() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

fn write_identity(dir: &Path, identity: &str, partitions: u32) -> io::Result<()> {
    let path = dir.join("identity.new");
    let mut file = File::create(&path)?;
    writeln!(file, "ankusa memory log 1\n{identity}\n{partitions}")?;
    file.sync_all()?;
    std::fs::rename(&path, dir.join("identity"))?;
    sync_dir(dir)
}

fn identity(dir: &Path, partitions: u32) -> io::Result<(String, u32)> {
    match std::fs::read_to_string(dir.join("identity")) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            let parsed = match lines[..] {
                ["ankusa memory log 1", id, count] => {
                    count.parse().ok().map(|count: u32| (id.to_owned(), count))
                }
                _ => None,
            };
            parsed.ok_or_else(|| {
                io::Error::other(format!("{}/identity cannot be read", dir.display()))
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let identity = new_identity();
            write_identity(dir, &identity, partitions.max(1))?;
            Ok((identity, partitions.max(1)))
        }
        Err(error) => Err(error),
    }
}

impl IntakeLog for MemoryLog {
    fn verify(&self, expected: Expected) -> Asked<Verified> {
        let unclean = self.unclean.load(Ordering::Acquire).to_string();
        self.ask(move |store| {
            let some = |text: &str| Some(text.to_owned());
            let facts = TopicFacts {
                topic: store.dir.display().to_string(),
                identity: store.identity.clone(),
                partitions: store.partitions.len() as u32,
                replicas: 3,
                min_insync: some("2"),
                unclean: Some(unclean),
                retention_ms: some("-1"),
                retention_bytes: Some(
                    store
                        .retention_bytes
                        .map_or_else(|| "-1".into(), |bytes| bytes.to_string()),
                ),
                max_message_bytes: Some(u32::MAX.to_string()),
                cleanup_policy: some("delete"),
                timestamp_type: some("LogAppendTime"),
            };
            let mut verified = facts.judge(expected);
            (verified.replicas, verified.min_insync) = (1, 1);
            Ok(verified)
        })
    }

    fn bounds(&self, partition: u32) -> Asked<Bounds> {
        self.ask(move |store| {
            let file = store.partitions.get(partition as usize);
            let file = file.ok_or_else(|| no_partition(partition))?;
            Ok(Bounds {
                earliest: file.first(),
                head: file.head(),
            })
        })
    }

    fn replay(&self, request: ReplayRequest) -> Box<dyn Replay> {
        let (feed, replay) = stream(2);
        let start = self.ask({
            let (partition, from) = (request.partition, request.from);
            move |store| {
                let file = store.partitions.get(partition as usize);
                let file = file.ok_or_else(|| no_partition(partition))?;
                let bounds = Bounds {
                    earliest: file.first(),
                    head: file.head(),
                };
                let from = bounds.start(from)?;
                Ok((file.reader(from).map_err(broken)?, bounds.head))
            }
        });
        let spawned = std::thread::Builder::new()
            .name("ankusa-replay".into())
            .spawn(move || read_back(request, start, &feed));
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a replay");
        }
        Box::new(replay)
    }

    fn assign_partition(&self, node: &str) -> Asked<u32> {
        let node = node.to_owned();
        self.ask(move |store| Ok(partition_of(&node, store.partitions.len() as u32)))
    }

    fn watch(&self, _partition: u32) {}

    fn ready(&self) -> Readiness {
        Readiness::from_u8(self.ready.load(Ordering::Acquire))
    }

    fn describe(&self) -> String {
        format!(
            "the memory log in {} (ON THIS HOST: for tests and try-outs only)",
            self.dir.display()
        )
    }
}

impl Bounds {
    /// The position a replay starts at, or why it cannot.
    pub(crate) fn start(self, from: From) -> Result<u64, AskError> {
        match from {
            From::Earliest => Ok(self.earliest),
            From::Position(wanted) if wanted < self.earliest => Err(AskError::Truncated {
                wanted,
                earliest: self.earliest,
            }),
            From::Position(wanted) if wanted > self.head => Err(AskError::AboveHead {
                wanted,
                head: self.head,
            }),
            From::Position(wanted) => Ok(wanted),
        }
    }
}

fn read_back(request: ReplayRequest, start: Asked<(file::Reader, u64)>, feed: &Feed) {
    let (mut reader, head) = match crate::ask::wait_for(start) {
        Ok(start) => start,
        Err(error) => {
            feed.send(Err(error));
            return;
        }
    };
    let mut chunker = Chunker::new(request);
    loop {
        match reader.next() {
            Ok(Some(stored)) => {
                let headers = stored
                    .headers
                    .iter()
                    .map(|(n, v)| (n.as_str(), Some(&v[..])));
                let full = chunker.add(stored.position, headers, Some(stored.value.clone()));
                if full && !feed.send(Ok(chunker.take())) {
                    return;
                }
            }
            Ok(None) => {
                feed.send(Ok(chunker.finish(head)));
                return;
            }
            Err(error) => {
                feed.send(Err(broken(error)));
                return;
            }
        }
    }
}
