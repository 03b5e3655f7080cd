//! One core of the node: everything it owns, from boot to its clean end.
//!
//! The core's shards, its claims, its listener and its tasks live here and nowhere else; other
//! cores reach it only through the mesh.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use ankusa_net::Listener;
use ankusa_net::client::{Client, ClientConfig, TlsClient};
use ankusa_net::dns::{Resolver, ResolverThreads};
use ankusa_net::http1::{Gauges, Limits, Server};
use ankusa_net::web::WebServer;
use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::StoreFacts;
use ankusa_wal::{Host, TaskClass, mutations};
use futures_lite::FutureExt;

use crate::admin::Admin;
use crate::backup::{Backups, pins::Pins};
use crate::claims::Desk;
use crate::config::{Config, SourceConfig};
use crate::dual::CoreLog;
use crate::dual::core_log::CoreLogParts;
use crate::ingest::{Ingest, IngestParts, SourceTable};
use crate::mesh::{Mesh, Port};
use crate::metrics::Registry;
use crate::recover::HomeKeeper;
use crate::recover::revive::Sources;
use crate::reload::{self, Prepared};
use crate::runtime::CoreHost;
use crate::shard::Shard;
use crate::sinks::{CoreSinks, FileWriters, SinkContext};

use super::ask::Asks;
use super::beats::Beats;
use super::log::{self, Intake, Way};
use super::message::{Event, Message};
use super::observe::CoreObserver;
use super::open::{all_claims, open_shards, restore_claims};
use super::ready::{self, ReadyCache};
use super::stop::shut_down;

/// How often deadlines of claims and held-back messages are looked at.
pub(super) const SWEEP: Duration = Duration::from_millis(100);

/// What a core is started with.
pub struct Start {
    /// Its number.
    pub index: usize,
    /// The configuration.
    pub config: Arc<Config>,
    /// The node-wide facts of the store.
    pub facts: StoreFacts,
    /// Where they are kept and changed.
    pub home: HomeKeeper,
    /// The way to the other cores.
    pub mesh: Mesh<Message>,
    /// The way to the main thread.
    pub events: Sender<Event>,
    /// The node's metrics.
    pub registry: Arc<Registry>,
    /// The body of `GET /health`.
    pub health_body: &'static str,
    /// What its sinks reach the world with.
    pub outside: Outside,
    /// Where it says that it comes round.
    pub beats: Beats,
    /// The node's intake log, where the mode has one.
    pub intake: Option<Arc<Intake>>,
    /// The node's backups.
    pub backups: Backups,
}

/// What the sinks of a core reach the world with.
#[derive(Clone)]
pub struct Outside {
    /// Threads that look names up.
    pub resolver: ResolverThreads,
    /// Trust for sinks over TLS.
    pub tls: Option<TlsClient>,
    /// The writers of files.
    pub files: FileWriters,
}

/// A core, as its own tasks see it.
pub struct Core {
    /// Its number.
    pub index: usize,
    /// Time, tasks and randomness.
    pub host: Rc<CoreHost>,
    /// The configuration in force.
    pub config: RefCell<Arc<Config>>,
    /// Its place in the mesh.
    pub port: Rc<Port<Message>>,
    /// Its claims.
    pub desk: Rc<Desk>,
    /// Its shards, the home shard first.
    pub shards: RefCell<Vec<Rc<Shard<GlommioDisk>>>>,
    /// How many shards the node has.
    pub shards_of_node: usize,
    /// The node-wide facts of the store, as it was opened.
    pub facts: StoreFacts,
    /// Where they are kept and changed.
    pub keeper: HomeKeeper,
    /// The node's intake log, where the mode has one.
    pub intake: Option<Arc<Intake>>,
    /// This core's side of it.
    pub log: RefCell<Option<Rc<CoreLog>>>,
    /// Its publisher, open or not.
    pub way: RefCell<Option<Rc<Way>>>,
    /// Its shards are open.
    pub is_open: Cell<bool>,
    /// The steps before the node serves are done.
    pub may_serve: Flag,
    /// The node's backups.
    pub backups: Backups,
    /// What it keeps for one that is under way.
    pub pins: Pins,
    /// Its cells.
    pub observer: Rc<CoreObserver>,
    /// The pipeline, once it serves.
    pub ingest: RefCell<Option<Rc<Ingest<GlommioDisk>>>>,
    /// The last answer to who asked whether it is ready.
    pub ready: ReadyCache,
    events: Sender<Event>,
    /// What its sinks reach the world with.
    pub outside: Outside,
    /// A configuration that it has made ready, and waits to put in place.
    pub prepared: reload::Place<Prepared>,
    /// Its questions to other cores.
    pub asks: Asks,
    /// The admin port, on the core that serves it.
    pub admin: RefCell<Option<WebServer>>,
    server: RefCell<Option<Arc<Gauges>>>,
    is_serving: Cell<bool>,
    stopping: Cell<bool>,
}

