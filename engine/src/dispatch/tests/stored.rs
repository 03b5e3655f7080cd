//! Dispatch over the real store, on a simulated disk: hooks written, delivered, and what is left
//! after the power is cut.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::disk::sim::{CrashMode, SimDisk, SimDiskConfig, SimImage};
use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::{
    Envelope, HookDraft, HookExtra, HookId, Host, Seq, SinkName, SinkNo, Store, StoreConfig,
    TaskClass, Verification,
};

use super::super::{
    Attempt, Dispatch, Limits, Outcome, Plan, RetryPolicy, SinkTable, StoreBacklog, Target,
};
use crate::metrics::{MetricsConfig, Registry};

/// How often each hook was delivered, by the last byte of its id; kept over a restart.
type Ledger = Rc<RefCell<BTreeMap<u8, u32>>>;

struct Flaky {
    world: SimWorld,
    ledger: Ledger,
}

impl Target for Flaky {
    fn deliver<'a>(
        &'a self,
        envelope: &'a [u8],
        _replay: Option<crate::replay::ReplayId>,
    ) -> Attempt<'a> {
        Box::pin(async move {
            let hook = Envelope::parse(envelope).unwrap();
            assert_eq!(hook.body, [hook.id.0[15]; 100], "delivered as written");
            self.world.sleep_us(self.world.random() % 5_000).await;
            if self.world.random().is_multiple_of(3) {
                return Outcome::Retry { after_ms: None };
            }
            *self.ledger.borrow_mut().entry(hook.id.0[15]).or_default() += 1;
            Outcome::Delivered
        })
    }
}

struct OneSink(Rc<Flaky>);

impl SinkTable for OneSink {
    fn plan(&self, name: &SinkName) -> Option<Plan> {
        assert_eq!(&*name.name, b"app");
        Some(Plan {
            target: Rc::clone(&self.0) as Rc<dyn Target>,
            concurrency: 8,
            retry: RetryPolicy::default(),
            timeout_ms: 1_000,
            paused: false,
            label: Default::default(),
        })
    }
}

struct Shard {
    world: SimWorld,
    host: Rc<SimHost>,
    disk: SimDisk,
    store: Store<SimDisk>,
    dispatch: Dispatch<StoreBacklog<SimDisk>>,
    sink: SinkNo,
}

fn open(seed: u64, image: Option<&SimImage>, ledger: &Ledger) -> Shard {
    let world = SimWorld::new(seed);
    let disk = match image {
        Some(image) => SimDisk::with_image(&world, SimDiskConfig::new(seed), image),
        None => SimDisk::new(&world, SimDiskConfig::new(seed)),
    };
    let host = world.host();
    let config = StoreConfig {
        segment_bytes: 256 << 10,
        group_bytes_max: 32 << 10,
        group_records_max: 64,
        min_free_bytes: 0,
        ..StoreConfig::default()
    };
    let opened = world
        .block_on(Store::open(disk.clone(), host.clone(), config))
        .unwrap();
    let (store, _) = opened.unwrap();
    let (sink, new) = store.state_mut().sink_no(b"t", b"s", b"app").unwrap();
    if let Some(new) = new {
        store.enqueue(new);
    }
    let registry = Registry::new(MetricsConfig {
        cores: 1,
        ..MetricsConfig::default()
    });
    let flaky = Rc::new(Flaky {
        world: world.clone(),
        ledger: Rc::clone(ledger),
    });
    let dispatch = Dispatch::new(
        host.clone() as Rc<dyn Host>,
        StoreBacklog::new(store.clone(), Rc::new(|| {})),
        Rc::new(OneSink(flaky)),
        Limits::default(),
        Rc::new(registry.core(0).unwrap()),
    );
    let shard = Shard {
        world,
        host,
        disk,
        store,
        dispatch,
        sink,
    };
    shard.dispatch.start();
    shard.commit_outcomes();
    shard
}

impl Shard {
    /// A committer for records alone: a group every few milliseconds while some are queued.
    fn commit_outcomes(&self) {
        let (store, host) = (self.store.clone(), Rc::clone(&self.host));
        let task = async move {
            loop {
                host.sleep(Duration::from_millis(3)).await;
                if store.queued() > 0
                    && let Some(group) = store.try_begin()
                {
                    store.submit(group);
                }
            }
        };
        self.host.spawn(TaskClass::Commit, Box::pin(task));
    }

