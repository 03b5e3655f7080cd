//! The ack path of a shard on a simulated disk: what is told, when, and what is left behind.

#![allow(clippy::unwrap_used)]

mod ahead;
mod own_groups;

use std::cell::Cell;
use std::time::Duration;

use ankusa_wal::disk::sim::{CrashMode, Fate, Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use ankusa_wal::hook::{HookDraft, HookExtra};
use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::{Envelope, HookId, SinkName, Verification};

use super::*;
use crate::commit::{Item, Remains, Verdict};
use crate::dispatch::{Attempt, Plan, RetryPolicy, Target};
use crate::metrics::{MetricsConfig, Registry};

/// A sink that writes down which hooks it was given.
#[derive(Default)]
struct Given(RefCell<Vec<HookId>>);

impl Target for Given {
    fn deliver<'a>(
        &'a self,
        envelope: &'a [u8],
        _replay: Option<crate::replay::ReplayId>,
    ) -> Attempt<'a> {
        Box::pin(async move {
            self.0
                .borrow_mut()
                .push(Envelope::parse(envelope).unwrap().id);
            crate::dispatch::Outcome::Delivered
        })
    }
}

struct OneSink(Rc<Given>, crate::metrics::SinkLabel);

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

struct Rig {
    world: SimWorld,
    host: Rc<SimHost>,
    disk: SimDisk,
    shard: Shard<SimDisk>,
    given: Rc<Given>,
    sink: SinkNo,
}

fn rig_on(world: SimWorld, disk: SimDisk) -> Rig {
    rig_of(world, disk, 256 << 10)
}

fn rig_of(world: SimWorld, disk: SimDisk, segment_bytes: u64) -> Rig {
    let host = world.host();
    let registry = Registry::new(MetricsConfig {
        cores: 1,
        ..MetricsConfig::default()
    });
    let config = Config::tryout();
    let observer = CoreObserver::new(&registry, 0, &config).unwrap();
    let given = Rc::new(Given::default());
    let store = StoreConfig {
        store_uuid: [5; 16],
        segment_bytes,
        group_bytes_max: 32 << 10,
        min_free_bytes: 0,
        ..StoreConfig::default()
    };
    let parts = ShardParts {
        disk: disk.clone(),
        host: Rc::clone(&host) as Rc<dyn Host>,
        store,
        queue: QueueLimits {
            records_max: 100,
            bytes_max: 1 << 20,
            deadline_us: 15_000_000,
        },
        group: GroupLimits {
            bytes_max: 32 << 10,
            records_max: 64,
        },
        deliveries: Limits::default(),
        sinks: Rc::new(OneSink(Rc::clone(&given), registry.sink("x"))),
        observer,
        log: None,
    };
    let shard = world.block_on(Shard::open(parts)).unwrap().unwrap();
    let sink = shard.sink_no(b"t", b"s", b"out").unwrap();
    shard.dispatch.start();
    Rig {
        world,
        host,
        disk,
        shard,
        given,
        sink,
    }
}

fn rig() -> Rig {
    let world = SimWorld::new(1).in_order();
    let disk = SimDisk::new(&world, SimDiskConfig::new(1));
    rig_on(world, disk)
}

struct Post {
    id: HookId,
    sink: SinkNo,
    body: Vec<u8>,
    settled: Cell<Option<(Seq, Verdict, Remains)>>,
    cut: Cell<bool>,
}

impl Item for Post {
    fn draft(&self, f: &mut dyn FnMut(&HookDraft<'_>)) {
        let headers: [(&[u8], &[u8]); 0] = [];
        f(&HookDraft {
            id: self.id,
            received_at_ms: 1,
            tenant: b"t",
            source: b"s",
            method: b"POST",
            target: b"/",
            headers: &headers,
            content_type: b"",
            body: &self.body,
            dedupe_key: None,
            dedupe_ttl_s: 0,
            verification: Verification::None,
            client: ([127, 0, 0, 1], 1).into(),
            extra: HookExtra {
                sinks: &[self.sink],
                ..HookExtra::default()
            },
        });
    }
    fn record_bytes(&self) -> usize {
        500 + self.body.len()
    }
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains) {
        assert!(
            self.settled
                .replace(Some((seq, verdict, remains)))
                .is_none(),
            "settled twice"
        );
    }
    fn cut(&self) {
        assert!(!self.cut.replace(true), "cut twice");
    }
    fn abandon(&self, _verdict: Verdict) {}
}

impl Rig {
    fn post(&self, n: u8) -> Rc<Post> {
        self.post_of(n, 100)
    }