/// Runs a core from boot to its end. Its outcome goes to the main thread as events.
pub async fn run(start: Start) {
    let (index, events) = (start.index, start.events.clone());
    let told = match live(start).await {
        Ok(why) => Event::Stopped { core: index, why },
        Err(why) => Event::Failed { core: index, why },
    };
    // The main thread is gone only when the process ends.
    let _ = events.send(told);
    // The core goes on answering the claims of cores that are still stopping; it ends with the
    // process.
    std::future::pending::<()>().await;
}

/// Why it did not stop cleanly, if it did not. `Err`: it could not go on.
async fn live(start: Start) -> Result<Option<String>, String> {
    let (core, stop) = open(&start).await?;
    let admin = match core.index {
        0 => Some(Admin::start(&core)?),
        _ => None,
    };
    if let Some(intake) = core.intake.clone() {
        let stopped = async {
            stop.wait().await;
            Ok(false)
        };
        let booted = async { log::boot(&core, &intake).await.map(|()| true) };
        if !booted.or(stopped).await? {
            return Ok(shut_down(&core, None).await);
        }
        all_claims(&core).await;
    }
    let server = begin(&core, start, admin).await?;
    stop.wait().await;
    Ok(shut_down(&core, Some(server)).await)
}

/// Opens the core: what it owns, its shards, the claims of all cores' shards.
async fn open(start: &Start) -> Result<(Rc<Core>, Rc<Flag>), String> {
    let config = Arc::clone(&start.config);
    let host = CoreHost::new();
    let port = Rc::new(Port::new(start.mesh.clone(), start.index));
    let cores = port.cores();
    let observer = CoreObserver::new(&start.registry, start.index, &config)?;
    let send = Rc::clone(&port);
    let desk = Rc::new(Desk::new(
        start.index as u16,
        cores,
        (config.dedupe.max_keys as usize).div_ceil(cores),
        config.http.limits.request_deadline_ms * 1000,
        Box::new(move |to, message| send.send(to, Message::Claim(message))),
    ));
    let core = Rc::new(Core {
        index: start.index,
        host: Rc::clone(&host),
        config: RefCell::new(Arc::clone(&config)),
        port,
        desk,
        shards: RefCell::default(),
        shards_of_node: usize::from(start.facts.shards),
        facts: start.facts.clone(),
        keeper: start.home.clone(),
        intake: start.intake.clone(),
        log: RefCell::new(None),
        way: RefCell::new(None),
        is_open: Cell::new(false),
        may_serve: Flag::default(),
        observer,
        ingest: RefCell::new(None),
        ready: ReadyCache::default(),
        events: start.events.clone(),
        outside: start.outside.clone(),
        backups: start.backups.clone(),
        pins: Pins::default(),
        prepared: reload::Place::default(),
        asks: Asks::default(),
        admin: RefCell::new(None),
        server: RefCell::new(None),
        is_serving: Cell::new(false),
        stopping: Cell::new(false),
    });
    let stop = Rc::new(Flag::default());
    host.start(
        TaskClass::Ingest,
        receive(Rc::clone(&core), Rc::clone(&stop)),
    );
    host.start(
        TaskClass::Ingest,
        sweep(Rc::clone(&core), start.beats.clone()),
    );

    if let Some(intake) = &core.intake {
        make_way(&core, intake);
    }
    let sinks = Rc::new(core.sinks(&config)?);
    let lines = open_shards(&core, &start.facts, &sinks).await?;
    mutations::point("boot.opened");
    restore_claims(&core).await?;
    mutations::point("boot.claims_restored");
    let _ = start.events.send(Event::Opened {
        core: start.index,
        lines,
    });
    if core.intake.is_none() {
        all_claims(&core).await;
    }
    core.is_open.set(true);
    Ok((core, stop))
}

