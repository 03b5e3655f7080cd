//! A run at boot, over the cores of the node: core 0 drives, every shard's part is done on its own
//! core.
//!
//! Invariants: a core's parts live from the beginning of a run to its end and no longer; a question
//! to another core travels as a call through the mesh and is always answered, if only by the end of
//! that core. Runs on shard cores.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ankusa_intake::question;
use ankusa_recovery::boot::Gap;
use ankusa_recovery::port::{
    NodePort, NodeState, PortError, PortFuture, Progress, Republished, ShardEnd, ShardMark, Stamp,
};
use ankusa_recovery::{Applied, Batch, Refusal, Summary, run};
use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Host, Record, ShardId, TaskClass};

use super::shard::{Part, ShardRecovery};
use super::today::ConfigToday;
use super::{HomeKeeper, failed, gap_row, looked_at, options};
use crate::claims::KeyHash;
use crate::metrics::{Metric, ReplayResult};
use crate::node::core::Core;
use crate::node::log::Intake;
use crate::node::message::Message;

/// How often progress is said.
const SAY: Duration = Duration::from_secs(10);

type Parts = BTreeMap<ShardId, Rc<ShardRecovery<GlommioDisk>>>;

thread_local! {
    /// The parts of this core's shards while a run goes on: one at a time.
    static PARTS: RefCell<Parts> = const { RefCell::new(BTreeMap::new()) };
}

/// Steps 1 to 5 of a boot. On core 0, once every core has opened its shards and its way into the
/// log. On `Ok` the node may serve.
///
/// # Cancel safety
/// As a crash: what was applied stays, the next boot goes on.
pub async fn at_boot(
    core: &Rc<Core>,
    intake: &Arc<Intake>,
    home: &HomeKeeper,
) -> Result<Summary, Refusal> {
    let config = Arc::clone(&core.config.borrow());
    let Some(settings) = &config.intake else {
        return Ok(Summary::default());
    };
    let options = options(&config, settings, usize::from(home.facts().shards));
    let port = MeshPort {
        core: Rc::clone(core),
        intake: Arc::clone(intake),
        home: home.clone(),
        replays: options.replay,
        said_us: Cell::new(core.host.mono_us()),
        counted: Cell::new(Applied::default()),
    };
    let port = Rc::new(port);
    let (driving, log) = (Rc::clone(&port), Arc::clone(intake));
    let host = Rc::clone(&core.host);
    let driven = core.host.within(TaskClass::Commit, async move {
        looked_at(&*host, run(log.adapter.log(), &*driving, &options)).await
    });
    let gone = || Err(Refusal::Node(failed("the commit queue is gone")));
    let summary = driven.await.unwrap_or_else(gone);
    if let Ok(summary) = &summary {
        port.count(summary.counts);
        let result = ReplayResult::SkippedUnknown as usize;
        let registry = core.observer.metrics.registry();
        registry.node_add(Metric::IntakeReplay, result, summary.newer);
    }
    port.on_every_core(|_| PARTS.with_borrow_mut(Parts::clear));
    summary
}

struct MeshPort {
    core: Rc<Core>,
    intake: Arc<Intake>,
    home: HomeKeeper,
    replays: bool,
    said_us: Cell<u64>,
    counted: Cell<Applied>,
}

/// The part of one shard of this core, made when it is first asked for.
fn part(
    core: &Rc<Core>,
    shard: ShardId,
    origin: StoreOrigin,
    replays: bool,
) -> Result<Rc<ShardRecovery<GlommioDisk>>, PortError> {
    if let Some(part) = PARTS.with_borrow(|parts| parts.get(&shard).cloned()) {
        return Ok(part);
    }
    let shards = core.shards.borrow();
    let open = shards.iter().find(|open| open.id == shard);
    let open = open.ok_or_else(|| failed(format_args!("shard {shard} is not open")))?;
    let config = Arc::clone(&core.config.borrow());
    let host = Rc::clone(&core.host) as Rc<dyn Host>;
    let keys = Rc::clone(core);
    let today = ConfigToday::new(
        &config,
        core.facts.hash_key.0,
        Rc::clone(&host),
        Box::new(move |rows| {
            let now_s = (keys.host.wall_ms() / 1000) as u32;
            for row in rows {
                let expiry_s = u32::try_from(row.expires_at_s).unwrap_or(u32::MAX);
                keys.desk
                    .restore(KeyHash(row.hash), row.id, expiry_s, now_s);
            }
        }),
    );
    let settings = Part {
        origin,
        give_up: false,
        replays,
        damaged: Vec::new(),
        lost: Vec::new(),
        group_bytes: config.wal.group_max_bytes as usize,
    };
    let made = ShardRecovery::new(Rc::clone(open), host, Rc::new(today), settings);
    let made = Rc::new(made);
    PARTS.with_borrow_mut(|parts| parts.insert(shard, Rc::clone(&made)));
    Ok(made)
}

impl MeshPort {
    /// Does something on the core that has the shard, with its part.
    fn at<T, W>(&self, shard: ShardId, work: W) -> PortFuture<'_, T>
    where
        T: Send + 'static,
        W: FnOnce(Rc<ShardRecovery<GlommioDisk>>) -> LocalFuture<Result<T, PortError>>
            + Send
            + 'static,
    {
        let (origin, replays) = (self.home.facts().origin, self.replays);
        let to = usize::from(shard.0) % self.core.port.cores().max(1);
        self.on(to, move |core| match part(core, shard, origin, replays) {
            Ok(part) => work(part),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        })
    }

