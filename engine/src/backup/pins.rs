//! A core's part in a backup: a checkpoint, and what it needs kept until it is copied.
//!
//! Runs on a shard core, in its maintenance class.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;

use ankusa_wal::store::Pin;
use ankusa_wal::{BackupSource, Lsn, ShardId, TaskClass};

use crate::node::core::Core;

/// What a core holds for backups under way.
#[derive(Default)]
pub struct Pins {
    last_no: Cell<u64>,
    held: RefCell<HashMap<u64, Pin>>,
}

impl Pins {
    fn hold(&self, pin: Pin) -> u64 {
        let no = self.last_no.get() + 1;
        self.last_no.set(no);
        self.held.borrow_mut().insert(no, pin);
        no
    }

    /// What was copied may be used again.
    pub fn release(&self, no: u64) {
        self.held.borrow_mut().remove(&no);
    }
}

/// What a shard answers.
#[derive(Debug)]
pub enum Answer {
    /// Nothing was written since that LSN.
    Same,
    /// Copy this, then release the pin of this number.
    Source(Box<BackupSource>, u64),
    /// No checkpoint; the text says why.
    Failed(String),
}

/// Asks a shard of this core for what to copy. `last` is where the last backup ended.
pub fn ask(core: &Rc<Core>, shard: ShardId, last: Option<Lsn>, answer: SyncSender<Answer>) {
    let shards = core.shards.borrow();
    let Some(shard) = shards.iter().find(|s| s.id == shard).map(Rc::clone) else {
        let _ = answer.try_send(Answer::Failed("the shard is not open".into()));
        return;
    };
    let (host, core) = (Rc::clone(&core.host), Rc::clone(core));
    host.start(TaskClass::Maintenance, async move {
        let store = &shard.store;
        let is_same = last == Some(store.durable_lsn())
            && store.applied_lsn() == store.durable_lsn()
            && store.queued() == 0;
        let told = if is_same {
            Answer::Same
        } else {
            match store.backup_source().await {
                Ok((source, pin)) => Answer::Source(Box::new(source), core.pins.hold(pin)),
                Err(error) => Answer::Failed(error.to_string()),
            }
        };
        // A worker that has given up takes no answer: nothing may stay pinned for it.
        if let Err(back) = answer.try_send(told)
            && let std::sync::mpsc::TrySendError::Full(Answer::Source(_, no))
            | std::sync::mpsc::TrySendError::Disconnected(Answer::Source(_, no)) = back
        {
            core.pins.release(no);
        }
    });
}
