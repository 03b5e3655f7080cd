//! One core with one shard in dual mode, put together as a node would.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ankusa_intake::Class;
use ankusa_net::http1::{Handler, HeadDecision, Request};
use ankusa_wal::disk::sim::{Fate, Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::{Envelope, HookId, Host, SinkName, StoreConfig, TaskClass};

use super::script::{Mode, Script, ScriptPublisher};
use crate::claims::Desk;
use crate::commit::QueueLimits;
use crate::commit::driver::GroupLimits;
use crate::config::{Config, Env, load};
use crate::dispatch::{Attempt, Limits, Plan, RetryPolicy, SinkTable, Target};
use crate::dual::core_log::CoreLogParts;
use crate::dual::{ClaimStore, CoreLog, DualSettings, NodeLog, ShardLog};
use crate::ingest::{Ingest, IngestLimits, IngestParts, Observer, Readiness, SourceTable};
use crate::metrics::{MetricsConfig, Registry, SinkLabel};
use crate::node::observe::CoreObserver;
use crate::shard::{Shard, ShardParts};

const CONFIG: &str = "\
http: { ip: 127.0.0.1 }
sources:
  keyed:
    verify: { type: none }
    dedupe: { header: x-key }
    sinks: [ { name: out, type: log } ]
  plain:
    verify: { type: none }
    sinks: [ { name: out, type: log } ]
";

const HASH_KEY: [u8; 16] = [3; 16];

pub const UNAVAILABLE: Class = Class::Unavailable;

fn config() -> &'static Arc<Config> {
    static READ: OnceLock<Arc<Config>> = OnceLock::new();
    READ.get_or_init(|| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(CONFIG.as_bytes()).unwrap();
        Arc::new(load(Some(file.path()), &Env::of(&[])).unwrap().config)
    })
}

/// The settings of most tests; ceilings are large.
pub fn settings() -> DualSettings {
    DualSettings {
        publish_timeout_us: 2_000_000,
        reconcile_deadline_us: 20_000_000,
        breaker_failures: 1_000,
        probe_us: 1_000_000,
        offset_flush_us: 1_000_000,
        pending_max_records: 10_000,
        pending_max_bytes: 64 << 20,
        max_record_bytes: 16 << 10,
        group_bytes_max: 32 << 10,
    }
}

/// A sink that writes down which hooks it was given.
#[derive(Default)]
pub struct Given(pub RefCell<Vec<HookId>>);

impl Target for Given {
    fn deliver<'a>(
        &'a self,
        envelope: &'a [u8],
        _: Option<crate::replay::ReplayId>,
    ) -> Attempt<'a> {
        let id = Envelope::parse(envelope).unwrap().id;
        self.0.borrow_mut().push(id);
        Box::pin(async { crate::dispatch::Outcome::Delivered })
    }
}

struct OneSink(Rc<Given>, SinkLabel);

impl SinkTable for OneSink {
    fn plan(&self, _name: &SinkName) -> Option<Plan> {
        Some(Plan {
            target: Rc::clone(&self.0) as Rc<dyn Target>,
            concurrency: 8,
            retry: RetryPolicy::default(),
            timeout_ms: 1_000,
            paused: false,
            label: self.1,
        })
    }
}

/// A request on its way, and its answer.
#[derive(Default)]
pub struct Sent {
    pub answer: RefCell<Option<Answered>>,
    pub answered_us: Cell<u64>,
}

/// What the provider was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub status: u16,
    pub word: String,
    pub id: Option<HookId>,
    pub duplicate: bool,
    pub retry_after_s: Option<u64>,
}

impl Sent {
    pub fn answered(&self) -> Answered {
        self.answer.borrow().clone().expect("an answer")
    }

    pub fn is_open(&self) -> bool {
        self.answer.borrow().is_none()
    }

    /// Status and error word.
    pub fn told(&self) -> (u16, String) {
        let answered = self.answered();
        (answered.status, answered.word)
    }

    pub fn id(&self) -> HookId {
        self.answered().id.expect("an id")
    }
}

/// One life of a core with one shard.
pub struct Rig {
    pub world: SimWorld,
    pub host: Rc<SimHost>,
    pub disk: SimDisk,
    pub shard: Rc<Shard<SimDisk>>,
    pub node: Arc<NodeLog>,
    pub desk: Rc<Desk>,
    pub script: Rc<Script>,
    pub given: Rc<Given>,
    pub registry: Arc<Registry>,
    ingest: Rc<Ingest<SimDisk>>,
}

pub fn rig() -> Rig {
    rig_with(settings())
}

