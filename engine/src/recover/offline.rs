//! `ankusa recover`: the steps of a boot over a stopped store, on one core.
//!
//! A store that a node is using is refused with its pid. A shard whose acked frames are damaged is
//! healed first ([`super::heal`]) and the whole log read again. A dry run opens nothing: it reads.
//! Offline; blocking but for its one core.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ankusa_recovery::port::Progress;
use ankusa_recovery::{Options, Refusal, Start, Summary, Today, run};
use ankusa_wal::disk::blocking::BlockingDisk;
use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::home::{Home, StoreFacts, shard_dir};
use ankusa_wal::open::read_only;
use ankusa_wal::{Host, OpenError, ShardId, TaskClass};
use tracing::level_filters::LevelFilter;

use super::dry::DryPort;
use super::heal::{Healed, heal};
use super::local::{LocalParts, LocalPort, OpenShard};
use super::shard::Part;
use super::today::ConfigToday;
use super::{HomeKeeper, looked_at, options};
use crate::claims::Desk;
use crate::config::{Config, IntakeConfig};
use crate::dispatch::{self, Plan, SinkTable};
use crate::dual::core_log::CoreLogParts;
use crate::dual::{CoreLog, DualSettings, NodeLog};
use crate::exit::Exit;
use crate::logging::{LineFormat, Log};
use crate::metrics::{MetricsConfig, Registry};
use crate::node::log::Adapter;
use crate::node::observe::CoreObserver;
use crate::runtime::{CoreHost, spawn_core};
use crate::shard::{self, Shard, ShardParts};

/// How long the last log lines may take.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// What was typed.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The node that is meant.
    pub node: Option<String>,
    /// Where to start.
    pub start: Start,
    /// Read and count only.
    pub dry_run: bool,
    /// Go on over a gap.
    pub allow_gap: bool,
}

/// What a run came to.
struct Report {
    summary: Summary,
    healed: Vec<String>,
    took: Duration,
}

/// Runs `ankusa recover`.
pub fn recover(config: Config, request: Request, out: &mut impl Write) -> io::Result<Exit> {
    recover_from(Adapter::open, config, request, out)
}

/// The same, with the log that `open_log` gives.
pub(super) fn recover_from(
    open_log: impl FnOnce(&Config, &IntakeConfig) -> Result<Adapter, String>,
    config: Config,
    request: Request,
    out: &mut impl Write,
) -> io::Result<Exit> {
    let Some(intake) = config.intake.clone() else {
        eprintln!("ankusa: there is no intake log to recover from: wal.type is not dual");
        return Ok(Exit::Config);
    };
    if let Some(node) = request.node.as_ref().filter(|n| **n != intake.node_id) {
        eprintln!(
            "ankusa: intake_node_mismatch: --node is `{node}`, intake.node_id is `{}`",
            intake.node_id
        );
        return Ok(Exit::Failure);
    }
    let is_terminal = io::stderr().is_terminal();
    let format = LineFormat::Text {
        with_colours: is_terminal,
    };
    let log = Log::start(LevelFilter::WARN, format);
    let done = work(open_log, config, intake, request);
    if let Ok(log) = log {
        log.close(LOG_PATIENCE);
    }
    match done {
        Ok(report) => {
            for line in &report.healed {
                writeln!(out, "{line}")?;
            }
            writeln!(out, "{}", report.summary)?;
            let records = report.summary.counts.records;
            let rate = records as f64 / report.took.as_secs_f64().max(0.001);
            eprintln!(
                "read up to position {} in {:.1} s ({rate:.0} records/s)",
                report.summary.read_below,
                report.took.as_secs_f64()
            );
            Ok(Exit::Ok)
        }
        Err(why) => {
            eprintln!("ankusa: {why}");
            Ok(Exit::Failure)
        }
    }
}

