//! The Kafka adapter: one raw client per core for publishing, one admin client for questions, one
//! consumer per replay. None of them is ever shared with a sink.
//!
//! A confirm means `acks=all`: every in-sync replica has the record, and there were at least
//! `min.insync.replicas` of them. Kafka replicates before it fsyncs. Five requests are in flight,
//! the client neither retries nor is it idempotent, so the log may hold a record twice and out of
//! order; its readers take that.
//!
//! Side threads, all started by [`KafkaLog::open`] and inheriting its thread's CPU mask (call it
//! before cores are pinned): the asker (blocking questions), the keeper (see `keeper`), the watcher
//! (readiness, once a second; changed certificate files, every ten).

pub mod codes;

mod admin;
mod base64;
mod certificate;
mod keeper;
mod publisher;
mod raw;
mod read;
mod settings;
mod side;
mod token;
mod topic;

pub use publisher::KafkaPublisher;
pub use settings::{KafkaSettings, Sasl, SaslMechanism, Tls};

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use atomic_waker::AtomicWaker;

use self::admin::Admin;
use self::keeper::Chore;
use self::raw::RawClient;
use self::side::SideThread;
use crate::ask::{Asked, lock, stream};
use crate::log::{AskError, Bounds, IntakeLog, Readiness, Replay, ReplayRequest, partition_of};
use crate::verify::{Expected, Verified};

const WATCH_EVERY: Duration = Duration::from_secs(1);
/// While it is not there: its return is seen soon.
const WATCH_AWAY_EVERY: Duration = Duration::from_millis(200);
const WATCH_WAIT: Duration = Duration::from_millis(900);
/// Files are looked at every so many rounds of the watcher.
const FILES_ROUNDS: u32 = 10;

struct Inner {
    settings: Arc<KafkaSettings>,
    asker: SideThread<Admin>,
    chores: SyncSender<Chore>,
    ready: Arc<AtomicU8>,
    files_changed: Arc<AtomicU64>,
    /// The partition that readiness is about; negative: any.
    watched: AtomicI64,
    described: Mutex<Option<String>>,
    /// The largest number: never, or not known.
    certificate_ends_s: AtomicI64,
}

/// The node's side of a Kafka topic. Cloned handles share it.
#[derive(Clone)]
pub struct KafkaLog(Arc<Inner>);

impl KafkaLog {
    /// Makes the clients and starts the side threads; does not need a broker to be there. Blocking
    /// for some milliseconds: at boot, before cores are pinned.
    pub fn open(settings: KafkaSettings) -> Result<KafkaLog, AskError> {
        let settings = Arc::new(settings);
        let thread = |error: std::io::Error| AskError::Unreachable(error.to_string());
        // A setting or a file that the client refuses shows here.
        let refused = |error: String| AskError::Denied(error);
        let make = || Admin::new(&settings).map_err(|e| refused(e.to_string()));
        let (asking, watching) = (make()?, make()?);
        RawClient::new(&settings, 0, Arc::default()).map_err(refused)?;
        let inner = Arc::new(Inner {
            asker: SideThread::start("ankusa-kafka-ask", move || asking).map_err(thread)?,
            chores: keeper::start(Arc::clone(&settings)).map_err(thread)?,
            ready: Arc::new(AtomicU8::new(Readiness::Unknown as u8)),
            files_changed: Arc::default(),
            watched: AtomicI64::new(-1),
            described: Mutex::default(),
            certificate_ends_s: AtomicI64::new(certificate_end(&settings)),
            settings,
        });
        let weak = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("ankusa-kafka-see".into())
            .spawn(move || watch(&weak, watching))
            .map_err(thread)?;
        Ok(KafkaLog(inner))
    }

    /// When the first of our certificates ends, in seconds since 1970; none without one. Follows
    /// the files.
    pub fn certificate_ends_s(&self) -> Option<i64> {
        let ends_s = self.0.certificate_ends_s.load(Ordering::Acquire);
        (ends_s < i64::MAX).then_some(ends_s)
    }

    /// One core's way into a partition; its client is made on a side thread.
    pub fn publisher(&self, core: u16, partition: u32) -> Asked<KafkaPublisher> {
        let settings = Arc::clone(&self.0.settings);
        let wake = Arc::new(AtomicWaker::new());
        let shared = publisher::Shared {
            core,
            chores: self.0.chores.clone(),
            ready: Arc::clone(&self.0.ready),
            files_changed: Arc::clone(&self.0.files_changed),
            wake: Arc::clone(&wake),
        };
        self.0.asker.ask(move |_| {
            let client = RawClient::new(&settings, core, wake).map_err(AskError::Denied)?;
            Ok(KafkaPublisher::new(
                shared,
                client,
                partition,
                &settings.node,
            ))
        })
    }
}