pub fn rig_with(settings: DualSettings) -> Rig {
    let world = SimWorld::new(1).in_order();
    let disk = SimDisk::new(&world, SimDiskConfig::new(1));
    let script = Script::new(&world);
    Rig::boot(world, disk, script, settings)
}

impl Rig {
    /// Boots over what the disk holds, without a replay of the log.
    pub fn boot(world: SimWorld, disk: SimDisk, script: Rc<Script>, settings: DualSettings) -> Rig {
        Rig::boot_with(world, disk, script, settings, None)
    }

    /// The same, with claims kept elsewhere than at the core's desk.
    pub fn boot_with(
        world: SimWorld,
        disk: SimDisk,
        script: Rc<Script>,
        settings: DualSettings,
        claims: Option<Rc<dyn ClaimStore>>,
    ) -> Rig {
        let host = world.host();
        let host_dyn = Rc::clone(&host) as Rc<dyn Host>;
        let registry = Registry::new(MetricsConfig {
            cores: 1,
            sources: vec!["keyed".into(), "plain".into()],
            with_intake: true,
            ..MetricsConfig::default()
        });
        let observer = CoreObserver::new(&registry, 0, config()).unwrap();
        let given = Rc::new(Given::default());
        let desk = Rc::new(Desk::new(0, 1, 1000, 15_000_000, Box::new(|_, _| {})));
        desk.rows_done();
        let node = NodeLog::new(settings, 1);
        node.note_head(script.head(), 0);
        let core = CoreLog::new(CoreLogParts {
            node: Arc::clone(&node),
            core: 0,
            publisher: Rc::new(ScriptPublisher(Rc::clone(&script))),
            host: Rc::clone(&host_dyn),
            claims: claims.unwrap_or_else(|| Rc::clone(&desk) as Rc<dyn ClaimStore>),
            metrics: Rc::clone(&observer.metrics),
        });
        core.start();
        let parts = ShardParts {
            disk: disk.clone(),
            host: Rc::clone(&host_dyn),
            store: StoreConfig {
                store_uuid: [5; 16],
                hash_key: HASH_KEY,
                segment_bytes: 256 << 10,
                group_bytes_max: 32 << 10,
                min_free_bytes: 0,
                ..StoreConfig::default()
            },
            queue: QueueLimits {
                records_max: 1000,
                bytes_max: 8 << 20,
                deadline_us: 15_000_000,
            },
            group: GroupLimits {
                bytes_max: 32 << 10,
                records_max: 64,
            },
            deliveries: Limits::default(),
            sinks: Rc::new(OneSink(Rc::clone(&given), registry.sink("x"))),
            observer: Rc::clone(&observer),
            log: Some(Rc::clone(&core)),
        };
        let shard = Rc::new(world.block_on(Shard::open(parts)).unwrap().unwrap());
        let restored = shard.restore_claims(&desk, host.wall_ms() / 1000, || async {});
        world.block_on(restored).unwrap().unwrap();
        let sources = SourceTable::build(config(), |tenant, source, name| {
            let no = shard.sink_no(tenant, source, name);
            no.map_err(|e| e.to_string())
        });
        let ingest = Rc::new(Ingest::new(IngestParts {
            host: host_dyn,
            sources: Rc::new(sources.unwrap()),
            desk: Rc::clone(&desk),
            commit: shard.commit.clone(),
            core: 0,
            hash_key: HASH_KEY,
            limits: IngestLimits {
                body_bytes_max: 1 << 20,
                intake_retry_after_s: 2,
            },
            observer: observer as Rc<dyn Observer>,
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
        }));
        let rig = Rig {
            world,
            host,
            disk,
            shard,
            node,
            desk,
            script,
            given,
            registry,
            ingest,
        };
        let flush = rig.shard.commit.flush(Duration::from_secs(5));
        assert!(rig.world.block_on(flush).unwrap());
        rig
    }

    /// The end of a boot: what the log lacks is published, then hooks are delivered.
    pub fn serve(self) -> Rig {
        self.log().offset_may_move();
        let republished = self.shard.republish_local(|_| false);
        self.world.block_on(republished).unwrap();
        self.shard.dispatch.start();
        self.run_ms(50);
        self
    }

    /// The next life of the node over what was durable when this one was cut off.
    pub fn crash(&self) -> Rig {
        self.crash_drawn(SimWorld::new(2).in_order(), 0)
    }

