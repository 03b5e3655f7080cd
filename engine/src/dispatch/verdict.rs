//! The words in which the driver and the scheduler speak of an attempt's end.
//!
//! Plain data; runs anywhere.

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sink confirmed it.
    Delivered,
    /// It may work later; perhaps the sink said when.
    Retry {
        /// Retry-After, milliseconds.
        after_ms: Option<u64>,
    },
    /// The sink refused it for good.
    Permanent,
    /// Nothing was sent (the hook could not be read, or the core is stopping). Spends no attempt.
    NotMade {
        /// When to try again.
        again_ms: u64,
    },
}

/// What to write about the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Finished.
    Delivered,
    /// Failed attempts so far, and the delay from now until it is due again.
    RetryIn {
        /// Failed attempts.
        attempts: u32,
        /// Milliseconds from now.
        delay_ms: u64,
    },
    /// Dead letter.
    Dead {
        /// Failed attempts.
        attempts: u32,
        /// Why.
        reason: DeadReason,
    },
    /// Nothing: the row stays as the store has it.
    Unchanged,
}

/// Why a row became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// The sink refused it for good.
    Permanent,
    /// The last allowed attempt failed.
    AttemptsExhausted,
    /// The sink is no longer configured.
    SinkGone,
    /// A recovery brought it back, and its source is not configured: its sinks are not known.
    SourceUnknown,
}

impl DeadReason {
    /// The number it is stored as.
    pub fn code(self) -> u8 {
        match self {
            DeadReason::Permanent => 1,
            DeadReason::AttemptsExhausted => 2,
            DeadReason::SinkGone => 3,
            DeadReason::SourceUnknown => 4,
        }
    }

    /// The reason with this number.
    pub fn from_code(code: u8) -> Option<DeadReason> {
        [
            DeadReason::Permanent,
            DeadReason::AttemptsExhausted,
            DeadReason::SinkGone,
            DeadReason::SourceUnknown,
        ]
        .into_iter()
        .find(|reason| reason.code() == code)
    }

    /// The word that operators see.
    pub fn word(self) -> &'static str {
        match self {
            DeadReason::Permanent => "permanent",
            DeadReason::AttemptsExhausted => "attempts_exhausted",
            DeadReason::SinkGone => "sink_gone",
            DeadReason::SourceUnknown => "source_unknown",
        }
    }
}