impl IntakeLog for KafkaLog {
    fn verify(&self, expected: Expected) -> Asked<Verified> {
        let inner = Arc::downgrade(&self.0);
        let settings = Arc::clone(&self.0.settings);
        self.0.asker.ask(move |admin| {
            let topic = &settings.topic;
            let mut verified = topic::facts(admin)?.judge(expected);
            let brokers = settings.brokers.join(",");
            for finding in verified.findings.iter_mut().chain(&mut verified.warnings) {
                finding.command = finding.command.replace("BROKER", &brokers);
            }
            if let Some(inner) = inner.upgrade() {
                *lock(&inner.described) = Some(format!(
                    "`{topic}` (acks=all, min.insync.replicas={}, replicas={})",
                    verified.min_insync, verified.replicas
                ));
            }
            Ok(verified)
        })
    }

    fn bounds(&self, partition: u32) -> Asked<Bounds> {
        self.0
            .asker
            .ask(move |admin| topic::bounds(admin, partition))
    }

    fn replay(&self, request: ReplayRequest) -> Box<dyn Replay> {
        let (feed, replay) = stream(2);
        let bounds = self.bounds(request.partition);
        let settings = Arc::clone(&self.0.settings);
        let spawned = std::thread::Builder::new()
            .name("ankusa-replay".into())
            .spawn(move || read::read_back(&settings, request, bounds, &feed));
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a replay");
        }
        Box::new(replay)
    }

    fn assign_partition(&self, node: &str) -> Asked<u32> {
        let node = node.to_owned();
        self.0.asker.ask(move |admin| {
            let layout = topic::known_layout(admin)?;
            Ok(partition_of(&node, layout.has_leader.len() as u32))
        })
    }

    fn watch(&self, partition: u32) {
        self.0
            .watched
            .store(i64::from(partition), Ordering::Release);
    }

    fn ready(&self) -> Readiness {
        Readiness::from_u8(self.0.ready.load(Ordering::Acquire))
    }

    fn describe(&self) -> String {
        lock(&self.0.described).clone().unwrap_or_else(|| {
            format!(
                "`{}` (intake topic settings UNVERIFIED)",
                self.0.settings.topic
            )
        })
    }
}

/// Never, where nothing ends.
fn certificate_end(settings: &KafkaSettings) -> i64 {
    let tls = settings.tls.as_ref();
    tls.and_then(certificate::earliest_end_s)
        .unwrap_or(i64::MAX)
}

type Stamps = Vec<(PathBuf, Option<SystemTime>)>;

fn stamps(settings: &KafkaSettings) -> Stamps {
    let files = settings.watched_files().into_iter();
    files
        .map(|file| {
            let at = std::fs::metadata(&file).and_then(|m| m.modified()).ok();
            (file, at)
        })
        .collect()
}

/// The watcher's body: ends when the log is gone.
fn watch(log: &Weak<Inner>, mut admin: Admin) {
    let Some(settings) = log.upgrade().map(|inner| Arc::clone(&inner.settings)) else {
        return;
    };
    let mut seen = stamps(&settings);
    let mut round = 0;
    loop {
        let layout = topic::layout(&admin, WATCH_WAIT);
        let Some(inner) = log.upgrade() else { return };
        let ready = readiness(&layout, inner.watched.load(Ordering::Acquire));
        inner.ready.store(ready as u8, Ordering::Release);
        round += 1;
        if round % FILES_ROUNDS == 0 {
            let now = stamps(&settings);
            if now != seen && now.iter().all(|(_, at)| at.is_some()) {
                seen = now;
                let ends_s = certificate_end(&settings);
                inner.certificate_ends_s.store(ends_s, Ordering::Release);
                renew(&inner, &mut admin);
            }
        }
        drop(inner);
        std::thread::sleep(match ready {
            Readiness::Up => WATCH_EVERY,
            _ => WATCH_AWAY_EVERY,
        });
    }
}

fn readiness(layout: &Result<topic::Layout, AskError>, watched: i64) -> Readiness {
    match layout {
        Ok(layout) if watched < 0 => match layout.has_leader.contains(&true) {
            true => Readiness::Up,
            false => Readiness::NoLeader,
        },
        Ok(layout) => match layout.has_leader.get(watched as usize) {
            Some(true) => Readiness::Up,
            Some(false) => Readiness::NoLeader,
            None => Readiness::NotFound,
        },
        Err(AskError::NotFound(_)) => Readiness::NotFound,
        Err(AskError::Denied(_)) => Readiness::Denied,
        Err(_) => Readiness::Unreachable,
    }
}

/// Certificate or key files have changed: new clients all round.
fn renew(inner: &Inner, admin: &mut Admin) {
    let make = || Admin::new(&inner.settings);
    match (make(), make()) {
        (Ok(asking), Ok(watching)) => {
            *admin = watching;
            drop(inner.asker.ask(move |held| {
                *held = asking;
                Ok(())
            }));
            inner.files_changed.fetch_add(1, Ordering::AcqRel);
            tracing::info!("the intake log's certificate files have changed: new clients");
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "the intake log's changed certificate files are refused");
        }
    }
}
