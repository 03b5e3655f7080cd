//! A node of these tests: shards on simulated disks, facts that survive a crash, and the log.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ankusa_intake::{Expected, Replayed};
use ankusa_wal::disk::sim::{CrashMode, SimDisk, SimDiskConfig, SimImage};
use ankusa_wal::format::envelope;
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::host::LocalFuture;
use ankusa_wal::sim::SimWorld;
use ankusa_wal::state::RowState;
use ankusa_wal::{
    DedupeRow, Envelope, GroupBuilder, HookDraft, HookExtra, HookId, Host, Lsn, Outcome, Record,
    Seq, ShardId, Store, StoreConfig, TaskClass, Verification, Watermark,
};

pub(crate) use super::log::{Entry, TestLog};
use crate::apply::{Applied, Batch, Encode, Groups, Settings, ShardApply, SourceToday, Today};
use crate::boot::{Gap, Options, Refusal, Start, Summary};
use crate::port::{
    NodePort, NodeState, PortError, PortFuture, Progress, Republished, ShardEnd, ShardMark, Stamp,
};

pub(crate) const NODE: &str = "node-a";

pub(crate) fn config(shard: u16) -> StoreConfig {
    StoreConfig {
        shard: ShardId(shard),
        store_uuid: *b"store-of-a-test!",
        segment_bytes: 128 << 10,
        group_bytes_max: 16 << 10,
        group_records_max: 64,
        min_free_bytes: 0,
        cache_bytes_max: 0,
        ..StoreConfig::default()
    }
}

pub(crate) fn options() -> Options {
    Options {
        node: NODE.into(),
        expected: Expected {
            backup_max_age_ms: 1,
            max_record_bytes: 1,
        },
        verify: true,
        wait: true,
        probe: Duration::from_millis(10),
        start: Start::Stored,
        replay: true,
        allow_gap: false,
        dry_run: false,
        chunk_records: 7,
        chunk_bytes: 1 << 20,
        inflight: 3,
    }
}

pub(crate) fn id_of(number: u64) -> HookId {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    HookId(id)
}

pub(crate) fn body_of(number: u64) -> Vec<u8> {
    let bytes = 60 + (number * 37 % 900) as usize;
    (0..bytes)
        .map(|at| (number as usize * 31 + at) as u8)
        .collect()
}

/// Draft of hook `number` of a source.
pub(crate) fn draft<'a>(number: u64, source: &'a [u8], body: &'a [u8]) -> HookDraft<'a> {
    HookDraft {
        id: id_of(number),
        received_at_ms: 1_767_225_600_000,
        tenant: b"acme",
        source,
        method: b"POST",
        target: b"/",
        headers: &[],
        content_type: b"",
        body,
        dedupe_key: Some(b"key"),
        dedupe_ttl_s: 3_000_000_000,
        verification: Verification::None,
        client: ([127, 0, 0, 1], 1).into(),
        extra: HookExtra::default(),
    }
}

/// The record of hook `number` as this node's log has it.
pub(crate) fn record(shard: u16, seq: u64, number: u64) -> Entry {
    record_of(shard, seq, number, b"github", 1)
}

pub(crate) fn record_of(
    shard: u16,
    seq: u64,
    number: u64,
    source: &[u8],
    incarnation: u32,
) -> Entry {
    let body = body_of(number);
    let draft = draft(number, source, &body);
    let mut value = vec![0; envelope::encoded_len(&draft)];
    envelope::encode(&draft, Seq(seq), &mut value);
    Entry::Hook(
        NODE.into(),
        Replayed {
            position: 0,
            shard,
            seq,
            id: id_of(number).0,
            incarnation,
            value: value.into(),
        },
    )
}

/// Writes groups one after the other through the store: the one task that settles them.
pub(crate) struct Pump {
    store: Store<SimDisk>,
    cells: RefCell<PumpCells>,
}

/// Bytes planned, bytes of the first record, what encodes, and how it ends.
type Waiting = (usize, usize, Encode<SimDisk>, Rc<RefCell<Fate>>);

/// A hook as a shard holds it: id, body, and its rows in words.
pub(crate) type Held = (HookId, Vec<u8>, Vec<String>);

