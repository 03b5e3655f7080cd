//! Runs the parts of replay jobs of one shard: a slice of rows at every tick, at the job's pace.
//!
//! Invariants: at most [`SLICE_ROWS`] rows are queued at once; a row is offered to dispatch only
//! after its record was applied; a job whose moved deliveries mostly die again pauses itself.
//! Runs on the shard's core, in its dispatch class.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::state::{DeadCursor, RowState};
use ankusa_wal::{Delivery, DeliveryState, Disk, Host, Record, Seq, SinkNo, State, TaskClass};

use super::{Filter, PARTS_MAX, Part, Pause, ReplayId, ReplayState};
use crate::dispatch::LaneState;
use crate::recover::revive::{Reviver, Sources};
use crate::shard::Shard;

/// How often a part gets on.
const TICK: Duration = Duration::from_millis(100);
const TICKS_PER_SECOND: u64 = 10;
/// Most rows moved at one tick.
const SLICE_ROWS: usize = 256;
/// Most dead letters looked at in one turn.
const LOOK_ROWS: usize = 2048;
/// With more records than this waiting for a group, a tick is left out: the rows and the counts
/// written behind them are to share one group.
const QUEUED_MAX: usize = 512;
/// Moved rows whose fate is watched.
const WATCHED_MAX: usize = 256;
/// Died again, at least, before a job pauses itself.
const DIED_MIN: usize = 10;

/// Starts the runner of a shard; it ends with the process. `sources` says what a source is today.
pub fn start<D: Disk>(host: &Rc<dyn Host>, shard: Rc<Shard<D>>, shards: u64, sources: Sources) {
    let reviver = Reviver::new(Rc::clone(host), sources);
    let tick_host = Rc::clone(host);
    host.spawn(
        TaskClass::Dispatch,
        Box::pin(async move {
            let mut runner = Runner::new(shards, Some(reviver));
            loop {
                tick_host.sleep(TICK).await;
                runner.tick(&shard, tick_host.wall_ms());
            }
        }),
    );
}

/// What a runner remembers of a part between ticks.
struct Walk {
    cursor: DeadCursor,
    moved: u64,
    skipped: u64,
    was_running: bool,
    /// Moved, and dispatch does not know yet.
    unannounced: Vec<(Seq, SinkNo)>,
    watched: VecDeque<(Seq, SinkNo)>,
}

/// The runner of one shard.
pub struct Runner {
    shards: u64,
    reviver: Option<Reviver>,
    walks: HashMap<ReplayId, Walk>,
}

/// What a slice of a walk found.
struct Slice {
    rows: Vec<Delivery>,
    /// Hooks whose source was missing, and is back.
    to_revive: Vec<(Seq, SinkNo)>,
    skipped: u64,
    cursor: DeadCursor,
    is_end: bool,
}

impl Runner {
    /// A runner of one of `shards` shards, which share each job's pace. Without a reviver, hooks
    /// whose source was missing are skipped.
    pub fn new(shards: u64, reviver: Option<Reviver>) -> Runner {
        Runner {
            shards: shards.max(1),
            reviver,
            walks: HashMap::new(),
        }
    }

    /// Gets every part of the shard on by a slice.
    pub fn tick<D: Disk>(&mut self, shard: &Shard<D>, now_ms: u64) {
        let parts: Vec<(u16, Part)> = {
            let state = shard.store.state();
            let read = |slot| Part::read(slot, |no| state.meta().counter(no));
            (0..PARTS_MAX)
                .filter_map(|slot| Some((slot, read(slot)?)))
                .collect()
        };
        self.walks.retain(|id, walk| {
            let lives = parts
                .iter()
                .any(|(_, part)| part.id == *id && !part.state.is_ended());
            lives || !walk.unannounced.is_empty()
        });
        for (slot, part) in parts {
            if let Some(walk) = self.walks.get_mut(&part.id) {
                announce(shard, part.id, walk);
            }
            let is_running = part.state == ReplayState::Running;
            if is_running && shard.store.queued() <= QUEUED_MAX {
                self.step(shard, slot, part, now_ms);
            } else if let Some(walk) = self.walks.get_mut(&part.id) {
                walk.was_running &= is_running;
            }
        }
    }

