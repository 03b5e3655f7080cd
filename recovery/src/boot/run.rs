//! The driver: asks the log and the node, decides, and keeps several batches in flight.
//!
//! Invariants: nothing is written before the identity and the reach of the log are decided; a
//! partition is stamped only once every other one was read (else a crash in between would leave
//! them out); the origin becomes an existing one last of all. Killed at any await it can be run
//! again from the start. Holds no more than the batches in flight and one chunk.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use ankusa_intake::{
    AskError, Asked, Bounds, Chunk, From, IntakeLog, Replay, ReplayRequest, Replayed, Verified,
};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::{ShardId, mutations};

use super::{
    Gap, Identity, LogIdentity, Options, Reach, Refusal, Start, Summary, Truncation, identity,
    log_identity, truncation,
};
use crate::apply::{Applied, Batch, lower};
use crate::port::{
    NodePort, NodeState, PortError, PortFuture, Progress, ShardEnd, ShardMark, Stamp,
};

/// Most shards of a store: a record that names a higher one is no record of ours.
const SHARDS_MAX: usize = 1024;

/// After so many chunks the offset of shards without records is written as well.
const IDLE_CHUNKS: u64 = 64;

/// Names of malformed records in the log of a run.
const NAMED_MAX: usize = 20;

/// Runs steps 1 to 5. On `Ok` the node may serve.
///
/// # Cancel safety
/// As a crash: run it again.
pub async fn run(
    log: &dyn IntakeLog,
    port: &dyn NodePort,
    options: &Options,
) -> Result<Summary, Refusal> {
    let node = port.node().await?;
    let mut run = Run {
        log,
        port,
        options,
        marks: Vec::new(),
        turns: Vec::new(),
        hold: None,
        incarnation: 0,
        summary: Summary::default(),
        node,
        named: 0,
    };
    run.whose_store().await?;
    mutations::point("recover.identified");
    let (partition, verified) = run.which_log().await?;
    mutations::point("recover.verified");
    if options.replay {
        run.replay_all(partition, &verified).await?;
    } else {
        run.without_replay(partition, &verified).await?;
    }
    run.republish().await?;
    mutations::point("recover.republished");
    if !options.dry_run && run.node.origin != StoreOrigin::Existing {
        let origin = Some(StoreOrigin::Existing);
        port.stamp(Stamp {
            origin,
            ..Stamp::default()
        })
        .await?;
    }
    mutations::point("recover.done");
    Ok(run.summary)
}

struct Run<'a> {
    log: &'a dyn IntakeLog,
    port: &'a dyn NodePort,
    options: &'a Options,
    node: NodeState,
    marks: Vec<ShardMark>,
    /// The next turn of each shard.
    turns: Vec<u64>,
    hold: Option<u64>,
    /// The highest incarnation seen in the log.
    incarnation: u32,
    summary: Summary,
    named: usize,
}

impl<'a> Run<'a> {
    async fn whose_store(&mut self) -> Result<(), Refusal> {
        let ours = &self.options.node;
        match identity(self.node.node.as_deref(), ours) {
            Identity::Mismatch => {
                return Err(Refusal::NodeMismatch {
                    store: self.node.node.clone().unwrap_or_default(),
                    config: ours.clone(),
                });
            }
            Identity::Same => {}
            Identity::Stamp if self.options.dry_run => {}
            Identity::Stamp => {
                let stamp = Stamp {
                    node: Some(ours.clone()),
                    ..Stamp::default()
                };
                self.port.stamp(stamp).await?;
            }
        }
        self.marks = self.port.shards().await?;
        self.turns = vec![0; self.marks.len()];
        Ok(())
    }

