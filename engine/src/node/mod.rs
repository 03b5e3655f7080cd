//! The node: boot, cores, signals, the clean end. The room where everything meets, kept small:
//! what a core does is in [`core`], what is checked first in [`boot`].
//!
//! The main thread only waits: for cores that report and for signals.

pub mod ask;
pub mod beats;
pub mod boot;
pub mod core;
pub mod log;
pub mod message;
pub mod observe;

mod banner;
mod open;
mod process;
pub(crate) mod ready;
mod signals;
mod stop;
mod systemd;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ankusa_net::client::TlsClient;
use ankusa_net::dns::ResolverThreads;
use ankusa_net::ensure_unclaimed;
use ankusa_wal::TaskClass;
use tracing::level_filters::LevelFilter;

use crate::backup::Backups;
use crate::config::{Config, LogFormat, LogLevel};
use crate::exit::Exit;
use crate::logging::{LineFormat, Log};
use crate::mesh::Mesh;
use crate::metrics::{MetricsConfig, Registry};
use crate::recover::HomeKeeper;
use crate::reload::{self, Next, ReloadNo, Round};
use crate::runtime;
use crate::sinks::FileWriters;

use self::beats::Beats;
use self::core::{Outside, Start};
use message::{Event, Message};
use systemd::Watchdog;

/// How long the listener of a node that was killed a moment ago may still be there.
const CLAIM_PATIENCE: Duration = Duration::from_secs(3);

/// How long the last log lines may take to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// How long the cores may take to make a new configuration ready.
const PREPARE_PATIENCE: Duration = Duration::from_secs(10);

/// How long the last backup of a clean stop may take.
const BACKUP_PATIENCE: Duration = Duration::from_secs(60);

/// What is left after `node.shutdown_ms` before the process ends without its cores.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(10);

/// Sets logging up, runs the node, and writes out what was logged last.
pub fn serve_logged(config: Config) -> Exit {
    let log = match Log::start(level(config.log.level), format(config.log.format)) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("ankusa: {error}");
            return Exit::Failure;
        }
    };
    let exit = serve(config, &log);
    log.close(LOG_PATIENCE);
    exit
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    }
}

fn format(format: LogFormat) -> LineFormat {
    let is_terminal = std::io::stderr().is_terminal();
    match format {
        LogFormat::Json => LineFormat::Json,
        LogFormat::Auto if !is_terminal => LineFormat::Json,
        LogFormat::Text | LogFormat::Auto => LineFormat::Text {
            with_colours: is_terminal,
        },
    }
}

/// Runs a node until a signal stops it.
pub fn serve(config: Config, log: &Log) -> Exit {
    let prepared = match boot::prepare(&config) {
        Ok(prepared) => prepared,
        Err(why) => return fail(&why),
    };
    let (home, cpus) = (HomeKeeper::new(prepared.home), prepared.cpus);
    let config = Arc::new(config);
    for (ip, port) in [
        (config.http.ip, config.http.port),
        (config.admin.ip, config.admin.port),
    ] {
        // Every core binds the same address, so a second node would bind it too, silently.
        if let Err(error) = ensure_unclaimed(SocketAddr::new(ip, port), CLAIM_PATIENCE) {
            return fail(&error.to_string());
        }
    }
    let cores = cpus.len();
    let intake = match self::log::Intake::open(&config, cores) {
        Ok(intake) => intake,
        Err(why) => return fail(&why),
    };
    // Under `dual` the promise is said when the log was seen to keep its part.
    if intake.is_none() {
        let backups = config.backup.enabled.then_some(config.backup.interval_ms);
        tracing::info!(
            "{}",
            banner::durability_line(&config.node.data_dir, backups)
        );
    }
    let registry = Registry::new(MetricsConfig {
        cores,
        sources: config.sources.iter().map(|s| s.name.clone()).collect(),
        sinks: sink_labels(&config),
        with_intake: config.intake.is_some(),
    });
    let (events, inbox) = channel();
    if let Err(error) = signals::watch(events.clone()) {
        return fail(&format!("cannot watch signals: {error}"));
    }
    let mesh: Mesh<Message> = Mesh::new(cores);
    let health_body: &'static str = Box::leak(
        serde_json::json!({"status": "ok", "instance": config.node.name})
            .to_string()
            .into_boxed_str(),
    );
    let resolver = match ResolverThreads::start() {
        Ok(resolver) => resolver,
        Err(error) => {
            return fail(&format!(
                "cannot start the threads that look names up: {error}"
            ));
        }
    };
    let tls = match TlsClient::load(None) {
        Ok(tls) => Some(tls),
        Err(error) => {
            tracing::warn!("sinks over https will fail: {error}");
            None
        }
    };
    let outside = Outside {
        resolver,
        tls,
        files: FileWriters::default(),
    };
    let beats = Beats::new(cores);
    let backups = match Backups::start(&config, &home.facts(), &mesh, &registry) {
        Ok(backups) => backups,
        Err(why) => return fail(&why),
    };
    for (index, cpu) in cpus.iter().enumerate() {
        let start = Start {
            index,
            config: Arc::clone(&config),
            facts: home.facts(),
            home: home.clone(),
            mesh: mesh.clone(),
            events: events.clone(),
            registry: Arc::clone(&registry),
            health_body,
            outside: outside.clone(),
            beats: beats.clone(),
            intake: intake.clone(),
            backups: backups.clone(),
        };
        let name = format!("core-{index}");
        if let Err(why) = runtime::spawn_core(&name, Some(*cpu), move || self::core::run(start)) {
            return fail(&why);
        }
    }
    let body_bytes_held_max = self::core::body_bytes_held_max(&config, cores);
    let node = Node {
        config,
        body_bytes_held_max,
        reload: ReloadNo::default(),
        mesh,
        inbox,
        held: VecDeque::new(),
        cores,
        registry,
        beats,
        backups,
        watchdog: Watchdog::new(),
        log,
        status: String::new(),
    };
    // `home` stays until the end: it holds the lock of the data directory.
    let exit = node.run();
    drop(home);
    exit
}

