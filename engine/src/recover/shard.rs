//! One shard's part in a recovery: its groups go through the shard's own commit, its local tail
//! through the dual commit's feeder.
//!
//! Generic over the disk: the same on a core of the node, offline, and in the simulation. Runs on
//! the shard's core.

use std::rc::Rc;
use std::time::Duration;

use ankusa_recovery::apply::{Encode, Settings};
use ankusa_recovery::port::{PortError, Republished};
use ankusa_recovery::{Groups, ShardApply, Today};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::state::SeqSet;
use ankusa_wal::{Disk, Host, Outcome, Refusal, Seq, Store};

use super::{NO_SOURCE, failed};
use crate::commit::driver::Commit;
use crate::dispatch::DeadReason;
use crate::shard::Shard;

/// How often it is looked whether a fence is left.
const FENCE_LOOK: Duration = Duration::from_millis(50);

/// How long the marks may take to be written; later they are written all the same.
const MARKS_PATIENCE: Duration = Duration::from_secs(2);

/// What a shard's part is told.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where the store's content came from.
    pub origin: StoreOrigin,
    /// What only a newer release can read is given up.
    pub give_up: bool,
    /// The log is replayed: its offset may move from then on.
    pub replays: bool,
    /// Live hooks whose bytes are damaged.
    pub damaged: Vec<Seq>,
    /// Seqs that were lost: first, and one past the last.
    pub lost: Vec<(Seq, Seq)>,
    /// Most bytes of a group.
    pub group_bytes: usize,
}

/// One shard's part.
pub struct ShardRecovery<D: Disk> {
    /// The shard.
    pub shard: Rc<Shard<D>>,
    /// What applies the records.
    pub apply: ShardApply<D>,
    replays: bool,
}

impl<D: Disk> ShardRecovery<D> {
    /// Over a shard that is open and takes no hooks yet.
    pub fn new(
        shard: Rc<Shard<D>>,
        host: Rc<dyn Host>,
        today: Rc<dyn Today>,
        part: Part,
    ) -> ShardRecovery<D> {
        let groups = Rc::new(CommitGroups {
            commit: shard.commit.clone(),
            host,
        });
        let settings = Settings {
            shard: shard.id,
            unroutable_sink: NO_SOURCE,
            unroutable_reason: DeadReason::SourceUnknown.code(),
            origin: part.origin,
            damaged: part.damaged,
            lost: part.lost,
            give_up: part.give_up,
            group_bytes: part.group_bytes,
        };
        ShardRecovery {
            apply: ShardApply::new(groups, today, settings),
            shard,
            replays: part.replays,
        }
    }

    /// Publishes what only this host has; the shard's marks move from then on.
    pub async fn republish(&self) -> Republished {
        let seen: SeqSet = self.apply.seen();
        let done = self.shard.republish_local(|seq| seen.contains(seq)).await;
        if let Some(log) = self.shard.log()
            && self.replays
        {
            // What was not read back stays to be read: without a replay the offset stands.
            log.offset_may_move();
        }
        // Else what was seen in the log just now would be published at the next start, if this one
        // ended before its first tick.
        self.shard.commit.settle_marks(MARKS_PATIENCE).await;
        Republished {
            published: done.records,
            stuck: done.refused + done.unreadable,
        }
    }
}

/// Groups of a recovery's own, through the commit of the shard.
struct CommitGroups<D: Disk> {
    commit: Commit<D>,
    host: Rc<dyn Host>,
}

impl<D: Disk> Groups<D> for CommitGroups<D> {
    fn store(&self) -> &Store<D> {
        self.commit.store()
    }

    fn write(
        &self,
        bytes: usize,
        first: usize,
        encode: Encode<D>,
    ) -> LocalFuture<Result<Outcome, PortError>> {
        let (commit, host) = (self.commit.clone(), Rc::clone(&self.host));
        Box::pin(async move {
            while commit.store().is_fenced() {
                host.sleep(FENCE_LOOK).await;
            }
            if commit.admit() == Err(Refusal::Closed) {
                return Err(failed("the store is closed"));
            }
            Ok(commit.write_group(bytes, first, encode).await)
        })
    }
}
