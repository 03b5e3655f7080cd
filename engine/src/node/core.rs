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
use ankusa_wal::home::{StoreFacts, shard_dir};
use ankusa_wal::{Host, ShardId, TaskClass};

use crate::admin::Admin;
use crate::claims::Desk;
use crate::config::Config;
use crate::dispatch;
use crate::ingest::{Ingest, IngestParts, SourceTable};
use crate::mesh::{Mesh, Port};
use crate::metrics::Registry;
use crate::reload::{self, Prepared};
use crate::runtime::CoreHost;
use crate::shard::{self, Shard, ShardParts};
use crate::sinks::{CoreSinks, FileWriters, SinkContext};

use super::ask::Asks;
use super::beats::Beats;
use super::message::{Event, Message};
use super::observe::CoreObserver;
use super::ready::{self, ReadyCache};

/// How often deadlines of claims and held-back messages are looked at.
pub(super) const SWEEP: Duration = Duration::from_millis(100);

/// How long answers of the admin port may take to go out at a stop.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

/// What a core is started with.
pub struct Start {
    /// Its number.
    pub index: usize,
    /// The configuration.
    pub config: Arc<Config>,
    /// The node-wide facts of the store.
    pub facts: StoreFacts,
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
    pub prepared: RefCell<Option<Prepared>>,
    /// Its questions to other cores.
    pub asks: Asks,
    /// The admin port, on the core that serves it.
    pub admin: RefCell<Option<WebServer>>,
    server: RefCell<Option<Arc<Gauges>>>,
    stopping: Cell<bool>,
}

/// Runs a core from boot to its end. Its outcome goes to the main thread as events.
pub async fn run(start: Start) {
    let (index, events) = (start.index, start.events.clone());
    let told = match boot(start).await {
        Ok((core, server, stop)) => {
            stop.wait().await;
            let why = shut_down(&core, server).await;
            Event::Stopped { core: index, why }
        }
        Err(why) => Event::Failed { core: index, why },
    };
    // The main thread is gone only when the process ends.
    let _ = events.send(told);
    // The core goes on answering the claims of cores that are still stopping; it ends with the
    // process.
    std::future::pending::<()>().await;
}

async fn boot(start: Start) -> Result<(Rc<Core>, Server, Rc<StopFlag>), String> {
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
        observer,
        ingest: RefCell::new(None),
        ready: ReadyCache::default(),
        events: start.events.clone(),
        outside: start.outside.clone(),
        prepared: RefCell::new(None),
        asks: Asks::default(),
        admin: RefCell::new(None),
        server: RefCell::new(None),
        stopping: Cell::new(false),
    });
    let stop = Rc::new(StopFlag::default());
    host.start(
        TaskClass::Ingest,
        receive(Rc::clone(&core), Rc::clone(&stop)),
    );
    host.start(
        TaskClass::Ingest,
        sweep(Rc::clone(&core), start.beats.clone()),
    );

    let sinks = Rc::new(core.sinks(&config)?);
    let lines = open_shards(&core, &start.facts, &sinks).await?;
    restore_claims(&core).await?;
    let _ = start.events.send(Event::Opened {
        core: start.index,
        lines,
    });
    while !core.desk.has_all_rows() {
        host.sleep(Duration::from_millis(1)).await;
    }
    let start = Rc::new(start);
    let (serving, with) = (Rc::clone(&core), Rc::clone(&start));
    let server = host
        .within(
            TaskClass::Ingest,
            async move { serve(&serving, &with).await },
        )
        .await
        .ok_or("the ingest queue is gone")??;
    for shard in core.shards.borrow().iter() {
        shard.dispatch.start();
        let host = Rc::clone(&core.host) as Rc<dyn Host>;
        crate::replay::start(&host, Rc::clone(shard), u64::from(start.facts.shards));
    }
    let admin = match start.index {
        0 => Some(Admin::start(&core)?),
        _ => None,
    };
    let _ = start.events.send(Event::Serving {
        core: start.index,
        ingest: server.local_addr(),
        admin,
    });
    Ok((core, server, stop))
}

