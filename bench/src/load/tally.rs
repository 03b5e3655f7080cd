//! What came back: latencies, statuses, error words, and the rate over time.
//!
//! Pure; filled by the load thread. Only requests meant to be sent inside the measured window
//! are recorded; the throughput counts the answers that arrived inside it.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency told apart, in nanoseconds (two minutes).
pub const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// A histogram of latencies in nanoseconds, three significant digits.
pub fn new_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).unwrap_or_else(|_| {
        Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"))
    });
    histogram.auto(false);
    histogram
}

/// One kind of end of a request. Status 0: no answer, the word says why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// The HTTP status, or 0.
    pub status: u16,
    /// The error word of the answer, `duplicate`, or why there was none.
    pub word: String,
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct LoadResult {
    /// Latencies of 2xx answers, nanoseconds.
    pub acked: Histogram<u64>,
    /// Latencies of all other answers, nanoseconds.
    pub refused: Histogram<u64>,
    /// Ends of the requests of the window, by kind.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Requests of the window that were sent.
    pub sent: u64,
    /// Requests that were due in the window and never sent, because no connection was free.
    /// They are in the latencies with the time they had waited.
    pub unsent: u64,
    /// 2xx answers that arrived inside the window.
    pub acked_in_window: u64,
    /// Length of the window.
    pub window: Duration,
    /// Share of the window in which the load thread was running.
    pub generator_busy: f64,
    /// 2xx answers in each second of the window.
    pub per_second: Vec<u64>,
    /// Connections lost or closed under us, and opened again.
    pub reopened: u64,
    /// Every connection was lost before the end.
    pub cut_short: bool,
}

impl LoadResult {
    /// Nothing yet.
    pub(crate) fn empty() -> LoadResult {
        LoadResult {
            acked: new_histogram(),
            refused: new_histogram(),
            outcomes: Vec::new(),
            sent: 0,
            unsent: 0,
            acked_in_window: 0,
            window: Duration::ZERO,
            generator_busy: 0.0,
            per_second: Vec::new(),
            reopened: 0,
            cut_short: false,
        }
    }

    /// 2xx answers per second of the window.
    pub fn rate(&self) -> f64 {
        if self.window.is_zero() {
            0.0
        } else {
            self.acked_in_window as f64 / self.window.as_secs_f64()
        }
    }

    /// A percentile of the 2xx latencies in microseconds.
    pub fn acked_us(&self, percentile: f64) -> f64 {
        self.acked.value_at_quantile(percentile / 100.0) as f64 / 1000.0
    }

    /// Ends that are not a 2xx answer.
    pub fn not_acked(&self) -> u64 {
        self.outcomes
            .iter()
            .filter(|(o, _)| !(200..300).contains(&o.status))
            .map(|(_, n)| n)
            .sum()
    }

    pub(super) fn count(&mut self, status: u16, word: &str) {
        if let Some((_, n)) = self
            .outcomes
            .iter_mut()
            .find(|(o, _)| o.status == status && o.word == word)
        {
            *n += 1;
            return;
        }
        self.outcomes.push((
            Outcome {
                status,
                word: word.to_owned(),
            },
            1,
        ));
        self.outcomes.sort();
    }

    pub(super) fn latency(&mut self, status: u16, latency: Duration) {
        let ns = (latency.as_nanos() as u64).clamp(1, LATENCY_NS_MAX);
        if (200..300).contains(&status) {
            self.acked.saturating_record(ns);
        } else {
            self.refused.saturating_record(ns);
        }
    }

    pub(super) fn acked_at(&mut self, since_window: Duration) {
        let second = since_window.as_secs() as usize;
        if second >= self.per_second.len() {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
        self.acked_in_window += 1;
    }
}