fn work(
    open_log: impl FnOnce(&Config, &IntakeConfig) -> Result<Adapter, String>,
    config: Config,
    intake: IntakeConfig,
    request: Request,
) -> Result<Report, String> {
    let dir = config.node.data_dir.clone();
    let home = match request.dry_run {
        true => Home::hold(&dir),
        false => {
            let shards = config.node.shards.unwrap_or(1);
            let random = |bytes: &mut [u8]| {
                let _ = aws_lc_rs::rand::fill(bytes);
            };
            Home::open(&dir, shards, random)
        }
    };
    let home = home.map_err(|e| e.to_string())?;
    let adapter = open_log(&config, &intake)?;
    let config = Arc::new(config);
    let core = spawn_core("recover", None, move || async move {
        let host = CoreHost::new();
        let (core, looking) = (Rc::clone(&host), Rc::clone(&host));
        let work = async move {
            let began = Instant::now();
            let mut report = match request.dry_run {
                true => dry(&core, &config, &intake, &request, &adapter, &home).await,
                false => real(&core, &config, &intake, &request, &adapter, home).await,
            }?;
            report.took = began.elapsed();
            Ok(report)
        };
        let done = host.within(TaskClass::Commit, async move {
            looked_at(&*looking, work).await
        });
        let gone = || Err("the commit queue is gone".into());
        done.await.unwrap_or_else(gone)
    })?;
    core.join().map_err(|e| format!("the core ended: {e}"))?
}

fn asked(config: &Config, intake: &IntakeConfig, request: &Request, shards: u16) -> Options {
    Options {
        wait: false,
        start: request.start,
        replay: true,
        allow_gap: request.allow_gap,
        dry_run: request.dry_run,
        ..options(config, intake, usize::from(shards))
    }
}

fn refused(refusal: Refusal) -> String {
    refusal.to_string()
}

async fn dry(
    core: &Rc<CoreHost>,
    config: &Arc<Config>,
    intake: &IntakeConfig,
    request: &Request,
    adapter: &Adapter,
    home: &Home,
) -> Result<Report, String> {
    let host = Rc::clone(core) as Rc<dyn Host>;
    let facts = home.facts();
    let mut shards = Vec::new();
    for number in 0..facts.shards {
        let (id, dir) = (ShardId(number), home.shard_dir(ShardId(number)));
        let fault = |why: &dyn std::fmt::Display| format!("shard {id} ({}): {why}", dir.display());
        let disk = BlockingDisk::open_read_only(&dir).map_err(|e| fault(&e))?;
        let settings = shard::store_config(config, facts, id);
        let read = read_only(&disk, &host, &settings).await;
        shards.push(match read {
            Ok(read) => read,
            Err(OpenError::Damaged(damage)) => {
                return Err(fault(&format_args!(
                    "acked data is damaged: {damage}. Without --dry-run it is healed from the log"
                )));
            }
            Err(error) => return Err(fault(&error)),
        });
    }
    let node = HomeState::of(facts);
    let today = today(config, facts, &host);
    let sleeper = Rc::clone(&host);
    let sleep = Box::new(move |time| sleeper.sleep(time));
    let port = DryPort::new(node.0, shards, today, sleep, teller());
    let options = asked(config, intake, request, facts.shards);
    let summary = run(adapter.log(), &port, &options).await;
    Ok(Report {
        summary: summary.map_err(refused)?,
        healed: Vec::new(),
        took: Duration::ZERO,
    })
}

/// The facts as the driver wants them.
struct HomeState(ankusa_recovery::NodeState);

impl HomeState {
    fn of(facts: &StoreFacts) -> HomeState {
        HomeState(ankusa_recovery::NodeState {
            node: facts.intake_node.clone(),
            partition: facts.intake_partition,
            log: facts.intake_log.clone(),
            origin: facts.origin,
            incarnation: facts.incarnation,
        })
    }
}

fn today(config: &Config, facts: &StoreFacts, host: &Rc<dyn Host>) -> Rc<dyn Today> {
    // Who answers retries reads the keys at the next start.
    let remember = Box::new(|_: &[ankusa_wal::DedupeRow]| {});
    let key = facts.hash_key.0;
    Rc::new(ConfigToday::new(config, key, Rc::clone(host), remember))
}

