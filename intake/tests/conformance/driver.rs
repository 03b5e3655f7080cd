//! Drives a publisher from a plain thread: a clock, a waker that unparks, answers by token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ankusa_intake::{
    Answer, AskError, Chunk, From, IntakeLog, Outgoing, Publisher, ReplayRequest, ReplaySummary,
    wait_for,
};
use bytes::Bytes;

/// No case waits longer than this for an answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const NODE: &str = "node-a";

/// What a case needs of an adapter. One fresh log of eight partitions per harness.
pub trait Harness {
    type Publisher: Publisher;
    fn log(&self) -> &dyn IntakeLog;
    fn publisher(&self, partition: u32, node: &str) -> Self::Publisher;
    /// Appends as another writer of the topic would.
    fn append_raw(&self, partition: u32, headers: &[(&str, &[u8])], value: &[u8]);
    /// Lets retention pass a position.
    fn drop_below(&self, partition: u32, position: u64);
    /// Deletes the log and makes it anew under the same name.
    fn recreate(&self);
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub struct Driver<P> {
    pub publisher: P,
    start: Instant,
    pub answers: BTreeMap<u64, Vec<Answer>>,
}

impl<P: Publisher> Driver<P> {
    pub fn new(publisher: P) -> Driver<P> {
        Driver {
            publisher,
            start: Instant::now(),
            answers: BTreeMap::new(),
        }
    }

    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// One group: seqs from `first`, each seq its own token, shard 1.
    pub fn publish(&self, first: u64, values: &[Bytes], timeout_us: u64) {
        let now = self.now_us();
        let mut records = values.iter().zip(first..).map(|(value, seq)| Outgoing {
            token: seq,
            shard: 1,
            seq,
            id: id(seq),
            incarnation: 9,
            tenant: b"default",
            source: b"github",
            value: value.clone(),
        });
        self.publisher.publish(&mut records, now, now + timeout_us);
    }

    /// Polls until `enough`, ticking with the clock; fails the case when it takes too long.
    pub fn until(&mut self, what: &str, enough: impl Fn(&BTreeMap<u64, Vec<Answer>>) -> bool) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let begun = Instant::now();
        loop {
            let mut out = Vec::new();
            let _ = self.publisher.poll_answers(&mut cx, &mut out);
            self.publisher.tick(self.now_us(), &mut out);
            for answer in out {
                let token = match answer {
                    Answer::Confirmed { token, .. } | Answer::Failed { token, .. } => token,
                };
                self.answers.entry(token).or_default().push(answer);
            }
            if enough(&self.answers) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no {what}: {:?}", self.answers);
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Publishes and waits until each record has an answer.
    pub fn commit(&mut self, first: u64, values: &[Bytes]) -> Vec<Answer> {
        self.publish(first, values, 20_000_000);
        let tokens: Vec<u64> = (first..first + values.len() as u64).collect();
        self.until("answer", |got| tokens.iter().all(|t| got.contains_key(t)));
        tokens.iter().map(|t| self.answers[t][0]).collect()
    }

    /// Publishes until it is confirmed, each attempt under the same seq; its position.
    pub fn commit_one(&mut self, seq: u64, value: &[u8]) -> u64 {
        let begun = Instant::now();
        loop {
            self.answers.remove(&seq);
            let answer = self.commit(seq, &[Bytes::copy_from_slice(value)])[0];
            if let Some(at) = position(answer) {
                return at;
            }
            assert!(begun.elapsed() < PATIENCE, "never confirmed: {answer:?}");
        }
    }
}

/// An id made from a seq.
pub fn id(seq: u64) -> [u8; 16] {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&seq.to_be_bytes());
    id
}

pub fn position(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Confirmed { confirm, .. } => confirm.position,
        Answer::Failed { .. } => None,
    }
}

/// Reads all chunks of a replay.
pub fn read_back(
    log: &dyn IntakeLog,
    node: &str,
    partition: u32,
    from: From,
) -> Result<(Vec<Chunk>, ReplaySummary), AskError> {
    let mut replay = log.replay(ReplayRequest {
        node: node.to_owned(),
        partition,
        from,
        chunk_records: 100,
        chunk_bytes: 4 << 20,
    });
    let mut chunks = Vec::new();
    let mut summary = ReplaySummary::default();
    while let Some(chunk) = wait_for(replay.next()) {
        let chunk = chunk?;
        summary.add(&chunk);
        chunks.push(chunk);
    }
    Ok((chunks, summary))
}