#[derive(Default)]
struct PumpCells {
    queue: VecDeque<Waiting>,
    started: VecDeque<(Lsn, Rc<RefCell<Fate>>)>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Fate(Option<Outcome>, Option<Waker>);

impl Pump {
    fn start(store: Store<SimDisk>, host: &Rc<dyn Host>) -> Rc<Pump> {
        let pump = Rc::new(Pump {
            store,
            cells: RefCell::default(),
        });
        let weak = Rc::downgrade(&pump);
        let task = poll_fn(move |cx| match weak.upgrade() {
            None => Poll::Ready(()),
            Some(pump) => {
                pump.poll(cx);
                Poll::Pending
            }
        });
        host.spawn(TaskClass::Commit, Box::pin(task));
        pump
    }

    fn poll(&self, cx: &mut std::task::Context<'_>) {
        self.cells.borrow_mut().waker = Some(cx.waker().clone());
        while let Poll::Ready(settled) = self.store.poll_settled(cx) {
            let mut cells = self.cells.borrow_mut();
            while cells
                .started
                .front()
                .is_some_and(|(lsn, _)| *lsn <= settled.lsn)
            {
                if let Some((_, fate)) = cells.started.pop_front() {
                    let waker = {
                        let mut fate = fate.borrow_mut();
                        fate.0 = Some(settled.outcome);
                        fate.1.take()
                    };
                    waker.into_iter().for_each(Waker::wake);
                }
            }
        }
        loop {
            let Some((bytes, first)) = self.cells.borrow().queue.front().map(|q| (q.0, q.1)) else {
                return;
            };
            let Some(mut group) = self.store.try_begin_with(bytes, first) else {
                let _ = self.store.poll_ready(cx);
                return;
            };
            let Some((_, _, encode, fate)) = self.cells.borrow_mut().queue.pop_front() else {
                return;
            };
            encode(&mut group);
            let lsn = self.store.submit(group);
            self.cells.borrow_mut().started.push_back((lsn, fate));
        }
    }
}

impl Groups<SimDisk> for Pump {
    fn store(&self) -> &Store<SimDisk> {
        &self.store
    }

    fn write(
        &self,
        bytes: usize,
        first: usize,
        encode: Encode<SimDisk>,
    ) -> LocalFuture<Result<Outcome, PortError>> {
        let fate = Rc::new(RefCell::new(Fate::default()));
        let waker = {
            let mut cells = self.cells.borrow_mut();
            cells
                .queue
                .push_back((bytes, first, encode, Rc::clone(&fate)));
            cells.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
        Box::pin(poll_fn(move |cx| {
            let mut fate = fate.borrow_mut();
            if let Some(outcome) = fate.0 {
                return Poll::Ready(Ok(outcome));
            }
            fate.1 = Some(cx.waker().clone());
            Poll::Pending
        }))
    }
}

/// The configuration: `github` has two sinks; others only while they are named.
pub(crate) struct TestToday {
    pub(crate) sources: RefCell<Vec<&'static [u8]>>,
    pub(crate) remembered: RefCell<Vec<DedupeRow>>,
    now_ms: u64,
}

impl Today for TestToday {
    fn source(&self, _tenant: &[u8], source: &[u8]) -> Option<SourceToday> {
        let is_known = self.sources.borrow().contains(&source);
        is_known.then(|| SourceToday {
            sinks: vec![b"first"[..].into(), b"second"[..].into()],
            archive: false,
        })
    }

    fn dedupe_hash(&self, _tenant: &[u8], _source: &[u8], key: &[u8]) -> [u8; 16] {
        [key.len() as u8; 16]
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn remember(&self, rows: &[DedupeRow]) {
        self.remembered.borrow_mut().extend(rows);
    }
}

/// What outlives a process.
#[derive(Clone)]
pub(crate) struct Remains {
    pub(crate) images: Vec<SimImage>,
    pub(crate) facts: NodeState,
}

pub(crate) struct Node {
    pub(crate) world: SimWorld,
    pub(crate) log: TestLog,
    pub(crate) today: Rc<TestToday>,
    pub(crate) disks: RefCell<Vec<SimDisk>>,
    pub(crate) facts: RefCell<NodeState>,
    pub(crate) shards: RefCell<Vec<ShardApply<SimDisk>>>,
    pub(crate) gaps: RefCell<Vec<Gap>>,
    pub(crate) progress: RefCell<Vec<Progress>>,
    host: Rc<dyn Host>,
    damaged: Vec<Seq>,
}

pub(crate) fn facts(origin: StoreOrigin) -> NodeState {
    NodeState {
        node: None,
        partition: None,
        log: None,
        origin,
        incarnation: 1,
    }
}

impl Node {
    /// A new store.
    pub(crate) fn fresh(log: &TestLog, shards: usize) -> Rc<Node> {
        let images = (0..shards).map(|_| None).collect();
        Node::open(1, log, images, facts(StoreOrigin::Fresh), Vec::new())
    }

