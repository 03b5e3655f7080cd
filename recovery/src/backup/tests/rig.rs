//! A shard on a simulated disk, what it acked, and its backups.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;

use ankusa_wal::disk::sim::{SimDisk, SimDiskConfig, SimImage};
use ankusa_wal::home::{HexBytes, Restoring, StoreFacts, StoreOrigin};
use ankusa_wal::sim::SimWorld;
use ankusa_wal::{
    BackupSource, Delivery, DeliveryState, Envelope, HookDraft, HookExtra, HookId, IntakeOffset,
    LogOffset, OpenReport, Outcome, Record, Seq, ShardId, SinkNo, Store, StoreConfig, Verification,
    Watermark,
};

use super::folder::MemFolder;
use crate::backup::folder::ReadFile;
use crate::backup::{Meter, Owner, Prefix, SendError, Sent, ShardFiles, SigningKey};
use crate::restore;

pub(crate) const UUID: [u8; 16] = *b"store-of-a-test!";

pub(crate) fn key() -> SigningKey {
    SigningKey::new(b"a key of the tests")
}

pub(crate) fn facts() -> StoreFacts {
    StoreFacts {
        format: 1,
        uuid: HexBytes(UUID),
        hash_key: HexBytes([1; 16]),
        shards: 1,
        incarnation: 1,
        origin: StoreOrigin::Existing,
        intake_node: Some("node-a".into()),
        intake_partition: Some(3),
        intake_log: Some("topic-id".into()),
    }
}

pub(crate) fn me(writer: &str) -> Owner {
    Owner {
        format: 1,
        node: "node-a".into(),
        store: HexBytes(UUID),
        incarnation: 1,
        writer: writer.into(),
        since_ms: 0,
    }
}

pub(crate) fn prefix(folder: &MemFolder, writer: &str) -> Prefix {
    Prefix::new(Box::new(folder.clone()), key(), me(writer), 2)
}

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

pub(crate) fn body_of(number: u64) -> Vec<u8> {
    (0..900 + number % 300)
        .map(|at| (number.wrapping_mul(31) ^ at) as u8)
        .collect()
}

/// As fast as can be.
pub(crate) struct Free;

impl Meter for Free {
    fn spend(&mut self, _: u64) -> bool {
        true
    }
}

/// The files of a simulated disk as they look now.
pub(crate) struct Image(pub(crate) SimImage);

struct Content(Vec<u8>);

impl ReadFile for Content {
    fn read_at(&mut self, pos: u64, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.get(pos as usize..).unwrap_or(&[]);
        let got = rest.len().min(out.len());
        out[..got].copy_from_slice(&rest[..got]);
        Ok(got)
    }
}

impl ShardFiles for Image {
    fn open(&self, file: &str) -> io::Result<Box<dyn ReadFile>> {
        let content = self.0.read(file).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Content(content)))
    }
}

/// A process: a world, a disk, an open store.
pub(crate) struct Rig {
    pub(crate) world: SimWorld,
    pub(crate) disk: SimDisk,
    pub(crate) store: Store<SimDisk>,
    pub(crate) report: OpenReport,
}

impl Rig {
    pub(crate) fn open(seed: u64, image: Option<&SimImage>) -> Rig {
        let world = SimWorld::new(seed);
        let disk_config = SimDiskConfig::new(seed);
        let disk = match image {
            Some(image) => SimDisk::with_image(&world, disk_config, image),
            None => SimDisk::new(&world, disk_config),
        };
        let opened = world.block_on(Store::open(disk.clone(), world.host(), config()));
        let (store, report) = opened.unwrap().unwrap();
        Rig {
            world,
            disk,
            store,
            report,
        }
    }

    /// Commits hooks in groups of four and answers with their seqs.
    pub(crate) fn put(&self, numbers: std::ops::Range<u64>) -> BTreeMap<u64, Seq> {
        let mut seqs = BTreeMap::new();
        let all: Vec<u64> = numbers.collect();
        for chunk in all.chunks(4) {
            let hooks = self.world.block_on(self.group(chunk, &[])).unwrap();
            seqs.extend(hooks);
        }
        seqs
    }

    /// Commits one group of hooks and other records.
    pub(crate) async fn group(&self, numbers: &[u64], records: &[Record]) -> Vec<(u64, Seq)> {
        for record in records {
            assert!(self.store.enqueue(record.clone()));
        }
        let mut group = loop {
            match self.store.try_begin_sized(numbers.len() * 1600) {
                Some(group) => break group,
                None => poll_fn(|cx| self.store.poll_ready(cx)).await,
            }
        };
        let mut hooks = Vec::new();
        for &number in numbers {
            let body = body_of(number);
            hooks.push((number, group.hook(&draft(number, &body))));
        }
        let lsn = self.store.submit(group);
        loop {
            let settled = poll_fn(|cx| self.store.poll_settled(cx)).await;
            assert_eq!(settled.outcome, Outcome::Durable);
            if settled.lsn >= lsn {
                return hooks;
            }
        }
    }