    /// Steps 2 and 3. The partition that the node has or gets, and what the log says of itself.
    async fn which_log(&mut self) -> Result<(u32, Verified), Refusal> {
        let verified = self.verified().await?;
        let partition = match self.node.partition {
            Some(partition) => partition,
            None => self.ask(|log, node| log.assign_partition(node)).await?,
        };
        let bounds = self.bounds(partition).await?;
        let offset = self.marks.iter().filter_map(|m| m.offset.offset).max();
        let offset = offset.map(|at| at.0);
        let known = self.node.log.clone();
        let options = self.options;
        let found = log_identity(
            known.as_deref(),
            &verified.identity,
            offset,
            bounds.head,
            self.node.origin,
            options.allow_gap,
        );
        match found {
            LogIdentity::First | LogIdentity::Same => {
                self.reaches_back(partition, &verified, bounds).await?;
            }
            LogIdentity::Republish => {
                self.warn(format!(
                    "the intake log lost what it held (`{}` up to position {}, now `{}` with head \
                     {}): everything local is published again",
                    known.unwrap_or_default(),
                    offset.unwrap_or_default(),
                    verified.identity,
                    bounds.head
                ));
                self.forget_log(partition, &verified).await?;
            }
            LogIdentity::Refuse => {
                return Err(Refusal::Recreated {
                    known: known.unwrap_or_default(),
                    found: verified.identity,
                    offset: offset.unwrap_or_default(),
                    head: bounds.head,
                });
            }
            LogIdentity::AllowedGap => {
                self.pass_gap(Gap {
                    node: options.node.clone(),
                    wanted: offset.map_or(0, |at| at + 1),
                    earliest: bounds.earliest,
                    why: "the intake log was made anew",
                })
                .await?;
                self.forget_log(partition, &verified).await?;
            }
        }
        if !options.dry_run {
            let (origin, incarnation) = (self.node.origin, self.node.incarnation);
            self.port.number_incarnations(origin, incarnation).await?;
        }
        Ok((partition, verified))
    }

    async fn reaches_back(
        &mut self,
        partition: u32,
        verified: &Verified,
        bounds: Bounds,
    ) -> Result<(), Refusal> {
        let wanted = self.wanted();
        let mut earliest = bounds.earliest;
        if self.node.partition.is_none() {
            // Its records may be in any of them.
            for other in (0..verified.partitions).filter(|other| *other != partition) {
                earliest = earliest.max(self.bounds(other).await?.earliest);
            }
        }
        if earliest <= wanted.unwrap_or(0) {
            return Ok(());
        }
        let first = self.first_of_ours(partition, verified.partitions).await?;
        let beyond = first.as_ref().is_some_and(|first| {
            let mark = self.marks.get(usize::from(first.shard));
            mark.is_none_or(|mark| first.seq >= mark.next_seq.0)
        });
        let reach = Reach {
            wanted,
            earliest,
            origin: self.node.origin,
            is_known: self.node.log.is_some() || self.node.partition.is_some(),
            holds_ours: first.is_some(),
            first_is_beyond: beyond,
            allow_gap: self.options.allow_gap,
        };
        let wanted = wanted.unwrap_or(0);
        match truncation(&reach) {
            Truncation::Whole => Ok(()),
            Truncation::Warn => {
                self.warn(format!(
                    "the intake log reaches back to position {earliest} only, {wanted} was wanted; \
                     every hook in between is in this store"
                ));
                Ok(())
            }
            Truncation::Refuse => Err(Refusal::Truncated { wanted, earliest }),
            Truncation::AllowedGap => {
                self.pass_gap(Gap {
                    node: self.options.node.clone(),
                    wanted,
                    earliest,
                    why: "the intake log no longer reaches back",
                })
                .await
            }
        }
    }

    /// The first position not in every shard; none when a shard has no offset.
    fn wanted(&self) -> Option<u64> {
        // A shard that an existing store was given since has nothing in the log.
        let is_existing = self.node.origin == StoreOrigin::Existing;
        let marks = self
            .marks
            .iter()
            .filter(|mark| !(is_existing && mark.is_blank));
        let offsets = marks.map(|mark| mark.offset.offset);
        let lowest = offsets.min().flatten();
        lowest.map(|at| at.0 + 1)
    }