    fn post_of(&self, n: u8, bytes: usize) -> Rc<Post> {
        let post = Rc::new(Post {
            id: HookId([n; 16]),
            sink: self.sink,
            body: (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect(),
            settled: Cell::new(None),
            cut: Cell::new(false),
        });
        assert!(
            self.shard
                .commit
                .submit(Rc::clone(&post) as Rc<dyn Item>, self.host.mono_us())
                .is_ok()
        );
        post
    }

    /// The next sync of a file, and those after it, meet these faults.
    fn syncs_meet(&self, faults: &[Fault]) {
        let done = self
            .disk
            .log()
            .iter()
            .filter(|op| op.kind == OpKind::SyncData)
            .count() as u64;
        let plan = faults
            .iter()
            .enumerate()
            .fold(FaultPlan::none(), |plan, (at, fault)| {
                plan.nth(OpKind::SyncData, done + at as u64, *fault)
            });
        self.disk.set_faults(plan);
    }

    fn run_ms(&self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    fn verdict(&self, post: &Post) -> Option<Verdict> {
        post.settled.get().map(|(_, verdict, _)| verdict)
    }

    fn is_live(&self, n: u8) -> bool {
        self.shard
            .store
            .state()
            .slot_of_id(HookId([n; 16]))
            .is_some()
    }
}

#[test]
fn a_group_is_applied_at_once_acked_only_after_its_fsync_and_not_delivered_before_it() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Hang]);
    let post = rig.post(1);
    rig.run_ms(300);
    assert!(rig.is_live(1), "applied");
    assert!(
        rig.shard.store.applied_lsn() > rig.shard.store.durable_lsn(),
        "and not durable"
    );
    assert_eq!(rig.verdict(&post), None, "and not acked");
    assert!(rig.given.0.borrow().is_empty(), "and not delivered");
    assert_eq!(rig.disk.release_hangs(), 1);
    rig.run_ms(300);
    assert_eq!(rig.verdict(&post), Some(Verdict::Committed));
    assert_eq!(*rig.given.0.borrow(), [HookId([1; 16])]);
}

#[test]
fn the_next_group_is_applied_while_the_previous_one_syncs_with_increasing_seqs() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Hang]);
    let first = rig.post(1);
    rig.run_ms(50);
    let second = rig.post(2);
    rig.run_ms(50);
    assert!(rig.is_live(1) && rig.is_live(2));
    assert_eq!(
        rig.verdict(&second),
        None,
        "the second waits for the first, in LSN order"
    );
    rig.disk.release_hangs();
    rig.run_ms(100);
    let seq = |p: &Post| p.settled.get().unwrap().0;
    assert!(seq(&first) < seq(&second));
    assert_eq!(rig.verdict(&second), Some(Verdict::Committed));
}

#[test]
fn a_failed_fsync_is_fenced_nothing_is_acked_its_hooks_are_undone_and_the_retry_is_stored_once() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Error(libc::EIO, Fate::Kept)]);
    let post = rig.post(1);
    rig.run_ms(20);
    assert_eq!(rig.verdict(&post), Some(Verdict::StoreUnavailable));
    assert_eq!(post.settled.get().unwrap().2, Remains::Undone);
    assert!(!rig.is_live(1));
    rig.run_ms(2_000);
    assert!(
        rig.shard.commit.admit().is_ok(),
        "a new segment stands without a restart"
    );
    let retry = rig.post(2);
    rig.run_ms(200);
    assert_eq!(rig.verdict(&retry), Some(Verdict::Committed));
    assert_eq!(
        *rig.given.0.borrow(),
        [HookId([2; 16])],
        "the undone hook is never delivered"
    );
}

#[test]
fn a_failed_fsync_undoes_only_groups_no_fsync_covered_an_acked_group_keeps_its_rows() {
    let rig = rig();
    rig.run_ms(500);
    // Two groups in flight: the first sync is late and good, the second fails after it.
    rig.syncs_meet(&[Fault::Delay(5_000), Fault::Error(libc::EIO, Fate::Drawn)]);
    let first = rig.post(1);
    rig.run_ms(1);
    let second = rig.post(2);
    rig.world
        .run_until(|| first.settled.get().is_some() && second.settled.get().is_some())
        .unwrap();
    rig.run_ms(2_000);
    let acked: Vec<u8> = [(1, &first), (2, &second)]
        .iter()
        .filter(|(_, p)| rig.verdict(p) == Some(Verdict::Committed))
        .map(|(n, _)| *n)
        .collect();
    for n in &acked {
        assert!(
            rig.given.0.borrow().contains(&HookId([*n; 16])),
            "hook {n} was acked and is gone"
        );
    }
    assert!(!acked.contains(&2), "its sync failed");
    assert!(!rig.given.0.borrow().contains(&HookId([2; 16])));
}

/// Whether a start after a power cut now would find hook `n`.
fn is_found_by_a_start(rig: &Rig, n: u8, mode: &CrashMode) -> bool {
    let image = rig.disk.snapshot().image(mode);
    let world = SimWorld::new(2).in_order();
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(2), &image);
    rig_on(world, disk).is_live(n)
}

