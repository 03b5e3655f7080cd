//! The node-wide facts of the store while a node runs: read at once, written by a side thread.
//!
//! Invariants: one writer at a time; a change is durable when it completes. Nothing blocks the
//! caller, which may be a shard core.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ankusa_intake::{Answering, AskError, question};
use ankusa_recovery::Stamp;
use ankusa_recovery::port::{NodeState, PortError};
use ankusa_wal::home::{Home, HomeError, StoreFacts};

use super::failed;

/// The data directory, shared by who changes its facts. It is held until the last clone goes.
#[derive(Clone)]
pub struct HomeKeeper(Arc<Mutex<Home>>);

impl HomeKeeper {
    /// Keeps it.
    pub fn new(home: Home) -> HomeKeeper {
        HomeKeeper(Arc::new(Mutex::new(home)))
    }

    fn lock(&self) -> MutexGuard<'_, Home> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts as they are.
    pub fn facts(&self) -> StoreFacts {
        self.lock().facts().clone()
    }

    /// What the facts say about the node's log.
    pub fn node_state(&self) -> NodeState {
        let facts = self.facts();
        NodeState {
            node: facts.intake_node,
            partition: facts.intake_partition,
            log: facts.intake_log,
            origin: facts.origin,
            incarnation: facts.incarnation,
        }
    }

    /// Writes a stamp down. Nothing is written where nothing changes.
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the writing.
    pub async fn stamp(&self, stamp: Stamp) -> Result<(), PortError> {
        let mut after = self.facts();
        put(&mut after, &stamp);
        if after == self.facts() {
            return Ok(());
        }
        self.work(move |home| home.change(|facts| put(facts, &stamp)))
            .await
    }

    /// Adds empty shards up to so many.
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the writing.
    pub async fn grow(&self, shards: u16) -> Result<(), PortError> {
        self.work(move |home| home.grow(shards)).await
    }

    async fn work(
        &self,
        work: impl FnOnce(&mut Home) -> Result<(), HomeError> + Send + 'static,
    ) -> Result<(), PortError> {
        let (answering, asked): (Answering<Result<(), HomeError>>, _) = question();
        let keeper = self.clone();
        let thread = std::thread::Builder::new().name("ankusa-home".into());
        let spawned = thread.spawn(move || answering.answer(Ok(work(&mut keeper.lock()))));
        spawned.map_err(failed)?;
        let done = asked
            .await
            .map_err(|_: AskError| failed("a thread ended"))?;
        done.map_err(failed)
    }
}

fn put(facts: &mut StoreFacts, stamp: &Stamp) {
    let Stamp {
        node,
        partition,
        log,
        incarnation,
        origin,
    } = stamp.clone();
    facts.intake_node = node.or(facts.intake_node.take());
    facts.intake_partition = partition.or(facts.intake_partition);
    facts.intake_log = log.or(facts.intake_log.take());
    facts.incarnation = incarnation.unwrap_or(facts.incarnation);
    facts.origin = origin.unwrap_or(facts.origin);
}
