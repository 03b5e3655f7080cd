//! A simulated node: its cores, their boot and their clean end. Put together as the node's own
//! cores are, over the simulated disk.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ankusa_engine::claims::Desk;
use ankusa_engine::commit::QueueLimits;
use ankusa_engine::commit::driver::GroupLimits;
use ankusa_engine::config::{Config, Env, load};
use ankusa_engine::dispatch::Limits;
use ankusa_engine::dual::NodeLog;
use ankusa_engine::ingest::{Ingest, IngestLimits, IngestParts, Readiness, SourceTable};
use ankusa_engine::metrics::{MetricsConfig, Registry};
use ankusa_engine::node::observe::CoreObserver;
use ankusa_engine::shard::{Shard, ShardParts};
use ankusa_recovery::Refusal;
use ankusa_wal::disk::sim::SimDisk;
use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::{Host, OpenError, ShardId, StoreConfig, SyncMode, TaskClass};

use super::dual::Dual;
use super::sinks::Sinks;
use super::wire::Wires;

/// Shards of the simulated store.
pub const SHARDS: usize = 2;

const STORE_UUID: [u8; 16] = *b"simulated store!";
const HASH_KEY: [u8; 16] = *b"0123456789abcdef";
const DEADLINE_US: u64 = 15_000_000;
const SWEEP: Duration = Duration::from_millis(100);

const CONFIG: &str = "\
http: { ip: 127.0.0.1 }
sources:
  plain:
    verify: { type: none }
    sinks: [ { name: first, type: log } ]
  keyed:
    verify: { type: none }
    dedupe: { header: x-key }
    sinks: [ { name: first, type: log }, { name: second, type: log } ]
";

/// What a seed decides about its node, the same in all its lives.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Groups in flight.
    pub groups_inflight: usize,
    /// How a group is made durable.
    pub sync: SyncMode,
    /// Bytes of the cache for reads right after an ack.
    pub cache_bytes_max: usize,
    /// A checkpoint is due after so many segments.
    pub checkpoint_segments: u32,
}

impl Shape {
    /// The store's settings.
    pub fn store(&self, shard: usize) -> StoreConfig {
        StoreConfig {
            shard: ShardId(shard as u16),
            store_uuid: STORE_UUID,
            hash_key: HASH_KEY,
            segment_bytes: self.segment_bytes,
            sync: self.sync,
            groups_inflight: self.groups_inflight,
            group_bytes_max: 16 << 10,
            group_records_max: 32,
            min_free_bytes: 0,
            cache_bytes_max: self.cache_bytes_max,
            checkpoint_segments: self.checkpoint_segments,
            checkpoint_log_bytes: 1 << 20,
            relocate_below_percent: 40,
            ..StoreConfig::default()
        }
    }
}

fn config() -> &'static Arc<Config> {
    static CONFIG_READ: OnceLock<Arc<Config>> = OnceLock::new();
    CONFIG_READ.get_or_init(|| {
        let read = || {
            let mut file = tempfile::NamedTempFile::new()?;
            file.write_all(CONFIG.as_bytes())?;
            anyhow::Ok(load(Some(file.path()), &Env::of(&[]))?.config)
        };
        match read() {
            Ok(config) => Arc::new(config),
            Err(error) => panic!("the simulation's configuration: {error:#}"),
        }
    })
}

/// How far a node is.
pub enum Stage {
    /// Some core is not there yet.
    Booting,
    /// All cores serve.
    Serving,
    /// A core does not boot.
    Failed(Failure),
}

/// One core.
pub struct Core {
    /// Its process.
    pub host: Rc<SimHost>,
    /// Its shards, the home shard first.
    pub shards: RefCell<Vec<Rc<Shard<SimDisk>>>>,
    /// The pipeline, once it serves.
    pub ingest: RefCell<Option<Rc<Ingest<SimDisk>>>>,
    desk: Rc<Desk>,
    failure: RefCell<Option<Failure>>,
    is_open: Cell<bool>,
    may_serve: Cell<bool>,
}

impl Core {
    /// The claims it owns.
    pub fn desk(&self) -> &Rc<Desk> {
        &self.desk
    }
}

/// Why a core does not boot.
pub enum Failure {
    /// A shard does not open.
    Open(usize, OpenError),
    /// The steps of recovery refuse.
    Recovery(Refusal),
}

/// One life of the node.
pub struct Node {
    /// Its cores.
    pub cores: Vec<Rc<Core>>,
    log: Option<(Dual, Arc<NodeLog>)>,
    world: SimWorld,
    is_alive: Rc<Cell<bool>>,
    stopped: Rc<Cell<usize>>,
    unclean: Rc<Cell<usize>>,
    _wires: Rc<Wires>,
}