    /// What the last process left, opened.
    pub(crate) fn reopen(log: &TestLog, remains: &Remains) -> Rc<Node> {
        Node::reopen_damaged(log, remains, Vec::new())
    }

    /// The same; these hooks are known to be unreadable.
    pub(crate) fn reopen_damaged(log: &TestLog, remains: &Remains, damaged: Vec<Seq>) -> Rc<Node> {
        let images = remains.images.iter().map(Some).collect();
        Node::open(2, log, images, remains.facts.clone(), damaged)
    }

    fn open(
        seed: u64,
        log: &TestLog,
        images: Vec<Option<&SimImage>>,
        facts: NodeState,
        damaged: Vec<Seq>,
    ) -> Rc<Node> {
        let world = SimWorld::new(seed);
        let node = Rc::new(Node {
            host: world.host(),
            world,
            log: log.clone(),
            today: Rc::new(TestToday {
                sources: RefCell::new(vec![b"github"]),
                remembered: RefCell::default(),
                now_ms: 1_767_225_700_000,
            }),
            disks: RefCell::default(),
            facts: RefCell::new(facts),
            shards: RefCell::default(),
            gaps: RefCell::default(),
            progress: RefCell::default(),
            damaged,
        });
        for image in images {
            let disk = match image {
                Some(image) => SimDisk::with_image(&node.world, SimDiskConfig::new(seed), image),
                None => SimDisk::new(&node.world, SimDiskConfig::new(seed)),
            };
            node.world.block_on(node.open_shard(disk)).unwrap();
        }
        node
    }

    async fn open_shard(&self, disk: SimDisk) {
        let number = self.disks.borrow().len() as u16;
        self.disks.borrow_mut().push(disk.clone());
        let opened = Store::open(disk, Rc::clone(&self.host), config(number)).await;
        let (store, _) = opened.unwrap();
        let pump = Pump::start(store, &self.host);
        let settings = Settings {
            shard: ShardId(number),
            unroutable_sink: b"(no source)",
            unroutable_reason: 4,
            origin: self.facts.borrow().origin,
            damaged: self.damaged.clone(),
            lost: vec![(Seq(0), Seq(u64::MAX))],
            give_up: false,
            group_bytes: 16 << 10,
        };
        let today = Rc::clone(&self.today) as Rc<dyn Today>;
        let shard = ShardApply::new(pump, today, settings);
        self.shards.borrow_mut().push(shard);
    }

    pub(crate) fn shard(&self, number: usize) -> ShardApply<SimDisk> {
        self.shards.borrow()[number].clone()
    }

    pub(crate) fn run(self: &Rc<Self>) -> Result<Summary, Refusal> {
        self.run_with(options())
    }

    pub(crate) fn run_with(self: &Rc<Self>, options: Options) -> Result<Summary, Refusal> {
        let future = crate::run(&self.log, &**self, &options);
        self.world.block_on(future).unwrap()
    }

    /// What the process leaves if it dies now.
    pub(crate) fn remains(&self, mode: &CrashMode) -> Remains {
        let images = self
            .disks
            .borrow()
            .iter()
            .map(|d| d.snapshot().image(mode))
            .collect();
        Remains {
            images,
            facts: self.facts.borrow().clone(),
        }
    }

    pub(crate) fn stop(&self) -> Remains {
        self.remains(&CrashMode::EVERYTHING)
    }

