//! Drill `broker`: the node on three real brokers, one trouble after another, under load.
//!
//! While the log cannot confirm, no hook that is sent gets a 201; the refusals say `Retry-After`
//! and come at once; the node accepts again within two seconds of the first confirm that an
//! independent producer gets. After each trouble every acked hook of this topic is in it, read by a
//! consumer of the drill's own; in the end everything acked was delivered as promised. The control, an
//! ack that does not wait for the confirm, must be seen while two brokers are down.

mod troubles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use super::prober::{BusyMark, Prober, Sample};
use super::topic::{BROKERS, Topic};
use super::{DUAL, admin, kill, send_again, until_ready};
use crate::client::{Load, LoadPlan};
use crate::ledger::Ledger;
use crate::node::{Node, NodePlan, log_tail};
use crate::sink::Sink;

const PATIENCE: Duration = Duration::from_secs(60);
/// A hook in flight may take this long, so that many failures open the breaker.
const OPENS_WITHIN: Duration = Duration::from_secs(8);
/// From the log's return to the first 201.
const BACK_WITHIN: Duration = Duration::from_secs(2);
/// A refusal, once the breaker is open: 95 of 100, or every second one where the machine is not as
/// idle as this.
const REFUSED_WITHIN: Duration = Duration::from_millis(5);
const IDLE_ENOUGH: f64 = 0.2;

/// The drill's settings.
#[derive(Args, Clone, Debug)]
pub struct BrokerPlan {
    /// The ankusa binary
    #[arg(long)]
    pub binary: PathBuf,
    /// `drills/kafka`; its brokers must be up, `separate`
    #[arg(long, default_value = "drills/kafka")]
    pub kafka: PathBuf,
    /// Only these troubles, by name
    #[arg(long)]
    pub only: Vec<String>,
    /// Only those that take little time: what every change is held to
    #[arg(long, conflicts_with = "only")]
    pub short: bool,
    /// Leave out the negative control, which needs a binary with the feature mutations
    #[arg(long)]
    pub without_control: bool,
    /// How long all brokers are paused, in seconds
    #[arg(long, default_value_t = 30)]
    pub paused_s: u64,
}

impl BrokerPlan {
    /// All troubles with this binary and this script.
    pub fn new(binary: &Path, kafka: &Path) -> BrokerPlan {
        BrokerPlan {
            binary: binary.into(),
            kafka: kafka.into(),
            only: Vec::new(),
            short: false,
            without_control: false,
            paused_s: 30,
        }
    }
}

type Trouble = fn(&mut Drill) -> Result<String>;

/// All of them, in order. The last ones leave the topic other than it was.
const TROUBLES: &[(&str, Trouble)] = &[
    ("one-down", Drill::one_down),
    ("two-down", Drill::two_down),
    ("leader-moved", Drill::leader_moved),
    ("follower-hung", Drill::follower_hung),
    ("all-paused", Drill::all_paused),
    ("record-too-large", Drill::record_too_large),
    ("boot-without-brokers", Drill::boot_without_brokers),
    ("retention-passed", Drill::retention_passed),
    ("topic-recreated", Drill::topic_recreated),
    ("setting-changed", Drill::setting_changed),
];

/// Those of `--short`.
const SHORT: &[&str] = &[
    "two-down",
    "follower-hung",
    "boot-without-brokers",
    "retention-passed",
    "topic-recreated",
    "setting-changed",
];

struct Drill {
    plan: BrokerPlan,
    topic: Topic,
    node_plan: NodePlan,
    node: Node,
    ledger: Ledger,
    numbers: Arc<AtomicU64>,
    prober: Prober,
    load: Option<Load>,
    partition: i32,
    /// Acked when the topic was last made anew: they need not be in it, unless they are still here.
    before: BTreeSet<String>,
}

/// Runs the drill; prints a line for each trouble, and one for the control.
pub fn run(plan: &BrokerPlan) -> Result<bool> {
    let dir = tempfile::Builder::new().prefix("drill-broker-").tempdir()?;
    let sink = Sink::start()?;
    let mut drill = Drill::start(plan, dir.path().into(), &sink, "")?;
    let mut holds = true;
    for (name, trouble) in TROUBLES {
        let is_left_out = match plan.short {
            true => !SHORT.contains(name),
            false => !plan.only.is_empty() && !plan.only.iter().any(|only| only == name),
        };
        if is_left_out {
            continue;
        }
        let began = Instant::now();
        let result = trouble(&mut drill).and_then(|said| Ok((said, drill.all_in_topic()?)));
        let took = began.elapsed().as_secs();
        match result {
            Ok((said, records)) => {
                println!("broker: {name:20} holds   {took:3} s  {said}; {records}")
            }
            Err(error) => {
                holds = false;
                println!("broker: {name:20} BROKEN  {took:3} s  {error:#}");
                drill.heal()?;
            }
        }
    }
    holds &= drill.end(&sink)?;
    if !plan.without_control {
        holds &= control(plan)?;
    }
    if !holds {
        println!("broker: kept {}", dir.keep().display());
    }
    Ok(holds)
}

