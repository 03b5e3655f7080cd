//! The keeper: one side thread that does for the publishers what blocks: asks the brokers who
//! leads, builds new clients, buries old ones.
//!
//! Invariants: at most a fixed number of chores wait; the bytes of a client's records outlive the
//! client's use of them, if need be for ever. The thread ends when the log and its publishers are
//! gone. It is started before the cores are pinned, so that the clients' threads float.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use super::raw::RawClient;
use super::settings::KafkaSettings;
use crate::ask::lock;
use crate::attempts::{Attempts, Key};
use crate::log::{Class, Failure};

/// Chores that may wait.
const WAITING_MAX: usize = 256;
/// How long a question about the leader may hold the others up.
const REFRESH_WAIT: Duration = Duration::from_millis(200);
/// How long a client may take to give everything back.
const BURIAL_WAIT: Duration = Duration::from_secs(10);

const GONE: Failure = Failure {
    class: Class::Unavailable,
    reason: "the client is gone",
};

pub(super) enum Chore {
    /// Ask who leads, then lower the flag.
    Refresh(Arc<RawClient>, Arc<AtomicBool>),
    /// Give a client a new token.
    Token(Arc<RawClient>),
    /// Build a new client for a core.
    Build(u16, Arc<AtomicWaker>, Arc<ReplacementSlot>),
    /// Give a client up.
    Bury(Box<Grave>),
}

#[derive(Default)]
pub(super) struct ReplacementSlot {
    ordered: AtomicBool,
    there: AtomicBool,
    client: Mutex<Option<RawClient>>,
}

/// A new client on its way to a core.
#[derive(Default)]
pub(super) struct Replacement(Arc<ReplacementSlot>);

impl Replacement {
    /// Takes the new client, once it is there.
    pub(super) fn take(&self) -> Option<RawClient> {
        if !self.0.there.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.0.ordered.store(false, Ordering::Release);
        lock(&self.0.client).take()
    }

    /// Orders one, unless one is on its way; false when it could not be ordered.
    pub(super) fn order(
        &self,
        chores: &SyncSender<Chore>,
        core: u16,
        wake: &Arc<AtomicWaker>,
    ) -> bool {
        if self.0.ordered.swap(true, Ordering::AcqRel) {
            return false;
        }
        let chore = Chore::Build(core, Arc::clone(wake), Arc::clone(&self.0));
        let sent = chores.try_send(chore).is_ok();
        if !sent {
            self.0.ordered.store(false, Ordering::Release);
        }
        sent
    }
}

/// A client that is given up, with the attempts whose bytes it may still read.
pub(super) struct Grave {
    pub(super) client: Arc<RawClient>,
    pub(super) attempts: Attempts,
}

impl Grave {
    /// Hands it to the keeper; to a thread of its own when the keeper has too much to do.
    pub(super) fn bury(self, chores: &SyncSender<Chore>) {
        let chore = match chores.try_send(Chore::Bury(Box::new(self))) {
            Ok(()) => return,
            Err(TrySendError::Full(chore) | TrySendError::Disconnected(chore)) => chore,
        };
        let Chore::Bury(grave) = chore else { return };
        let spawned = std::thread::Builder::new()
            .name("ankusa-kafka-end".into())
            .spawn(move || grave.wait());
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to end a Kafka client on");
        }
    }

    /// Waits until the client has given everything back, then ends it.
    fn wait(mut self) {
        self.client.purge();
        let begun = Instant::now();
        while self.attempts.held().0 > 0 && begun.elapsed() < BURIAL_WAIT {
            let attempts = &mut self.attempts;
            self.client.drain(
                usize::MAX,
                |report| {
                    attempts.settle(Key(report.opaque), Err(GONE));
                },
                |_| (),
            );
            if attempts.held().0 > 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if self.attempts.held().0 > 0 {
            // NOTE: the client may still read these bytes: both stay for ever.
            tracing::error!(
                records = self.attempts.held().0,
                "a Kafka client does not give its records back: it is left behind"
            );
            std::mem::forget(Arc::clone(&self.client));
        }
    }
}

impl Drop for Grave {
    fn drop(&mut self) {
        if self.attempts.held().0 > 0 {
            std::mem::forget(std::mem::take(&mut self.attempts));
        }
    }
}

/// Starts the keeper.
pub(super) fn start(settings: Arc<KafkaSettings>) -> std::io::Result<SyncSender<Chore>> {
    let (chores, queue): (SyncSender<Chore>, Receiver<Chore>) = sync_channel(WAITING_MAX);
    std::thread::Builder::new()
        .name("ankusa-kafka-keep".into())
        .spawn(move || {
            while let Ok(chore) = queue.recv() {
                work(&settings, chore);
            }
        })?;
    Ok(chores)
}

fn work(settings: &KafkaSettings, chore: Chore) {
    match chore {
        Chore::Refresh(client, asking) => {
            let _ = client.refresh(REFRESH_WAIT);
            asking.store(false, Ordering::Release);
        }
        Chore::Token(client) => {
            if let Err(why) = client.give_token(settings) {
                tracing::warn!("the intake log's client gets no token: {why}");
            }
        }
        Chore::Build(core, wake, slot) => {
            match RawClient::new(settings, core, Arc::clone(&wake)) {
                Ok(client) => {
                    *lock(&slot.client) = Some(client);
                    slot.there.store(true, Ordering::Release);
                }
                Err(error) => {
                    tracing::error!(error, core, "no new Kafka client");
                    slot.ordered.store(false, Ordering::Release);
                }
            }
            wake.wake();
        }
        Chore::Bury(grave) => grave.wait(),
    }
}
