//! The seam between a shard's commit and the log half of its groups.
//!
//! The driver hands records over and passes answers on; whoever implements this publishes them,
//! carries what has one half, and says how far the marks are. Runs on the shard core.

use std::task::{Context, Poll};

use ankusa_intake::{Class, Failure, PermanentAbout};
use ankusa_wal::{HookId, LogOffset, Record, Seq, State};

use super::{Carried, InFlight, LogOutcome, Open};
use crate::dual::{Held, Hold};
use crate::metrics::IntakeRefusal;

/// The log half of a shard's commit, where the mode has one.
pub trait LogHalf {
    /// Whether a hook may be taken on, asked before anything is written for it. Its record takes
    /// at most `bytes`; `exact` says what its envelope takes.
    fn admit(&self, bytes: usize, exact: &dyn Fn() -> usize) -> Result<Admitted, IntakeRefusal>;

    /// A hook that was admitted was not taken on after all.
    fn unadmit(&self, bytes: usize, admitted: Admitted);

    /// Hooks that were admitted are settled for good: so many, of so many bytes.
    fn free(&self, records: u64, bytes: u64);

    /// Hands the records of a group over: one attempt each, whose answers come from
    /// [`LogHalf::poll_answer`], always. They are copied, `bytes` at most. The head of the log as
    /// it is known: no record lies below.
    fn publish(
        &self,
        incarnation: u32,
        bytes: usize,
        records: &mut dyn Iterator<Item = (Seq, &[u8])>,
    ) -> LogOffset;

    /// The next answer.
    fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<LogAnswer>;

    /// What an answer led to: `in_flight` when a group was waiting for it.
    fn answered(&self, answer: &LogAnswer, in_flight: Option<InFlight>);

    /// One half of the record is missing: it is carried from here on.
    fn carry(&self, carried: &Carried<'_>);

    /// The claim of a carried hook is kept with its record.
    fn hold(&self, id: HookId, held: Held) -> Hold;

    /// The marks to write with the next group, where they moved: `open` is what is not settled of
    /// the groups in flight.
    fn marks(&self, state: &State, open: Open, next_seq: Seq) -> [Option<Record>; 2];
}

/// A hook that the log's side admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// It is the one that probes a breaker.
    pub is_probe: bool,
}

/// The log's answer for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAnswer {
    /// The record.
    pub seq: Seq,
    /// Whether the log has it.
    pub result: Result<(), Failure>,
    /// A confirm of an attempt that was answered with its deadline before.
    pub is_late: bool,
}

impl LogAnswer {
    pub(super) fn outcome(&self) -> LogOutcome {
        let own = Class::Permanent(PermanentAbout::Record);
        match self.result {
            Ok(()) => LogOutcome::Confirmed,
            Err(failure) => LogOutcome::Failed {
                is_own: failure.class == own,
            },
        }
    }
}

/// Why a hook was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Too much is waiting.
    Queue,
    /// The log's side refuses it; nothing was written.
    Intake(IntakeRefusal),
}