    /// Does something on a core. It is begun at once, not when the answer is first polled.
    fn on<T, W>(&self, to: usize, work: W) -> PortFuture<'_, T>
    where
        T: Send + 'static,
        W: FnOnce(&Rc<Core>) -> LocalFuture<Result<T, PortError>> + Send + 'static,
    {
        let (answering, asked) = question();
        let call = move |core: &Rc<Core>| {
            let done = work(core);
            core.host.start(TaskClass::Commit, async move {
                answering.answer(Ok(done.await));
            });
        };
        if to == self.core.index {
            call(&self.core);
        } else {
            self.core.port.send(to, Message::Call(Box::new(call)));
        }
        Box::pin(async move {
            asked
                .await
                .map_err(|_| failed(format_args!("core {to} ended")))?
        })
    }

    fn on_every_core(&self, work: impl Fn(&Rc<Core>) + Clone + Send + 'static) {
        for to in 0..self.core.port.cores() {
            let work = work.clone();
            self.core
                .port
                .send(to, Message::Call(Box::new(move |core| work(core))));
        }
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        (0..self.home.facts().shards).map(ShardId).collect()
    }

    /// Brings the metrics up to these counts.
    fn count(&self, now: Applied) {
        let before = self.counted.replace(now);
        let registry = self.core.observer.metrics.registry();
        let results = [
            (ReplayResult::Applied, now.applied - before.applied),
            (ReplayResult::Present, now.present - before.present),
            (ReplayResult::Collision, now.collided - before.collided),
            (ReplayResult::Unroutable, now.unroutable - before.unroutable),
            (ReplayResult::SkippedUnknown, now.held - before.held),
        ];
        for (result, by) in results.into_iter().filter(|(_, by)| *by > 0) {
            registry.node_add(Metric::IntakeReplay, result as usize, by);
        }
    }
}

impl NodePort for MeshPort {
    fn node(&self) -> PortFuture<'_, NodeState> {
        Box::pin(std::future::ready(Ok(self.home.node_state())))
    }

    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>> {
        Box::pin(async move {
            let mut marks = Vec::new();
            for shard in self.shard_ids() {
                let mark = self.at(shard, |part| {
                    Box::pin(std::future::ready(Ok(part.apply.mark())))
                });
                marks.push(mark.await?);
            }
            Ok(marks)
        })
    }

    fn stamp(&self, stamp: Stamp) -> PortFuture<'_, ()> {
        Box::pin(self.home.stamp(stamp))
    }

    fn number_incarnations(&self, _origin: StoreOrigin, incarnation: u32) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for shard in self.shard_ids() {
                self.at(shard, move |part| {
                    Box::pin(async move { part.apply.number_incarnation(incarnation).await })
                })
                .await?;
            }
            Ok(())
        })
    }

    fn forget_log(&self) -> PortFuture<'_, ()> {
        Box::pin(async move {
            for shard in self.shard_ids() {
                let done = self.at(shard, |part| {
                    Box::pin(async move { part.apply.forget_log().await })
                });
                done.await?;
            }
            Ok(())
        })
    }

    fn add_shards(&self, shards: u16) -> PortFuture<'_, ()> {
        Box::pin(async move {
            let known = self.home.facts().shards;
            self.home.grow(shards).await?;
            for number in known..shards {
                let to = usize::from(number) % self.core.port.cores().max(1);
                let facts = self.home.facts();
                let opened = self.on(to, move |core| {
                    let core = Rc::clone(core);
                    Box::pin(async move {
                        let opened = core.open_shard(&facts, ShardId(number)).await;
                        opened.map(drop).map_err(failed)
                    })
                });
                opened.await?;
            }
            Ok(())
        })
    }

    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied> {
        self.at(shard, move |part| {
            Box::pin(async move { part.apply.apply(batch).await })
        })
    }

    fn end(&self, shard: ShardId, end: ShardEnd) -> PortFuture<'_, ()> {
        self.at(shard, move |part| {
            Box::pin(async move { part.apply.end(end).await })
        })
    }

    fn audit_gap(&self, gap: Gap) -> PortFuture<'_, ()> {
        let now_ms = self.core.host.wall_ms();
        self.at(ShardId(0), move |part| {
            Box::pin(async move {
                let row = gap_row(&part.shard.store.state(), &gap, now_ms);
                part.apply.write(vec![Record::Audit(row)]).await
            })
        })
    }

    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished> {
        self.at(shard, |part| {
            Box::pin(async move { Ok(part.republish().await) })
        })
    }

    fn sleep(&self, time: Duration) -> PortFuture<'_, ()> {
        let sleep = self.core.host.sleep(time);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }

    fn progress(&self, progress: Progress) {
        match progress {
            Progress::Waiting(why) => {
                if self.intake.status.set_boot_reason(Some(why.clone())) {
                    tracing::warn!("not ready: {why}");
                }
            }
            Progress::Replaying {
                partition,
                read_below,
                head,
                counts,
            } => {
                self.intake.status.set_boot_reason(None);
                self.count(counts);
                let now_us = self.core.host.mono_us();
                if now_us.saturating_sub(self.said_us.get()) > SAY.as_micros() as u64 {
                    self.said_us.set(now_us);
                    tracing::info!(
                        partition,
                        read_below,
                        head,
                        records = counts.records,
                        "replaying the intake log"
                    );
                }
            }
            // Said where it was found.
            Progress::Warning(_) | Progress::Republishing(_) => {}
        }
    }
}