/// Opens the shards of this core: those whose number is its own modulo the cores. The first is
/// its home, which takes new hooks; the others drain.
async fn open_shards(
    core: &Rc<Core>,
    facts: &StoreFacts,
    sinks: &Rc<CoreSinks>,
) -> Result<Vec<String>, String> {
    let config = Arc::clone(&core.config.borrow());
    let cores = core.port.cores();
    let mut lines = Vec::new();
    for number in (core.index..usize::from(facts.shards)).step_by(cores.max(1)) {
        let id = ShardId(number as u16);
        let dir = shard_dir(&config.node.data_dir, id);
        let fault = |why: &dyn std::fmt::Display| format!("shard {id} ({}): {why}", dir.display());
        let disk = GlommioDisk::open(&dir).map_err(|e| fault(&e))?;
        let shard = Shard::open(ShardParts {
            disk,
            host: Rc::clone(&core.host) as Rc<dyn Host>,
            store: shard::store_config(&config, facts, id),
            queue: shard::queue_limits(&config, cores),
            group: shard::group_limits(&config),
            // A core with several shards has several schedulers.
            deliveries: dispatch::limits(&config.dispatch, cores.max(usize::from(facts.shards))),
            sinks: Rc::clone(sinks) as Rc<dyn crate::dispatch::SinkTable>,
            observer: Rc::clone(&core.observer),
            log: None,
        })
        .await
        .map_err(|e| fault(&e))?;
        lines.push(format!(
            "shard {id}: {} live hooks, {} frames scanned ({} bytes), {} rewritten, {} dropped",
            shard.report.live_hooks,
            shard.report.frames_scanned,
            shard.report.bytes_scanned,
            shard.report.frames_rewritten,
            shard.report.frames_dropped,
        ));
        core.shards.borrow_mut().push(Rc::new(shard));
    }
    Ok(lines)
}

/// Streams the live dedupe rows of this core's shards to the cores that own their keys. A row that
/// cannot be read costs a duplicate, never a hook: it is said, and the boot goes on.
async fn restore_claims(core: &Rc<Core>) -> Result<(), String> {
    let now_s = core.host.wall_ms() / 1000;
    let shards = core.shards.borrow().clone();
    for shard in shards {
        let rest = || rest(core);
        let restored = shard.restore_claims(&core.desk, now_s, rest).await;
        restored.map_err(|error| format!("shard {}: {error}", shard.id))?;
    }
    core.desk.rows_done();
    Ok(())
}

/// The rows of other cores wait in the mesh; do not run ahead of it.
async fn rest(core: &Rc<Core>) {
    while core.port.held_back() > 0 {
        core.port.flush();
        core.host.sleep(Duration::from_millis(1)).await;
    }
    if core.host.must_yield() {
        core.host.yield_now().await;
    }
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
        // What is being received may hold as much as what waits to be committed, and one body.
        body_bytes_held_max: (config.queue.max_bytes / cores.max(1) as u64)
            .max(config.http.max_body_bytes),
        ..Limits::default()
    }
}

/// Stops taking requests, lets those in flight end, and closes the shards. Requests and deliveries
/// have the same time to end in, side by side.
async fn shut_down(core: &Rc<Core>, server: Server) -> Option<String> {
    let grace = Duration::from_millis(core.config.borrow().node.shutdown_ms);
    core.stopping.set(true);
    if let Some(ingest) = core.ingest.borrow().as_ref() {
        ingest.close();
    }
    let shards = core.shards.borrow().clone();
    for shard in &shards {
        shard.dispatch.begin_stop();
    }
    let began_us = core.host.mono_us();
    let report = server.stop(grace).await;
    let mut faults = Vec::new();
    if report.connections_left > 0 {
        faults.push(format!(
            "{} connections were still busy",
            report.connections_left
        ));
    }
    for shard in shards {
        let taken_us = core.host.mono_us().saturating_sub(began_us);
        let left = grace.saturating_sub(Duration::from_micros(taken_us));
        if !shard.dispatch.stop(left).await {
            faults.push(format!(
                "shard {}: deliveries were still under way",
                shard.id
            ));
        }
        shard.commit.drain().await;
        if let Err(error) = shard.store.close().await {
            faults.push(format!("shard {}: {error}", shard.id));
        }
    }
    // Last, so that the way down can be watched.
    let admin = core.admin.borrow_mut().take();
    if let Some(admin) = admin {
        admin.stop(ADMIN_GRACE).await;
    }
    (!faults.is_empty()).then(|| faults.join("; "))
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

    /// Whether the core is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
}

async fn receive(core: Rc<Core>, stop: Rc<StopFlag>) {
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

/// Set once; waited for by the core's main task.
#[derive(Default)]
pub struct StopFlag {
    set: Cell<bool>,
    waker: RefCell<Option<std::task::Waker>>,
}

impl StopFlag {
    fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
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
