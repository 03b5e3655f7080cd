//! The driver: asks the log and the node, decides, and keeps several batches in flight.
//!
//! Invariants: nothing is written before the identity and the reach of the log are decided; a
//! partition is stamped only once every other one was read (else a crash in between would leave
//! them out); the origin becomes an existing one last of all. Killed at any await it can be run
//! again from the start. Holds no more than the batches in flight and one chunk.

mod replay;

use ankusa_intake::{AskError, Asked, Bounds, From, IntakeLog, ReplayRequest, Replayed, Verified};
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::{ShardId, mutations};

use super::{
    Gap, Identity, LogIdentity, Options, Reach, Refusal, Start, Summary, Truncation, identity,
    log_identity, truncation,
};
use crate::port::{NodePort, NodeState, Progress, ShardEnd, ShardMark, Stamp};

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
