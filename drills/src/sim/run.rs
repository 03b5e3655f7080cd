//! One seed: a history of operations, faults, deaths and recoveries, and the judgement at its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::disk::sim::{FaultPlan, FaultRates, SimCounters, SimDisk};
use ankusa_wal::sim::{SimRng, SimWorld, Step};
use ankusa_wal::{OpenError, StoreConfig, SyncMode, TaskClass};

use super::book::{Book, Kind, Violation};
use super::client::Client;
use super::dual::Dual;
use super::log::{LogCounters, SimLog, Weather};
use super::node::{Failure, Node, SHARDS, Shape, Stage};
use super::sinks::{Mood, SINKS, Sinks};
use super::trace::Trace;
use super::{faults, judge, medium};

/// Virtual time after which a boot, a stop or a drain counts as stuck.
const PATIENCE_US: u64 = 3_600_000_000;
/// Steps after which they count as stuck in a loop.
const STEPS_MAX: u64 = 5_000_000;
/// How often what hangs is let go while something is waited for.
const RELEASE_EVERY_US: u64 = 5_000_000;
/// Longer than the disk takes for anything that does not hang.
const SETTLE: Duration = Duration::from_secs(31);

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every choice follows from it.
    pub seed: u64,
    /// Operations.
    pub ops: u32,
    /// Faults of the disk to be met, at least.
    pub faults: u32,
    /// Print the trace.
    pub trace: bool,
    /// Compare acks and deliveries with the medium now and then.
    pub probes: bool,
    /// With an intake log: the dual commit.
    pub dual: bool,
}

impl Plan {
    /// The plan of CI for a seed.
    pub fn of(seed: u64) -> Plan {
        Plan {
            seed,
            ops: 200,
            faults: 5,
            trace: false,
            probes: true,
            dual: false,
        }
    }
}

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How often each thing was done.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl std::ops::AddAssign for Tally {
            fn add_assign(&mut self, other: Tally) {
                $(self.$name += other.$name;)*
            }
        }

        impl std::fmt::Display for Tally {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $(write!(f, "{}={} ", stringify!($name), self.$name)?;)*
                Ok(())
            }
        }
    };
}

tally! {
    /// Requests sent.
    sent,
    /// Requests acked.
    acked,
    /// Acks that named an earlier hook.
    duplicates,
    /// Deliveries.
    delivered,
    /// Dead letters.
    dead,
    /// Power cuts.
    cuts,
    /// Process deaths with the power on.
    kills,
    /// Cuts and deaths during a boot.
    boots_killed,
    /// Boots that failed by a fault and were repeated.
    boots_failed,
    /// Clean stops.
    stops,
    /// Fences.
    fences,
    /// Checkpoints asked for.
    checkpoints,
    /// Groups written.
    groups,
    /// Hosts lost with everything on them.
    hosts_lost,
    /// Claims that carried records gave up.
    gave_up,
}

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What was broken; empty when every promise held.
    pub violations: Vec<Violation>,
    /// What the disks met.
    pub counters: SimCounters,
    /// What the log did.
    pub log: LogCounters,
    /// What was done.
    pub tally: Tally,
    /// Hash of the trace.
    pub hash: u64,
}

/// Runs a seed to its end and judges it.
pub fn run_seed(plan: &Plan) -> Report {
    with_run(plan, &Book::new(), Run::history)
}

fn with_run(plan: &Plan, book: &Rc<Book>, body: impl FnOnce(&mut Run)) -> Report {
    let world = SimWorld::new(plan.seed);
    let trace = Rc::new(Trace::new(&world, plan.trace));
    let mut run = Run::new(plan, &world, book, &trace);
    let ended = catch_unwind(AssertUnwindSafe(|| body(&mut run)));
    if let Err(panic) = ended {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        book.broken(Kind::Panicked, text.unwrap_or_default());
    }
    let counters = run.counters_now();
    let tally = run.tally_now();
    let log = run.dual.as_ref().map(|dual| dual.log.counters());
    // A panic may have left a cell borrowed: then what is left of the world is leaked.
    let _ = catch_unwind(AssertUnwindSafe(|| run.tear_down()));
    Report {
        seed: plan.seed,
        violations: book.violations(),
        counters,
        log: log.unwrap_or_default(),
        tally,
        hash: trace.hash(),
    }
}

