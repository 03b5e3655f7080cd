//! The judge: what the client was told against what the sink was given.
//!
//! Shares no code with what it judges. A hook that was never acked may be delivered (its sender
//! got no answer); one that was never sent is invented.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::ledger::{Sent, number_of, sha256};

/// One delivery, as the sink saw it.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// The hook's id.
    pub id: String,
    /// The body.
    pub body: Vec<u8>,
    /// The idempotency key it was told.
    pub idempotency_key: String,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Requests acked.
    pub acked: usize,
    /// Of these, delivered under the id that was acked.
    pub recovered: usize,
    /// Acked and never delivered.
    pub missing: usize,
    /// Delivered with other bytes than were sent.
    pub altered: usize,
    /// Delivered and never sent.
    pub invented: usize,
    /// Second hook ids of one dedupe key.
    pub duplicate_hooks: usize,
    /// Deliveries beyond the first of a hook.
    pub extra_deliveries: usize,
    /// The most extra deliveries that the drill allows.
    pub extra_deliveries_max: usize,
    /// A few of what is wrong, for whoever looks into it.
    pub examples: Vec<String>,
}

impl Verdict {
    /// Whether every promise held.
    pub fn holds(&self) -> bool {
        self.missing == 0
            && self.altered == 0
            && self.invented == 0
            && self.duplicate_hooks == 0
            && self.extra_deliveries <= self.extra_deliveries_max
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acked={} recovered={} missing={} altered={} invented={} duplicate_hooks={} \
             extra_deliveries={} (at most {})",
            self.acked,
            self.recovered,
            self.missing,
            self.altered,
            self.invented,
            self.duplicate_hooks,
            self.extra_deliveries,
            self.extra_deliveries_max,
        )
    }
}

/// Judges a run.
pub fn judge(
    sent: &BTreeMap<u64, Sent>,
    delivered: &[Delivered],
    extra_deliveries_max: usize,
) -> Verdict {
    let mut verdict = Verdict {
        extra_deliveries_max,
        ..Verdict::default()
    };
    let mut by_id: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ids_by_number: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for hook in delivered {
        *by_id.entry(&hook.id).or_default() += 1;
        let number = number_of(&hook.body).filter(|n| sent.contains_key(n));
        let Some((number, row)) = number.and_then(|n| Some((n, sent.get(&n)?))) else {
            verdict.invented += 1;
            verdict.example(format!("invented: {}", hook.id));
            continue;
        };
        if sha256(&hook.body) != row.sha256 {
            verdict.altered += 1;
            verdict.example(format!("altered: {} (request {number})", hook.id));
        }
        ids_by_number.entry(number).or_default().insert(&hook.id);
    }
    let mut ids_by_key: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (number, row) in sent {
        let ids = ids_by_number.get(number);
        if let Some(acked) = row.acked() {
            verdict.acked += 1;
            if ids.is_some_and(|ids| ids.contains(acked)) {
                verdict.recovered += 1;
            } else if !(row.key.is_some() && by_id.contains_key(acked)) {
                verdict.missing += 1;
                verdict.example(format!("missing: {acked} (request {number})"));
            } else {
                // A duplicate was acked with the id of another request of its key.
                verdict.recovered += 1;
            }
        }
        if let Some(key) = &row.key {
            let known = ids_by_key.entry(key).or_default();
            known.extend(ids.into_iter().flatten());
            known.extend(row.acked());
        }
    }
    for (key, ids) in ids_by_key {
        if ids.len() > 1 {
            verdict.duplicate_hooks += ids.len() - 1;
            verdict.example(format!("key {key} has {} hooks: {ids:?}", ids.len()));
        }
    }
    verdict.extra_deliveries = by_id.values().map(|count| count - 1).sum();
    verdict
}

impl Verdict {
    fn example(&mut self, text: String) {
        if self.examples.len() < 10 {
            self.examples.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ledger::{Answer, Ledger, body};

    fn acked(ledger: &Ledger, number: u64, key: Option<&str>, id: &str) {
        ledger.sending(number, &body(number, 64), key);
        let answer = Answer {
            status: 201,
            id: Some(id.into()),
            duplicate: false,
            error: None,
            retry_after: None,
        };
        ledger.ended(number, Some(answer));
    }

    fn delivery(number: u64, id: &str) -> Delivered {
        Delivered {
            id: id.into(),
            body: body(number, 64),
            idempotency_key: id.into(),
        }
    }

    #[test]
    fn every_kind_of_broken_promise_is_counted_and_a_kept_one_is_not() {
        let ledger = Ledger::default();
        acked(&ledger, 1, None, "a");
        acked(&ledger, 2, None, "b");
        ledger.sending(3, &body(3, 64), None);
        ledger.ended(3, None);
        let rows = ledger.rows();
        let all = [delivery(1, "a"), delivery(2, "b"), delivery(3, "c")];
        assert!(
            judge(&rows, &all, 0).holds(),
            "an unacked hook may be delivered"
        );
        assert_eq!(judge(&rows, &all[..1], 0).missing, 1);
        assert_eq!(
            judge(&rows, &[all.as_slice(), &all[..1]].concat(), 0).extra_deliveries,
            1
        );
        let invented = [all.as_slice(), &[delivery(9, "x")]].concat();
        assert_eq!(judge(&rows, &invented, 0).invented, 1);
        let mut altered = all.to_vec();
        altered[0].body.pop();
        assert_eq!(judge(&rows, &altered, 0).altered, 1);
        let other_id = [delivery(1, "z"), delivery(2, "b")];
        assert_eq!(
            judge(&rows, &other_id, 0).missing,
            1,
            "another id is not the one acked"
        );
    }

    #[test]
    fn two_hooks_for_one_key_are_duplicates() {
        let ledger = Ledger::default();
        acked(&ledger, 1, Some("k"), "a");
        let rows = ledger.rows();
        assert!(judge(&rows, &[delivery(1, "a")], 0).holds());
        let twice = [delivery(1, "a"), delivery(1, "b")];
        assert_eq!(judge(&rows, &twice, 0).duplicate_hooks, 1);
    }
}