    /// Writes records in a group of their own.
    pub(crate) fn write(&self, records: &[Record]) {
        self.world.block_on(self.group(&[], records)).unwrap();
    }

    /// Both deliveries of a hook end: confirmed, or given up.
    pub(crate) fn end(&self, seq: Seq, state: DeliveryState) {
        let row = |sink| {
            Record::Delivery(Delivery {
                seq,
                sink: SinkNo(sink),
                attempts: 1,
                due_ms: 1,
                state,
                reason: 0,
            })
        };
        self.write(&[row(3), row(9)]);
    }

    /// Watermark and offset move.
    pub(crate) fn marks(&self, watermark: Seq, offset: u64) {
        self.write(&[
            Record::Watermark(Watermark {
                seq: watermark,
                exceptions: Vec::new(),
            }),
            Record::Offset(IntakeOffset {
                offset: Some(LogOffset(offset)),
                hold: None,
            }),
        ]);
    }

    pub(crate) fn source(&self) -> BackupSource {
        let taken = self.world.block_on(self.store.backup_source());
        taken.unwrap().unwrap().0
    }

    pub(crate) fn files(&self) -> Image {
        Image(self.disk.snapshot().as_seen())
    }

    /// A whole backup, as things are.
    pub(crate) fn back_up(&self, prefix: &mut Prefix) -> Result<Sent, SendError> {
        let mut run = prefix.begin(1)?;
        let source = self.source();
        run.shard(&self.files(), &source, &mut Free)?;
        run.finish(&facts(), 2)
    }

    /// Every hook is there, byte for byte.
    pub(crate) fn check(&self, hooks: &BTreeMap<u64, Seq>) {
        for (number, seq) in hooks {
            let read = self.world.block_on(self.store.read(*seq)).unwrap();
            let read = read.unwrap_or_else(|error| panic!("hook {number}: {error}"));
            let envelope = Envelope::parse(&read).unwrap();
            assert_eq!((envelope.seq, envelope.id), (*seq, id_of(*number)));
            assert_eq!(envelope.body, body_of(*number), "hook {number}");
        }
    }
}

fn draft(number: u64, body: &[u8]) -> HookDraft<'_> {
    HookDraft {
        id: id_of(number),
        received_at_ms: 1_767_225_600_000 + number,
        tenant: b"acme",
        source: b"github",
        method: b"POST",
        target: b"/in/acme/github?x=1",
        headers: &[(b"x-event" as &[u8], b"push" as &[u8])],
        content_type: b"application/json",
        body,
        dedupe_key: Some(b"key"),
        dedupe_ttl_s: 600,
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

/// Restores into a directory of this host, stamps the shard and opens the result.
pub(crate) fn restored(folder: &MemFolder, asked: Option<u64>) -> (Rig, StoreFacts) {
    let plan = restore::plan(folder, &key(), "node-a", asked, &mut |_, _| {}).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let into = Restoring::begin(dir.path(), plan.facts.shards).unwrap();
    restore::unpack(folder, &plan.manifest, &into, &mut |_, _| {}).unwrap();
    let mut image = SimDisk::new(&SimWorld::new(1), SimDiskConfig::new(1))
        .snapshot()
        .as_seen();
    for entry in std::fs::read_dir(into.shard_dir(ShardId(0))).unwrap() {
        let entry = entry.unwrap();
        let content = std::fs::read(entry.path()).unwrap();
        image.put(&entry.file_name().to_string_lossy(), &content);
    }
    let world = SimWorld::new(2);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(2), &image);
    let event = Some(b"{}".to_vec().into_boxed_slice());
    let incarnation = plan.facts.incarnation;
    let stamped = restore::stamp(disk.clone(), world.host(), config(), incarnation, event);
    world.block_on(stamped).unwrap().unwrap();
    let image = disk.snapshot().as_seen();
    into.finish(&plan.facts).unwrap();
    (Rig::open(3, Some(&image)), plan.facts)
}

/// Restores into a directory, but for the stamps of its shards.
pub(crate) fn unpacked(
    folder: &MemFolder,
    data: &std::path::Path,
) -> Result<(), restore::RestoreError> {
    let plan = restore::plan(folder, &key(), "node-a", None, &mut |_, _| {})?;
    let into = Restoring::begin(data, plan.facts.shards)?;
    restore::unpack(folder, &plan.manifest, &into, &mut |_, _| {})?;
    into.finish(&plan.facts)?;
    Ok(())
}