/// The core's side of the intake log; its publisher comes when the partition is known.
fn make_way(core: &Rc<Core>, intake: &Arc<Intake>) {
    let way = Rc::new(Way::default());
    let log = CoreLog::new(CoreLogParts {
        node: Arc::clone(&intake.log),
        core: core.index,
        publisher: Rc::clone(&way) as Rc<dyn ankusa_intake::Publisher>,
        host: Rc::clone(&core.host) as Rc<dyn Host>,
        claims: Rc::clone(&core.desk) as Rc<dyn crate::dual::ClaimStore>,
        metrics: Rc::clone(&core.observer.metrics),
    });
    log.start();
    *core.way.borrow_mut() = Some(way);
    *core.log.borrow_mut() = Some(log);
}

/// Takes hooks and delivers them from here on.
async fn begin(core: &Rc<Core>, start: Start, admin: Option<SocketAddr>) -> Result<Server, String> {
    let start = Rc::new(start);
    let (serving, with) = (Rc::clone(core), Rc::clone(&start));
    let server = core
        .host
        .within(
            TaskClass::Ingest,
            async move { serve(&serving, &with).await },
        )
        .await
        .ok_or("the ingest queue is gone")??;
    for shard in core.shards.borrow().iter() {
        shard.dispatch.start();
        let host = Rc::clone(&core.host) as Rc<dyn Host>;
        let shards = u64::from(start.facts.shards);
        crate::replay::start(&host, Rc::clone(shard), shards, sources_of(core));
    }
    mutations::point("boot.listening");
    core.is_serving.set(true);
    let _ = start.events.send(Event::Serving {
        core: start.index,
        ingest: server.local_addr(),
        admin,
    });
    Ok(server)
}

/// The sinks of a source, in the configuration in force whenever it is asked.
fn sources_of(core: &Rc<Core>) -> Sources {
    let core = Rc::clone(core);
    Rc::new(move |tenant, name| {
        let config = core.config.borrow();
        let is_it = |source: &&SourceConfig| {
            source.tenant.as_bytes() == tenant && source.name.as_bytes() == name
        };
        let source = config.sources.iter().find(is_it)?;
        let sinks = source.sinks.iter();
        Some(sinks.map(|sink| sink.name.as_bytes().into()).collect())
    })
}

async fn serve(core: &Rc<Core>, start: &Start) -> Result<Server, String> {
    let config = Arc::clone(&core.config.borrow());
    let home = core.home()?;
    let sources = SourceTable::build(&config, |tenant, source, name| {
        home.sink_no(tenant, source, name)
            .map_err(|e| e.to_string())
    })?;
    // IMPORTANT: a hook is acked only when the numbers of its sinks are durable as well. Queued
    // records ride in groups a part at a time, so a hook could overtake them.
    while !home.commit.flush(Duration::from_secs(5)).await {
        tracing::warn!(
            core = core.index,
            "the numbers of new sinks are not on the disk yet"
        );
    }
    mutations::point("boot.sinks_numbered");
    let port = Rc::clone(&core.port);
    let ready_core = Rc::clone(core);
    let ingest = Rc::new(Ingest::new(IngestParts {
        host: Rc::clone(&core.host) as Rc<dyn Host>,
        sources: Rc::new(sources),
        desk: Rc::clone(&core.desk),
        commit: home.commit.clone(),
        core: core.index as u8,
        hash_key: start.facts.hash_key.0,
        limits: reload::ingest_limits(&config),
        observer: Rc::clone(&core.observer) as Rc<dyn crate::ingest::Observer>,
        health_body: start.health_body,
        ready: Box::new(move || ready::ask(&ready_core)),
        congested: Box::new(move || port.held_back() > 0),
    }));
    let address = SocketAddr::new(config.http.ip, config.http.port);
    let listener = Listener::bind(address).map_err(|e| e.to_string())?;
    let limits = http_limits(&config, core.port.cores());
    let server = Server::start(listener, Rc::clone(&ingest), limits).map_err(|e| e.to_string())?;
    *core.server.borrow_mut() = Some(server.gauges());
    *core.ingest.borrow_mut() = Some(ingest);
    Ok(server)
}

