//! Backups of a running node: when one is due, and how it stands.
//!
//! One side thread takes them ([`worker`]); a core only takes a checkpoint and pins what it needs
//! ([`pins`]). Everybody else reads [`Backups`]: atomics, and one lock off the request path.
//! Invariants: one backup at a time; a clean stop ends with one; a backup's age counts from the
//! moment it began, since what was acked later may not be in it.
//!
//! What lies in the folder is the crate `ankusa-recovery`'s. Runs anywhere; never blocks.

mod worker;

pub mod pins;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ankusa_recovery::backup::{LocalFolder, SigningKey};
use ankusa_wal::home::StoreFacts;

use crate::config::{Config, ObjectStoreConfig};
use crate::mesh::Mesh;
use crate::metrics::Registry;
use crate::node::message::Message;

/// Orders that wait; more are refused.
const ORDERS_MAX: usize = 16;

/// How a backup ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastRun {
    /// Counts the backups of this process.
    pub run: u64,
    /// When it began, milliseconds since 1970.
    pub began_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: u64,
    /// The backup, when one stands.
    pub number: Option<u64>,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes of the whole backup.
    pub bytes_whole: u64,
    /// The word and the text of what went wrong.
    pub error: Option<(&'static str, String)>,
}

/// What the cores and the main thread may know.
#[derive(Debug, Default)]
struct Shared {
    max_age_ms: Option<u64>,
    require_fresh: bool,
    /// Where backups go, for people.
    place: String,
    /// When the newest backup began, milliseconds since 1970; 0 for none.
    newest_ms: AtomicU64,
    newest_number: AtomicU64,
    /// Backups of this process: begun, ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// No more pauses between pieces.
    is_hurried: AtomicBool,
    /// Stop where it is.
    is_given_up: AtomicBool,
    last: Mutex<LastRun>,
}

enum Order {
    /// The node serves: the first backup is due.
    Begin,
    /// One now.
    Now,
    /// The last one.
    Last(SyncSender<()>),
}

/// The node's backups, as seen from anywhere. A clone is the same.
#[derive(Clone)]
pub struct Backups {
    shared: Arc<Shared>,
    /// `None`: no backups are taken.
    orders: Option<SyncSender<Order>>,
}

/// Where a node's backups lie, and the key they are signed with.
#[derive(Debug)]
pub struct Place {
    /// The root of all nodes' prefixes.
    pub root: PathBuf,
    /// This node's name there.
    pub node: String,
    /// The key.
    pub key: SigningKey,
}

impl Place {
    /// What a configuration says, whether or not backups are on.
    ///
    /// # Errors
    /// The key that is missing.
    pub fn of(config: &Config) -> Result<Place, &'static str> {
        let root = match &config.backup.store {
            Some(ObjectStoreConfig::Local { root }) => root.clone(),
            Some(ObjectStoreConfig::S3 { .. }) => {
                return Err("backup.store: s3 is not in this version yet; local is");
            }
            None => return Err("backup.store is not set: it says where backups lie"),
        };
        let key = config.backup.signing_key.as_ref();
        let key = key.ok_or("backup.signing_key is not set: backups are signed with it")?;
        Ok(Place {
            root,
            node: match &config.intake {
                Some(intake) => intake.node_id.clone(),
                None => config.node.name.clone(),
            },
            key: SigningKey::new(key.expose()),
        })
    }

    /// This node's prefix.
    pub fn folder(&self) -> LocalFolder {
        LocalFolder::new(&self.root, &self.node)
    }
}

impl Backups {
    /// None are taken.
    pub fn off() -> Backups {
        Backups {
            shared: Arc::default(),
            orders: None,
        }
    }

