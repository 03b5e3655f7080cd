//! The node: boot, cores, signals, the clean end. The room where everything meets, kept small:
//! what a core does is in [`core`], what is checked first in [`boot`].
//!
//! The main thread only waits: for cores that report and for signals.

pub mod ask;
pub mod boot;
pub mod core;
pub mod message;
pub mod observe;

mod banner;
pub(crate) mod ready;
mod signals;
mod systemd;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ankusa_net::client::TlsClient;
use ankusa_net::dns::ResolverThreads;
use ankusa_net::ensure_unclaimed;
use tracing::level_filters::LevelFilter;

use crate::config::{Config, LogFormat, LogLevel};
use crate::exit::Exit;
use crate::logging::{LineFormat, Log};
use crate::mesh::Mesh;
use crate::metrics::{MetricsConfig, Registry};
use crate::runtime;
use crate::sinks::FileWriters;

use self::core::Start;
use message::{Event, Message};

/// How long the last log lines may take to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

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
    let exit = serve(config);
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
pub fn serve(config: Config) -> Exit {
    let prepared = match boot::prepare(&config) {
        Ok(prepared) => prepared,
        Err(why) => return fail(&why),
    };
    let config = Arc::new(config);
    for (ip, port) in [
        (config.http.ip, config.http.port),
        (config.admin.ip, config.admin.port),
    ] {
        // Every core binds the same address, so a second node would bind it too, silently.
        if let Err(error) = ensure_unclaimed(SocketAddr::new(ip, port)) {
            return fail(&error.to_string());
        }
    }
    let backups = config.backup.enabled.then_some(config.backup.interval_ms);
    tracing::info!("{}", banner::durability_line(prepared.home.dir(), backups));
    let cores = prepared.cpus.len();
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
    let files = FileWriters::default();
    for (index, cpu) in prepared.cpus.iter().enumerate() {
        let start = Start {
            index,
            config: Arc::clone(&config),
            facts: prepared.home.facts().clone(),
            mesh: mesh.clone(),
            events: events.clone(),
            registry: Arc::clone(&registry),
            health_body,
            resolver: resolver.clone(),
            tls: tls.clone(),
            files: files.clone(),
        };
        let name = format!("core-{index}");
        if let Err(why) = runtime::spawn_core(&name, Some(*cpu), move || self::core::run(start)) {
            return fail(&why);
        }
    }
    let node = Node {
        config,
        mesh,
        inbox,
        cores,
    };
    // `prepared` stays until the end: it holds the lock of the data directory.
    let exit = node.run();
    drop(prepared);
    exit
}

struct Node {
    config: Arc<Config>,
    mesh: Mesh<Message>,
    inbox: Receiver<Event>,
    cores: usize,
}

impl Node {
    fn run(self) -> Exit {
        let mut serving = 0;
        let mut addresses: (Option<SocketAddr>, Option<SocketAddr>) = (None, None);
        loop {
            let Ok(event) = self.inbox.recv() else {
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
                        if let Some(ingest) = addresses.0 {
                            for line in banner::ready_lines(&self.config, ingest, addresses.1) {
                                tracing::info!("{line}");
                            }
                        }
                        systemd::ready();
                    }
                }
                Event::Failed { core, why } => {
                    return fail(&format!("core {core}: {why}"));
                }
                Event::Stopped { core, why } => {
                    return fail(&format!("core {core} stopped: {}", why.unwrap_or_default()));
                }
                Event::Signal(signal) if signals::stops(signal) => return self.stop(),
                Event::Signal(_) => {
                    tracing::warn!("reload: nothing can be reloaded yet; restart the node");
                }
            }
        }
    }

    fn stop(&self) -> Exit {
        tracing::info!("stopping: no new requests, what is in flight ends");
        systemd::stopping();
        for core in 0..self.cores {
            while self.mesh.inbox(core).push(Message::Stop).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let deadline =
            Instant::now() + Duration::from_millis(self.config.node.shutdown_ms) + SHUTDOWN_MARGIN;
        let mut left = self.cores;
        let mut exit = Exit::Ok;
        while left > 0 {
            let wait = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(wait) {
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
                Err(_) => return fail(&format!("{left} cores did not stop in time")),
            }
        }
        tracing::info!("stopped");
        exit
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
