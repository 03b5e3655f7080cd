//! The end of a run: the faults are over, everything is acked and delivered, and opening again
//! changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use ankusa_wal::State;
use ankusa_wal::disk::sim::FaultPlan;
use ankusa_wal::state::RowState;

use super::book::Kind;
use super::run::{Over, Run};
use super::sinks::{Mood, SINKS};

/// Rounds of retries until everything must be acked.
const ROUNDS_MAX: u32 = 200;

impl Run {
    /// Ends the faults, lets the client and the sinks catch up, and looks at what is left.
    pub(super) fn finish(&mut self) -> Result<(), Over> {
        self.trace.note(format_args!("the faults are over"));
        for disk in &self.disks {
            disk.set_faults(FaultPlan::none());
            disk.set_capacity(1 << 40);
        }
        self.release_hangs();
        for sink in 0..SINKS.len() {
            self.sinks.set_mood(sink, Mood::Sound);
        }
        self.end_troubles();
        self.ack_all()?;
        // What was acked last may not have been claimed: it must be there after one more death.
        if self.rng.coin() {
            self.cut()
        } else {
            self.kill()
        }
        self.boot()?;
        self.drain()?;
        self.check_counts();
        self.contract();
        self.check_reopen()
    }

    /// Sends everything that was not acked until it is.
    fn ack_all(&mut self) -> Result<(), Over> {
        for _ in 0..ROUNDS_MAX {
            let open = self.client.unacked();
            let Some(node) = &self.node else {
                return Err(Over);
            };
            for number in &open {
                self.client.send_again(node, *number);
            }
            self.world.run_for(Duration::from_millis(500));
            self.release_hangs();
            let is_done = self
                .book
                .requests
                .borrow()
                .values()
                .all(|sent| sent.is_acked());
            if is_done {
                return Ok(());
            }
        }
        let left = self
            .book
            .requests
            .borrow()
            .values()
            .filter(|sent| !sent.is_acked())
            .count();
        Err(self.stuck(&format!("the retry of {left} requests")))
    }

    /// Runs until no row is due.
    fn drain(&mut self) -> Result<(), Over> {
        let Some(node) = &self.node else {
            return Err(Over);
        };
        let shards = node.shards();
        let is_drained = || {
            shards.iter().all(|shard| {
                let counts = shard.store.state().counts();
                let carried = shard.log().map_or(0, |log| log.facts().carried);
                counts.rows_pending + counts.rows_scheduled == 0
                    && carried == 0
                    && counts.held_by_log == 0
                    && shard.store.durable_lsn() == shard.store.applied_lsn()
                    && shard.store.queued() == 0
            })
        };
        if !self.run_while(|| !is_drained()) {
            let left: Vec<_> = shards.iter().map(|s| s.store.state().counts()).collect();
            let marks: Vec<_> = shards
                .iter()
                .map(|s| {
                    let store = &s.store;
                    let (applied, durable) = (store.applied_lsn(), store.durable_lsn());
                    (
                        applied,
                        durable,
                        store.queued(),
                        store.stats().inflight,
                        store.is_fenced(),
                    )
                })
                .collect();
            return Err(self.stuck(&format!(
                "the drain ({left:?}, applied, durable, queued, in flight, fenced {marks:?})"
            )));
        }
        Ok(())
    }

    /// Nothing is applied that is not durable, and the counts are what a walk counts.
    fn check_counts(&mut self) {
        let Some(node) = &self.node else { return };
        for shard in node.shards() {
            if shard.store.applied_lsn() != shard.store.durable_lsn() {
                let text = format!("shard {}: applied is not durable at rest", shard.id);
                self.book.broken(Kind::NotIdempotent, text);
            }
            let state = shard.store.state();
            let (counts, walked) = (state.counts(), walk(&state));
            self.tally.dead += walked.dead;
            let counted = (
                counts.hooks,
                counts.rows_pending + counts.rows_scheduled,
                counts.rows_dead,
            );
            if counted != (walked.hooks, walked.due, walked.dead) {
                let text = format!("shard {}: counts {counts:?}, walked {walked:?}", shard.id);
                self.book.broken(Kind::NotIdempotent, text);
            }
        }
    }

    /// A clean stop and an open, then a death and another open: the same store each time.
    fn check_reopen(&mut self) -> Result<(), Over> {
        let mut before = None;
        for round in 0..2 {
            let now = self.contents();
            if let Some(before) = before.filter(|before| !is_kept(before, &now)) {
                let text = format!("before open {round}: {before:?}, after: {now:?}");
                self.book.broken(Kind::NotIdempotent, text);
            }
            before = Some(now);
            if round == 0 {
                self.stop()?;
            } else {
                self.kill();
            }
            self.boot()?;
        }
        if !before.is_some_and(|before| is_kept(&before, &self.contents())) {
            self.book.broken(
                Kind::NotIdempotent,
                "the last open changed the store".into(),
            );
        }
        Ok(())
    }

    /// What the shards hold, by shard.
    fn contents(&self) -> BTreeMap<u16, Contents> {
        let shards = self
            .node
            .as_ref()
            .map(|node| node.shards())
            .unwrap_or_default();
        shards
            .iter()
            .map(|shard| (shard.id.0, contents(&shard.store.state())))
            .collect()
    }
}

#[derive(Debug, Default)]
struct Walked {
    hooks: u64,
    due: u64,
    dead: u64,
}

fn walk(state: &State) -> Walked {
    let mut walked = Walked::default();
    for slot in state.hooks() {
        walked.hooks += 1;
        for row in state.rows(slot) {
            match state.row(row).state {
                RowState::Due { .. } => walked.due += 1,
                RowState::Dead { .. } => walked.dead += 1,
                _ => {}
            }
        }
    }
    walked
}

/// A hook's id, and its rows with their attempts.
type HookContents = ([u8; 16], Vec<(u16, u16, String)>);

/// What an open must bring back. A shard that becomes a home names the sinks it has not named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    /// By seq.
    hooks: BTreeMap<u64, HookContents>,
    names: Vec<String>,
}

fn is_kept(before: &BTreeMap<u16, Contents>, now: &BTreeMap<u16, Contents>) -> bool {
    before.len() == now.len()
        && before.iter().zip(now).all(|(before, now)| {
            before.0 == now.0
                && before.1.hooks == now.1.hooks
                && before.1.names.iter().all(|name| now.1.names.contains(name))
        })
}

fn contents(state: &State) -> Contents {
    let mut hooks = BTreeMap::new();
    for slot in state.hooks() {
        let Some(hook) = state.hook(slot) else {
            continue;
        };
        let rows = state.rows(slot).map(|id| {
            let row = state.row(id);
            (row.sink.0, row.attempts, format!("{:?}", row.state))
        });
        hooks.insert(hook.seq.0, (hook.id.0, rows.collect()));
    }
    let names = state.names().iter().map(|name| format!("{name:?}"));
    Contents {
        hooks,
        names: names.collect(),
    }
}
