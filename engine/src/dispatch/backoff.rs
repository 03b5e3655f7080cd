//! How long a failed delivery waits, and when it is given up.
//!
//! `min(max, base · 2^(n−1))` × a draw from [0.5, 1.0] after the n-th failed attempt, never
//! shorter than what the sink asked for (Retry-After, honoured up to an hour). Pure.

/// The longest Retry-After that is honoured, milliseconds.
pub const RETRY_AFTER_MS_MAX: u64 = 3_600_000;

/// Retry settings of one sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Delay after the first failure, milliseconds.
    pub base_ms: u64,
    /// Longest delay, milliseconds.
    pub max_ms: u64,
    /// Attempts before a row becomes a dead letter.
    pub attempts_max: u32,
    /// Draw the delay from [half, whole] instead of the whole.
    pub jitter: bool,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            base_ms: 100,
            max_ms: 300_000,
            attempts_max: 84,
            jitter: true,
        }
    }
}

impl RetryPolicy {
    /// Delay after the `attempt`-th attempt (counted from 1) failed, milliseconds, at least 1.
    /// `random` are 64 random bits.
    pub fn delay_ms(&self, attempt: u32, random: u64) -> u64 {
        let doublings = attempt.saturating_sub(1);
        let whole = self
            .base_ms
            .saturating_mul(1u64.checked_shl(doublings).unwrap_or(u64::MAX))
            .min(self.max_ms);
        let delay = if self.jitter {
            let half = whole / 2;
            let span = u128::from(whole - half + 1);
            half + ((u128::from(random) * span) >> 64) as u64
        } else {
            whole
        };
        delay.max(1)
    }

    /// The delay when the sink asked for one.
    pub fn delay_with_retry_after_ms(&self, attempt: u32, random: u64, asked_ms: u64) -> u64 {
        self.delay_ms(attempt, random)
            .max(asked_ms.min(RETRY_AFTER_MS_MAX))
    }

    /// What is left to wait of a persisted due time. One that lies further away than anything
    /// this program could have asked for was written under a wrong clock, and becomes the longest
    /// back-off.
    pub fn clamp_ms(&self, left_ms: u64) -> u64 {
        if left_ms > self.max_ms.max(RETRY_AFTER_MS_MAX) {
            self.max_ms
        } else {
            left_ms
        }
    }
}