    /// Writes hooks in groups of four and tells dispatch of each that is durable.
    fn ingest(&self, numbers: std::ops::Range<u8>) {
        let (store, dispatch, sink) = (self.store.clone(), self.dispatch.clone(), self.sink);
        let numbers: Vec<u8> = numbers.collect();
        let task = async move {
            let mut pending: BTreeMap<u64, Vec<Seq>> = BTreeMap::new();
            let mut groups = numbers.chunks(4);
            let mut next = groups.next();
            while next.is_some() || !pending.is_empty() {
                if let Some(chunk) = next
                    && let Some(mut group) = store.try_begin_sized(4 * 600)
                {
                    let seqs = chunk
                        .iter()
                        .map(|n| group.hook(&draft(*n, &[*n; 100], &[sink])));
                    let seqs = seqs.collect();
                    pending.insert(store.submit(group).0, seqs);
                    next = groups.next();
                    continue;
                }
                let settled = poll_fn(|cx| store.poll_settled(cx)).await;
                for seq in pending.remove(&settled.lsn.0).unwrap_or_default() {
                    dispatch.durable(seq);
                }
            }
            loop {
                poll_fn(|cx| store.poll_settled(cx)).await;
            }
        };
        self.host.spawn(TaskClass::Commit, Box::pin(task));
    }
}

fn draft<'a>(number: u8, body: &'a [u8], sinks: &'a [SinkNo]) -> HookDraft<'a> {
    let mut id = [0; 16];
    id[15] = number;
    HookDraft {
        id: HookId(id),
        received_at_ms: 1,
        tenant: b"t",
        source: b"s",
        method: b"POST",
        target: b"/",
        headers: &[] as &[(&[u8], &[u8]); 0],
        content_type: b"",
        body,
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::None,
        client: ([127, 0, 0, 1], 1).into(),
        extra: HookExtra {
            sinks,
            ..HookExtra::default()
        },
    }
}

#[test]
fn every_hook_is_delivered_and_leaves_the_store() {
    for seed in 0..10 {
        let ledger = Ledger::default();
        let shard = open(seed, None, &ledger);
        shard.ingest(0..200);
        let drained = || ledger.borrow().len() == 200 && shard.store.state().live_hooks() == 0;
        shard.world.run_until(drained).unwrap();
        assert!(
            ledger.borrow().values().all(|count| *count == 1),
            "seed {seed}: twice"
        );
        assert_eq!(shard.dispatch.gauges().counts.scheduled_count, 0);
    }
}

#[test]
fn after_a_power_cut_everything_durable_and_unfinished_is_delivered() {
    for seed in 0..30 {
        let ledger = Ledger::default();
        let shard = open(seed, None, &ledger);
        shard.ingest(0..200);
        // Somewhere in the middle of it.
        let goal = 1 + (seed as usize * 7) % 150;
        shard
            .world
            .run_until(|| ledger.borrow().len() >= goal)
            .unwrap();
        let image = shard.disk.snapshot().image(&CrashMode::drawn(seed));
        let delivered_before = ledger.borrow().clone();
        drop(shard);

        let shard = open(seed + 1_000, Some(&image), &ledger);
        let live: Vec<u8> = {
            let state = shard.store.state();
            state
                .hooks()
                .filter_map(|slot| state.hook(slot))
                .map(|hook| hook.id.0[15])
                .collect()
        };
        shard
            .world
            .run_until(|| shard.store.state().live_hooks() == 0)
            .unwrap();
        let ledger = ledger.borrow();
        for number in live {
            assert!(
                ledger.contains_key(&number),
                "seed {seed}: hook {number} is lost"
            );
        }
        // What was delivered before the cut was delivered on the strength of a durable record.
        for (number, count) in &*ledger {
            let before = delivered_before.get(number).copied().unwrap_or(0);
            assert!(
                *count <= before + 1,
                "seed {seed}: hook {number} {count} times"
            );
        }
    }
}