impl Node {
    /// Starts the boot of a node with so many cores over the shards' disks.
    pub fn start(
        world: &SimWorld,
        shape: Shape,
        disks: &[SimDisk],
        sinks: &Rc<Sinks>,
        cores: usize,
        dual: Option<&Dual>,
    ) -> Node {
        let is_alive = Rc::new(Cell::new(true));
        let wires = Wires::new(world, cores, Rc::clone(&is_alive));
        let registry = Registry::new(MetricsConfig {
            cores,
            sources: vec!["plain".into(), "keyed".into()],
            sinks: vec!["first".into(), "second".into()],
            with_intake: dual.is_some(),
        });
        let cores: Vec<Rc<Core>> = (0..cores)
            .map(|index| {
                let host = world.host();
                let (send, from) = (Rc::clone(&wires), Rc::clone(&host));
                let desk = Rc::new(Desk::new(
                    index as u16,
                    cores,
                    1 << 20,
                    DEADLINE_US,
                    Box::new(move |to, message| send.send(&from, (index, to), message)),
                ));
                wires.plug(index, &desk);
                Rc::new(Core {
                    host,
                    desk,
                    shards: RefCell::default(),
                    ingest: RefCell::default(),
                    failure: RefCell::default(),
                    is_open: Cell::new(false),
                    may_serve: Cell::new(dual.is_none()),
                })
            })
            .collect();
        let log = dual.map(|dual| (dual.clone(), dual.node_log(cores.len())));
        for (index, core) in cores.iter().enumerate() {
            let own: Vec<(usize, SimDisk)> = (index..disks.len())
                .step_by(cores.len())
                .map(|shard| (shard, disks[shard].clone()))
                .collect();
            let boot = boot(
                Rc::clone(core),
                index,
                shape,
                own,
                Rc::clone(sinks),
                Arc::clone(&registry),
                log.clone(),
            );
            core.host.spawn(TaskClass::Ingest, Box::pin(boot));
            core.host
                .spawn(TaskClass::Ingest, Box::pin(sweep(Rc::clone(core))));
        }
        if let Some((dual, node_log)) = &log {
            let (dual, node_log) = (dual.clone(), Arc::clone(node_log));
            let all = cores.clone();
            let lead = async move {
                let host = Rc::clone(&all[0].host);
                while !all.iter().all(|core| core.is_open.get()) {
                    host.sleep(Duration::from_millis(1)).await;
                }
                let recovered = dual.recover(all.clone(), config(), HASH_KEY).await;
                if let Err(refusal) = recovered {
                    *all[0].failure.borrow_mut() = Some(Failure::Recovery(refusal));
                    return;
                }
                for core in &all {
                    core.may_serve.set(true);
                }
                drop(all);
                dual.keep(host, node_log).await;
            };
            cores[0].host.spawn(TaskClass::Dispatch, Box::pin(lead));
        }
        Node {
            cores,
            log,
            world: world.clone(),
            is_alive,
            stopped: Rc::default(),
            unclean: Rc::default(),
            _wires: wires,
        }
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        for core in &self.cores {
            if let Some(failure) = core.failure.borrow_mut().take() {
                return Stage::Failed(failure);
            }
        }
        if self.cores.iter().all(|core| core.ingest.borrow().is_some()) {
            Stage::Serving
        } else {
            Stage::Booting
        }
    }

    /// Every shard that is open.
    pub fn shards(&self) -> Vec<Rc<Shard<SimDisk>>> {
        let all = self
            .cores
            .iter()
            .flat_map(|core| core.shards.borrow().clone());
        all.collect()
    }

    /// Begins a clean stop.
    pub fn stop(&self) {
        for core in &self.cores {
            let (core, stopped, unclean) = (
                Rc::clone(core),
                Rc::clone(&self.stopped),
                Rc::clone(&self.unclean),
            );
            let (host, log) = (Rc::clone(&core.host), self.log.clone());
            let end = async move {
                if let Some(ingest) = core.ingest.borrow().as_ref() {
                    ingest.close();
                }
                let shards = core.shards.borrow().clone();
                for shard in &shards {
                    let was_quiet = shard.dispatch.stop(Duration::from_secs(5)).await;
                    shard.commit.drain().await;
                    unclean.set(unclean.get() + usize::from(!was_quiet));
                }
                if let Some((dual, node_log)) = &log {
                    dual.ask_head(node_log).await;
                }
                for shard in shards {
                    if log.is_some() {
                        shard.commit.settle_marks(Duration::from_secs(2)).await;
                    }
                    if shard.store.close().await.is_err() {
                        unclean.set(unclean.get() + 1);
                    }
                }
                stopped.set(stopped.get() + 1);
            };
            host.spawn(TaskClass::Ingest, Box::pin(end));
        }
    }