    /// Starts the thread, where the configuration wants backups. The first is taken once
    /// [`Backups::begin`] says that the node serves.
    ///
    /// # Errors
    /// A text for the operator.
    pub fn start(
        config: &Config,
        facts: &StoreFacts,
        mesh: &Mesh<Message>,
        registry: &Arc<Registry>,
    ) -> Result<Backups, String> {
        if !config.backup.enabled {
            return Ok(Backups::off());
        }
        let place = Place::of(config)?;
        let shared = Arc::new(Shared {
            max_age_ms: config.backup.max_age_ms,
            require_fresh: config.backup.require_fresh,
            place: place.root.join(&place.node).display().to_string(),
            ..Shared::default()
        });
        let (orders, inbox) = sync_channel(ORDERS_MAX);
        worker::start(worker::Parts {
            place,
            data_dir: config.node.data_dir.clone(),
            facts: facts.clone(),
            interval: Duration::from_millis(config.backup.interval_ms),
            keep: config.backup.keep as usize,
            mesh: mesh.clone(),
            registry: Arc::clone(registry),
            shared: Arc::clone(&shared),
            inbox,
        })
        .map_err(|e| format!("cannot start the thread of the backups: {e}"))?;
        Ok(Backups {
            shared,
            orders: Some(orders),
        })
    }

    /// Whether backups are taken.
    pub fn is_on(&self) -> bool {
        self.orders.is_some()
    }

    /// Where they go, for people.
    pub fn place(&self) -> &str {
        &self.shared.place
    }

    /// The node serves: the first one is due.
    pub fn begin(&self) {
        self.order(Order::Begin);
    }

    /// Asks for one now; the answer is the number of the run that will hold everything acked
    /// before. `None`: no backups are taken, or too many orders wait.
    pub fn now(&self) -> Option<u64> {
        let run = self.shared.begun.load(Ordering::SeqCst) + 1;
        self.order(Order::Now).then_some(run)
    }

    fn order(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// The word of the readiness: `off`, `none` (there is no backup yet), `fresh`, or `stale`
    /// (older than `backup.max_age_ms`).
    pub fn word(&self, now_ms: u64) -> &'static str {
        let newest_ms = self.shared.newest_ms.load(Ordering::SeqCst);
        match (self.is_on(), newest_ms, self.shared.max_age_ms) {
            (false, ..) => "off",
            (true, 0, _) => "none",
            (true, at, Some(max)) if now_ms.saturating_sub(at) > max => "stale",
            _ => "fresh",
        }
    }

    /// Whether the node may be ready, as far as backups go.
    pub fn lets_serve(&self, now_ms: u64) -> bool {
        !self.shared.require_fresh || matches!(self.word(now_ms), "off" | "fresh")
    }

    /// Runs begun and ended, and how the last one ended.
    pub fn runs(&self) -> (u64, u64, LastRun) {
        let shared = &self.shared;
        let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        (
            shared.begun.load(Ordering::SeqCst),
            shared.ended.load(Ordering::SeqCst),
            last.clone(),
        )
    }

    /// The number of the newest backup and when it began.
    pub fn newest(&self) -> Option<(u64, u64)> {
        let at_ms = self.shared.newest_ms.load(Ordering::SeqCst);
        let number = self.shared.newest_number.load(Ordering::SeqCst);
        (at_ms > 0).then_some((number, at_ms))
    }

    /// Takes the last backup, of the closed shards, and waits for it. `tick` is called meanwhile;
    /// after `patience` it is given up: the one before stands. False when there is none of now.
    pub fn last(&self, patience: Duration, mut tick: impl FnMut()) -> bool {
        let Some(orders) = &self.orders else {
            return true;
        };
        self.shared.is_hurried.store(true, Ordering::SeqCst);
        let (done, is_done) = sync_channel(1);
        let end = std::time::Instant::now() + patience;
        let mut order = Order::Last(done);
        while let Err(error) = orders.try_send(order) {
            order = match error {
                std::sync::mpsc::TrySendError::Full(order) if std::time::Instant::now() < end => {
                    order
                }
                _ => return false,
            };
            tick();
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = wait(&is_done, end, &mut tick);
        self.shared.is_given_up.store(true, Ordering::SeqCst);
        let (_, _, last) = self.runs();
        ended && last.error.is_none()
    }
}

fn wait(done: &Receiver<()>, end: std::time::Instant, tick: &mut impl FnMut()) -> bool {
    loop {
        tick();
        let left = end.saturating_duration_since(std::time::Instant::now());
        match done.recv_timeout(left.min(Duration::from_millis(100))) {
            Ok(()) => return true,
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => return false,
        }
    }
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as u64)
}
