//! One partition, read back to its head: its records go to their shards in batches, several of
//! them in flight, in the order of the log within a shard.
//!
//! Invariants: a batch says how far the log was read below it, so that an offset never passes a
//! record that is not durable; what cannot be read is counted and named, and holds the offset where
//! a newer release could read it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use ankusa_intake::{AskError, Chunk, From, Replay, ReplayRequest, Replayed};
use ankusa_wal::{ShardId, mutations};

use super::super::Refusal;
use super::Run;
use crate::apply::{Applied, Batch, lower};
use crate::port::{PortError, PortFuture, Progress, ShardMark};

/// Most shards of a store: a record that names a higher one is no record of ours.
const SHARDS_MAX: usize = 1024;

/// After so many chunks the offset of shards without records is written as well.
const IDLE_CHUNKS: u64 = 64;

/// Names of malformed records in the log of a run.
const NAMED_MAX: usize = 20;

impl Run<'_> {
    /// Reads one partition back to its head as it is now.
    pub(super) async fn replay(
        &mut self,
        partition: u32,
        from: Option<u64>,
        with_offset: bool,
    ) -> Result<(), Refusal> {
        let mut next = from;
        loop {
            let bounds = self.bounds(partition).await?;
            // What retention took from under an existing store, or under a gap that is allowed.
            let at = next.map(|at| at.clamp(bounds.earliest, bounds.head));
            let mut reading = Reading {
                replay: self.log.replay(ReplayRequest {
                    node: self.options.node.clone(),
                    partition,
                    from: at.map_or(From::Earliest, From::Position),
                    chunk_records: self.options.chunk_records,
                    chunk_bytes: self.options.chunk_bytes,
                }),
                window: Window::default(),
            };
            let (mut read_below, mut chunks, mut failed) = (at.unwrap_or(0), 0, None);
            while let Some(chunk) = reading.next().await {
                match chunk {
                    Ok(chunk) => {
                        read_below = chunk.read_below.max(read_below);
                        chunks += 1;
                        let is_idle_due = chunks % IDLE_CHUNKS == 0;
                        let below = with_offset.then_some(read_below);
                        let batches = self.split(chunk, below, is_idle_due).await?;
                        for (shard, batch) in batches {
                            let room = self.options.inflight.max(1);
                            self.counted(reading.window.make_room(room).await?);
                            reading.window.add(self.port.apply(shard, batch));
                        }
                        mutations::point("recover.read");
                        self.told(partition, read_below, bounds.head);
                    }
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            self.counted(reading.window.make_room(1).await?);
            self.summary.read_below = read_below;
            match failed {
                None => return Ok(()),
                Some(error) => self.not_now(error).await?,
            }
            // The next attempt goes on behind what is durable.
            next = Some(read_below);
        }
    }

    /// The chunk's records by shard, with their turns; shards that are not there are added.
    async fn split(
        &mut self,
        chunk: Chunk,
        below: Option<u64>,
        is_idle_due: bool,
    ) -> Result<Vec<(ShardId, Batch)>, Refusal> {
        self.note_skipped(&chunk);
        let highest = chunk.records.iter().map(|r| usize::from(r.shard));
        let highest = highest.filter(|shard| *shard < SHARDS_MAX).max();
        if let Some(highest) = highest.filter(|highest| *highest >= self.marks.len()) {
            self.add_shards(highest as u16 + 1).await?;
        }
        let mut by_shard: Vec<Vec<Replayed>> = vec![Vec::new(); self.marks.len()];
        // The usual case moves no record.
        let only = chunk.records.first().map(|first| first.shard);
        let only = only.filter(|shard| chunk.records.iter().all(|r| r.shard == *shard));
        match only.and_then(|shard| by_shard.get_mut(usize::from(shard))) {
            Some(of_shard) => *of_shard = chunk.records,
            None => {
                for record in chunk.records {
                    match by_shard.get_mut(usize::from(record.shard)) {
                        Some(of_shard) => of_shard.push(record),
                        None => self.name_malformed(record.position, "shard"),
                    }
                }
            }
        }
        let mut batches = Vec::new();
        for (number, records) in by_shard.into_iter().enumerate() {
            if records.is_empty() && !(is_idle_due && below.is_some()) {
                continue;
            }
            let turn = self.turns[number];
            self.turns[number] += 1;
            let batch = Batch {
                turn,
                records,
                below,
                hold: self.hold,
            };
            batches.push((ShardId(number as u16), batch));
        }
        Ok(batches)
    }

    async fn add_shards(&mut self, shards: u16) -> Result<(), Refusal> {
        if !self.options.dry_run {
            self.port.add_shards(shards).await?;
            let (origin, incarnation) = (self.node.origin, self.node.incarnation);
            self.port.number_incarnations(origin, incarnation).await?;
        }
        let known = self.marks.len();
        for number in known..usize::from(shards) {
            self.marks.push(ShardMark {
                shard: ShardId(number as u16),
                offset: ankusa_wal::IntakeOffset::default(),
                next_seq: ankusa_wal::Seq(1),
                is_blank: true,
            });
            self.turns.push(0);
        }
        Ok(())
    }

    fn note_skipped(&mut self, chunk: &Chunk) {
        for (label, count) in &chunk.skipped {
            let found = self.summary.skipped.iter_mut().find(|(l, _)| l == label);
            match found {
                Some((_, sum)) => *sum += count,
                None => self.summary.skipped.push((label, *count)),
            }
        }
        for (position, what) in &chunk.malformed {
            self.name_malformed(*position, what);
        }
        for newer in &chunk.newer {
            if self.summary.newer == 0 {
                self.warn(format!(
                    "position {}: a hook of version {}, which a newer release can read: the offset \
                     stays below it",
                    newer.position, newer.version
                ));
            }
            self.summary.newer += 1;
            if !self.options.allow_gap {
                self.hold = lower(self.hold, Some(newer.position));
            }
        }
    }

    fn name_malformed(&mut self, position: u64, what: &str) {
        self.summary.counts.malformed += 1;
        self.named += 1;
        if self.named <= NAMED_MAX {
            tracing::error!(position, what, "a malformed record of this node is skipped");
        }
    }

    fn counted(&mut self, counts: Applied) {
        self.summary.counts += counts;
        self.incarnation = self.incarnation.max(counts.incarnation);
        if !self.options.allow_gap {
            self.hold = lower(self.hold, counts.hold);
        }
    }

    fn told(&self, partition: u32, read_below: u64, head: u64) {
        self.port.progress(Progress::Replaying {
            partition,
            read_below,
            head,
            counts: self.summary.counts,
        });
    }
}

/// A replay, and the batches of it that are on their way: both get on while either is waited for.
struct Reading<'a> {
    replay: Box<dyn Replay>,
    window: Window<'a>,
}

