//! The node's questions to the simulated log: answered a little later, or never while it is away.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use ankusa_intake::{
    AskError, Asked, Bounds, Chunk, Expected, From, IntakeLog, Readiness, Replay, ReplayRequest,
    Replayed, Verified, question,
};

use super::{SimLog, Weather};

/// How long a question to a log that is away takes to fail.
const AWAY_US: u64 = 500_000;

impl SimLog {
    fn ask<T: 'static>(&self, answer: impl FnOnce(&SimLog) -> T + 'static) -> Asked<T> {
        let (answering, asked) = question();
        let log = self.clone();
        let delay_us = match self.is_away() {
            true => AWAY_US,
            false => self.0.rng.borrow_mut().between(50, 3_000),
        };
        self.0.world.after(delay_us, move || {
            answering.answer(match log.is_away() {
                true => Err(AskError::Unreachable("it is away".into())),
                false => Ok(answer(&log)),
            });
        });
        asked
    }

    fn bounds_now(&self) -> Bounds {
        Bounds {
            earliest: self.0.earliest.get(),
            head: self.head(),
        }
    }
}

impl IntakeLog for SimLog {
    fn verify(&self, _expected: Expected) -> Asked<Verified> {
        self.ask(|log| Verified {
            identity: format!("log-{}", log.0.identity.get()),
            partitions: 1,
            replicas: 3,
            min_insync: 2,
            ..Verified::default()
        })
    }

    fn bounds(&self, _partition: u32) -> Asked<Bounds> {
        self.ask(SimLog::bounds_now)
    }

    fn replay(&self, request: ReplayRequest) -> Box<dyn Replay> {
        Box::new(SimReplay::new(self, &request))
    }

    fn assign_partition(&self, _node: &str) -> Asked<u32> {
        self.ask(|_| 0)
    }

    fn watch(&self, _partition: u32) {}

    fn ready(&self) -> Readiness {
        match self.0.weather.get() {
            Weather::Away => Readiness::Unreachable,
            _ => Readiness::Up,
        }
    }

    fn describe(&self) -> String {
        "a simulated log".into()
    }
}

/// A replay: everything is read at once and handed out in chunks.
struct SimReplay {
    chunks: VecDeque<Result<Chunk, AskError>>,
}

impl SimReplay {
    fn new(log: &SimLog, request: &ReplayRequest) -> SimReplay {
        let bounds = log.bounds_now();
        let from = match request.from {
            From::Earliest => bounds.earliest,
            From::Position(at) => at,
        };
        let refused = if log.is_away() {
            Some(AskError::Unreachable("it is away".into()))
        } else if from < bounds.earliest {
            Some(AskError::Truncated {
                wanted: from,
                earliest: bounds.earliest,
            })
        } else if from > bounds.head {
            Some(AskError::AboveHead {
                wanted: from,
                head: bounds.head,
            })
        } else {
            None
        };
        if let Some(error) = refused {
            return SimReplay {
                chunks: VecDeque::from([Err(error)]),
            };
        }
        let mut chunks = VecDeque::new();
        let mut chunk = Chunk::default();
        for record in log.records().iter().filter(|r| r.position >= from) {
            chunk.read_below = record.position + 1;
            chunk.records.push(Replayed {
                position: record.position,
                shard: record.shard,
                seq: record.seq,
                id: record.id,
                incarnation: record.incarnation,
                value: record.value.clone(),
            });
            let bytes: usize = chunk.records.iter().map(|r| r.value.len()).sum();
            if chunk.records.len() >= request.chunk_records.max(1) || bytes >= request.chunk_bytes {
                chunks.push_back(Ok(std::mem::take(&mut chunk)));
            }
        }
        chunk.read_below = bounds.head;
        chunks.push_back(Ok(chunk));
        SimReplay { chunks }
    }
}

impl Replay for SimReplay {
    fn poll_chunk(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, AskError>>> {
        Poll::Ready(self.chunks.pop_front())
    }
}