/// Found by the simulation (seed 305): the key of a fenced hook was free at once, its retry was
/// stored by another core, and the node died before the cut was durable. The fenced group had
/// landed, and there were two hooks of one key.
#[test]
fn a_fenced_hook_keeps_its_claim_until_the_cut_is_durable() {
    let rig = rig();
    rig.run_ms(500);
    let done = rig.disk.log().len() as u64;
    // Its write lands, its sync fails, and so does all that would cut it off.
    rig.disk
        .set_faults(FaultPlan::none().during(done + 1..u64::MAX, Fault::EIO));
    let post = rig.post(1);
    rig.run_ms(3_000);
    assert_eq!(post.settled.get().unwrap().2, Remains::Undone);
    assert!(rig.shard.store.is_fenced());
    assert!(is_found_by_a_start(&rig, 1, &CrashMode::EVERYTHING));
    assert!(!post.cut.get(), "so nobody else may store its key");
    rig.disk.set_faults(FaultPlan::none());
    rig.world.run_until(|| post.cut.get()).unwrap();
    for mode in [&CrashMode::NOTHING, &CrashMode::EVERYTHING] {
        assert!(!is_found_by_a_start(&rig, 1, mode));
    }
}

#[test]
fn what_waits_while_the_shard_is_fenced_is_refused_at_once() {
    let rig = rig();
    rig.run_ms(500);
    let done = rig.disk.log().len() as u64;
    rig.disk
        .set_faults(FaultPlan::none().during(done..done + 60, Fault::EIO));
    let first = rig.post(1);
    rig.run_ms(20);
    assert_eq!(rig.verdict(&first), Some(Verdict::StoreUnavailable));
    assert!(rig.shard.commit.admit().is_err());
    let second = rig.post(2);
    rig.run_ms(20);
    assert_eq!(rig.verdict(&second), Some(Verdict::StoreUnavailable));
}

#[test]
fn a_write_that_hangs_makes_the_shard_unready_and_its_group_is_not_failed() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Hang]);
    let post = rig.post(1);
    rig.run_ms(2_500);
    assert_eq!(rig.shard.commit.admit(), Err(ankusa_wal::Refusal::Stalled));
    assert_eq!(rig.verdict(&post), None, "nobody knows yet");
    rig.disk.release_hangs();
    rig.run_ms(200);
    assert_eq!(rig.verdict(&post), Some(Verdict::Committed));
    assert!(rig.shard.commit.admit().is_ok());
}

#[test]
fn a_probe_is_true_only_when_something_was_synced() {
    let rig = rig();
    rig.run_ms(500);
    let within = Duration::from_secs(1);
    assert!(rig.world.block_on(rig.shard.commit.probe(within)).unwrap());
    rig.syncs_meet(&[Fault::Error(libc::EIO, Fate::Lost)]);
    assert!(!rig.world.block_on(rig.shard.commit.probe(within)).unwrap());
    rig.run_ms(2_000);
    assert!(rig.world.block_on(rig.shard.commit.probe(within)).unwrap());
    let _ = &rig.host;
}

#[test]
fn what_was_acked_is_delivered_after_a_crash_that_kept_only_what_was_synced() {
    let rig = rig();
    rig.run_ms(500);
    let posts: Vec<Rc<Post>> = (1..=9).map(|n| rig.post(n)).collect();
    rig.world
        .run_until(|| posts.iter().all(|p| p.settled.get().is_some()))
        .unwrap();
    let snapshot = rig.disk.snapshot();
    for mode in snapshot.modes(7, 4) {
        let world = SimWorld::new(2).in_order();
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(2), &snapshot.image(&mode));
        let again = rig_on(world, disk);
        again.run_ms(1_000);
        let given = again.given.0.borrow();
        for n in 1..=9 {
            assert!(given.contains(&HookId([n; 16])), "hook {n} after {mode:?}");
        }
    }
}

#[test]
fn numbers_of_sinks_are_durable_before_the_first_hook_that_is_taken() {
    let rig = rig();
    // More than one group takes of what is queued.
    let sinks: Vec<SinkNo> = (0..3_000)
        .map(|n| {
            let name = format!("sink-{n}");
            rig.shard.sink_no(b"t", b"s", name.as_bytes()).unwrap()
        })
        .collect();
    let flush = rig.shard.commit.flush(Duration::from_secs(10));
    assert!(rig.world.block_on(flush).unwrap());
    let snapshot = rig.disk.snapshot();
    for mode in snapshot.modes(3, 4) {
        let world = SimWorld::new(2).in_order();
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(2), &snapshot.image(&mode));
        let again = rig_on(world, disk);
        let state = again.shard.store.state();
        for (n, sink) in sinks.iter().enumerate() {
            let name = state.names().get(*sink).map(|s| s.name.to_vec());
            assert_eq!(name, Some(format!("sink-{n}").into_bytes()), "{mode:?}");
        }
    }
}
