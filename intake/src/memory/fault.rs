//! What the memory log can be told to do wrong, record by record.
//!
//! Pure; consulted by the log's own thread.

use std::collections::VecDeque;
use std::time::Duration;

use crate::log::{Class, Failure, PermanentAbout};

/// One way for one record to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Lands; the confirm comes this much later.
    Late(Duration),
    /// Lands twice, and is confirmed twice.
    Twice,
    /// Lands; nothing is ever said.
    Never,
    /// Does not land; nothing is ever said.
    Lost,
    /// Lands; the confirm comes after those of the next so many records.
    AfterNext(u32),
    /// Lands; the answer is a failure.
    LandedButFailed(Class),
    /// Does not land; the answer is a failure, at once.
    Fail(Class),
    /// Lands; the confirm names no position.
    NoPosition,
}

impl Fault {
    pub(super) fn lands(self) -> bool {
        !matches!(self, Fault::Lost | Fault::Fail(_))
    }
}

/// The faults that wait for records, and the time a confirm takes.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) latency: Duration,
    next: VecDeque<(Fault, u64)>,
    always: Option<Fault>,
}

impl Plan {
    pub(super) fn push(&mut self, fault: Fault, records: u64) {
        if records > 0 {
            self.next.push_back((fault, records));
        }
    }

    pub(super) fn set_always(&mut self, fault: Option<Fault>) {
        self.always = fault;
    }

    /// The fault of the next record.
    pub(super) fn take(&mut self) -> Option<Fault> {
        let Some((fault, left)) = self.next.front_mut() else {
            return self.always;
        };
        let fault = *fault;
        *left -= 1;
        if *left == 0 {
            self.next.pop_front();
        }
        Some(fault)
    }
}

pub(super) fn failure(class: Class) -> Failure {
    let reason = match class {
        Class::NotFound => "injected: not found",
        Class::Unavailable => "injected: unavailable",
        Class::Throttled { .. } => "injected: throttled",
        Class::Permanent(PermanentAbout::Record) => "injected: record refused",
        Class::Permanent(PermanentAbout::Access) => "injected: access refused",
    };
    Failure { class, reason }
}