/// The ack does not wait for the confirm: while two brokers are down the drill must see a 201.
pub fn control(plan: &BrokerPlan) -> Result<bool> {
    let dir = tempfile::Builder::new().prefix("drill-broker-").tempdir()?;
    let sink = Sink::start()?;
    let mut drill = Drill::start(plan, dir.path().into(), &sink, "ack_before_confirm")?;
    let down = drill.two_away()?;
    std::thread::sleep(OPENS_WITHIN);
    let acked = drill
        .prober
        .since(down)
        .iter()
        .filter(|s| s.status == 201)
        .count();
    drill.heal()?;
    let word = if acked > 0 { "caught" } else { "MISSED" };
    println!(
        "broker: control ack_before_confirm, two brokers down: {word}: {acked} hooks were acked"
    );
    drill.node.kill()?;
    Ok(acked > 0)
}

impl Drill {
    /// A topic of its own, a node on it, load and prober.
    fn start(plan: &BrokerPlan, dir: PathBuf, sink: &Sink, mutation: &str) -> Result<Drill> {
        static TOPICS: AtomicU64 = AtomicU64::new(1);
        let no = TOPICS.fetch_add(1, Ordering::Relaxed);
        let topic = Topic {
            script: plan.kafka.canonicalize()?,
            name: format!("drill.{}.{no}", std::process::id()),
        };
        topic.topic("create", "")?;
        let node_plan = NodePlan {
            binary: plan.binary.canonicalize()?,
            dir,
            sink: sink.address(),
            cores: 2,
            segment_bytes: 4 << 20,
            keyed_paused: true,
            more: format!(
                "intake: {{ type: kafka, node_id: drill-1, topic: {}, reconcile_deadline_ms: 10m, kafka: {{ brokers: [{BROKERS}] }} }}\n\
                 backup: {{ enabled: true, interval_ms: 1h, max_age_ms: 2h, signing_key: \
                 only-for-a-drill, store: {{ type: local, root: ./backup }} }}",
                topic.name
            ),
        };
        let (ledger, numbers) = (Ledger::default(), Arc::new(AtomicU64::new(1)));
        let mut node = node_plan.start(&[DUAL, ("ANKUSA_MUTATION", mutation)])?;
        until_ready(&mut node, &node_plan)?;
        let mut drill = Drill {
            plan: plan.clone(),
            prober: Prober::start(node.address(), ledger.clone(), Arc::clone(&numbers)),
            load: None,
            partition: 0,
            topic,
            node_plan,
            node,
            ledger,
            numbers,
            before: BTreeSet::new(),
        };
        drill.load();
        let partition = drill.intake()?["partition"].as_i64();
        drill.partition = partition.unwrap_or_default() as i32;
        Ok(drill)
    }

    fn load(&mut self) {
        let plan = LoadPlan {
            address: self.node.address(),
            connections: 8,
            body_bytes: 600,
            keyed_every: 5,
        };
        let numbers = Arc::clone(&self.numbers);
        self.load = Some(Load::start(plan, self.ledger.clone(), numbers));
    }

    fn intake(&self) -> Result<Value> {
        Ok(admin(&self.node_plan, "/v1/wal")?["intake"].clone())
    }