async fn real(
    host: &Rc<CoreHost>,
    config: &Arc<Config>,
    intake: &IntakeConfig,
    request: &Request,
    adapter: &Adapter,
    home: Home,
) -> Result<Report, String> {
    let keeper = HomeKeeper::new(home);
    let facts = keeper.facts();
    if let Some(store) = facts.intake_node.as_ref().filter(|n| **n != intake.node_id) {
        return Err(refused(Refusal::NodeMismatch {
            store: store.clone(),
            config: intake.node_id.clone(),
        }));
    }
    let core = OfflineCore::start(config, intake, adapter, &facts, host).await?;
    let (mut shards, mut healed) = (Vec::new(), Vec::new());
    for number in 0..facts.shards {
        let (shard, was_healed) = core.open_or_heal(&facts, ShardId(number)).await?;
        shards.push(shard);
        healed.extend(was_healed);
    }
    let mut options = asked(config, intake, request, facts.shards);
    if !healed.is_empty() {
        // From before the damage, wherever that is: what is there already is passed over.
        options.start = Start::Earliest;
    }
    let dyn_host = Rc::clone(host) as Rc<dyn Host>;
    let port = LocalPort::new(
        LocalParts {
            host: Rc::clone(&dyn_host),
            facts: Rc::new(keeper.clone()),
            today: today(config, &facts, &dyn_host),
            part_of: part_of(config, request, &facts, healed.clone()),
            open: core.opener(&keeper),
            told: teller(),
        },
        shards,
    );
    let done = run(adapter.log(), &port, &options).await;
    let mut lines = Vec::new();
    for was in &healed {
        let part = port.shards().into_iter().find(|p| p.shard.id == was.shard);
        if let Some(part) = part {
            lines.extend(was.report(&part.apply.came_back()));
        }
    }
    for part in port.shards() {
        part.shard.commit.drain().await;
        if let Err(error) = part.shard.store.close().await {
            tracing::warn!(shard = %part.shard.id, %error, "not a clean close");
        }
    }
    core.log.stop();
    let summary = match done {
        Ok(summary) => summary,
        Err(refusal) => {
            // What was healed is said all the same.
            lines.iter().for_each(|line| eprintln!("{line}"));
            return Err(refused(refusal));
        }
    };
    Ok(Report {
        summary,
        healed: lines,
        took: Duration::ZERO,
    })
}

fn part_of(
    config: &Config,
    request: &Request,
    facts: &StoreFacts,
    healed: Vec<Healed>,
) -> Box<dyn Fn(ShardId) -> Part> {
    let (origin, give_up) = (facts.origin, request.allow_gap);
    let group_bytes = config.wal.group_max_bytes as usize;
    Box::new(move |shard| {
        let healed = healed.iter().find(|healed| healed.shard == shard);
        Part {
            origin,
            give_up,
            replays: true,
            damaged: healed.map_or_else(Vec::new, |h| h.damaged.clone()),
            lost: healed.map_or_else(Vec::new, Healed::watched),
            group_bytes,
        }
    })
}

/// What a shard needs around it, without a listener, deliveries or other cores.
#[derive(Clone)]
struct OfflineCore {
    config: Arc<Config>,
    host: Rc<CoreHost>,
    observer: Rc<CoreObserver>,
    log: Rc<CoreLog>,
}

impl OfflineCore {
    async fn start(
        config: &Arc<Config>,
        intake: &IntakeConfig,
        adapter: &Adapter,
        facts: &StoreFacts,
        host: &Rc<CoreHost>,
    ) -> Result<OfflineCore, String> {
        let settings = DualSettings::of(config).ok_or("wal.type is not dual")?;
        let registry = Registry::new(MetricsConfig {
            cores: 1,
            sources: Vec::new(),
            sinks: Vec::new(),
            with_intake: true,
        });
        let observer = CoreObserver::new(&registry, 0, config)?;
        let log = adapter.log();
        let partition = match facts.intake_partition {
            Some(partition) => partition,
            None => {
                let assigned = log.assign_partition(&intake.node_id).await;
                assigned.map_err(|e| e.to_string())?
            }
        };
        let head = log.bounds(partition).await.map_err(|e| e.to_string())?.head;
        let publisher = adapter.publisher(0, partition, &intake.node_id).await;
        let node_log = NodeLog::new(settings, 1);
        node_log.note_head(head, node_log.epoch());
        let keys = config.dedupe.max_keys as usize;
        let desk = Desk::new(0, 1, keys, u64::MAX, Box::new(|_, _| {}));
        let core_log = CoreLog::new(CoreLogParts {
            node: node_log,
            core: 0,
            publisher: publisher.map_err(|e| e.to_string())?,
            host: Rc::clone(host) as Rc<dyn Host>,
            claims: Rc::new(desk),
            metrics: Rc::clone(&observer.metrics),
        });
        core_log.start();
        Ok(OfflineCore {
            config: Arc::clone(config),
            host: Rc::clone(host),
            observer,
            log: core_log,
        })
    }