    fn step<D: Disk>(&mut self, shard: &Shard<D>, slot: u16, mut part: Part, now_ms: u64) {
        let walk = self.walks.entry(part.id).or_insert_with(|| Walk {
            cursor: DeadCursor::NEWEST,
            moved: part.moved,
            skipped: 0,
            was_running: true,
            unannounced: Vec::new(),
            watched: VecDeque::new(),
        });
        if !walk.was_running {
            // Resumed: what died before is not held against it, and is looked at again.
            walk.was_running = true;
            walk.watched.clear();
        }
        if keeps_dying(&shard.store.state(), &walk.watched) {
            part.state = ReplayState::Paused(Pause::KeepsDying);
            walk.was_running = false;
            put(shard, part.state_record(slot, now_ms));
            tracing::warn!(replay = %part.id, shard = %shard.id,
                "replay paused: what it moved died again");
            return;
        }
        let budget = u64::from(part.per_second).div_ceil(TICKS_PER_SECOND * self.shards);
        let budget = (budget as usize).clamp(1, SLICE_ROWS);
        let reviver = self.reviver.as_ref();
        let slice = look(shard, &part, walk.cursor, budget, now_ms, reviver);
        walk.cursor = slice.cursor;
        walk.skipped += slice.skipped;
        for delivery in &slice.rows {
            if !shard.store.enqueue(Record::Delivery(*delivery)) {
                // The queue is full: what is left is found by walking again.
                walk.cursor = DeadCursor::NEWEST;
                walk.skipped = 0;
                break;
            }
            walk.moved += 1;
            walk.unannounced.push((delivery.seq, delivery.sink));
        }
        if let Some(reviver) = reviver
            && !slice.to_revive.is_empty()
        {
            walk.moved += slice.to_revive.len() as u64;
            reviver.start(shard, slice.to_revive.clone());
        }
        (part.moved, part.skipped) = (walk.moved, walk.skipped);
        if !slice.rows.is_empty() || !slice.to_revive.is_empty() {
            put(shard, part.count_record(slot, now_ms));
        } else if slice.is_end && walk.unannounced.is_empty() {
            part.state = ReplayState::Done;
            put(shard, part.count_record(slot, now_ms));
            put(shard, part.state_record(slot, now_ms));
            tracing::info!(replay = %part.id, shard = %shard.id, moved = part.moved,
                skipped = part.skipped, "replay done");
        }
    }
}

fn put<D: Disk>(shard: &Shard<D>, record: Record) {
    // When the queue is full the next tick writes it.
    shard.store.enqueue(record);
    shard.commit.nudge();
}

/// Tells dispatch of moved rows whose record has been applied.
fn announce<D: Disk>(shard: &Shard<D>, replay: ReplayId, walk: &mut Walk) {
    let moved = std::mem::take(&mut walk.unannounced);
    for (seq, sink) in moved {
        let row = {
            let state = shard.store.state();
            state.row_of(seq, sink).map(|row| state.row(row).state)
        };
        match row {
            Some(RowState::Dead { .. }) => walk.unannounced.push((seq, sink)),
            Some(RowState::Due { .. }) => {
                shard.dispatch.replayed(seq, sink, replay);
                if walk.watched.len() == WATCHED_MAX {
                    walk.watched.pop_front();
                }
                walk.watched.push_back((seq, sink));
            }
            _ => {}
        }
    }
}

/// Whether most of what has come to an end since it was moved has died again.
fn keeps_dying(state: &State, watched: &VecDeque<(Seq, SinkNo)>) -> bool {
    let (mut died, mut ended) = (0, 0);
    for (seq, sink) in watched {
        match state.row_of(*seq, *sink).map(|row| state.row(row).state) {
            Some(RowState::Due { .. }) => {}
            Some(RowState::Dead { .. }) => (died, ended) = (died + 1, ended + 1),
            _ => ended += 1,
        }
    }
    died >= DIED_MIN && died * 2 > ended
}

fn look<D: Disk>(
    shard: &Shard<D>,
    part: &Part,
    from: DeadCursor,
    budget: usize,
    now_ms: u64,
    reviver: Option<&Reviver>,
) -> Slice {
    let state = shard.store.state();
    let wanted = part.filter.wanted(state.names());
    let mut slice = Slice {
        rows: Vec::new(),
        to_revive: Vec::new(),
        skipped: 0,
        cursor: from,
        is_end: part.filter == Filter::Nothing,
    };
    for _ in 0..LOOK_ROWS {
        if slice.is_end || slice.rows.len() + slice.to_revive.len() == budget {
            break;
        }
        let (rows, next) = state.dead_letters(slice.cursor, 1);
        let Some(&row_id) = rows.first() else {
            slice.is_end = true;
            break;
        };
        slice.cursor = next;
        let row = state.row(row_id);
        let (RowState::Dead { at_s, .. }, Some(hook)) = (row.state, state.hook(row.slot)) else {
            continue;
        };
        let is_wanted = match (state.names().get(row.sink), &wanted) {
            (Some(name), Some(wanted)) => wanted.is(name),
            _ => false,
        };
        if !is_wanted || u64::from(at_s) * 1000 > part.started_at_ms {
            continue;
        }
        let name = state.names().get(row.sink);
        if let Some(name) = name.filter(|name| Reviver::is_waiting(name)) {
            match reviver.is_some_and(|reviver| reviver.is_back(name)) {
                true => slice.to_revive.push((hook.seq, row.sink)),
                false => slice.skipped += 1,
            }
            continue;
        }
        if shard.dispatch.sink_state(row.sink) == LaneState::Gone {
            slice.skipped += 1;
            continue;
        }
        slice.rows.push(Delivery {
            seq: hook.seq,
            sink: row.sink,
            attempts: 0,
            due_ms: now_ms,
            state: DeliveryState::Due,
            reason: 0,
        });
    }
    slice
}
