//! The claims table against its rules and against a naive model.

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn key(n: u8) -> KeyHash {
    KeyHash([n; 16])
}
fn id(n: u8) -> HookId {
    HookId([n; 16])
}
fn ticket(number: u64) -> Ticket {
    Ticket { core: 0, number }
}

#[test]
fn two_equal_keys_at_once_give_one_grant_and_the_second_hears_the_first_id() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    assert_eq!(
        claims.claim(key(1), id(1), ticket(1), 0),
        Some(Answer::Granted)
    );
    assert_eq!(claims.claim(key(1), id(2), ticket(2), 0), None);
    assert!(claims.promote(key(1), id(1), 100, 0, &mut out));
    assert_eq!(
        out,
        [Reply {
            to: ticket(2),
            id: id(2),
            answer: Answer::Duplicate(id(1))
        }]
    );
    assert_eq!(
        claims.claim(key(1), id(3), ticket(3), 99),
        Some(Answer::Duplicate(id(1)))
    );
    assert_eq!(
        claims.claim(key(1), id(4), ticket(4), 100),
        Some(Answer::Granted),
        "expired"
    );
}

#[test]
fn a_release_hands_the_key_to_the_first_waiter_and_the_rest_go_on_waiting() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    claims.claim(key(1), id(1), ticket(1), 0);
    claims.claim(key(1), id(2), ticket(2), 0);
    claims.claim(key(1), id(3), ticket(3), 0);
    claims.release(key(1), id(1), &mut out);
    assert_eq!(
        out,
        [Reply {
            to: ticket(2),
            id: id(2),
            answer: Answer::Granted
        }]
    );
    out.clear();
    claims.release(key(1), id(1), &mut out);
    assert!(out.is_empty(), "only the holder releases");
    claims.promote(key(1), id(2), 50, 0, &mut out);
    assert_eq!(
        out,
        [Reply {
            to: ticket(3),
            id: id(3),
            answer: Answer::Duplicate(id(2))
        }]
    );
}

#[test]
fn a_cancelled_waiter_is_never_granted() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    claims.claim(key(1), id(1), ticket(1), 0);
    claims.claim(key(1), id(2), ticket(2), 0);
    claims.cancel(key(1), ticket(2));
    claims.release(key(1), id(1), &mut out);
    assert!(out.is_empty());
    assert_eq!(claims.pending_count(), 0);
}

#[test]
fn a_carried_claim_answers_waiters_and_newcomers_and_is_never_a_duplicate() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    claims.claim(key(1), id(1), ticket(1), 0);
    claims.claim(key(1), id(2), ticket(2), 0);
    claims.carry(key(1), id(1), &mut out);
    assert_eq!(
        out,
        [Reply {
            to: ticket(2),
            id: id(2),
            answer: Answer::Carried
        }]
    );
    assert_eq!(
        claims.claim(key(1), id(3), ticket(3), 0),
        Some(Answer::Carried)
    );
    out.clear();
    assert!(claims.promote(key(1), id(1), 9, 0, &mut out));
    assert_eq!(
        claims.claim(key(1), id(4), ticket(4), 0),
        Some(Answer::Duplicate(id(1)))
    );
}

#[test]
fn a_late_promotion_never_overwrites_another_holder() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    claims.claim(key(1), id(1), ticket(1), 0);
    claims.release(key(1), id(1), &mut out);
    claims.claim(key(1), id(2), ticket(2), 0);
    assert!(
        !claims.promote(key(1), id(1), 9, 0, &mut out),
        "pending under another id"
    );
    claims.promote(key(1), id(2), 9, 0, &mut out);
    assert!(
        !claims.promote(key(1), id(1), 9, 0, &mut out),
        "promoted under another id"
    );
    assert_eq!(
        claims.claim(key(1), id(3), ticket(3), 0),
        Some(Answer::Duplicate(id(2)))
    );
}

#[test]
fn waiters_of_one_key_have_a_ceiling() {
    let mut claims = Claims::new(10);
    claims.claim(key(1), id(1), ticket(0), 0);
    for n in 0..WAITERS_MAX as u64 {
        assert_eq!(claims.claim(key(1), id(2), ticket(n + 1), 0), None);
    }
    assert_eq!(
        claims.claim(key(1), id(2), ticket(9999), 0),
        Some(Answer::Crowded)
    );
}

