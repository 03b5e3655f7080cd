//! `ankusa recover` as it is run: a configuration, a data directory, a memory log, real files.
#![allow(clippy::unwrap_used)]

mod revived;

use std::collections::BTreeMap;
use std::path::Path;

use ankusa_intake::memory::{MemoryLog, MemoryOptions};
use ankusa_intake::record::{HeaderRoom, NAMES, RecordHead};
use ankusa_intake::{partition_of, wait_for};
use ankusa_recovery::Start;
use ankusa_wal::format::envelope;
use ankusa_wal::home::{Home, StoreOrigin};
use ankusa_wal::{HookDraft, HookExtra, HookId, Seq, Verification};

use super::offline::{Request, recover_from};
use crate::config::{Config, Env, IntakeConfig, IntakeType, JetstreamConfig, KafkaConfig, load};
use crate::exit::Exit;
use crate::node::log::Adapter;

const NODE: &str = "node-a";
const PARTITIONS: u32 = 8;

struct Rig {
    dir: tempfile::TempDir,
    log: MemoryLog,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let log = MemoryLog::open(MemoryOptions {
            dir: dir.path().join("log"),
            partitions: PARTITIONS,
            sync: false,
            retention_bytes: None,
        });
        Rig {
            dir,
            log: log.unwrap(),
        }
    }

    fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn config(&self) -> Config {
        let root = self.dir.path().display();
        let yaml = format!(
            "node: {{ data_dir: {root}/data, shards: 2 }}
http: {{ ip: 127.0.0.1 }}
wal: {{ segment_bytes: 16 MiB, allow_unsafe_filesystem: true, min_free_bytes: 0 }}
sources:
  github:
    verify: {{ type: none }}
    sinks: [ {{ name: first, type: log }} ]
"
        );
        let file = self.dir.path().join("ankusa.yml");
        std::fs::write(&file, yaml).unwrap();
        let mut config = match load(Some(&file), &Env::of(&[])) {
            Ok(loaded) => loaded.config,
            Err(error) => panic!("{error}"),
        };
        config.intake = Some(self.intake());
        config
    }

    fn intake(&self) -> IntakeConfig {
        IntakeConfig {
            kind: IntakeType::Memory,
            node_id: NODE.into(),
            fleet: "default".into(),
            topic: "ankusa.intake.default".into(),
            kafka: KafkaConfig::default(),
            jetstream: JetstreamConfig::default(),
            memory_allow_unsafe: false,
            memory_dir: Some(self.dir.path().join("log")),
            publish_timeout_ms: 2_000,
            reconcile_deadline_ms: 20_000,
            breaker_failures: 3,
            probe_ms: 1_000,
            retry_after_s: 2,
            offset_flush_ms: 1_000,
            pending_max_records: 50_000,
            pending_max_bytes: 256 << 20,
            max_record_bytes: 10_000_000,
            recover_on_boot: true,
            verify_topic: true,
        }
    }

    /// Hooks with these seqs of shard 0 in the log, as a node wrote them.
    fn publish(&self, seqs: std::ops::Range<u64>) {
        let log = &self.log;
        for seq in seqs {
            let body = vec![seq as u8; 3000];
            let id = id_of(seq);
            let draft = HookDraft {
                id,
                received_at_ms: 1_767_225_600_000,
                tenant: b"default",
                source: b"github",
                method: b"POST",
                target: b"/",
                headers: &[],
                content_type: b"",
                body: &body,
                dedupe_key: None,
                dedupe_ttl_s: 0,
                verification: Verification::None,
                client: ([127, 0, 0, 1], 1).into(),
                extra: HookExtra::default(),
            };
            let mut value = vec![0; envelope::encoded_len(&draft)];
            envelope::encode(&draft, Seq(seq), &mut value);
            let head = RecordHead {
                node: NODE.as_bytes(),
                shard: 0,
                seq,
                id: id.0,
                incarnation: 1,
                tenant: b"default",
                source: b"github",
            };
            let mut room = HeaderRoom::default();
            let headers = NAMES.iter().zip(head.headers(&mut room));
            let headers = headers.map(|(name, value)| (name.to_string(), value.to_vec()));
            let partition = partition_of(NODE, PARTITIONS);
            let appended = log.append_raw(partition, headers.collect(), value.into());
            wait_for(appended).unwrap();
        }
    }

    fn recover(&self, request: Request) -> (Exit, String) {
        let mut out = Vec::new();
        let log = Adapter::Memory(self.log.clone());
        let exit = recover_from(|_, _| Ok(log), self.config(), request, &mut out);
        let exit = exit.unwrap();
        (exit, String::from_utf8(out).unwrap())
    }

    /// Every file of the data directory.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.data(), &mut files);
        files
    }
}