    async fn open(
        &self,
        facts: &StoreFacts,
        id: ShardId,
        dir: &Path,
    ) -> Result<Rc<Shard<GlommioDisk>>, OpenError> {
        let disk = GlommioDisk::open(dir).map_err(|source| OpenError::Io {
            doing: "opening the directory",
            source,
        })?;
        let config = &self.config;
        let opened = Shard::open(ShardParts {
            disk,
            host: Rc::clone(&self.host) as Rc<dyn Host>,
            store: shard::store_config(config, facts, id),
            queue: shard::queue_limits(config, 1),
            group: shard::group_limits(config),
            deliveries: dispatch::limits(&config.dispatch, 1),
            sinks: Rc::new(NoSinks),
            observer: Rc::clone(&self.observer),
            log: Some(Rc::clone(&self.log)),
        });
        opened.await.map(Rc::new)
    }

    async fn open_or_heal(
        &self,
        facts: &StoreFacts,
        id: ShardId,
    ) -> Result<(Rc<Shard<GlommioDisk>>, Option<Healed>), String> {
        let dir = shard_dir(&self.config.node.data_dir, id);
        let fault = |why: &dyn std::fmt::Display| format!("shard {id} ({}): {why}", dir.display());
        match self.open(facts, id, &dir).await {
            Ok(shard) => Ok((shard, None)),
            Err(OpenError::Damaged(damage)) => {
                eprintln!("shard {id}: acked data is damaged: {damage}; healing it from the log");
                let healed = heal(&dir, id, facts.uuid.0, &damage)?;
                let shard = self.open(facts, id, &dir).await.map_err(|e| fault(&e))?;
                Ok((shard, Some(healed)))
            }
            Err(error) => Err(fault(&error)),
        }
    }

    fn opener(&self, keeper: &HomeKeeper) -> OpenShard<GlommioDisk> {
        let (core, keeper) = (self.clone(), keeper.clone());
        Box::new(move |id| {
            let (core, facts) = (core.clone(), keeper.facts());
            Box::pin(async move {
                let dir = shard_dir(&core.config.node.data_dir, id);
                let opened = core.open(&facts, id, &dir).await;
                opened.map_err(|e| format!("shard {id} ({}): {e}", dir.display()))
            })
        })
    }
}

/// Nothing is delivered.
struct NoSinks;

impl SinkTable for NoSinks {
    fn plan(&self, _name: &ankusa_wal::SinkName) -> Option<Plan> {
        None
    }
}

/// Says on a terminal how far it is.
fn teller() -> Box<dyn Fn(&Progress)> {
    let is_terminal = io::stderr().is_terminal();
    let said = Cell::new(None::<Instant>);
    Box::new(move |progress| match progress {
        Progress::Waiting(why) => eprintln!("waiting: {why}"),
        // Logged where it was found.
        Progress::Warning(_) => {}
        Progress::Replaying {
            partition,
            read_below,
            head,
            counts,
        } => {
            let is_due = said.get().is_none_or(|at| at.elapsed().as_millis() > 200);
            if is_terminal && (is_due || read_below >= head) {
                said.set(Some(Instant::now()));
                let end = if read_below >= head { "\n" } else { "" };
                eprint!(
                    "\rpartition {partition}: position {read_below} of {head}, {} records, {} \
                     applied\x1b[K{end}",
                    counts.records, counts.applied
                );
            }
        }
        Progress::Republishing(shard) if is_terminal => {
            eprint!("\rshard {shard}: publishing what only this host has\x1b[K\r");
        }
        Progress::Republishing(_) => {}
    })
}