    /// Appends a hook as ingest does, and to the log too.
    pub(crate) fn ingest(&self, shard: usize, numbers: std::ops::Range<u64>) -> Vec<Seq> {
        let apply = self.shard(shard);
        let incarnation = self.facts.borrow().incarnation;
        let mut seqs = Vec::new();
        for number in numbers {
            let seq = self.ingest_local(&apply, number);
            self.log.push(record_of(
                shard as u16,
                seq.0,
                number,
                b"github",
                incarnation,
            ));
            seqs.push(seq);
        }
        seqs
    }

    pub(crate) fn ingest_local(&self, apply: &ShardApply<SimDisk>, number: u64) -> Seq {
        let store = apply.store().clone();
        let sinks: Vec<_> = [&b"first"[..], b"second"]
            .into_iter()
            .map(|name| {
                let (sink, new) = store.state_mut().sink_no(b"acme", b"github", name).unwrap();
                new.into_iter().for_each(|new| assert!(store.enqueue(new)));
                sink
            })
            .collect();
        let body = body_of(number);
        let taken = Rc::new(RefCell::new(Seq(0)));
        let out = Rc::clone(&taken);
        let encode: Encode<SimDisk> = Box::new(move |group: &mut GroupBuilder<SimDisk>| {
            let draft = HookDraft {
                extra: HookExtra {
                    sinks: &sinks,
                    log: true,
                    ..HookExtra::default()
                },
                ..draft(number, b"github", &body)
            };
            *out.borrow_mut() = group.hook(&draft);
        });
        let write = self.pump_write(apply, encode);
        assert_eq!(self.world.block_on(write).unwrap(), Ok(Outcome::Durable));
        *taken.borrow()
    }

    fn pump_write(
        &self,
        apply: &ShardApply<SimDisk>,
        encode: Encode<SimDisk>,
    ) -> LocalFuture<Result<Outcome, PortError>> {
        apply.groups_for_tests().write(8 << 10, 4 << 10, encode)
    }

    /// Writes records and waits.
    pub(crate) fn put(&self, shard: usize, records: Vec<Record>) {
        let apply = self.shard(shard);
        self.world.block_on(apply.write(records)).unwrap().unwrap();
    }

    /// Finishes hooks, as their deliveries do.
    pub(crate) fn finish(&self, shard: usize, seqs: &[Seq]) {
        let gone = |seq: &Seq| Record::Finished {
            first: *seq,
            last: *seq,
        };
        self.put(shard, seqs.iter().map(gone).collect());
    }

    /// Every live hook: shard and seq, id, body, and its rows by sink.
    pub(crate) fn content(&self) -> BTreeMap<(usize, u64), Held> {
        let mut content = BTreeMap::new();
        for (number, shard) in self.shards.borrow().iter().enumerate() {
            let seqs: Vec<Seq> = {
                let state = shard.store().state();
                state
                    .hooks()
                    .map(|slot| state.hook(slot).unwrap().seq)
                    .collect()
            };
            for seq in seqs {
                let bytes = self.world.block_on(shard.store().read(seq)).unwrap();
                let bytes = bytes.unwrap_or_else(|e| panic!("shard {number} seq {seq}: {e}"));
                let envelope = Envelope::parse(&bytes).unwrap();
                assert_eq!(envelope.seq, seq);
                let state = shard.store().state();
                let slot = state.slot_of_seq(seq).unwrap();
                let rows = state.rows(slot).map(|row| {
                    let row = state.row(row);
                    let name = state.names().get(row.sink).map(|n| n.name.clone());
                    let name = String::from_utf8_lossy(&name.unwrap()).into_owned();
                    match row.state {
                        RowState::Due { .. } => format!("{name} due"),
                        RowState::Dead { reason, .. } => format!("{name} dead {reason}"),
                        RowState::Finished => format!("{name} finished"),
                    }
                });
                let rows = rows.collect();
                content.insert((number, seq.0), (envelope.id, envelope.body.to_vec(), rows));
            }
        }
        content
    }

    pub(crate) fn offset(&self, shard: usize) -> Option<u64> {
        let shard = self.shard(shard);
        let state = shard.store().state();
        state.meta().offset.offset.map(|at| at.0)
    }

