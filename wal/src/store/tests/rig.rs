//! A store on a simulated disk, and a ledger of what it acked.

use std::collections::BTreeMap;
use std::future::poll_fn;

use crate::disk::sim::{SimDisk, SimDiskConfig, SimImage};
use crate::sim::SimWorld;
use crate::{
    Envelope, HookDraft, HookExtra, HookId, OpenError, OpenReport, Outcome, Seq, Settled, SinkNo,
    Store, StoreConfig, Verification,
};

pub(crate) const UUID: [u8; 16] = *b"store-of-a-test!";

pub(crate) fn config() -> StoreConfig {
    StoreConfig {
        store_uuid: UUID,
        segment_bytes: 64 << 10,
        group_bytes_max: 32 << 10,
        group_records_max: 64,
        min_free_bytes: 0,
        cache_bytes_max: 0,
        ..StoreConfig::default()
    }
}

pub(crate) fn id_of(number: u64) -> HookId {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    HookId(id)
}

pub(crate) fn body_of(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (number.wrapping_mul(31) ^ at) as u8)
        .collect()
}

/// A process: a world, its disk, an open store.
pub(crate) struct Rig {
    pub(crate) world: SimWorld,
    pub(crate) disk: SimDisk,
    pub(crate) store: Store<SimDisk>,
    pub(crate) report: OpenReport,
}

pub(crate) fn open_image(
    seed: u64,
    image: Option<&SimImage>,
    disk_config: SimDiskConfig,
    config: StoreConfig,
) -> Result<Rig, OpenError> {
    let world = SimWorld::new(seed);
    let disk = match image {
        Some(image) => SimDisk::with_image(&world, disk_config, image),
        None => SimDisk::new(&world, disk_config),
    };
    open_on(world, disk, config)
}

pub(crate) fn open_on(
    world: SimWorld,
    disk: SimDisk,
    config: StoreConfig,
) -> Result<Rig, OpenError> {
    let host = world.host();
    let opened = world
        .block_on(Store::open(disk.clone(), host.clone(), config))
        .unwrap();
    let (store, report) = opened?;
    Ok(Rig {
        world,
        disk,
        store,
        report,
    })
}

pub(crate) fn fresh(seed: u64) -> Rig {
    open_image(seed, None, SimDiskConfig::new(seed), config()).unwrap()
}

pub(crate) fn reopen(image: &SimImage) -> Result<Rig, OpenError> {
    open_image(1, Some(image), SimDiskConfig::new(1), config())
}

pub(crate) async fn ready(store: &Store<SimDisk>) {
    poll_fn(|cx| store.poll_ready(cx)).await
}

pub(crate) async fn next_settled(store: &Store<SimDisk>) -> Settled {
    poll_fn(|cx| store.poll_settled(cx)).await
}

/// Submits one group with hooks `numbers`, each with a body of `bytes`.
pub(crate) async fn submit(
    store: &Store<SimDisk>,
    numbers: std::ops::Range<u64>,
    bytes: usize,
) -> Vec<(Seq, u64)> {
    let planned = numbers.clone().count() * (bytes + 300);
    let mut group = loop {
        match store.try_begin_sized(planned) {
            Some(group) => break group,
            None => ready(store).await,
        }
    };
    let mut out = Vec::new();
    for number in numbers {
        let body = body_of(number, bytes);
        out.push((group.hook(&draft(number, &body)), number));
    }
    store.submit(group);
    out
}

pub(crate) fn draft(number: u64, body: &[u8]) -> HookDraft<'_> {
    HookDraft {
        id: id_of(number),
        received_at_ms: 1_767_225_600_000 + number,
        tenant: b"acme",
        source: b"github",
        method: b"POST",
        target: b"/in/acme/github?x=1",
        headers: &[(b"x-event" as &[u8], b"push" as &[u8]), (b"x-n", b"1")],
        content_type: b"application/json",
        body,
        dedupe_key: Some(b"key"),
        dedupe_ttl_s: 60,
        verification: Verification::Verified,
        client: ([127, 0, 0, 1], 4000).into(),
        extra: HookExtra {
            sinks: &[SinkNo(3), SinkNo(9)],
            dedupe_hash: Some([number as u8; 16]),
            archive: false,
            log: false,
        },
    }
}

/// Submits one group and waits for its fate.
pub(crate) async fn put(
    store: &Store<SimDisk>,
    numbers: std::ops::Range<u64>,
    bytes: usize,
) -> (Vec<(Seq, u64)>, Outcome) {
    let hooks = submit(store, numbers, bytes).await;
    let settled = next_settled(store).await;
    (hooks, settled.outcome)
}

/// What was acked: number → (seq, body length).
#[derive(Clone, Default)]
pub(crate) struct Ledger(pub(crate) BTreeMap<u64, (Seq, usize)>);

impl Ledger {
    pub(crate) fn add(&mut self, hooks: &[(Seq, u64)], bytes: usize) {
        for (seq, number) in hooks {
            self.0.insert(*number, (*seq, bytes));
        }
    }

    /// Every acked hook is there, byte for byte.
    pub(crate) fn check(&self, rig: &Rig, what: &str) {
        for (number, (seq, bytes)) in &self.0 {
            let read = rig.world.block_on(rig.store.read(*seq)).unwrap();
            let read = read.unwrap_or_else(|error| panic!("{what}: acked hook {number}: {error}"));
            let envelope = Envelope::parse(&read).unwrap();
            assert_eq!(envelope.seq, *seq, "{what}");
            assert_eq!(envelope.id, id_of(*number), "{what}");
            assert_eq!(
                envelope.body,
                body_of(*number, *bytes),
                "{what}: hook {number} altered"
            );
        }
    }
}

/// Everything written, as if the power had stayed.
pub(crate) fn as_seen(rig: &Rig) -> SimImage {
    rig.disk.snapshot().as_seen()
}
