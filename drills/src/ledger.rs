//! What the client sent and what it was told: the one side of every comparison.
//!
//! Every request carries a number of its own in its body, so that a delivery can be traced to the
//! request also when no answer ever came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest;

/// What the client knows of one request.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// SHA-256 of the body.
    pub sha256: [u8; 32],
    /// Its dedupe key.
    pub key: Option<String>,
    /// Every answer it got, in order: status, hook id, whether it was called a duplicate.
    pub answers: Vec<Answer>,
    /// Attempts that ended without an answer.
    pub unanswered: u32,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The hook's id, in a 201.
    pub id: Option<String>,
    /// The answer called it a duplicate.
    pub duplicate: bool,
    /// The error word otherwise.
    pub error: Option<String>,
    /// Its `Retry-After`.
    pub retry_after: Option<String>,
}

impl Sent {
    /// The id it was acked with.
    pub fn acked(&self) -> Option<&str> {
        self.answers
            .iter()
            .find(|a| a.status == 201)
            .and_then(|a| a.id.as_deref())
    }
}

/// The ledger, shared by the client's threads.
#[derive(Clone, Default)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    rows: BTreeMap<u64, Sent>,
    /// Requests by the time of their first ack.
    acked: Vec<u64>,
    /// Answers by status and error word.
    answers: BTreeMap<String, usize>,
}

/// An answer in a few words: `201`, `503 store_full`, and what an honest 503 must not lack.
fn in_words(answer: Option<&Answer>) -> String {
    let Some(answer) = answer else {
        return "no answer".to_owned();
    };
    let word = answer.error.as_deref().unwrap_or_default();
    let mut text = format!("{} {word}", answer.status).trim_end().to_owned();
    if answer.status == 503 && answer.retry_after.is_none() {
        text.push_str(" without Retry-After");
    }
    text
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to be sent (again).
    pub fn sending(&self, number: u64, body: &[u8], key: Option<&str>) {
        let sha256 = sha256(body);
        let mut inner = self.lock();
        let row = inner.rows.entry(number).or_default();
        row.sha256 = sha256;
        row.key = key.map(str::to_owned);
    }

    /// What came of it; `None`: no answer.
    pub fn ended(&self, number: u64, answer: Option<Answer>) {
        let mut inner = self.lock();
        let row = inner.rows.entry(number).or_default();
        let was_acked = row.acked().is_some();
        let words = in_words(answer.as_ref());
        match answer {
            Some(answer) => row.answers.push(answer),
            None => row.unanswered += 1,
        }
        if !was_acked && row.acked().is_some() {
            inner.acked.push(number);
        }
        *inner.answers.entry(words).or_default() += 1;
    }

    /// How often each answer was given so far.
    pub fn answers(&self) -> BTreeMap<String, usize> {
        self.lock().answers.clone()
    }

    /// Requests acked so far.
    pub fn acked_count(&self) -> usize {
        self.lock().acked.len()
    }

    /// A copy of everything.
    pub fn rows(&self) -> BTreeMap<u64, Sent> {
        self.lock().rows.clone()
    }

    /// The acks after the first `acked` never were: their hooks stay as sent without an answer.
    pub fn forget_after(&self, acked: usize) {
        let mut inner = self.lock();
        let acked = acked.min(inner.acked.len());
        for number in inner.acked.split_off(acked) {
            if let Some(row) = inner.rows.get_mut(&number) {
                row.answers.clear();
            }
        }
    }

    /// As [`Ledger::rows`], but only the first `acked` requests that were acked count as acked: the
    /// ledger at an earlier moment. The later ones stay as sent without an answer.
    pub fn rows_at(&self, acked: usize) -> BTreeMap<u64, Sent> {
        let inner = self.lock();
        let mut rows = inner.rows.clone();
        for number in &inner.acked[acked.min(inner.acked.len())..] {
            if let Some(row) = rows.get_mut(number) {
                row.answers.clear();
            }
        }
        rows
    }
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0u8; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// The body of request `number`, `bytes` long at least.
pub fn body(number: u64, bytes: usize) -> Vec<u8> {
    let mut body = format!("{{\"n\":{number},\"pad\":\"").into_bytes();
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while body.len() + 2 < bytes {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        body.push(b'a' + (x % 26) as u8);
    }
    body.extend_from_slice(b"\"}");
    body
}

/// The number in a body made by [`body`].
pub fn number_of(body: &[u8]) -> Option<u64> {
    let rest = body.strip_prefix(b"{\"n\":")?;
    let end = rest.iter().position(|b| *b == b',')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}