/// A short history without deaths, in which one disk meets `faults` from its first operation on.
/// Also answers how many operations each disk had.
pub(super) fn run_short(plan: &Plan, faults: Option<(usize, FaultPlan)>) -> (Report, Vec<u64>) {
    let mut ops = Vec::new();
    let report = with_run(plan, &Book::new(), |run| {
        if let Some((shard, faults)) = faults {
            run.disks[shard].set_faults(faults);
        }
        run.keeps_faults = true;
        let over = run.short();
        ops = run.disks.iter().map(SimDisk::ops).collect();
        run.keeps_faults = false;
        if over.is_ok() && run.finish().is_ok() {
            judge::judge(&run.book);
        }
    });
    (report, ops)
}

/// The same with every disk handed to `watch` before its first operation, and no sink that takes
/// anything. Also answers the settings of a shard's store.
pub(super) fn run_watched(
    plan: &Plan,
    book: &Rc<Book>,
    watch: &dyn Fn(usize, &SimDisk),
) -> (Report, impl Fn(usize) -> StoreConfig + use<>) {
    let mut shape = None;
    let report = with_run(plan, book, |run| {
        shape = Some(run.shape);
        for (shard, disk) in run.disks.iter().enumerate() {
            watch(shard, disk);
        }
        for sink in 0..SINKS.len() {
            run.sinks.set_mood(sink, Mood::Silent);
        }
        let over = run.short();
        if over.is_ok() {
            let _ = run.stop();
        }
    });
    let store =
        move |shard| shape.map_or_else(StoreConfig::default, |shape: Shape| shape.store(shard));
    (report, store)
}

pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) rng: SimRng,
    pub(super) world: SimWorld,
    pub(super) book: Rc<Book>,
    pub(super) trace: Rc<Trace>,
    pub(super) sinks: Rc<Sinks>,
    pub(super) client: Rc<Client>,
    shape: Shape,
    pub(super) disks: Vec<SimDisk>,
    pub(super) node: Option<Node>,
    pub(super) dual: Option<Dual>,
    /// This run's log may lose what it holds; else its hosts may be lost.
    pub(super) log_goes_back: bool,
    pub(super) past: SimCounters,
    pub(super) tally: Tally,
    has_boot_faults: bool,
    is_over: bool,
    /// Boots leave the plan of faults as it is.
    keeps_faults: bool,
    paused: [bool; 2],
}

/// The run cannot go on; the book says why.
pub(super) struct Over;

impl Run {
    fn new(plan: &Plan, world: &SimWorld, book: &Rc<Book>, trace: &Rc<Trace>) -> Run {
        let mut rng = SimRng::stream(plan.seed, 20);
        let shape = Shape {
            segment_bytes: [64 << 10, 128 << 10, 256 << 10][rng.below(3) as usize],
            groups_inflight: rng.between(1, 4) as usize,
            sync: if rng.below(4) == 0 {
                SyncMode::Dsync
            } else {
                SyncMode::Fdatasync
            },
            cache_bytes_max: [0, 8 << 10, 1 << 20][rng.below(3) as usize],
            checkpoint_segments: rng.between(2, 6) as u32,
        };
        let disks = (0..SHARDS)
            .map(|_| SimDisk::new(world, faults::disk_config(&mut rng)))
            .collect::<Vec<_>>();
        let dual = plan
            .dual
            .then(|| Dual::new(SimLog::new(world, trace, plan.seed), book));
        let log = dual.as_ref().map(|dual| dual.log.clone());
        let client = Client::new(book, trace, plan.seed, plan.probes, log);
        *client.disks.borrow_mut() = disks.clone();
        Run {
            plan: plan.clone(),
            rng,
            world: world.clone(),
            book: Rc::clone(book),
            trace: Rc::clone(trace),
            sinks: Sinks::new(world, book, trace, plan.seed),
            client,
            shape,
            disks,
            node: None,
            dual,
            log_goes_back: plan.seed.is_multiple_of(4),
            past: SimCounters::default(),
            tally: Tally::default(),
            has_boot_faults: false,
            is_over: false,
            keeps_faults: false,
            paused: [false; 2],
        }
    }