impl Reading<'_> {
    async fn next(&mut self) -> Option<Result<Chunk, AskError>> {
        poll_fn(|cx| {
            self.window.poll(cx);
            self.replay.poll_chunk(cx)
        })
        .await
    }
}

enum Slot<'a> {
    Running(PortFuture<'a, Applied>),
    Done(Result<Applied, PortError>),
}

/// Batches in flight, oldest first.
#[derive(Default)]
struct Window<'a>(VecDeque<Slot<'a>>);

impl<'a> Window<'a> {
    fn add(&mut self, batch: PortFuture<'a, Applied>) {
        self.0.push_back(Slot::Running(batch));
    }

    /// Waits until fewer than `max` are in flight; the counts of those that ended.
    async fn make_room(&mut self, max: usize) -> Result<Applied, PortError> {
        let mut sum = Applied::default();
        poll_fn(|cx| {
            self.poll(cx);
            while let Some(Slot::Done(_)) = self.0.front() {
                if let Some(Slot::Done(done)) = self.0.pop_front() {
                    match done {
                        Ok(counts) => sum += counts,
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
            match self.0.len() < max {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        })
        .await?;
        Ok(sum)
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.0 {
            if let Slot::Running(batch) = slot
                && let Poll::Ready(done) = batch.as_mut().poll(cx)
            {
                *slot = Slot::Done(done);
            }
        }
    }
}
