//! The simulated node's side of the dual commit: its ways into the log, the questions it asks of
//! it, and the steps of recovery over its cores. Put together as the node does it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use ankusa_engine::claims::{Claim, Desk, KeyHash};
use ankusa_engine::config::Config;
use ankusa_engine::dual::core_log::CoreLogParts;
use ankusa_engine::dual::{ClaimStore, CoreLog, DualSettings, NodeLog};
use ankusa_engine::metrics::CoreMetrics;
use ankusa_engine::recover::{ConfigToday, Part, ShardRecovery};
use ankusa_intake::{Expected, IntakeLog, Publisher};
use ankusa_recovery::boot::Gap;
use ankusa_recovery::port::{
    NodePort, NodeState, PortError, PortFuture, Progress, Republished, ShardEnd, ShardMark, Stamp,
};
use ankusa_recovery::{Applied, Batch, Options, Refusal, Start, Summary};
use ankusa_wal::disk::sim::SimDisk;
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::sim::SimHost;
use ankusa_wal::{Host, IntakeIdentity, ShardId};

use super::book::Book;
use super::log::{NODE, SimLog};
use super::node::Core;

/// Between two questions of a node that serves.
const ASK: Duration = Duration::from_secs(1);

/// What outlives the node's lives: the log, and the node-wide facts of its store.
#[derive(Clone)]
pub struct Dual {
    /// The log.
    pub log: SimLog,
    /// The facts.
    pub home: Rc<RefCell<NodeState>>,
    /// Where what happens is written down.
    pub book: Rc<Book>,
}

impl Dual {
    /// Of a node that has never run.
    pub fn new(log: SimLog, book: &Rc<Book>) -> Dual {
        Dual {
            log,
            home: Rc::new(RefCell::new(blank())),
            book: Rc::clone(book),
        }
    }

    /// The host is gone, with its data directory.
    pub fn forget_host(&self) {
        *self.home.borrow_mut() = blank();
    }

    /// What the cores of one life share.
    pub fn node_log(&self, cores: usize) -> Arc<NodeLog> {
        NodeLog::new(
            DualSettings {
                publish_timeout_us: 2_000_000,
                reconcile_deadline_us: 20_000_000,
                breaker_failures: 3,
                probe_us: 1_000_000,
                offset_flush_us: 1_000_000,
                pending_max_records: 200,
                pending_max_bytes: 4 << 20,
                max_record_bytes: 60_000,
                group_bytes_max: 16 << 10,
            },
            cores,
        )
    }

    /// One core's side of the log, running.
    pub fn core_log(
        &self,
        node: &Arc<NodeLog>,
        core: usize,
        host: &Rc<SimHost>,
        desk: &Rc<Desk>,
        metrics: &Rc<CoreMetrics>,
    ) -> Rc<CoreLog> {
        let claims = Rc::new(Claims {
            desk: Rc::downgrade(desk),
            book: Rc::clone(&self.book),
        });
        let way = CoreLog::new(CoreLogParts {
            node: Arc::clone(node),
            core,
            publisher: self.log.publisher() as Rc<dyn Publisher>,
            host: Rc::clone(host) as Rc<dyn Host>,
            claims,
            metrics: Rc::clone(metrics),
        });
        way.start();
        way
    }

    /// Steps 1 to 5 of a boot, on the first of `cores`, whose shards are all open.
    pub async fn recover(
        &self,
        cores: Vec<Rc<Core>>,
        config: &Arc<Config>,
        hash_key: [u8; 16],
    ) -> Result<Summary, Refusal> {
        let options = Options {
            node: NODE.into(),
            expected: EXPECTED,
            verify: true,
            wait: true,
            probe: Duration::from_millis(500),
            start: Start::Stored,
            replay: true,
            allow_gap: false,
            dry_run: false,
            chunk_records: 16,
            chunk_bytes: 8 << 10,
            inflight: 4,
        };
        let port = Port {
            dual: self.clone(),
            config: Arc::clone(config),
            hash_key,
            cores,
            parts: RefCell::default(),
        };
        ankusa_recovery::run(&self.log, &port, &options).await
    }

    /// Asks the log what a node that serves asks, for ever.
    pub async fn keep(self, host: Rc<SimHost>, node: Arc<NodeLog>) {
        loop {
            host.sleep(ASK).await;
            node.set_readiness(self.log.ready());
            let epoch = node.epoch();
            if let Ok(bounds) = self.log.bounds(0).await {
                node.note_head(bounds.head, epoch);
            }
            let epoch = node.epoch();
            if let Ok(verified) = self.log.verify(EXPECTED).await {
                self.judge(&node, &verified.identity, epoch);
            }
        }
    }

    /// The head, for the marks of a clean stop.
    pub async fn ask_head(&self, node: &NodeLog) {
        let epoch = node.epoch();
        if let Ok(bounds) = self.log.bounds(0).await {
            node.note_head(bounds.head, epoch);
        }
    }

    fn judge(&self, node: &NodeLog, found: &str, epoch: u64) {
        let known = self.home.borrow().log.clone();
        if known.as_deref() == Some(found) {
            return;
        }
        node.log_went_back(
            Some(IntakeIdentity {
                node: NODE.as_bytes().into(),
                partition: 0,
                log: found.as_bytes().into(),
            }),
            epoch,
        );
        self.home.borrow_mut().log = Some(found.to_owned());
    }
}

const EXPECTED: Expected = Expected {
    backup_max_age_ms: 1,
    max_record_bytes: 60_000,
};

fn blank() -> NodeState {
    NodeState {
        node: None,
        partition: None,
        log: None,
        origin: StoreOrigin::Fresh,
        incarnation: 0,
    }
}

/// The core's desk, with a note of every claim that a carried record gave up.
struct Claims {
    desk: Weak<Desk>,
    book: Rc<Book>,
}

