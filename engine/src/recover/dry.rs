//! A stopped store that is only looked at: what a run would do, counted; not a byte is written.
//!
//! Runs offline.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ankusa_recovery::apply::DryShard;
use ankusa_recovery::boot::Gap;
use ankusa_recovery::port::{
    NodePort, NodeState, PortFuture, Progress, Republished, ShardEnd, ShardMark, Stamp,
};
use ankusa_recovery::{Applied, Batch, Today};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Seq, ShardId, State};

/// Passes time.
type Sleep = Box<dyn Fn(Duration) -> LocalFuture<()>>;

/// The store.
pub struct DryPort {
    node: NodeState,
    shards: RefCell<Vec<(DryShard, Seq)>>,
    today: Rc<dyn Today>,
    sleep: Sleep,
    told: Box<dyn Fn(&Progress)>,
}

fn done<T: 'static>(value: T) -> PortFuture<'static, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl DryPort {
    /// Over the states of its shards, each with the first seq that an open would hand out.
    pub fn new(
        node: NodeState,
        shards: Vec<(State, Seq)>,
        today: Rc<dyn Today>,
        sleep: Sleep,
        told: Box<dyn Fn(&Progress)>,
    ) -> DryPort {
        let shards = shards.into_iter();
        DryPort {
            node,
            shards: RefCell::new(shards.map(|(s, next)| (DryShard::new(s), next)).collect()),
            today,
            sleep,
            told,
        }
    }
}

impl NodePort for DryPort {
    fn node(&self) -> PortFuture<'_, NodeState> {
        done(self.node.clone())
    }

    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>> {
        let shards = self.shards.borrow();
        let marks = shards.iter().enumerate().map(|(number, (shard, next))| {
            let state = shard.state();
            ShardMark {
                shard: ShardId(number as u16),
                offset: state.meta().offset,
                next_seq: *next,
                is_blank: state.next_seq() == Seq(1) && state.meta().offset.offset.is_none(),
            }
        });
        done(marks.collect())
    }

    fn stamp(&self, _stamp: Stamp) -> PortFuture<'_, ()> {
        done(())
    }

    fn number_incarnations(&self, _origin: StoreOrigin, _incarnation: u32) -> PortFuture<'_, ()> {
        done(())
    }

    fn forget_log(&self) -> PortFuture<'_, ()> {
        done(())
    }

    fn add_shards(&self, _shards: u16) -> PortFuture<'_, ()> {
        done(())
    }

    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied> {
        let mut shards = self.shards.borrow_mut();
        let number = usize::from(shard.0);
        while shards.len() <= number {
            shards.push((DryShard::new(State::new(0)), Seq(1)));
        }
        done(shards[number].0.count(&batch, &*self.today))
    }

    fn end(&self, _shard: ShardId, _end: ShardEnd) -> PortFuture<'_, ()> {
        done(())
    }

    fn audit_gap(&self, _gap: Gap) -> PortFuture<'_, ()> {
        done(())
    }

    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished> {
        let shards = self.shards.borrow();
        let unseen = shards.get(usize::from(shard.0)).map(|(s, _)| s.unseen());
        done(Republished {
            published: unseen.unwrap_or(0),
            stuck: 0,
        })
    }

    fn sleep(&self, time: Duration) -> PortFuture<'_, ()> {
        let sleep = (self.sleep)(time);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }

    fn progress(&self, progress: Progress) {
        (self.told)(&progress);
    }
}