    fn history(&mut self) {
        self.trace
            .note(format_args!("seed {} {:?}", self.plan.seed, self.shape));
        let Ok(()) = self.operations().and_then(|()| self.finish()) else {
            return;
        };
        judge::judge(&self.book);
    }

    fn operations(&mut self) -> Result<(), Over> {
        self.boot()?;
        // Goes on after the last operation until enough faults were met.
        for op in 0..self.plan.ops * 2 {
            let share = u64::from((op + 1).min(self.plan.ops));
            let due = u64::from(self.plan.faults) * share / u64::from(self.plan.ops);
            let is_behind = self.counters_now().faults() < due;
            if op >= self.plan.ops && !is_behind {
                break;
            }
            if is_behind && self.rng.below(3) == 0 {
                self.hurt();
            }
            self.operation()?;
            if self.rng.below(12) == 0 {
                self.release_hangs();
            }
            let pause_us = match self.rng.below(20) {
                0..6 => 0,
                6..17 => self.rng.between(20, 1_500),
                _ => self.rng.between(1_500, 30_000),
            };
            self.world.run_for(Duration::from_micros(pause_us));
        }
        Ok(())
    }

    /// Posts of every kind, a checkpoint, an idle moment: one core for each shard.
    fn short(&mut self) -> Result<(), Over> {
        self.boot()?;
        for op in 0..self.plan.ops {
            let Some(node) = &self.node else {
                return Err(Over);
            };
            match op % 8 {
                0 => self.client.post_new(node, 30_000, None),
                1 | 5 => self.client.post_keyed(node),
                3 => self.client.post_same_key(node),
                _ => self.client.post_plain(node),
            }
            match op % 12 {
                5 => self.ask_checkpoint(),
                11 => self.world.run_for(Duration::from_millis(300)),
                _ => self.world.run_for(Duration::from_micros(300)),
            }
        }
        self.release_hangs();
        self.world.run_for(Duration::from_secs(3));
        Ok(())
    }

    fn operation(&mut self) -> Result<(), Over> {
        if self.dual.is_some() && self.rng.below(14) == 0 {
            return self.log_operation();
        }
        let draw = self.rng.below(1_000);
        let Some(node) = &self.node else {
            return Err(Over);
        };
        match draw {
            0..430 => self.client.post_plain(node),
            430..690 => self.client.post_keyed(node),
            690..740 => self.client.post_same_key(node),
            740..800 => {
                self.client.retry(node);
            }
            800..830 => self.client.read(node),
            830..865 => self.change_mood(),
            865..885 => self.pause(),
            885..900 => self.ask_checkpoint(),
            900..908 => self.cut_after_checkpoint()?,
            908..930 => {
                let idle_ms = self.rng.between(50, 3_000);
                self.world.run_for(Duration::from_millis(idle_ms));
            }
            930..945 => {
                let shard = self.rng.below(SHARDS as u64) as usize;
                let is_full = self.rng.coin();
                self.trace
                    .note(format_args!("disk {shard} full: {is_full}"));
                self.disks[shard].set_capacity(if is_full { 0 } else { 1 << 40 });
            }
            945..958 => {
                self.stop()?;
                self.boot()?;
            }
            958..975 => {
                self.kill();
                self.boot()?;
            }
            _ => {
                self.cut();
                self.boot()?;
            }
        }
        Ok(())
    }