struct Node<'a> {
    config: Arc<Config>,
    /// What the listeners were started with.
    body_bytes_held_max: u64,
    /// The last reload.
    reload: ReloadNo,
    mesh: Mesh<Message>,
    inbox: Receiver<Event>,
    /// Events that came while something else was waited for.
    held: VecDeque<Event>,
    cores: usize,
    registry: Arc<Registry>,
    beats: Beats,
    backups: Backups,
    watchdog: Watchdog,
    log: &'a Log,
    status: String,
}

impl Node<'_> {
    fn run(mut self) -> Exit {
        let mut serving = 0;
        let mut addresses: (Option<SocketAddr>, Option<SocketAddr>) = (None, None);
        loop {
            let Some(event) = self.next_event() else {
                return fail("every core is gone");
            };
            match event {
                Event::Opened { core, lines } => {
                    for line in lines {
                        tracing::info!(core, "{line}");
                    }
                }
                Event::Serving { ingest, admin, .. } => {
                    serving += 1;
                    addresses.0.get_or_insert(ingest);
                    addresses.1 = addresses.1.or(admin);
                    if serving == self.cores {
                        self.serves(addresses);
                    }
                }
                Event::Failed { core, why } => {
                    return fail(&format!("core {core}: {why}"));
                }
                Event::Stopped { core, why } => {
                    return fail(&format!("core {core} stopped: {}", why.unwrap_or_default()));
                }
                Event::Signal(signal) if signals::stops(signal) => return self.stop(),
                Event::Signal(_) if serving < self.cores => {
                    tracing::warn!("reload: the node is still starting; send the signal again");
                }
                Event::Signal(_) => {
                    systemd::reloading();
                    self.reload();
                    systemd::ready(&self.status);
                }
                // Of a reload that was given up.
                Event::Prepared { .. } => {}
            }
        }
    }

    fn serves(&mut self, addresses: (Option<SocketAddr>, Option<SocketAddr>)) {
        if let Some(ingest) = addresses.0 {
            self.status = banner::listening_line(ingest, addresses.1);
            tracing::info!("{}", self.status);
            let mut stderr = std::io::stderr().lock();
            for line in banner::try_lines(&self.config, ingest, addresses.1) {
                // A standard error that is gone is no reason not to serve.
                let _ = writeln!(stderr, "{line}");
            }
        }
        systemd::ready(&self.status);
        self.backups.begin();
    }

    /// The next event; the watchdog and the gauges of the process are seen to meanwhile.
    fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.held.pop_front() {
            return Some(event);
        }
        loop {
            if self.status.is_empty() {
                // A log that does not answer is waited for, longer than a manager waits for us.
                systemd::starting(self.watchdog.tick() * 4);
            }
            self.watchdog.look(&self.beats);
            process::sample(&self.registry);
            match self.inbox.recv_timeout(self.watchdog.tick()) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Reads the configuration again and puts it in place on every core, or on none.
    fn reload(&mut self) {
        self.reload = self.reload.next();
        let reload = self.reload;
        let next = match reload::read(&self.config, self.body_bytes_held_max) {
            Ok(next) => next,
            Err(error) => {
                tracing::error!("reload refused, the configuration in force stays:\n{error}");
                return;
            }
        };
        for line in &next.warnings {
            tracing::warn!("{line}");
        }
        let Next { config, diff, .. } = next;
        if !diff.restart.is_empty() {
            tracing::warn!("reload: these need a restart: {}", diff.restart.join(", "));
        }
        let config = Arc::new(config);
        for core in 0..self.cores {
            let config = Arc::clone(&config);
            self.call(core, move |core| {
                core.prepared.expect(reload);
                let core = Rc::clone(core);
                let host = Rc::clone(&core.host);
                host.start(TaskClass::Dispatch, async move {
                    let made = reload::prepare(&core, &config).await;
                    let result = made.map(|made| core.prepared.put(reload, made));
                    core.tell(Event::Prepared {
                        core: core.index,
                        reload,
                        result,
                    });
                });
            });
        }
        if let Err(why) = self.all_prepared(reload) {
            for core in 0..self.cores {
                self.call(core, move |core| core.prepared.abandon(reload));
            }
            tracing::error!("reload refused, the configuration in force stays: {why}");
            return;
        }
        for core in 0..self.cores {
            self.call(core, move |core| {
                if let Some(prepared) = core.prepared.take(reload) {
                    reload::take(core, prepared);
                }
            });
        }
        self.log.set_level(level(config.log.level));
        self.config = config;
        match diff.live.is_empty() {
            true => tracing::info!("reload: nothing to take over"),
            false => tracing::info!("reload: taken over: {}", diff.live.join(", ")),
        }
    }

    fn all_prepared(&mut self, reload: ReloadNo) -> Result<(), String> {
        let end = Instant::now() + PREPARE_PATIENCE;
        let mut round = Round::new(reload, self.cores);
        while round.left() > 0 {
            self.watchdog.look(&self.beats);
            let wait = end.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(wait.min(self.watchdog.tick())) {
                Ok(Event::Prepared {
                    core,
                    reload,
                    result,
                }) => round.answer(reload, core, result)?,
                Ok(other) => self.held.push_back(other),
                Err(_) if wait.is_zero() => {
                    return Err(format!("{} cores do not answer", round.left()));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn call(&self, core: usize, call: impl FnOnce(&Rc<self::core::Core>) + Send + 'static) {
        self.send(core, || Message::Call(Box::new(call)));
    }

    fn send(&self, core: usize, message: impl FnOnce() -> Message) {
        let mut message = message();
        while let Err(back) = self.mesh.inbox(core).push(message) {
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop(mut self) -> Exit {
        tracing::info!("stopping: no new requests, what is in flight ends");
        systemd::stopping();
        for core in 0..self.cores {
            self.send(core, || Message::Stop);
        }
        let deadline =
            Instant::now() + Duration::from_millis(self.config.node.shutdown_ms) + SHUTDOWN_MARGIN;
        let mut left = self.cores;
        let mut exit = Exit::Ok;
        while left > 0 {
            let wait = deadline.saturating_duration_since(Instant::now());
            self.watchdog.look(&self.beats);
            match self.inbox.recv_timeout(wait.min(self.watchdog.tick())) {
                Ok(Event::Stopped { core, why }) => {
                    left -= 1;
                    if let Some(why) = why {
                        tracing::warn!(core, "not a clean stop: {why}");
                    }
                }
                Ok(Event::Failed { core, why }) => {
                    left -= 1;
                    exit = fail(&format!("core {core}: {why}"));
                }
                Ok(_) => {}
                Err(_) if wait.is_zero() => {
                    return fail(&format!("{left} cores did not stop in time"));
                }
                Err(_) => {}
            }
        }
        self.last_backup();
        tracing::info!("stopped");
        exit
    }

    /// The stores are closed, and their cores still answer: what they hold is backed up.
    fn last_backup(&mut self) {
        if !self.backups.is_on() {
            return;
        }
        tracing::info!("the last backup");
        let (watchdog, beats) = (&mut self.watchdog, &self.beats);
        if !self.backups.last(BACKUP_PATIENCE, || watchdog.look(beats)) {
            tracing::warn!(
                "the last backup did not come to its end: what was acked since the one before is in \
                 the store only"
            );
        }
    }
}

fn sink_labels(config: &Config) -> Vec<String> {
    let sinks = config.sources.iter().flat_map(|source| &source.sinks);
    let mut labels: Vec<String> = sinks.map(|sink| sink.name.clone()).collect();
    labels.sort();
    labels.dedup();
    labels
}

fn fail(why: &str) -> Exit {
    tracing::error!("{why}");
    Exit::Failure
}