fn http_limits(config: &Config, cores: usize) -> Limits {
    let limits = &config.http.limits;
    Limits {
        connections_max: (limits.connections as usize).div_ceil(cores.max(1)),
        head_bytes_max: limits.head_bytes as usize,
        headers_max: limits.header_count as usize,
        first_byte_ms: limits.first_byte_timeout_ms,
        head_ms: limits.head_timeout_ms,
        body_ms: limits.body_timeout_ms,
        idle_ms: limits.idle_timeout_ms,
        body_bytes_held_max: body_bytes_held_max(config, cores),
        ..Limits::default()
    }
}

/// What the bodies being received on one core may hold: as much as what waits to be committed, and
/// at least one body. Fixed when the listener starts.
pub fn body_bytes_held_max(config: &Config, cores: usize) -> u64 {
    let share = config.queue.max_bytes / cores.max(1) as u64;
    share.max(config.http.max_body_bytes)
}

impl Core {
    /// The shard that takes this core's new hooks.
    pub fn home(&self) -> Result<Rc<Shard<GlommioDisk>>, String> {
        let shards = self.shards.borrow();
        shards
            .first()
            .cloned()
            .ok_or_else(|| format!("core {} has no shard", self.index))
    }

    /// The sinks of a configuration, on this core.
    pub fn sinks(&self, config: &Config) -> Result<CoreSinks, String> {
        let outside = &self.outside;
        let context = SinkContext {
            host: Rc::clone(&self.host) as Rc<dyn Host>,
            client: Client::new(ClientConfig {
                tls: outside.tls.clone(),
                ..ClientConfig::default()
            }),
            resolver: Resolver::new(outside.resolver.clone()),
            egress: Rc::new(config.egress.clone()),
            files: outside.files.clone(),
        };
        let registry = self.observer.metrics.registry();
        CoreSinks::build(config, &context, self.port.cores(), |name| {
            registry.sink(name)
        })
        .map_err(|e| e.to_string())
    }

    /// Tells the main thread something.
    pub fn tell(&self, event: Event) {
        // It is gone only when the process ends.
        let _ = self.events.send(event);
    }

    /// Whether the core takes hooks.
    pub fn is_serving(&self) -> bool {
        self.is_serving.get()
    }

    /// It is on its way down from here on.
    pub(super) fn begin_stop(&self) {
        self.stopping.set(true);
    }

    /// Whether the core is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
}

async fn receive(core: Rc<Core>, stop: Rc<Flag>) {
    let mut batch = Vec::new();
    loop {
        core.port.receive(&mut batch).await;
        let now_s = (core.host.wall_ms() / 1000) as u32;
        for message in batch.drain(..) {
            match message {
                Message::Claim(message) => core.desk.receive(message, now_s),
                Message::Call(call) => call(&core),
                Message::Stop => stop.set(),
            }
        }
        futures_lite::future::yield_now().await;
    }
}

async fn sweep(core: Rc<Core>, beats: Beats) {
    loop {
        core.host.sleep(SWEEP).await;
        beats.beat(core.index);
        let now_s = (core.host.wall_ms() / 1000) as u32;
        core.desk.sweep(now_s, core.host.mono_us());
        core.port.flush();
        core.observer.sample(&core, core.server.borrow().as_deref());
    }
}

/// Set once; waited for by one task.
#[derive(Default)]
pub struct Flag {
    set: Cell<bool>,
    waker: RefCell<Option<std::task::Waker>>,
}

impl Flag {
    /// Sets it.
    pub fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Completes once it is set.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn wait(&self) {
        std::future::poll_fn(|cx| {
            if self.set.get() {
                return std::task::Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}
