//! Turns the records that a replay reads into chunks: this node's hooks, and what was skipped.
//!
//! Invariants: chunks are in position order and none is above its bounds by more than one record;
//! every record read is in exactly one chunk, as a hook or as a count. Pure; runs on a replay's
//! side thread.

use bytes::Bytes;

use crate::log::{Chunk, ReplayRequest, Replayed, SkippedNewer};
use crate::record::{Skip, parse};

/// Positions named one by one per chunk; beyond it they are only counted, except newer hooks.
const NAMED_MAX: usize = 100;
/// Records skipped in a row after which a chunk is sent for its progress alone.
const SILENT_MAX: usize = 50_000;

pub(crate) struct Chunker {
    request: ReplayRequest,
    chunk: Chunk,
    bytes: usize,
    skipped: usize,
}

impl Chunker {
    pub(crate) fn new(request: ReplayRequest) -> Chunker {
        Chunker {
            request,
            chunk: Chunk::default(),
            bytes: 0,
            skipped: 0,
        }
    }

    /// Adds a record; true when the chunk should be sent.
    pub(crate) fn add<'a>(
        &mut self,
        position: u64,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        value: Option<Bytes>,
    ) -> bool {
        self.chunk.read_below = position + 1;
        let head = parse(headers, self.request.node.as_bytes());
        let hook = head.and_then(|head| match value {
            Some(value) => Ok((head, value)),
            None => Err(Skip::Malformed("value")),
        });
        match hook {
            Ok((head, value)) => {
                self.bytes += value.len();
                self.chunk.records.push(Replayed {
                    position,
                    shard: head.shard,
                    seq: head.seq,
                    id: head.id,
                    incarnation: head.incarnation,
                    value,
                });
            }
            Err(skip) => self.skip(position, skip),
        }
        self.chunk.records.len() >= self.request.chunk_records.max(1)
            || self.bytes >= self.request.chunk_bytes
            || self.chunk.newer.len() >= NAMED_MAX
            || self.skipped >= SILENT_MAX
    }

    fn skip(&mut self, position: u64, skip: Skip) {
        self.skipped += 1;
        let label = skip.label();
        match self.chunk.skipped.iter_mut().find(|(l, _)| *l == label) {
            Some((_, count)) => *count += 1,
            None => self.chunk.skipped.push((label, 1)),
        }
        match skip {
            Skip::NewerHook { version } => {
                self.chunk.newer.push(SkippedNewer { position, version })
            }
            Skip::Malformed(what) if self.chunk.malformed.len() < NAMED_MAX => {
                self.chunk.malformed.push((position, what));
            }
            _ => {}
        }
    }

    /// The chunk so far.
    pub(crate) fn take(&mut self) -> Chunk {
        self.bytes = 0;
        self.skipped = 0;
        let read_below = self.chunk.read_below;
        std::mem::replace(
            &mut self.chunk,
            Chunk {
                read_below,
                ..Chunk::default()
            },
        )
    }

    /// The last chunk: everything below the head was read.
    pub(crate) fn finish(&mut self, head: u64) -> Chunk {
        let mut chunk = self.take();
        chunk.read_below = chunk.read_below.max(head);
        chunk
    }
}