    async fn pass_gap(&mut self, gap: Gap) -> Result<(), Refusal> {
        self.warn(format!(
            "going on over a gap ({}): wanted position {}, the log reaches back to {}, {} positions \
             are lost",
            gap.why,
            gap.wanted,
            gap.earliest,
            gap.lost()
        ));
        if !self.options.dry_run {
            self.port.audit_gap(gap.clone()).await?;
        }
        self.summary.gap = Some(gap);
        Ok(())
    }

    async fn forget_log(&mut self, partition: u32, verified: &Verified) -> Result<(), Refusal> {
        self.summary.log_went_back = true;
        for mark in &mut self.marks {
            mark.offset = ankusa_wal::IntakeOffset::default();
        }
        if self.options.dry_run {
            return Ok(());
        }
        // IMPORTANT: the shards first. Were the new identity first, a crash in between would leave
        // offsets of the old log that pass for the new one's.
        self.port.forget_log().await?;
        let stamp = Stamp {
            partition: Some(partition),
            log: Some(verified.identity.clone()),
            ..Stamp::default()
        };
        self.port.stamp(stamp).await?;
        self.node.partition = Some(partition);
        Ok(())
    }

    /// Step 4 is left to an operator: what the log has stays to be read, the offset stands.
    async fn without_replay(&mut self, partition: u32, verified: &Verified) -> Result<(), Refusal> {
        if self.node.origin != StoreOrigin::Existing {
            return Err(Refusal::NotRecovered);
        }
        let stamp = Stamp {
            partition: Some(partition),
            log: (!verified.identity.is_empty()).then(|| verified.identity.clone()),
            ..Stamp::default()
        };
        self.port.stamp(stamp).await?;
        Ok(())
    }

    /// Step 4.
    async fn replay_all(&mut self, partition: u32, verified: &Verified) -> Result<(), Refusal> {
        if self.node.partition.is_none() {
            for other in (0..verified.partitions).filter(|other| *other != partition) {
                self.replay(other, None, false).await?;
            }
        }
        if !self.options.dry_run {
            let stamp = Stamp {
                partition: Some(partition),
                log: (!verified.identity.is_empty()).then(|| verified.identity.clone()),
                ..Stamp::default()
            };
            self.port.stamp(stamp).await?;
            mutations::point("recover.stamped");
        }
        let wanted = self.wanted();
        let from = match (self.options.start, wanted) {
            (Start::Stored, wanted) => wanted,
            (Start::Earliest, _) => None,
            (Start::Position(from), Some(wanted)) if from > wanted => {
                return Err(Refusal::StartAbove { from, wanted });
            }
            (Start::Position(from), None) if from > self.bounds(partition).await?.earliest => {
                return Err(Refusal::StartAbove { from, wanted: 0 });
            }
            (Start::Position(from), _) => Some(from),
        };
        self.replay(partition, from, true).await?;
        mutations::point("recover.replayed");
        self.end(partition, &verified.identity).await?;
        mutations::point("recover.ended");
        Ok(())
    }

