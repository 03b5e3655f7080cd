//! How fast a boot reads the intake log back: fills a memory log with hooks of one size, then runs
//! `ankusa recover` over an empty data directory, again and again.
//!
//!     cargo run --release -p ankusa-engine --example replay_load -- DIR RECORDS BODY_BYTES SHARDS RUNS
//!
//! DIR should be on the file system to be measured; it is made, and not removed. The first line of
//! each run is the summary, the second the time, which includes opening and closing the store.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;

use ankusa_engine::config::{Env, load};
use ankusa_engine::recover::offline::{Request, recover};
use ankusa_intake::log::{Answer, Outgoing, Publisher};
use ankusa_intake::memory::{MemoryLog, MemoryOptions};
use ankusa_intake::{partition_of, wait_for};
use ankusa_wal::format::envelope;
use ankusa_wal::{HookDraft, HookExtra, HookId, Seq, Verification};

const NODE: &str = "node-a";
const PARTITIONS: u32 = 8;
const BATCH: u64 = 2_000;

fn fill(dir: &Path, records: u64, body_bytes: usize, shards: u64) {
    let log = MemoryLog::open(MemoryOptions {
        dir: dir.into(),
        partitions: PARTITIONS,
        sync: false,
        retention_bytes: None,
    })
    .unwrap();
    let publisher = log.publisher(partition_of(NODE, PARTITIONS), NODE);
    let body = vec![b'x'; body_bytes];
    let mut at = 0;
    while at < records {
        let batch: Vec<Outgoing<'_>> = (at..records.min(at + BATCH))
            .map(|number| outgoing(number, shards, &body))
            .collect();
        let mut left = batch.len();
        at += left as u64;
        publisher.publish(&mut batch.into_iter(), 0, u64::MAX);
        while left > 0 {
            let mut answers = Vec::new();
            wait_for(std::future::poll_fn(|cx| {
                publisher.poll_answers(cx, &mut answers)
            }));
            for answer in answers {
                assert!(matches!(answer, Answer::Confirmed { .. }), "{answer:?}");
                left -= 1;
            }
        }
    }
}

fn outgoing(number: u64, shards: u64, body: &[u8]) -> Outgoing<'static> {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    let seq = number / shards + 1;
    let draft = HookDraft {
        id: HookId(id),
        received_at_ms: 1_767_225_600_000,
        tenant: b"default",
        source: b"github",
        method: b"POST",
        target: b"/webhooks/github",
        headers: &[
            (b"content-type" as &[u8], b"application/json" as &[u8]),
            (b"x-github-event", b"push"),
        ],
        content_type: b"application/json",
        body,
        dedupe_key: Some(&id),
        dedupe_ttl_s: 4_000_000,
        verification: Verification::Verified,
        client: ([127, 0, 0, 1], 4000).into(),
        extra: HookExtra::default(),
    };
    let mut value = vec![0; envelope::encoded_len(&draft)];
    envelope::encode(&draft, Seq(seq), &mut value);
    Outgoing {
        token: number,
        shard: (number % shards) as u16,
        seq,
        id,
        incarnation: 1,
        tenant: b"default",
        source: b"github",
        value: value.into(),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, dir, records, body, shards, runs] = &args[..] else {
        eprintln!("DIR RECORDS BODY_BYTES SHARDS RUNS");
        return;
    };
    if cfg!(debug_assertions) {
        eprintln!("warning: a debug build");
    }
    let dir = Path::new(dir);
    std::fs::create_dir_all(dir).unwrap();
    let log = dir.join("log");
    if !log.exists() {
        fill(
            &log,
            records.parse().unwrap(),
            body.parse().unwrap(),
            shards.parse().unwrap(),
        );
    }
    for run in 0..runs.parse::<u32>().unwrap() {
        let root = dir.display();
        let yaml = format!(
            "node: {{ data_dir: {root}/data, shards: {shards} }}
http: {{ ip: 127.0.0.1 }}
wal: {{ type: dual }}
intake: {{ type: memory, node_id: {NODE}, memory: {{ dir: {root}/log-{run} }} }}
backup:
  enabled: true
  max_age_ms: 1h
  store: {{ type: local, root: {root}/backups }}
  signing_key: a-key-that-is-long-enough-for-a-bench
sources:
  github:
    verify: {{ type: none }}
    sinks: [ {{ name: first, type: log }} ]
"
        );
        // NOTE: the log stays open in this process, so each run has its own name for it.
        let name = dir.join(format!("log-{run}"));
        let _ = std::fs::remove_dir_all(&name);
        std::fs::create_dir_all(&name).unwrap();
        for entry in std::fs::read_dir(&log).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap();
            if file != "lock" {
                std::fs::hard_link(&path, name.join(file)).unwrap();
            }
        }
        let _ = std::fs::remove_dir_all(dir.join("data"));
        let file = dir.join("ankusa.yml");
        std::fs::write(&file, yaml).unwrap();
        let config = load(Some(&file), &Env::of(&[])).unwrap().config;
        let mut out = std::io::stdout();
        recover(config, Request::default(), &mut out).unwrap();
        out.flush().unwrap();
    }
}