    fn hurt(&mut self) {
        let shard = self.rng.below(SHARDS as u64) as usize;
        let plan = faults::draw(&mut self.rng);
        self.trace
            .note(format_args!("fault on disk {shard}: {plan:?}"));
        self.disks[shard].set_faults(plan);
    }

    fn change_mood(&mut self) {
        let mood = match self.rng.below(8) {
            0 | 1 => Mood::Slow,
            2 | 3 => Mood::Failing,
            4 => Mood::Silent,
            _ => Mood::Sound,
        };
        let sink = self.rng.below(SINKS.len() as u64) as usize;
        self.sinks.set_mood(sink, mood);
    }

    fn pause(&mut self) {
        let sink = self.rng.below(SINKS.len() as u64) as usize;
        self.paused[sink] = !self.paused[sink];
        self.set_paused();
    }

    fn set_paused(&self) {
        let Some(node) = &self.node else { return };
        self.trace.note(format_args!("paused: {:?}", self.paused));
        for shard in node.shards() {
            let named: Vec<_> = shard.store.state().names().iter().cloned().collect();
            for name in named {
                if let Some(at) = SINKS.iter().position(|s| s.as_bytes() == &*name.name) {
                    shard.dispatch.set_paused(name.sink, self.paused[at]);
                }
            }
        }
    }

    fn ask_checkpoint(&mut self) {
        let Some(node) = &self.node else { return };
        let core = &node.cores[self.rng.below(node.cores.len() as u64) as usize];
        self.tally.checkpoints += 1;
        for shard in core.shards.borrow().iter() {
            let (store, trace) = (shard.store.clone(), Rc::clone(&self.trace));
            let task = async move {
                let result = store.checkpoint().await;
                trace.note(format_args!("checkpoint: {result:?}"));
            };
            use ankusa_wal::Host as _;
            core.host.spawn(TaskClass::Maintenance, Box::pin(task));
        }
    }

    /// A checkpoint while groups are slow to become durable, and the power goes soon after.
    fn cut_after_checkpoint(&mut self) -> Result<(), Over> {
        let slow = FaultRates {
            delay: 3_000,
            ..FaultRates::default()
        };
        for disk in &self.disks {
            disk.set_faults(FaultPlan::none().rates(slow).drawn_max(8));
        }
        for round in 0..6 {
            if round == 3 {
                self.ask_checkpoint();
            }
            if let Some(node) = &self.node {
                self.client.post_plain(node);
            }
            let pause_us = self.rng.between(20, 400);
            self.world.run_for(Duration::from_micros(pause_us));
        }
        let pause_us = self.rng.between(500, 20_000);
        self.world.run_for(Duration::from_micros(pause_us));
        self.cut();
        self.boot()
    }