    /// Reads one partition back to its head as it is now.
    async fn replay(
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

    /// After the last record.
    async fn end(&mut self, partition: u32, identity: &str) -> Result<(), Refusal> {
        if self.options.dry_run {
            return Ok(());
        }
        let is_new = self.node.origin != StoreOrigin::Existing;
        if is_new && self.incarnation >= self.node.incarnation {
            // Someone handed out seqs under this number before: it is never ours.
            let incarnation = self.incarnation.saturating_add(1);
            let stamp = Stamp {
                incarnation: Some(incarnation),
                ..Stamp::default()
            };
            self.port.stamp(stamp).await?;
            self.node.incarnation = incarnation;
        }
        let node = &self.options.node;
        for number in 0..self.marks.len() {
            let end = ShardEnd {
                offset: Some(self.summary.read_below).filter(|below| *below > 0),
                hold: self.hold,
                incarnation: is_new.then_some(self.node.incarnation),
                identity: Some((node.clone(), partition, identity.to_owned())),
            };
            self.port.end(ShardId(number as u16), end).await?;
        }
        Ok(())
    }

    /// Step 5.
    async fn republish(&mut self) -> Result<(), Refusal> {
        for number in 0..self.marks.len() {
            let shard = ShardId(number as u16);
            self.port.progress(Progress::Republishing(shard));
            let republished = self.port.republish(shard).await?;
            self.summary.republished += republished.published;
            self.summary.stuck += republished.stuck;
        }
        Ok(())
    }

    /// The first record of this node that the log holds, in any partition it may be in.
    async fn first_of_ours(
        &mut self,
        partition: u32,
        partitions: u32,
    ) -> Result<Option<Replayed>, Refusal> {
        let is_stamped = self.node.partition.is_some();
        let others = (0..partitions).filter(|other| *other != partition && !is_stamped);
        for partition in std::iter::once(partition).chain(others) {
            'again: loop {
                let mut replay = self.log.replay(ReplayRequest {
                    node: self.options.node.clone(),
                    partition,
                    from: From::Earliest,
                    chunk_records: 1,
                    chunk_bytes: 1,
                });
                while let Some(chunk) = replay.next().await {
                    match chunk {
                        Ok(mut chunk) if !chunk.records.is_empty() => {
                            return Ok(Some(chunk.records.swap_remove(0)));
                        }
                        Ok(_) => {}
                        Err(error) => {
                            self.not_now(error).await?;
                            continue 'again;
                        }
                    }
                }
                break;
            }
        }
        Ok(None)
    }

    /// What the log says of itself, once it is as it must be.
    async fn verified(&self) -> Result<Verified, Refusal> {
        loop {
            match self.log.verify(self.options.expected).await {
                Ok(verified) if verified.findings.is_empty() || !self.options.verify => {
                    return Ok(verified);
                }
                Ok(verified) => {
                    let refusal = Refusal::Findings(verified.findings);
                    if !self.options.wait {
                        return Err(refusal);
                    }
                    self.wait(refusal.to_string()).await?;
                }
                Err(AskError::Denied(_)) if !self.options.verify => {
                    // Its settings are not asked for, so neither is its identity.
                    let partitions = self.node.partition.map_or(1, |p| p + 1);
                    return Ok(Verified {
                        partitions,
                        ..Verified::default()
                    });
                }
                Err(error) => self.not_now(error).await?,
            }
        }
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, Refusal> {
        self.ask(|log, _| log.bounds(partition)).await
    }

    async fn ask<T>(
        &self,
        question: impl Fn(&dyn IntakeLog, &str) -> Asked<T>,
    ) -> Result<T, Refusal> {
        loop {
            match question(self.log, &self.options.node).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.not_now(error).await?,
            }
        }
    }

    /// Waits after an answer that may be another one next time; an error when it never will, or
    /// when nobody waits.
    async fn not_now(&self, error: AskError) -> Result<(), Refusal> {
        let may_pass = match error {
            AskError::Unreachable(_)
            | AskError::NotFound(_)
            | AskError::Denied(_)
            | AskError::Truncated { .. }
            | AskError::Busy => self.options.wait,
            AskError::AboveHead { .. } | AskError::Damaged(_) | AskError::Closed => false,
        };
        if !may_pass {
            return Err(Refusal::Log(error));
        }
        self.wait(error.to_string()).await
    }

    async fn wait(&self, why: String) -> Result<(), Refusal> {
        self.port.progress(Progress::Waiting(why));
        self.port.sleep(self.options.probe).await?;
        Ok(())
    }

    fn warn(&self, what: String) {
        tracing::warn!("{what}");
        self.port.progress(Progress::Warning(what));
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