    /// Whether the stop is over; `Some(true)`: everything was written down.
    pub fn is_stopped(&self) -> Option<bool> {
        (self.stopped.get() == self.cores.len()).then(|| self.unclean.get() == 0)
    }

    /// The process dies where it stands.
    pub fn kill(self) {
        self.is_alive.set(false);
        for core in &self.cores {
            self.world.kill(&core.host);
        }
        self.forget();
    }

    /// Lets go of everything after the world has been emptied.
    pub fn forget(self) {
        self.is_alive.set(false);
        for core in &self.cores {
            core.ingest.borrow_mut().take();
            core.shards.borrow_mut().clear();
        }
    }
}

async fn boot(
    core: Rc<Core>,
    index: usize,
    shape: Shape,
    own: Vec<(usize, SimDisk)>,
    sinks: Rc<Sinks>,
    registry: Arc<Registry>,
    log: Option<(Dual, Arc<NodeLog>)>,
) {
    let config = config();
    let host = Rc::clone(&core.host) as Rc<dyn Host>;
    let observer = match CoreObserver::new(&registry, index, config) {
        Ok(observer) => observer,
        Err(why) => panic!("{why}"),
    };
    let way = log
        .as_ref()
        .map(|(dual, node)| dual.core_log(node, index, &core.host, &core.desk, &observer.metrics));
    for (shard, disk) in own {
        let opened = Shard::open(ShardParts {
            disk,
            host: Rc::clone(&host),
            store: shape.store(shard),
            queue: QueueLimits {
                records_max: 256,
                bytes_max: 1 << 20,
                deadline_us: DEADLINE_US,
            },
            group: GroupLimits {
                bytes_max: 16 << 10,
                records_max: 32,
            },
            deliveries: Limits {
                inflight_max: 32,
                ..Limits::default()
            },
            sinks: sinks.of_shard(shard as u16),
            observer: Rc::clone(&observer),
            log: way.clone(),
        })
        .await;
        match opened {
            Ok(shard) => core.shards.borrow_mut().push(Rc::new(shard)),
            Err(error) => {
                *core.failure.borrow_mut() = Some(Failure::Open(shard, error));
                return;
            }
        }
    }
    let shards = core.shards.borrow().clone();
    for shard in &shards {
        let rest = || host.yield_now();
        let now_s = host.wall_ms() / 1000;
        if let Err(error) = shard.restore_claims(&core.desk, now_s, rest).await {
            *core.failure.borrow_mut() = Some(Failure::Open(usize::from(shard.id.0), error));
            return;
        }
    }
    core.is_open.set(true);
    while !core.may_serve.get() {
        host.sleep(Duration::from_millis(1)).await;
    }
    for shard in &shards {
        shard.restore_deferred(&core.desk, host.wall_ms() / 1000);
    }
    // IMPORTANT: after recovery, which remembers keys as well: each core's rows go before this.
    core.desk.rows_done();
    while !core.desk.has_all_rows() {
        host.sleep(Duration::from_millis(1)).await;
    }
    let Some(home) = shards.first() else { return };
    let sources = SourceTable::build(config, |tenant, source, name| {
        home.sink_no(tenant, source, name)
            .map_err(|e| e.to_string())
    });
    let sources = match sources {
        Ok(sources) => sources,
        Err(why) => panic!("{why}"),
    };
    let ingest = Ingest::new(IngestParts {
        host,
        sources: Rc::new(sources),
        desk: Rc::clone(&core.desk),
        commit: home.commit.clone(),
        core: index as u8,
        hash_key: HASH_KEY,
        limits: IngestLimits {
            body_bytes_max: 1 << 20,
            intake_retry_after_s: 2,
        },
        observer: observer as Rc<dyn ankusa_engine::ingest::Observer>,
        health_body: "{}",
        ready: Box::new(|| {
            Box::pin(async {
                Readiness {
                    ready: true,
                    body: String::new(),
                }
            })
        }),
        congested: Box::new(|| false),
    });
    for shard in &shards {
        shard.dispatch.start();
    }
    *core.ingest.borrow_mut() = Some(Rc::new(ingest));
}

async fn sweep(core: Rc<Core>) {
    loop {
        core.host.sleep(SWEEP).await;
        let now_s = (core.host.wall_ms() / 1000) as u32;
        core.desk.sweep(now_s, core.host.mono_us());
    }
}