    /// Waits for a 201 to a hook sent from `from` on.
    fn accepted(&self, from: Instant, patience: Duration) -> Result<Sample> {
        let end = Instant::now() + patience;
        loop {
            let samples = self.prober.since(from);
            if let Some(first) = samples.iter().find(|s| s.status == 201) {
                return Ok(first.clone());
            }
            if Instant::now() > end {
                let last = samples.last().map(|s| (s.status, s.word.clone()));
                bail!("no 201 in {patience:?}; the last answer: {last:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Every hook sent from `from` until now was refused as it must be.
    fn all_refused(&self, from: Instant, busy: &BusyMark) -> Result<String> {
        let samples = self.prober.since(from);
        if let Some(acked) = samples.iter().find(|s| s.status == 201) {
            let after = acked.sent.duration_since(from);
            bail!("a 201 to a hook sent {after:?} after the log had gone");
        }
        if let Some(other) = samples.iter().find(|s| s.status != 503 || !s.retry_after) {
            bail!("not a 503 with Retry-After: {other:?}");
        }
        let open = samples.iter().filter(|s| s.sent >= from + OPENS_WITHIN);
        let mut took: Vec<Duration> = open.map(|s| s.took).collect();
        took.sort();
        let at = |share: usize| took.get(took.len() * share / 100).copied();
        let (Some(p50), Some(p99)) = (at(50), at(99)) else {
            bail!("nothing was asked while the breaker was open");
        };
        // On a machine with too much to do every answer waits for a core now and then.
        let idle = busy.idle_since();
        let strict = if idle > IDLE_ENOUGH { at(95) } else { at(50) };
        if strict > Some(REFUSED_WITHIN) {
            bail!(
                "refusals take {p50:?} (p50), {:?} (p95), {:.0} % idle",
                at(95),
                idle * 100.0
            );
        }
        let count = samples.len();
        Ok(format!(
            "{count} refused, no 201, p50 {p50:.1?} p99 {p99:.1?}"
        ))
    }

    /// The log is coming back: accepted again in time, and everything carried is completed.
    fn back(&self) -> Result<String> {
        let confirmed = self.topic.first_confirm(self.partition, PATIENCE)?;
        let first = self.accepted(confirmed - Duration::from_secs(5), PATIENCE)?;
        let ended = first.sent + first.took;
        let late = ended.saturating_duration_since(confirmed);
        if late > BACK_WITHIN {
            bail!("accepted again only {late:?} after the first confirm");
        }
        self.drained()?;
        Ok(format!("back {late:.1?} after the first confirm"))
    }

    /// Waits until nothing is carried and nothing stuck.
    fn drained(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let view = self.intake()?;
            if view["carried"] == 0 && view["stuck"] == 0 {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("still pending: {view}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Everything acked for this topic is in it.
    fn all_in_topic(&self) -> Result<String> {
        let acked = super::acked_ids(&self.ledger);
        let ids = self.topic.ids(self.partition)?;
        let wanted = acked.iter().filter(|id| !self.before.contains(*id));
        let absent: Vec<_> = wanted.filter(|id| !ids.contains_key(*id)).collect();
        if !absent.is_empty() {
            bail!(
                "{} acked hooks are not in the topic: {:?}",
                absent.len(),
                absent[0]
            );
        }
        let records: usize = ids.values().sum();
        Ok(format!(
            "{records} records of {} hooks, {} acked",
            ids.len(),
            acked.len()
        ))
    }

    /// After a trouble that did not end well: all brokers run, and the topic is as it must be.
    fn heal(&self) -> Result<()> {
        for n in 1..=3 {
            let _ = self.topic.kafka(&format!("resume {n}"));
        }
        self.topic.kafka("start 1 2 3")?;
        let good = "min.insync.replicas=2 retention.ms=604800000 max.message.bytes=12000000";
        self.topic.topic("set", good)?;
        self.accepted(Instant::now(), PATIENCE).map(|_| ())
    }

    fn leader(&self) -> Result<u32> {
        let said = self.topic.topic("leader", &self.partition.to_string())?;
        Ok(said.trim().parse()?)
    }

    fn others(&self) -> Result<[u32; 2]> {
        let leader = self.leader()?;
        Ok([leader % 3 + 1, (leader + 1) % 3 + 1])
    }

    /// Everything is delivered, and the node ends cleanly.
    fn end(mut self, sink: &Sink) -> Result<bool> {
        if let Some(load) = self.load.take() {
            load.stop();
        }
        drop(self.prober);
        send_again(&self.ledger, self.node.address(), 600)?;
        let is_clean = self.node.stop()?;
        let plan = NodePlan {
            keyed_paused: false,
            ..self.node_plan
        };
        let mut node = plan.start(&[DUAL])?;
        until_ready(&mut node, &plan)?;
        // One kill: what was in flight.
        let verdict = kill::delivered(&self.ledger, sink, 2 * 4096);
        let is_clean = node.stop()? && is_clean;
        println!("broker: {verdict}");
        for example in &verdict.examples {
            println!("broker:   {example}");
        }
        Ok(verdict.holds() && is_clean)
    }
}
