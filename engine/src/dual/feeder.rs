//! Feeds hooks that are durable here and not known to be in the log to the reconciler: at boot
//! those above the watermark, all of them when the log lost what it held.
//!
//! The watermark stands still while hooks are fed; then each fed one that is not confirmed holds it.
//! A window bounds what is fed at a time, and admission's ceilings hold for it as for any other.
//! Runs on the shard core.

use std::collections::BTreeSet;
use std::time::Duration;

use ankusa_wal::record::Watermark;
use ankusa_wal::{Disk, Envelope, HookId, LogOffset, ReadError, Seq};
use bytes::Bytes;

use super::claims::Held;
use super::pending::Kept;
use super::work::Work;
use crate::claims::{Claim, KeyHash};
use crate::dedupe::dedupe_hash;

/// Hooks that are fed and not confirmed, at most.
const WINDOW: usize = 1024;

/// How often it is looked whether there is room again.
const LOOK: Duration = Duration::from_millis(2);

/// Attempts to read a hook.
const READS: u32 = 3;

/// What was fed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Republished {
    /// Hooks published again, the refused ones included.
    pub records: u64,
    /// Of them refused by the log for good: they are stuck, and tried again every minute.
    pub refused: u64,
    /// Hooks that could not be read: they stay above the watermark for good, as exceptions.
    pub unreadable: u64,
}

struct Feed<'a, D: Disk> {
    work: &'a Work<D>,
    /// Only seqs below it: what is handed out later is published by its own group.
    limit: Seq,
    mark: Watermark,
    seen: &'a dyn Fn(Seq) -> bool,
    open: BTreeSet<Seq>,
    fed: Republished,
}

/// Feeds every live hook below `limit` that the watermark does not cover and of which `seen` does
/// not say that the log has it; completes when each of them is confirmed, or refused for good.
/// From then on the watermark moves.
pub(crate) async fn feed<D: Disk>(
    work: &Work<D>,
    limit: Seq,
    seen: &dyn Fn(Seq) -> bool,
) -> Republished {
    let mark = work.store().state().meta().watermark.clone();
    let mut feed = Feed {
        work,
        limit,
        mark,
        seen,
        open: BTreeSet::new(),
        fed: Republished::default(),
    };
    let mut from = 0;
    while !work.log.is_closed() {
        let next = feed.next(&mut from);
        match next {
            Ok(Some((seq, id))) => feed.one(seq, id).await,
            Ok(None) => break,
            Err(()) => {}
        }
        if work.host.must_yield() {
            work.host.yield_now().await;
        }
    }
    work.log.watermark_may_move();
    feed.drain(1).await;
    feed.fed
}

impl<D: Disk> Feed<'_, D> {
    /// The next hook to feed. `Err`: a stretch was passed, go on.
    fn next(&self, from: &mut u32) -> Result<Option<(Seq, HookId)>, ()> {
        let state = self.work.store().state();
        let slot = match state.next_hook(*from) {
            Ok(Some(slot)) => slot,
            Ok(None) => return Ok(None),
            Err(next) => {
                *from = next;
                return Err(());
            }
        };
        *from = slot.0 + 1;
        let hook = state.hook(slot).ok_or(())?;
        let is_confirmed =
            hook.seq <= self.mark.seq && self.mark.exceptions.binary_search(&hook.seq).is_err();
        if hook.seq >= self.limit || is_confirmed || (self.seen)(hook.seq) {
            return Err(());
        }
        Ok(Some((hook.seq, hook.id)))
    }

    async fn one(&mut self, seq: Seq, id: HookId) {
        let log = &self.work.log;
        for attempt in 1.. {
            match self.work.store().read(seq).await {
                Ok(hook) => {
                    let envelope = Bytes::copy_from_slice(&hook);
                    drop(hook);
                    self.put(seq, id, envelope).await;
                    return;
                }
                // Finished or undone meanwhile: it needs the log no more, or is carried.
                Err(ReadError::NotFound(_)) => return,
                Err(error) if attempt == READS => {
                    tracing::error!(
                        shard = %log.id(), %seq, %error,
                        "a hook cannot be read to be published again"
                    );
                    log.note_unreadable(seq);
                    self.fed.unreadable += 1;
                    return;
                }
                Err(_) => self.work.host.sleep(LOOK).await,
            }
        }
    }

    async fn put(&mut self, seq: Seq, id: HookId, envelope: Bytes) {
        self.drain(WINDOW).await;
        let held = self.held(id, &envelope);
        let kept = Kept {
            id,
            envelope,
            sinks: Box::default(),
            dedupe_hash: held.map(|held| held.claim.key.0),
            archive: false,
            first_us: self.work.log.now_us(),
            floor: LogOffset(0),
            quota_bytes: 0,
        };
        while !self.work.log.feed(seq, kept.clone(), held) && !self.work.log.is_closed() {
            self.work.host.sleep(LOOK).await;
        }
        self.open.insert(seq);
        self.fed.records += 1;
    }

    /// The claim that the hook's dedupe row stands for.
    fn held(&self, id: HookId, envelope: &[u8]) -> Option<Held> {
        let read = Envelope::parse(envelope).ok()?;
        let hash_key = &self.work.hash_key;
        let hash = dedupe_hash(hash_key, read.tenant, read.source, read.dedupe_key?);
        let key = KeyHash(hash);
        let received_s = (read.received_at_ms / 1000) as u32;
        Some(Held {
            claim: Claim { key, id },
            expiry_s: received_s.saturating_add(read.dedupe_ttl_s),
        })
    }

    /// Forgets what is confirmed, and counts what was refused for good.
    fn look(&mut self) {
        let pending = self.work.log.pending();
        let refused = &mut self.fed.refused;
        self.open.retain(|seq| match pending.get(*seq) {
            None => false,
            Some(entry) => {
                *refused += u64::from(entry.is_refused());
                !entry.is_refused()
            }
        });
    }

    /// Completes when fewer than `below` fed hooks are open.
    async fn drain(&mut self, below: usize) {
        while self.open.len() >= below && !self.work.log.is_closed() {
            self.look();
            if self.open.len() >= below {
                self.work.host.sleep(LOOK).await;
            }
        }
    }
}
