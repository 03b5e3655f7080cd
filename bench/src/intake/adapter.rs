//! Records through the node's own Kafka adapter into one partition, as fast as it takes them.
//!
//! Drives the publisher as a core does: groups of slices of one buffer, answers polled after a
//! wake, a tick now and then; a bounded number of bytes is on its way. Runs on the bench's main
//! thread.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ankusa_intake::kafka::{KafkaLog, KafkaSettings};
use ankusa_intake::{Answer, Outgoing, Publisher, wait_for};
use anyhow::bail;
use bytes::Bytes;

use super::rig::BROKERS;

/// Bytes of a group: what the node's groups are at most.
const GROUP_BYTES: usize = 1 << 20;
/// On their way at once: five requests of 1 MB, and as much waiting.
const WINDOW_BYTES: usize = 10 << 20;
const DEADLINE_US: u64 = 30_000_000;
const TICK: Duration = Duration::from_millis(20);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Records per second of `records` after `warmup` others.
pub fn rate(topic: &str, bytes: usize, warmup: u64, records: u64) -> anyhow::Result<f64> {
    let log = KafkaLog::open(KafkaSettings {
        brokers: BROKERS.split(',').map(str::to_owned).collect(),
        topic: topic.to_owned(),
        node: "bench".to_owned(),
        publish_timeout_ms: 30_000,
        max_record_bytes: 10_000_000,
        tls: None,
        sasl: None,
    })?;
    let publisher = wait_for(log.publisher(0, 0))?;
    let group = (GROUP_BYTES / bytes.max(1)).clamp(1, 1024);
    let values = values(bytes, group);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let (start, all) = (Instant::now(), warmup + records);
    let (mut handed, mut confirmed) = (0u64, 0u64);
    let (mut answers, mut ticked, mut begun) = (Vec::new(), Instant::now(), None);
    while confirmed < all {
        let now_us = start.elapsed().as_micros() as u64;
        while handed < all && (handed - confirmed) as usize * bytes + GROUP_BYTES <= WINDOW_BYTES {
            let take = (all - handed).min(group as u64) as usize;
            let mut records = values[..take].iter().zip(handed..).map(outgoing);
            publisher.publish(&mut records, now_us, now_us + DEADLINE_US);
            handed += take as u64;
        }
        let polled = publisher.poll_answers(&mut cx, &mut answers);
        if ticked.elapsed() > TICK {
            ticked = Instant::now();
            publisher.tick(now_us, &mut answers);
        }
        for answer in answers.drain(..) {
            if let Answer::Failed { failure, .. } = answer {
                bail!("a record was not confirmed: {failure:?}");
            }
            confirmed += 1;
            if confirmed == warmup.max(1) {
                begun = Some(Instant::now());
            }
        }
        if polled.is_pending() {
            std::thread::park_timeout(TICK);
        }
    }
    let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    Ok(records as f64 / took.as_secs_f64().max(1e-9))
}

fn outgoing<'a>((value, seq): (&Bytes, u64)) -> Outgoing<'a> {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&seq.to_be_bytes());
    Outgoing {
        token: seq,
        shard: 0,
        seq,
        id,
        incarnation: 1,
        tenant: b"default",
        source: b"bench",
        value: value.clone(),
    }
}

/// Letters, as the brokers' tool makes them.
fn values(bytes: usize, count: usize) -> Vec<Bytes> {
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    let mut all = Vec::with_capacity(bytes * count);
    all.resize_with(bytes * count, || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        b'A' + (x >> 32) as u8 % 26
    });
    let all = Bytes::from(all);
    (0..count)
        .map(|at| all.slice(at * bytes..(at + 1) * bytes))
        .collect()
}
