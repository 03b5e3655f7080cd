//! The intake log as these tests need it: entries in memory, every answer known at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use ankusa_intake::{
    AskError, Asked, Bounds, Chunk, Expected, From, IntakeLog, Readiness, Replay, ReplayRequest,
    Replayed, SkippedNewer, Verified,
};

/// What lies at a position.
#[derive(Clone)]
pub(crate) enum Entry {
    Hook(String, Replayed),
    Newer(u32),
    Other,
}

#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) identity: String,
    pub(crate) earliest: u64,
    pub(crate) partitions: Vec<Vec<Entry>>,
    /// A replay breaks off after so many chunks, so often.
    pub(crate) breaks: (usize, usize),
    /// Starts asked for.
    pub(crate) asked: Vec<(u32, u64)>,
    /// The next so many questions have no answer.
    pub(crate) silent: usize,
}

#[derive(Clone, Default)]
pub(crate) struct TestLog(pub(crate) Rc<RefCell<LogState>>);

impl TestLog {
    pub(crate) fn new() -> TestLog {
        let log = TestLog::default();
        log.0.borrow_mut().identity = "log-1".into();
        log.0.borrow_mut().partitions.push(Vec::new());
        log
    }

    /// Appends to partition 0.
    pub(crate) fn push(&self, entry: Entry) -> u64 {
        self.push_to(0, entry)
    }

    pub(crate) fn push_to(&self, partition: usize, mut entry: Entry) -> u64 {
        let mut state = self.0.borrow_mut();
        let entries = &mut state.partitions[partition];
        let at = entries.len() as u64;
        if let Entry::Hook(_, record) = &mut entry {
            record.position = at;
        }
        entries.push(entry);
        at
    }

    pub(crate) fn head(&self) -> u64 {
        self.0.borrow().partitions[0].len() as u64
    }

    pub(crate) fn set_earliest(&self, earliest: u64) {
        self.0.borrow_mut().earliest = earliest;
    }

    fn answer<T>(&self, answer: impl FnOnce(&mut LogState) -> Result<T, AskError>) -> Asked<T> {
        let mut state = self.0.borrow_mut();
        if state.silent > 0 {
            state.silent -= 1;
            return Asked::known(Err(AskError::Unreachable("not now".into())));
        }
        Asked::known(answer(&mut state))
    }
}

struct Chunks(VecDeque<Result<Chunk, AskError>>);

impl Replay for Chunks {
    fn poll_chunk(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, AskError>>> {
        Poll::Ready(self.0.pop_front())
    }
}

impl IntakeLog for TestLog {
    fn verify(&self, _expected: Expected) -> Asked<Verified> {
        self.answer(|state| {
            Ok(Verified {
                identity: state.identity.clone(),
                partitions: state.partitions.len() as u32,
                ..Verified::default()
            })
        })
    }

    fn bounds(&self, partition: u32) -> Asked<Bounds> {
        self.answer(|state| {
            let head = state.partitions[partition as usize].len() as u64;
            Ok(Bounds {
                earliest: state.earliest.min(head),
                head,
            })
        })
    }

    fn replay(&self, request: ReplayRequest) -> Box<dyn Replay> {
        let mut state = self.0.borrow_mut();
        let entries = state.partitions[request.partition as usize].clone();
        let from = match request.from {
            From::Earliest => state.earliest.min(entries.len() as u64),
            From::Position(at) => at,
        };
        state.asked.push((request.partition, from));
        let mut chunks = VecDeque::new();
        let mut chunk = Chunk {
            read_below: from,
            ..Chunk::default()
        };
        for (at, entry) in entries.into_iter().enumerate().skip(from as usize) {
            chunk.read_below = at as u64 + 1;
            match entry {
                Entry::Hook(node, record) if node == request.node => chunk.records.push(record),
                Entry::Hook(..) => chunk.skipped.push(("other_node", 1)),
                Entry::Newer(version) => {
                    chunk.skipped.push(("newer_hook", 1));
                    chunk.newer.push(SkippedNewer {
                        position: at as u64,
                        version,
                    });
                }
                Entry::Other => chunk.skipped.push(("other_kind", 1)),
            }
            if chunk.records.len() >= request.chunk_records {
                let read_below = chunk.read_below;
                let next = Chunk {
                    read_below,
                    ..Chunk::default()
                };
                chunks.push_back(Ok(std::mem::replace(&mut chunk, next)));
            }
        }
        chunks.push_back(Ok(chunk));
        let (after, times) = state.breaks;
        if times > 0 && chunks.len() > after {
            state.breaks.1 -= 1;
            chunks.truncate(after);
            chunks.push_back(Err(AskError::Unreachable("broke off".into())));
        }
        Box::new(Chunks(chunks))
    }

    fn assign_partition(&self, _node: &str) -> Asked<u32> {
        self.answer(|_| Ok(0))
    }

    fn watch(&self, _partition: u32) {}

    fn ready(&self) -> Readiness {
        Readiness::Up
    }

    fn describe(&self) -> String {
        "a log of a test".into()
    }
}