    /// The same in another world, with one of the ways in which what was not flushed may be lost.
    pub fn crash_drawn(&self, world: SimWorld, draw: u64) -> Rig {
        let snapshot = self.disk.snapshot();
        let modes = snapshot.modes(draw, 4);
        let image = snapshot.image(&modes[draw as usize % modes.len()]);
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(2), &image);
        let script = Script::new(&world);
        *script.landed.borrow_mut() = self.script.landed.borrow().clone();
        Rig::boot(world, disk, script, settings())
    }

    pub fn log(&self) -> &Rc<ShardLog> {
        self.shard.log().unwrap()
    }

    pub fn run_ms(&self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    pub fn post(&self, key: &str) -> Rc<Sent> {
        self.send("keyed", key, b"body")
    }

    pub fn send(&self, source: &str, key: &str, body: &[u8]) -> Rc<Sent> {
        let head = format!(
            "POST /webhooks/{source} HTTP/1.1\r\nhost: node\r\nx-key: {key}\r\ncontent-length: \
             {}\r\n\r\n",
            body.len(),
        );
        let peer = ([127, 0, 0, 1], 40_000).into();
        let request = Request::of(head.into(), body.to_vec().into(), peer).unwrap();
        let sent = Rc::new(Sent::default());
        let (ingest, told, host) = (
            Rc::clone(&self.ingest),
            Rc::clone(&sent),
            Rc::clone(&self.host),
        );
        let task = async move {
            let response = match ingest.on_head(&request.head()) {
                HeadDecision::Body { admitted, .. } => ingest.handle(request, admitted).await,
                HeadDecision::Refuse(response) => response,
            };
            let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            told.answered_us.set(host.mono_us());
            *told.answer.borrow_mut() = Some(Answered {
                status: response.status(),
                word: json["error"].as_str().unwrap_or_default().to_owned(),
                id: json["id"].as_str().and_then(HookId::parse),
                duplicate: json["duplicate"] == true,
                retry_after_s: response.retry_after_s(),
            });
        };
        self.host.spawn(TaskClass::Ingest, Box::pin(task));
        sent
    }

    /// Posts, and runs until it is answered.
    pub fn posted(&self, key: &str) -> Rc<Sent> {
        let sent = self.post(key);
        self.until(|| !sent.is_open());
        sent
    }

    pub fn until(&self, reached: impl FnMut() -> bool) {
        self.world.run_until(reached).unwrap();
    }

    /// The next sync of a file, and those after it, meet these faults.
    pub fn syncs_meet(&self, faults: &[Fault]) {
        let log = self.disk.log();
        let done = log.iter().filter(|op| op.kind == OpKind::SyncData).count() as u64;
        let plan = faults
            .iter()
            .enumerate()
            .fold(FaultPlan::none(), |plan, (at, fault)| {
                plan.nth(OpKind::SyncData, done + at as u64, *fault)
            });
        self.disk.set_faults(plan);
    }

    /// The next group is fenced.
    pub fn next_sync_fails(&self) {
        self.syncs_meet(&[Fault::Error(libc::EIO, Fate::Kept)]);
    }

    /// What was delivered, in the order of deliveries.
    pub fn delivered(&self) -> Vec<HookId> {
        self.given.0.borrow().clone()
    }

    /// Ids in the log, in order.
    pub fn logged(&self) -> Vec<HookId> {
        self.script.landed.borrow().iter().map(|r| r.id).collect()
    }

    /// The log is down: whatever is published fails soon.
    pub fn log_down(&self) {
        self.script.set(Mode::Fail(UNAVAILABLE, 1));
    }

    pub fn log_up(&self) {
        self.script.set(Mode::Confirm(1));
    }

    /// A counter or gauge as rendered.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.registry.render();
        let found = text.lines().find_map(|l| l.strip_prefix(line));
        found.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    /// The watermark and offset as the store has them.
    pub fn stored_marks(&self) -> (u64, Vec<u64>, Option<u64>) {
        let state = self.shard.store.state();
        let meta = state.meta();
        let exceptions = meta.watermark.exceptions.iter().map(|s| s.0).collect();
        (
            meta.watermark.seq.0,
            exceptions,
            meta.offset.offset.map(|o| o.0),
        )
    }
}

impl Rig {
    /// The number of the sink of both sources.
    pub fn sink(&self) -> ankusa_wal::SinkNo {
        self.shard.sink_no(b"default", b"keyed", b"out").unwrap()
    }

    /// Nothing but marks was written since `records` were.
    pub fn nothing_was_written(&self, records: u64) {
        self.run_ms(100);
        assert_eq!(self.shard.store.stats().records, records);
        assert_eq!(self.desk.counts().1, 0, "no claim is open");
        assert_eq!(self.log().facts().carried, 0);
        assert!(self.logged().is_empty() && self.delivered().is_empty());
    }

    /// What was delivered once so many were.
    pub fn delivered_after(&self, count: usize) -> Vec<HookId> {
        self.until(|| self.given.0.borrow().len() >= count);
        self.delivered()
    }
}
