//! Dead letters of a source that was not configured when a recovery brought them back, and is now.
//!
//! Such a hook has one dead delivery, to a sink that stands for the missing source. Replayed, it is
//! written again under a fresh seq with the source's sinks of today, and the old one ends, in one
//! group; the next replay of the log counts it as present. Runs on the shard's core.

use std::rc::Rc;

use ankusa_wal::format::envelope::ENVELOPE_SEQ_OFFSET;
use ankusa_wal::format::record::{hook_len, record_len};
use ankusa_wal::state::RowState;
use ankusa_wal::{
    Delivery, DeliveryState, Disk, Envelope, GroupBuilder, HookExtra, Host, Outcome, Record,
    Resequenced, Seq, SinkName, SinkNo, Store, TaskClass,
};

use super::NO_SOURCE;
use crate::commit::driver::Commit;
use crate::shard::Shard;

/// Room for the records beside the hook.
const BESIDE_BYTES: usize = 4096;

/// The sinks of a source of today, by tenant and name; `None` while it is not configured.
pub type Sources = Rc<dyn Fn(&[u8], &[u8]) -> Option<Vec<Box<[u8]>>>>;

/// Brings hooks back to their source.
#[derive(Clone)]
pub struct Reviver {
    host: Rc<dyn Host>,
    sources: Sources,
}

impl Reviver {
    /// With the sources as they are whenever it is asked.
    pub fn new(host: Rc<dyn Host>, sources: Sources) -> Reviver {
        Reviver { host, sources }
    }

    /// Whether a delivery to this sink waits for its source.
    pub fn is_waiting(name: &SinkName) -> bool {
        *name.name == *NO_SOURCE
    }

    /// Whether the source is configured by now.
    pub fn is_back(&self, name: &SinkName) -> bool {
        (self.sources)(&name.tenant, &name.source).is_some()
    }

    /// Brings these back, one after the other; each is due once its group is durable. What cannot
    /// be read or written now stays a dead letter.
    pub fn start<D: Disk>(&self, shard: &Shard<D>, hooks: Vec<(Seq, SinkNo)>) {
        let (commit, sources, id) = (shard.commit.clone(), Rc::clone(&self.sources), shard.id);
        let task = async move {
            for (seq, sink) in hooks {
                if let Err(why) = revive(&commit, &sources, seq, sink).await {
                    tracing::warn!(shard = %id, %seq, why, "a hook stays without its source");
                }
            }
        };
        self.host.spawn(TaskClass::Dispatch, Box::pin(task));
    }
}

async fn revive<D: Disk>(
    commit: &Commit<D>,
    sources: &Sources,
    seq: Seq,
    waiting: SinkNo,
) -> Result<(), &'static str> {
    let hook = commit.store().read(seq).await;
    let hook = hook.map_err(|_| "it cannot be read")?;
    let mut value = hook.to_vec();
    drop(hook);
    let envelope = Envelope::parse(&value).map_err(|_| "it cannot be read")?;
    let id = envelope.id;
    let names = sources(envelope.tenant, envelope.source).ok_or("its source is gone again")?;
    let (mut sinks, mut new) = (Vec::new(), Vec::new());
    for name in &names {
        let mut state = commit.store().state_mut();
        let given = state.sink_no(envelope.tenant, envelope.source, name);
        let (sink, record) = given.map_err(|_| "every number for a sink is given out")?;
        sinks.push(sink);
        new.extend(record);
    }
    if !new.is_empty() {
        // In a group of their own, so that the hook's has room whatever its size.
        let bytes = new.iter().map(record_len).sum();
        let put = move |group: &mut GroupBuilder<D>| {
            new.into_iter().for_each(|name| group.record(name));
        };
        // Fenced, they wait in the store's queue, in front of every hook.
        commit.write_group(bytes, bytes, put).await;
    }
    let extra_sinks = sinks.clone();
    let len = hook_len(
        &HookExtra {
            sinks: &extra_sinks,
            ..HookExtra::default()
        },
        value.len(),
    );
    let store = commit.store().clone();
    let put = move |group: &mut GroupBuilder<D>| {
        // It may have been replayed twice, or purged, since it was asked for.
        if !is_dead(&store, seq, waiting) || !group.fits(len) {
            return;
        }
        let fresh = store.next_seq();
        value[ENVELOPE_SEQ_OFFSET..ENVELOPE_SEQ_OFFSET + 8].copy_from_slice(&fresh.0.to_le_bytes());
        let extra = HookExtra {
            sinks: &sinks,
            ..HookExtra::default()
        };
        group.hook_again(fresh, &value, &extra);
        for record in [
            Record::Resequenced(Resequenced {
                old: seq,
                id,
                new: fresh,
            }),
            Record::Delivery(Delivery {
                seq,
                sink: waiting,
                attempts: 0,
                due_ms: 0,
                state: DeliveryState::Discarded,
                reason: 0,
            }),
        ] {
            // NOTE: a hook larger than a group leaves no room; then a crash before its delivery may
            // show it as a dead letter once more.
            if group.fits(record_len(&record)) {
                group.record(record);
            } else {
                store.enqueue(record);
            }
        }
    };
    match commit.write_group(len + BESIDE_BYTES, len, put).await {
        Outcome::Durable => Ok(()),
        Outcome::Fenced => Err("a write failed"),
    }
}

fn is_dead<D: Disk>(store: &Store<D>, seq: Seq, sink: SinkNo) -> bool {
    let state = store.state();
    let row = state.row_of(seq, sink).map(|row| state.row(row).state);
    matches!(row, Some(RowState::Dead { .. }))
}
