//! A node whose shards are all on one core: a stopped store under `ankusa recover`, and the
//! simulation.
//!
//! Generic over the disk; where facts are kept and how a shard is opened is told. Runs on that core.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ankusa_recovery::boot::Gap;
use ankusa_recovery::port::{
    NodePort, NodeState, PortError, PortFuture, Progress, Republished, ShardEnd, ShardMark, Stamp,
};
use ankusa_recovery::{Applied, Batch, Today};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Disk, Host, Record, ShardId};

use super::home::HomeKeeper;
use super::shard::{Part, ShardRecovery};
use super::{failed, gap_row};
use crate::shard::Shard;

/// The node-wide facts, durable when a change completes.
pub trait Facts {
    /// As they are.
    fn state(&self) -> NodeState;

    /// Writes a stamp down.
    fn stamp(&self, stamp: Stamp) -> LocalFuture<Result<(), PortError>>;

    /// Adds empty shards up to so many.
    fn grow(&self, shards: u16) -> LocalFuture<Result<(), PortError>>;
}

impl Facts for HomeKeeper {
    fn state(&self) -> NodeState {
        self.node_state()
    }

    fn stamp(&self, stamp: Stamp) -> LocalFuture<Result<(), PortError>> {
        let keeper = self.clone();
        Box::pin(async move { HomeKeeper::stamp(&keeper, stamp).await })
    }

    fn grow(&self, shards: u16) -> LocalFuture<Result<(), PortError>> {
        let keeper = self.clone();
        Box::pin(async move { HomeKeeper::grow(&keeper, shards).await })
    }
}

/// Opens a shard that was added.
pub type OpenShard<D> = Box<dyn Fn(ShardId) -> LocalFuture<Result<Rc<Shard<D>>, String>>>;

/// What a port is made of.
pub struct LocalParts<D: Disk> {
    /// Time.
    pub host: Rc<dyn Host>,
    /// The facts.
    pub facts: Rc<dyn Facts>,
    /// The sources.
    pub today: Rc<dyn Today>,
    /// What the part of a shard is told.
    pub part_of: Box<dyn Fn(ShardId) -> Part>,
    /// How a shard that is added is opened.
    pub open: OpenShard<D>,
    /// Told how far it is.
    pub told: Box<dyn Fn(&Progress)>,
}

/// The node.
pub struct LocalPort<D: Disk> {
    parts: LocalParts<D>,
    shards: RefCell<Vec<Rc<ShardRecovery<D>>>>,
}

impl<D: Disk> LocalPort<D> {
    /// With these shards, by number.
    pub fn new(parts: LocalParts<D>, shards: Vec<Rc<Shard<D>>>) -> LocalPort<D> {
        let port = LocalPort {
            parts,
            shards: RefCell::default(),
        };
        shards.into_iter().for_each(|shard| port.add(shard));
        port
    }

    fn add(&self, shard: Rc<Shard<D>>) {
        let (host, today) = (Rc::clone(&self.parts.host), Rc::clone(&self.parts.today));
        let part = (self.parts.part_of)(shard.id);
        let recovery = ShardRecovery::new(shard, host, today, part);
        self.shards.borrow_mut().push(Rc::new(recovery));
    }

    /// The parts of its shards.
    pub fn shards(&self) -> Vec<Rc<ShardRecovery<D>>> {
        self.shards.borrow().clone()
    }

    fn at(&self, shard: ShardId) -> Result<Rc<ShardRecovery<D>>, PortError> {
        let shards = self.shards.borrow();
        let part = shards.get(usize::from(shard.0)).cloned();
        part.ok_or_else(|| failed(format_args!("shard {shard} is not open")))
    }
}

impl<D: Disk> NodePort for LocalPort<D> {
    fn node(&self) -> PortFuture<'_, NodeState> {
        Box::pin(std::future::ready(Ok(self.parts.facts.state())))
    }

    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>> {
        let marks = self.shards().iter().map(|part| part.apply.mark()).collect();
        Box::pin(std::future::ready(Ok(marks)))
    }

    fn stamp(&self, stamp: Stamp) -> PortFuture<'_, ()> {
        self.parts.facts.stamp(stamp)
    }

    fn number_incarnations(&self, _origin: StoreOrigin, incarnation: u32) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for part in self.shards() {
                part.apply.number_incarnation(incarnation).await?;
            }
            Ok(())
        })
    }

    fn forget_log(&self) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for part in self.shards() {
                part.apply.forget_log().await?;
            }
            Ok(())
        })
    }

    fn add_shards(&self, shards: u16) -> PortFuture<'_, ()> {
        Box::pin(async move {
            self.parts.facts.grow(shards).await?;
            for number in self.shards().len() as u16..shards {
                let opened = (self.parts.open)(ShardId(number)).await;
                self.add(opened.map_err(failed)?);
            }
            Ok(())
        })
    }

    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied> {
        let part = self.at(shard);
        Box::pin(async move { part?.apply.apply(batch).await })
    }

    fn end(&self, shard: ShardId, end: ShardEnd) -> PortFuture<'_, ()> {
        let part = self.at(shard);
        Box::pin(async move { part?.apply.end(end).await })
    }

    fn audit_gap(&self, gap: Gap) -> PortFuture<'_, ()> {
        let (part, now_ms) = (self.at(ShardId(0)), self.parts.host.wall_ms());
        Box::pin(async move {
            let part = part?;
            let row = gap_row(&part.shard.store.state(), &gap, now_ms);
            part.apply.write(vec![Record::Audit(row)]).await
        })
    }

    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished> {
        let part = self.at(shard);
        Box::pin(async move { Ok(part?.republish().await) })
    }

    fn sleep(&self, time: Duration) -> PortFuture<'_, ()> {
        let sleep = self.parts.host.sleep(time);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }

    fn progress(&self, progress: Progress) {
        (self.parts.told)(&progress);
    }
}