fn id_of(seq: u64) -> HookId {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&seq.to_be_bytes());
    HookId(id)
}

fn collect(dir: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            files.insert(path.display().to_string(), bytes);
        }
    }
}

#[test]
fn recover_fills_an_empty_directory_and_a_second_run_changes_nothing() {
    let rig = Rig::new();
    rig.publish(1..101);
    let (exit, out) = rig.recover(Request::default());
    assert_eq!(exit, Exit::Ok);
    let whole = "records=100 applied=100 present=0 collided=0 unroutable=0 republished=0\n";
    assert_eq!(out, whole);
    let facts = Home::peek(&rig.data()).unwrap();
    assert_eq!(facts.origin, StoreOrigin::Existing);
    assert_eq!(facts.intake_node.as_deref(), Some(NODE));
    assert_eq!(facts.intake_partition, Some(partition_of(NODE, PARTITIONS)));
    assert_eq!(facts.incarnation, 2);
    let (_, out) = rig.recover(Request::default());
    assert!(out.starts_with("records=0 applied=0 "), "{out}");
    let (_, out) = rig.recover(Request {
        start: Start::Earliest,
        ..Request::default()
    });
    assert!(
        out.starts_with("records=100 applied=0 present=100 "),
        "{out}"
    );
}

#[test]
fn dry_run_leaves_every_byte_of_the_data_directory() {
    let rig = Rig::new();
    rig.publish(1..21);
    rig.recover(Request::default());
    rig.publish(30..35);
    let before = rig.files();
    let (exit, out) = rig.recover(Request {
        dry_run: true,
        start: Start::Earliest,
        ..Request::default()
    });
    assert_eq!(exit, Exit::Ok);
    assert!(out.starts_with("records=25 applied=5 present=20 "), "{out}");
    assert!(rig.files() == before, "a byte changed");
    let (_, out) = rig.recover(Request::default());
    assert!(out.starts_with("records=5 applied=5 "), "{out}");
}

#[test]
fn store_in_use_and_another_node_are_refused() {
    let rig = Rig::new();
    rig.publish(1..3);
    rig.recover(Request::default());
    let held = Home::open(&rig.data(), 2, |_| {}).unwrap();
    for dry_run in [false, true] {
        let request = Request {
            dry_run,
            ..Request::default()
        };
        assert_eq!(rig.recover(request).0, Exit::Failure);
    }
    drop(held);
    let (exit, out) = rig.recover(Request {
        node: Some("node-b".into()),
        ..Request::default()
    });
    assert_eq!((exit, out.as_str()), (Exit::Failure, ""));
}

#[test]
fn damaged_acked_frames_are_healed_from_the_log_and_named() {
    let rig = Rig::new();
    rig.publish(1..401);
    rig.recover(Request::default());
    // A run of blocks in the middle of what was acked is gone.
    let shard = rig.data().join("shard-000");
    let marker = [200u8; 2000];
    let hit = std::fs::read_dir(&shard).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(marker.len()).position(|w| w == marker)?;
        Some((path, bytes, at))
    });
    let (path, mut bytes, at) = hit.unwrap();
    bytes[at..at + 1000].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    for file in std::fs::read_dir(&shard).unwrap() {
        let file = file.unwrap().path();
        // So that the log is what the index comes from.
        if file.extension().is_some_and(|e| e == "ckpt") {
            std::fs::remove_file(file).unwrap();
        }
    }
    let dry = rig.recover(Request {
        dry_run: true,
        ..Request::default()
    });
    assert_eq!(dry.0, Exit::Failure);
    let (exit, out) = rig.recover(Request::default());
    assert_eq!(exit, Exit::Ok, "{out}");
    assert!(out.contains("was damaged"), "{out}");
    assert!(out.contains("came back from the log: "), "{out}");
    let summary = out.lines().last().unwrap();
    let count = |name: &str| -> u64 {
        let word = summary.split(' ').find_map(|w| w.strip_prefix(name));
        word.map_or(0, |n| n.parse().unwrap())
    };
    assert_eq!(count("records="), 400, "{out}");
    let back = count("applied=") + count("restored=");
    assert!(back > 0 && count("present=") == 400 - back, "{out}");
    // All of it is there again, and sound.
    let (_, out) = rig.recover(Request {
        start: Start::Earliest,
        ..Request::default()
    });
    assert!(
        out.starts_with("records=400 applied=0 present=400 "),
        "{out}"
    );
}