impl Claims {
    fn desk(&self, f: impl FnOnce(&Desk)) {
        if let Some(desk) = self.desk.upgrade() {
            f(&desk);
        }
    }
}

impl ClaimStore for Claims {
    fn carry(&self, claim: Claim) {
        self.desk(|desk| desk.carry(claim));
    }

    fn renew(&self, _claim: Claim) {}

    fn promote(&self, claim: Claim, expiry_s: u32, now_s: u32) {
        self.desk(|desk| desk.promote(claim, expiry_s, now_s));
    }

    fn give_up(&self, claim: Claim, now_s: u32) {
        self.book.gave_up(claim.id.0);
        self.desk(|desk| desk.give_up(claim, now_s));
    }
}

/// The node as the driver of a recovery sees it.
struct Port {
    dual: Dual,
    config: Arc<Config>,
    hash_key: [u8; 16],
    cores: Vec<Rc<Core>>,
    parts: RefCell<BTreeMap<ShardId, Rc<ShardRecovery<SimDisk>>>>,
}

impl Port {
    fn part(&self, shard: ShardId) -> Result<Rc<ShardRecovery<SimDisk>>, PortError> {
        if let Some(part) = self.parts.borrow().get(&shard) {
            return Ok(Rc::clone(part));
        }
        for core in &self.cores {
            let open = core.shards.borrow().iter().find(|s| s.id == shard).cloned();
            if let Some(open) = open {
                let host = Rc::clone(&core.host) as Rc<dyn Host>;
                let (desk, clock) = (Rc::clone(core.desk()), Rc::clone(&host));
                let remember = move |rows: &[ankusa_wal::DedupeRow]| {
                    let now_s = (clock.wall_ms() / 1000) as u32;
                    for row in rows {
                        let expiry_s = u32::try_from(row.expires_at_s).unwrap_or(u32::MAX);
                        desk.restore(KeyHash(row.hash), row.id, expiry_s, now_s);
                    }
                };
                let today = ConfigToday::new(
                    &self.config,
                    self.hash_key,
                    Rc::clone(&host),
                    Box::new(remember),
                );
                let part = Part {
                    origin: self.dual.home.borrow().origin,
                    give_up: false,
                    replays: true,
                    damaged: Vec::new(),
                    lost: Vec::new(),
                    group_bytes: 16 << 10,
                };
                let made = Rc::new(ShardRecovery::new(open, host, Rc::new(today), part));
                self.parts.borrow_mut().insert(shard, Rc::clone(&made));
                return Ok(made);
            }
        }
        Err(PortError::Failed(format!("shard {shard} is not open")))
    }

    fn ids(&self) -> Vec<ShardId> {
        let mut ids: Vec<ShardId> = Vec::new();
        for core in &self.cores {
            ids.extend(core.shards.borrow().iter().map(|shard| shard.id));
        }
        ids.sort();
        ids
    }

    fn at<'a, T: 'a, F>(&'a self, shard: ShardId, work: F) -> PortFuture<'a, T>
    where
        F: AsyncFnOnce(Rc<ShardRecovery<SimDisk>>) -> Result<T, PortError> + 'a,
    {
        Box::pin(async move { work(self.part(shard)?).await })
    }
}

impl NodePort for Port {
    fn node(&self) -> PortFuture<'_, NodeState> {
        Box::pin(std::future::ready(Ok(self.dual.home.borrow().clone())))
    }

    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>> {
        let marks = self
            .ids()
            .into_iter()
            .map(|id| Ok(self.part(id)?.apply.mark()));
        Box::pin(std::future::ready(marks.collect()))
    }

    fn stamp(&self, stamp: Stamp) -> PortFuture<'_, ()> {
        let mut home = self.dual.home.borrow_mut();
        home.node = stamp.node.or(home.node.take());
        home.partition = stamp.partition.or(home.partition);
        home.log = stamp.log.or(home.log.take());
        home.incarnation = stamp.incarnation.unwrap_or(home.incarnation);
        home.origin = stamp.origin.unwrap_or(home.origin);
        Box::pin(std::future::ready(Ok(())))
    }

    fn number_incarnations(&self, _origin: StoreOrigin, incarnation: u32) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for id in self.ids() {
                self.part(id)?.apply.number_incarnation(incarnation).await?;
            }
            Ok(())
        })
    }

    fn forget_log(&self) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for id in self.ids() {
                self.part(id)?.apply.forget_log().await?;
            }
            Ok(())
        })
    }

    fn add_shards(&self, shards: u16) -> PortFuture<'_, ()> {
        let fault = PortError::Failed(format!("there are no {shards} shards"));
        Box::pin(std::future::ready(Err(fault)))
    }

    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied> {
        let log = self.dual.log.clone();
        let bytes: Vec<usize> = batch.records.iter().map(|r| r.value.len()).collect();
        log.note(format_args!(
            "apply {shard} turn {} {bytes:?} below {:?}",
            batch.turn, batch.below
        ));
        self.at(shard, async move |part| {
            let turn = batch.turn;
            let done = part.apply.apply(batch).await;
            log.note(format_args!("applied turn {turn}: {done:?}"));
            done
        })
    }

    fn end(&self, shard: ShardId, end: ShardEnd) -> PortFuture<'_, ()> {
        self.at(shard, async move |part| part.apply.end(end).await)
    }

    fn audit_gap(&self, _gap: Gap) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished> {
        self.at(shard, async move |part| Ok(part.republish().await))
    }

    fn sleep(&self, time: Duration) -> PortFuture<'_, ()> {
        let sleep = self.cores[0].host.sleep(time);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }

    fn progress(&self, progress: Progress) {
        self.dual.log.note(format_args!("recovery: {progress:?}"));
    }
}
