//! A hook whose source was missing at a recovery, and is back.

use std::cell::RefCell;
use std::rc::Rc;

use ankusa_intake::Replayed;
use ankusa_recovery::{Batch, SourceToday, Today};
use ankusa_wal::disk::sim::{SimDisk, SimDiskConfig};
use ankusa_wal::format::envelope;
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::sim::{SimHost, SimWorld};
use ankusa_wal::state::RowState;
use ankusa_wal::{
    DedupeRow, Envelope, HookDraft, HookExtra, HookId, Host, Seq, SinkName, SinkNo, StoreConfig,
    Verification,
};

use crate::commit::QueueLimits;
use crate::commit::driver::GroupLimits;
use crate::config::Config;
use crate::dispatch::{Attempt, DeadReason, Limits, Outcome, Plan, RetryPolicy, SinkTable, Target};
use crate::metrics::{MetricsConfig, Registry, SinkLabel};
use crate::node::observe::CoreObserver;
use crate::recover::revive::Reviver;
use crate::recover::{NO_SOURCE, Part, ShardRecovery};
use crate::shard::{Shard, ShardParts};

const ID: HookId = HookId([9; 16]);

#[derive(Default)]
struct Given(RefCell<Vec<(HookId, Vec<u8>)>>);

impl Target for Given {
    fn deliver<'a>(
        &'a self,
        envelope: &'a [u8],
        _: Option<crate::replay::ReplayId>,
    ) -> Attempt<'a> {
        Box::pin(async move {
            let envelope = Envelope::parse(envelope).unwrap();
            let given = (envelope.id, envelope.body.to_vec());
            self.0.borrow_mut().push(given);
            Outcome::Delivered
        })
    }
}

/// Every sink but the one that stands for a missing source.
struct Sinks(Rc<Given>, SinkLabel);

impl SinkTable for Sinks {
    fn plan(&self, name: &SinkName) -> Option<Plan> {
        (*name.name != *NO_SOURCE).then(|| Plan {
            target: Rc::clone(&self.0) as Rc<dyn Target>,
            concurrency: 8,
            retry: RetryPolicy::default(),
            timeout_ms: 1_000,
            paused: false,
            label: self.1,
        })
    }
}

/// No source is configured.
struct Nothing;

impl Today for Nothing {
    fn source(&self, _tenant: &[u8], _source: &[u8]) -> Option<SourceToday> {
        None
    }

    fn dedupe_hash(&self, _tenant: &[u8], _source: &[u8], _key: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn now_ms(&self) -> u64 {
        1_800_000_000_000
    }

    fn remember(&self, _rows: &[DedupeRow]) {}
}

fn open(world: &SimWorld, host: &Rc<SimHost>, given: &Rc<Given>) -> Rc<Shard<SimDisk>> {
    let registry = Registry::new(MetricsConfig {
        cores: 1,
        ..MetricsConfig::default()
    });
    let observer = CoreObserver::new(&registry, 0, &Config::tryout()).unwrap();
    let parts = ShardParts {
        disk: SimDisk::new(world, SimDiskConfig::new(1)),
        host: Rc::clone(host) as Rc<dyn Host>,
        store: StoreConfig {
            store_uuid: [5; 16],
            segment_bytes: 256 << 10,
            group_bytes_max: 32 << 10,
            min_free_bytes: 0,
            ..StoreConfig::default()
        },
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
        sinks: Rc::new(Sinks(Rc::clone(given), registry.sink("x"))),
        observer,
        log: None,
    };
    Rc::new(world.block_on(Shard::open(parts)).unwrap().unwrap())
}

fn record(seq: u64) -> Replayed {
    let draft = HookDraft {
        id: ID,
        received_at_ms: 1_767_225_600_000,
        tenant: b"acme",
        source: b"gone",
        method: b"POST",
        target: b"/",
        headers: &[],
        content_type: b"",
        body: b"the body",
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::None,
        client: ([127, 0, 0, 1], 1).into(),
        extra: HookExtra::default(),
    };
    let mut value = vec![0; envelope::encoded_len(&draft)];
    envelope::encode(&draft, Seq(seq), &mut value);
    Replayed {
        position: 0,
        shard: 0,
        seq,
        id: ID.0,
        incarnation: 1,
        value: value.into(),
    }
}

#[test]
fn hook_without_a_source_is_kept_and_delivered_once_when_it_is_replayed_after_the_source_is_back() {
    let world = SimWorld::new(1);
    let host = world.host();
    let given = Rc::new(Given::default());
    let shard = open(&world, &host, &given);
    let part = Part {
        origin: StoreOrigin::Existing,
        give_up: false,
        replays: true,
        damaged: Vec::new(),
        lost: Vec::new(),
        group_bytes: 32 << 10,
    };
    let dyn_host = Rc::clone(&host) as Rc<dyn Host>;
    let recovery = ShardRecovery::new(
        Rc::clone(&shard),
        Rc::clone(&dyn_host),
        Rc::new(Nothing),
        part,
    );
    let batch = Batch {
        records: vec![record(5)],
        below: Some(1),
        ..Batch::default()
    };
    let applied = world.block_on(recovery.apply.apply(batch)).unwrap();
    assert_eq!(applied.unwrap().unroutable, 1);
    shard.dispatch.start();
    let sink = {
        let state = shard.store.state();
        let slot = state.slot_of_seq(Seq(5)).unwrap();
        let row = state.row(state.rows(slot).next().unwrap());
        let reason = DeadReason::SourceUnknown.code();
        assert!(matches!(row.state, RowState::Dead { reason: r, .. } if r == reason));
        assert!(Reviver::is_waiting(state.names().get(row.sink).unwrap()));
        row.sink
    };
    let is_configured = Rc::new(RefCell::new(false));
    let asked = Rc::clone(&is_configured);
    let sources = move |_: &[u8], _: &[u8]| asked.borrow().then(|| vec![b"first"[..].into()]);
    let reviver = Reviver::new(dyn_host, Rc::new(sources));
    let revive = |sink: SinkNo| {
        reviver.start(&shard, vec![(Seq(5), sink), (Seq(5), sink)]);
        world.run_for(std::time::Duration::from_secs(2));
    };
    revive(sink);
    assert!(given.0.borrow().is_empty(), "its source is still missing");
    assert!(shard.store.state().slot_of_seq(Seq(5)).is_some());
    *is_configured.borrow_mut() = true;
    revive(sink);
    revive(sink);
    assert_eq!(*given.0.borrow(), [(ID, b"the body".to_vec())]);
    let state = shard.store.state();
    assert_eq!(state.live_hooks(), 0);
    assert!(state.finished().contains(Seq(5)));
    assert!(state.meta().resequenced(Seq(5), ID).is_some());
}
