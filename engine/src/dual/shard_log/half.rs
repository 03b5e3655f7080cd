//! What the committer's driver asks of a shard's side of the log.
//!
//! On the path of every hook: what is done here per record on the good path is a copy of its bytes
//! into the group's buffer and nothing that allocates. Runs on the shard core.

use std::task::{Context, Poll};

use ankusa_wal::format::envelope;
use ankusa_wal::{HookId, IntakeOffset, LogOffset, Record, Seq, State, Watermark, mutations};
use bytes::Bytes;

use super::super::claims::{Held, Hold};
use super::super::marks;
use super::super::pending::Kept;
use super::{ENTRY_BYTES, ShardLog};
use crate::commit::driver::{Admitted, LogAnswer, LogHalf};
use crate::commit::{Carried, InFlight, Open};
use crate::metrics::IntakeRefusal;

impl LogHalf for ShardLog {
    fn admit(&self, bytes: usize, exact: &dyn Fn() -> usize) -> Result<Admitted, IntakeRefusal> {
        let most = self.core.node().settings().max_record_bytes;
        if bytes > most && exact() > most {
            return Err(IntakeRefusal::RecordTooLarge);
        }
        self.core.admit(bytes as u64 + ENTRY_BYTES)
    }

    fn unadmit(&self, bytes: usize, admitted: Admitted) {
        self.core.unadmit(bytes as u64 + ENTRY_BYTES, admitted);
    }

    fn free(&self, records: u64, bytes: u64) {
        self.core.free(records, bytes + records * ENTRY_BYTES);
    }

    fn publish(
        &self,
        incarnation: u32,
        bytes: usize,
        records: &mut dyn Iterator<Item = (Seq, &[u8])>,
    ) -> LogOffset {
        let floor = self.core.node().head().unwrap_or_default();
        let mut spans = self.spans.borrow_mut();
        spans.clear();
        let mut buffer = Vec::new();
        for (seq, envelope) in records {
            if buffer.capacity() == 0 {
                buffer.reserve_exact(bytes);
            }
            let from = buffer.len();
            buffer.extend_from_slice(envelope);
            spans.push((seq, from, buffer.len()));
        }
        if spans.is_empty() {
            return floor;
        }
        let buffer = Bytes::from(buffer);
        let mut records = spans.iter().map(|&(seq, from, to)| {
            let value = buffer.slice(from..to);
            let (id, tenant, source) = envelope::peek(&buffer[from..to]);
            self.outgoing(seq, id, incarnation, tenant, source, value)
        });
        self.hand_over(&mut records);
        floor
    }

    fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<LogAnswer> {
        if let Some(answer) = self.answers.borrow_mut().pop_front() {
            return Poll::Ready(answer);
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn answered(&self, answer: &LogAnswer, in_flight: Option<InFlight>) {
        match in_flight {
            Some(in_flight) => {
                mutations::point("dual.answered");
                self.count(answer, in_flight.started_us);
                self.tell_breaker(answer, in_flight.is_first_failure);
            }
            None => self.answered_carried(answer),
        }
    }

    fn carry(&self, carried: &Carried<'_>) {
        let mut kept = None;
        carried.item.draft(&mut |draft| {
            let mut bytes = vec![0; envelope::encoded_len(draft)];
            envelope::encode(draft, carried.seq, &mut bytes);
            kept = Some(Kept {
                id: draft.id,
                envelope: Bytes::from(bytes),
                sinks: draft.extra.sinks.into(),
                dedupe_hash: draft.extra.dedupe_hash,
                archive: draft.extra.archive,
                first_us: carried.since_us,
                floor: carried.floor,
                quota_bytes: carried.bytes as u64 + ENTRY_BYTES,
            });
        });
        let Some(mut kept) = kept else { return };
        let mut log = carried.log;
        if carried.seq < self.stale_below.get() {
            // Confirmed, if at all, by a log that has been lost since.
            (kept.floor, log) = (LogOffset(0), false);
        }
        let quota_bytes = kept.quota_bytes;
        let mut pending = self.pending.borrow_mut();
        let is_new = pending.carry(carried.seq, kept, carried.local, log);
        drop(pending);
        mutations::point("dual.carried");
        if !is_new {
            self.core.free(1, quota_bytes);
        }
        self.wake_work();
    }

    fn hold(&self, id: HookId, held: Held) -> Hold {
        let hold = self.pending.borrow_mut().hold(id, held);
        if hold == Hold::Held {
            self.core.claims().carry(held.claim);
        }
        hold
    }

    fn marks(&self, state: &State, open: Open, next_seq: Seq) -> [Option<Record>; 2] {
        let node = self.core.node();
        if self.closed.get() || self.epoch.get() != node.epoch() {
            return [None, None];
        }
        let pending = self.pending.borrow();
        let meta = state.meta();
        let watermark = || -> Option<Watermark> {
            let carried = pending.lowest_unconfirmed();
            let lowest = open.unconfirmed.into_iter().chain(carried).min();
            let unreadable = self.unreadable.borrow();
            let new = match unreadable.is_empty() {
                true => marks::watermark(lowest, pending.stuck_unconfirmed(), next_seq),
                false => {
                    let mut stuck = unreadable.clone();
                    stuck.extend(pending.stuck_unconfirmed());
                    marks::watermark(lowest, stuck.into_iter(), next_seq)
                }
            };
            marks::is_ahead(&new, &meta.watermark).then_some(new)
        };
        let offset = || -> Option<IntakeOffset> {
            let floors = [open.floor, pending.floor()];
            let now = marks::offset(node.head()?, floors, meta.offset.hold);
            marks::moved(now, &meta.offset)
        };
        let watermark = self.watermark_on.get().then(watermark).flatten();
        let offset = self.offset_on.get().then(offset).flatten();
        [watermark.map(Record::Watermark), offset.map(Record::Offset)]
    }
}