    pub(crate) fn hold(&self, shard: usize) -> Option<u64> {
        let shard = self.shard(shard);
        let state = shard.store().state();
        state.meta().offset.hold.map(|at| at.0)
    }
}

fn ok<T: 'static>(value: T) -> PortFuture<'static, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl NodePort for Node {
    fn node(&self) -> PortFuture<'_, NodeState> {
        ok(self.facts.borrow().clone())
    }

    fn shards(&self) -> PortFuture<'_, Vec<ShardMark>> {
        ok(self.shards.borrow().iter().map(ShardApply::mark).collect())
    }

    fn stamp(&self, stamp: Stamp) -> PortFuture<'_, ()> {
        let mut facts = self.facts.borrow_mut();
        facts.node = stamp.node.or(facts.node.take());
        facts.partition = stamp.partition.or(facts.partition);
        facts.log = stamp.log.or(facts.log.take());
        facts.incarnation = stamp.incarnation.unwrap_or(facts.incarnation);
        facts.origin = stamp.origin.unwrap_or(facts.origin);
        ok(())
    }

    fn number_incarnations(&self, _origin: StoreOrigin, incarnation: u32) -> PortFuture<'_, ()> {
        let shards = self.shards.borrow().clone();
        Box::pin(async move {
            for shard in shards {
                shard.number_incarnation(incarnation).await?;
            }
            Ok(())
        })
    }

    fn forget_log(&self) -> PortFuture<'_, ()> {
        let shards = self.shards.borrow().clone();
        Box::pin(async move {
            for shard in shards {
                shard.forget_log().await?;
            }
            Ok(())
        })
    }

    fn add_shards(&self, shards: u16) -> PortFuture<'_, ()> {
        Box::pin(async move {
            while self.shards.borrow().len() < usize::from(shards) {
                let disk = SimDisk::new(&self.world, SimDiskConfig::new(9));
                self.open_shard(disk).await;
            }
            Ok(())
        })
    }

    fn apply(&self, shard: ShardId, batch: Batch) -> PortFuture<'_, Applied> {
        let shard = self.shard(usize::from(shard.0));
        Box::pin(async move { shard.apply(batch).await })
    }

    fn end(&self, shard: ShardId, end: ShardEnd) -> PortFuture<'_, ()> {
        let shard = self.shard(usize::from(shard.0));
        Box::pin(async move { shard.end(end).await })
    }

    fn audit_gap(&self, gap: Gap) -> PortFuture<'_, ()> {
        self.gaps.borrow_mut().push(gap);
        ok(())
    }

    fn republish(&self, shard: ShardId) -> PortFuture<'_, Republished> {
        let apply = self.shard(usize::from(shard.0));
        Box::pin(async move {
            let seen = apply.seen();
            let (mark, todo) = {
                let state = apply.store().state();
                let todo: Vec<Seq> = state
                    .hooks()
                    .map(|slot| state.hook(slot).unwrap().seq)
                    .filter(|seq| !state.meta().is_confirmed(*seq) && !seen.contains(*seq))
                    .collect();
                (state.next_seq(), todo)
            };
            for seq in &todo {
                let bytes = apply.store().read(*seq).await.unwrap();
                let envelope = Envelope::parse(&bytes).unwrap();
                let incarnation = apply
                    .store()
                    .state()
                    .meta()
                    .incarnation_of(*seq)
                    .unwrap_or(0);
                self.log.push(Entry::Hook(
                    NODE.into(),
                    Replayed {
                        position: 0,
                        shard: shard.0,
                        seq: seq.0,
                        id: envelope.id.0,
                        incarnation,
                        value: bytes.to_vec().into(),
                    },
                ));
            }
            let mark = Watermark {
                seq: Seq(mark.0 - 1),
                exceptions: Vec::new(),
            };
            apply.write(vec![Record::Watermark(mark)]).await?;
            Ok(Republished {
                published: todo.len() as u64,
                stuck: 0,
            })
        })
    }

    fn sleep(&self, time: Duration) -> PortFuture<'_, ()> {
        let sleep = self.host.sleep(time);
        Box::pin(async move {
            sleep.await;
            Ok(())
        })
    }

    fn progress(&self, progress: Progress) {
        self.progress.borrow_mut().push(progress);
    }
}