#[test]
fn a_row_costs_at_most_48_bytes_at_the_worst_load() {
    let mut worst = 0.0f64;
    let mut table = KeyTable::new(10_000_000);
    for n in 0u64..400_000 {
        let mut k = [0u8; 16];
        k[..8].copy_from_slice(&n.to_le_bytes());
        k[8..].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        table.insert(KeyHash(k), id(1), 10, 0);
        if n > 100_000 {
            worst = worst.max(table.memory_bytes() as f64 / table.len() as f64);
        }
    }
    assert!(worst <= 48.0, "{worst}");
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u8, u32),
    Sweep(usize),
    Tick(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u8..40, any::<u8>(), 1u32..30).prop_map(|(k, i, t)| Op::Insert(k, i, t)),
        1 => (0usize..20).prop_map(Op::Sweep),
        2 => (0u32..10).prop_map(Op::Tick),
    ]
}

proptest! {
    #[test]
    fn the_key_table_behaves_like_a_map_with_fifo_eviction(ops in proptest::collection::vec(op(), 0..300)) {
        let keys_max = 16;
        let mut table = KeyTable::new(keys_max);
        let mut model: BTreeMap<u8, (u8, u32)> = BTreeMap::new();
        let mut now = 1u32;
        for op in ops {
            match op {
                Op::Insert(k, i, ttl) => {
                    table.insert(key(k), id(i), now + ttl, now);
                    model.insert(k, (i, now + ttl));
                }
                Op::Sweep(n) => table.sweep(now, n),
                Op::Tick(n) => now += n,
            }
            prop_assert!(table.len() <= keys_max);
            for k in 0u8..40 {
                let got = table.get(key(k), now);
                let want = model.get(&k).filter(|(_, e)| *e > now).map(|(i, _)| id(*i));
                // The ceiling may have dropped a live row, which is counted; it never invents one.
                if table.evicted_count() == 0 {
                    prop_assert_eq!(got, want);
                } else if got.is_some() {
                    prop_assert_eq!(got, want);
                }
            }
        }
    }
}

#[test]
fn rows_that_expire_behind_one_that_lives_long_give_their_memory_back() {
    let long = KeyHash([0xFF; 16]);
    let mut table = KeyTable::new(1_000_000);
    table.insert(long, id(1), u32::MAX, 0);
    let mut most = 0;
    for now_s in 0..300_000u32 {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&now_s.to_le_bytes());
        key[8..12].copy_from_slice(&now_s.wrapping_mul(0x9E37_79B9).to_le_bytes());
        table.insert(KeyHash(key), id(2), now_s + 10, now_s);
        table.sweep(now_s, 16);
        most = most.max(table.memory_bytes());
    }
    assert_eq!(table.get(long, 300_000), Some(id(1)), "the long-lived one");
    assert!(most < 1 << 20, "{most} bytes for a dozen live rows");
}

#[test]
fn a_claim_given_up_frees_its_key_pending_or_promoted_and_no_other_hooks() {
    let mut claims = Claims::new(10);
    let mut out = Vec::new();
    claims.claim(key(1), id(1), ticket(1), 0);
    claims.give_up(key(1), id(2), 0, &mut out);
    assert_eq!(claims.pending_count(), 1, "another's");
    claims.give_up(key(1), id(1), 0, &mut out);
    assert_eq!(claims.pending_count(), 0);
    claims.restore(key(1), id(1), 100, 0);
    claims.give_up(key(1), id(2), 0, &mut out);
    assert_eq!(
        claims.claim(key(1), id(3), ticket(3), 0),
        Some(Answer::Duplicate(id(1)))
    );
    claims.give_up(key(1), id(1), 0, &mut out);
    assert_eq!(
        claims.claim(key(1), id(3), ticket(3), 0),
        Some(Answer::Granted)
    );
}

/// A hook that the log refused for good gave its key up, and the retry was acked under a new id.
/// At the next boot the rows of both are read, in any order; the refused one gives up once more.
#[test]
fn a_hook_given_up_at_a_boot_does_not_take_the_key_of_its_successor_with_it() {
    for order in [[1, 2], [2, 1]] {
        let mut claims = Claims::new(10);
        for n in order {
            claims.restore(key(1), id(n), 100, 0);
        }
        claims.give_up(key(1), id(1), 0, &mut Vec::new());
        assert_eq!(
            claims.claim(key(1), id(3), ticket(3), 0),
            Some(Answer::Duplicate(id(2)))
        );
    }
}

#[test]
fn a_row_that_says_gone_frees_the_key_of_its_own_hook_only() {
    let mut claims = Claims::new(10);
    claims.restore(key(1), id(1), 100, 0);
    claims.restore(key(1), id(1), 0, 0);
    claims.restore(key(2), id(1), 100, 0);
    claims.restore(key(2), id(2), 100, 0);
    claims.restore(key(2), id(1), 0, 0);
    assert_eq!(claims.key_count(), 1, "the second key is the newer hook's");
    // Written again by a recovery: it stands again.
    claims.restore(key(1), id(1), 100, 0);
    assert_eq!(claims.key_count(), 2);
}