    /// Boots until it serves; a boot may be cut short, or fail by a fault, and is then repeated.
    pub(super) fn boot(&mut self) -> Result<(), Over> {
        for attempt in 0.. {
            let drawn = self.rng.between(1, SHARDS as u64) as usize;
            let cores = if self.keeps_faults || self.plan.faults == 0 {
                SHARDS
            } else {
                drawn
            };
            let has_faults = self.has_boot_faults && attempt < 5;
            for disk in &self.disks {
                if self.keeps_faults {
                    continue;
                }
                let hurts = has_faults && self.rng.below(4) == 0;
                disk.set_faults(if hurts {
                    faults::draw_for_boot(&mut self.rng)
                } else {
                    FaultPlan::none()
                });
                if attempt >= 3 {
                    disk.set_capacity(1 << 40);
                }
            }
            self.trace.note(format_args!("boot with {cores} cores"));
            self.plug();
            self.log_comes_back();
            self.space_comes_back();
            let node = Node::start(
                &self.world,
                self.shape,
                &self.disks,
                &self.sinks,
                cores,
                self.dual.as_ref(),
            );
            let dies_after =
                (has_faults && self.rng.below(6) == 0).then(|| self.rng.between(1, 400));
            let mut steps = 0;
            let mut failed = None;
            let ended = self.run_while(|| {
                steps += 1;
                match node.stage() {
                    Stage::Booting => dies_after.is_none_or(|most| steps < most),
                    Stage::Serving => false,
                    Stage::Failed(failure) => {
                        failed = Some(failure);
                        false
                    }
                }
            });
            let is_serving = failed.is_none() && matches!(node.stage(), Stage::Serving);
            self.node = Some(node);
            if is_serving {
                self.has_boot_faults = !self.is_over && self.plan.faults > 0;
                self.trace.note(format_args!("serving"));
                self.set_paused();
                return Ok(());
            }
            if !ended {
                return Err(self.stuck("a boot"));
            }
            match failed {
                None => self.tally.boots_killed += 1,
                Some(Failure::Recovery(refusal)) => {
                    self.book
                        .broken(Kind::Refused, format!("recovery: {refusal}"));
                    return Err(Over);
                }
                Some(Failure::Open(shard, error)) => {
                    self.trace
                        .note(format_args!("shard {shard} does not open: {error}"));
                    if attempt > 8 || !matches!(error, OpenError::Io { .. }) {
                        self.book
                            .broken(Kind::Refused, format!("shard {shard}: {error}"));
                        return Err(Over);
                    }
                    self.tally.boots_failed += 1;
                }
            }
            if self.rng.coin() {
                self.cut()
            } else {
                self.kill()
            }
        }
        Err(Over)
    }

    /// From here on nothing is paused and no boot is hurt.
    pub(super) fn end_troubles(&mut self) {
        self.has_boot_faults = false;
        self.is_over = true;
        if let Some(dual) = &self.dual {
            dual.log.set_picky(false);
            dual.log.set_weather(Weather::Sound);
        }
        self.paused = [false; 2];
        self.set_paused();
    }

    /// Hands today's disks to whoever looks at the medium.
    pub(super) fn plug(&self) {
        *self.client.disks.borrow_mut() = self.disks.clone();
        if self.plan.probes {
            let disks = self.disks.clone();
            *self.sinks.probe.borrow_mut() = Some(Rc::new(move |id| medium::holds(&disks, id)));
        }
    }

    /// A clean stop; what comes after it finds the disks as they are, or as a cut leaves them.
    pub(super) fn stop(&mut self) -> Result<(), Over> {
        let Some(node) = self.node.take() else {
            return Err(Over);
        };
        self.trace.note(format_args!("stop"));
        node.stop();
        let ended = self.run_while(|| node.is_stopped().is_none());
        if !ended {
            self.node = Some(node);
            return Err(self.stuck("a clean stop"));
        }
        if node.is_stopped() == Some(true) {
            self.book
                .clean_lives
                .borrow_mut()
                .insert(self.book.life.get());
        }
        self.tally.stops += 1;
        self.node = Some(node);
        if self.rng.coin() {
            self.cut()
        } else {
            self.kill()
        }
        Ok(())
    }

    /// The process dies, the power stays: what was in flight lands, what was not flushed is still
    /// not flushed.
    pub(super) fn kill(&mut self) {
        self.trace.note(format_args!("kill"));
        self.count_life();
        if let Some(node) = self.node.take() {
            node.kill();
        }
        self.book.hung_up();
        self.tally.kills += 1;
        for disk in &self.disks {
            disk.set_faults(FaultPlan::none());
        }
        self.release_hangs();
        self.world.run_for(SETTLE);
    }

