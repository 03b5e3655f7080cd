//! That the simulation is deterministic, that it does what it says, and a few seeds of it. The
//! thousands of seeds, the enumerations and the controls of CI are runs of the command.
#![allow(clippy::unwrap_used)]

use super::sweep::{Sweep, sweep};
use super::*;

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..6 {
        let (first, second) = (run_seed(&Plan::of(seed)), run_seed(&Plan::of(seed)));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counters, second.counters, "seed {seed}");
    }
    assert_ne!(run_seed(&Plan::of(1)).hash, run_seed(&Plan::of(2)).hash);
}

#[test]
fn seeds_keep_every_promise_and_meet_what_they_are_meant_to() {
    let outcome = sweep(&Sweep {
        from: 1,
        seeds: 60,
        ops: 200,
        faults: 5,
        threads: 2,
        dual: false,
    });
    for report in &outcome.failed {
        println!("seed {}: {:?}", report.seed, report.violations);
    }
    assert!(outcome.failed.is_empty());
    assert!(outcome.faults_min >= 5, "{}", outcome.faults_min);
    let (met, did) = (outcome.counters, outcome.tally);
    let kinds = [
        met.write_errors,
        met.enospc,
        met.short_writes,
        met.sync_errors,
        met.late_errors,
        met.read_errors,
        met.name_errors,
        met.delays,
        met.hangs,
    ];
    assert!(kinds.iter().all(|count| *count > 0), "{met}");
    let deeds = [
        did.duplicates,
        did.dead,
        did.cuts,
        did.kills,
        did.boots_killed,
        did.boots_failed,
        did.stops,
        did.fences,
        did.checkpoints,
    ];
    assert!(deeds.iter().all(|count| *count > 0), "{did}");
}

#[test]
fn seeds_of_the_dual_commit_keep_every_promise_and_meet_what_they_are_meant_to() {
    let outcome = sweep(&Sweep {
        from: 1,
        seeds: 40,
        ops: 200,
        faults: 5,
        threads: 2,
        dual: true,
    });
    for report in &outcome.failed {
        println!("seed {}: {:?}", report.seed, report.violations);
    }
    assert!(outcome.failed.is_empty());
    let log = outcome.log;
    let kinds = [
        log.doubled,
        log.landed_failed,
        log.late,
        log.swallowed,
        log.refused,
        log.went_back,
        outcome.tally.hosts_lost,
        outcome.tally.gave_up,
    ];
    assert!(kinds.iter().all(|count| *count > 0), "{log}");
    let again = Plan {
        dual: true,
        ..Plan::of(3)
    };
    assert_eq!(run_seed(&again).hash, run_seed(&again).hash);
}

/// The judge on books written by hand: each kind of broken promise is found, a kept one is not.
mod judged {
    use super::super::book::{Answer, Book, Delivered, Id, Kind};
    use super::super::judge::judge;
    use crate::ledger;

    const FIRST: Id = [1; 16];
    const SECOND: Id = [2; 16];

    fn sent(book: &Book, number: u64, key: Option<&str>, id: Id) {
        let source = if key.is_some() { "keyed" } else { "plain" };
        book.sending(number, &ledger::body(number, 64), source, key);
        let answer = Answer {
            status: 201,
            id: Some(id),
            duplicate: false,
        };
        book.answered(number, answer);
    }

    fn delivered(book: &Book, number: u64, id: Id, seq: u64, life: u32) {
        for sink in ["first", "second"] {
            book.deliveries.borrow_mut().push(Delivered {
                life,
                shard: 0,
                seq,
                id,
                number,
                sink,
            });
            let mut confirmed = book.confirmed.borrow_mut();
            confirmed.entry((id, sink)).or_default().push(life);
        }
    }

    fn kinds(book: &Book) -> Vec<Kind> {
        judge(book);
        book.violations().iter().map(|v| v.kind).collect()
    }

    #[test]
    fn a_kept_promise_is_not_broken() {
        let book = Book::new();
        sent(&book, 1, None, FIRST);
        delivered(&book, 1, FIRST, 5, 0);
        delivered(&book, 1, FIRST, 5, 1);
        assert_eq!(kinds(&book), []);
    }

    #[test]
    fn an_acked_hook_that_no_sink_has_is_missing() {
        let book = Book::new();
        sent(&book, 1, None, FIRST);
        assert_eq!(kinds(&book), [Kind::Missing]);
    }

    #[test]
    fn two_ids_for_one_key_are_a_duplicate_hook() {
        let book = Book::new();
        sent(&book, 1, Some("k"), FIRST);
        delivered(&book, 1, FIRST, 5, 0);
        delivered(&book, 1, SECOND, 6, 0);
        assert_eq!(kinds(&book), [Kind::DuplicateHook]);
    }

    #[test]
    fn one_seq_for_two_hooks_is_reuse() {
        let book = Book::new();
        sent(&book, 1, None, FIRST);
        sent(&book, 2, None, SECOND);
        delivered(&book, 1, FIRST, 5, 0);
        delivered(&book, 2, SECOND, 5, 0);
        assert!(kinds(&book).contains(&Kind::SeqReused));
    }

    #[test]
    fn a_confirmed_delivery_comes_again_only_after_a_death() {
        let book = Book::new();
        sent(&book, 1, None, FIRST);
        delivered(&book, 1, FIRST, 5, 3);
        delivered(&book, 1, FIRST, 5, 3);
        assert_eq!(kinds(&book), [Kind::ExtraDelivery; 2]);
        let book = Book::new();
        sent(&book, 1, None, FIRST);
        delivered(&book, 1, FIRST, 5, 3);
        delivered(&book, 1, FIRST, 5, 4);
        book.clean_lives.borrow_mut().insert(3);
        assert_eq!(kinds(&book), [Kind::ExtraDelivery; 2]);
    }

    #[test]
    fn what_was_never_sent_is_invented_and_what_differs_is_altered() {
        let book = Book::new();
        assert!(book.recognise(b"nothing").is_none());
        assert_eq!(kinds(&book), [Kind::Altered]);
    }
}