    /// The power goes; the medium keeps what it keeps.
    pub(super) fn cut(&mut self) {
        self.count_life();
        let snapshots: Vec<_> = self.disks.iter().map(SimDisk::snapshot).collect();
        if let Some(node) = self.node.take() {
            self.world.crash();
            node.forget();
        }
        self.book.hung_up();
        self.tally.cuts += 1;
        for (disk, snapshot) in self.disks.iter_mut().zip(snapshots) {
            let modes = snapshot.modes(self.rng.next_u64(), 8);
            let mode = modes[self.rng.below(modes.len() as u64) as usize];
            self.trace.note(format_args!("power cut: {mode:?}"));
            self.past += disk.counters();
            let config = faults::disk_config(&mut self.rng);
            *disk = SimDisk::with_image(&self.world, config, &snapshot.image(&mode));
        }
        self.plug();
    }

    pub(super) fn count_life(&mut self) {
        let Some(node) = &self.node else { return };
        for shard in node.shards() {
            let stats = shard.store.stats();
            self.tally.fences += stats.fences;
            self.tally.groups += stats.groups;
        }
    }

    pub(super) fn release_hangs(&self) {
        for disk in &self.disks {
            disk.release_hangs();
        }
    }

    /// Steps while `goes_on`; false when it never ends.
    pub(super) fn run_while(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        let start_us = self.world.now_us();
        let mut release_us = start_us + RELEASE_EVERY_US;
        for _ in 0..STEPS_MAX {
            if !goes_on() {
                return true;
            }
            let now_us = self.world.now_us();
            if now_us > start_us + PATIENCE_US {
                return false;
            }
            if now_us > release_us {
                release_us = now_us + RELEASE_EVERY_US;
                self.release_hangs();
            }
            if self.world.step() == Step::Idle {
                return !goes_on();
            }
        }
        false
    }

    pub(super) fn stuck(&self, what: &str) -> Over {
        let shards = self.node.as_ref().map(Node::shards).unwrap_or_default();
        let stand: Vec<String> = shards
            .iter()
            .map(|shard| {
                let store = &shard.store;
                format!(
                    "shard {}: applied {} durable {} fenced {} queued {} commit {:?} log {:?}",
                    shard.id,
                    store.applied_lsn(),
                    store.durable_lsn(),
                    store.is_fenced(),
                    store.queued(),
                    shard.commit.depth(),
                    shard.log().map(|log| log.facts()),
                )
            })
            .collect();
        self.book.broken(
            Kind::Stuck,
            format!("{what} does not end ({})", stand.join("; ")),
        );
        Over
    }

    fn counters_now(&self) -> SimCounters {
        let mut all = self.past;
        for disk in &self.disks {
            all += disk.counters();
        }
        all
    }

    fn tally_now(&self) -> Tally {
        let mut tally = self.tally;
        for sent in self.book.requests.borrow().values() {
            tally.sent += u64::from(sent.sent_count);
            tally.acked += u64::from(sent.is_acked());
            tally.duplicates += sent.answers.iter().filter(|a| a.duplicate).count() as u64;
        }
        tally.hosts_lost = self.book.host_losses.borrow().len() as u64;
        tally.gave_up = self.book.given_up.borrow().len() as u64;
        tally.delivered = self.book.deliveries.borrow().len() as u64;
        tally
    }

    pub(super) fn contract(&self) {
        let met = self.counters_now();
        for (count, what) in [
            (met.overlapping_writes, "writes over a write in flight"),
            (
                met.syncs_after_failure,
                "syncs of a descriptor whose sync had failed",
            ),
            (
                met.writes_after_failure,
                "writes to a descriptor whose sync had failed",
            ),
        ] {
            if count > 0 {
                self.book.broken(Kind::Contract, format!("{count} {what}"));
            }
        }
    }

    fn tear_down(&mut self) {
        self.world.crash();
        if let Some(node) = self.node.take() {
            node.forget();
        }
        self.sinks.probe.borrow_mut().take();
        self.client.disks.borrow_mut().clear();
    }
}
