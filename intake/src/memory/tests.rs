//! What the memory log does wrong when told to, and that it outlives its handles.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ask::wait_for;
use crate::log::{Answer, Class, Outgoing, Publisher};
use std::task::Poll;

fn open(dir: &Path) -> MemoryLog {
    MemoryLog::open(MemoryOptions {
        dir: dir.to_owned(),
        partitions: 1,
        sync: false,
        retention_bytes: None,
    })
    .unwrap()
}

fn publish(publisher: &MemoryPublisher, tokens: std::ops::Range<u64>) {
    let mut records = tokens.map(|token| Outgoing {
        token,
        shard: 0,
        seq: token,
        id: [0; 16],
        incarnation: 0,
        tenant: b"default",
        source: b"s",
        value: Bytes::from_static(b"value"),
    });
    publisher.publish(&mut records, 0, 1_000);
}

/// Waits for so many answers: token, position or none, late.
fn answers(publisher: &MemoryPublisher, count: usize) -> Vec<(u64, Option<u64>, bool)> {
    let mut out = Vec::new();
    wait_for(std::future::poll_fn(|cx| {
        while publisher.poll_answers(cx, &mut out).is_ready() {
            if out.len() >= count {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }));
    out.into_iter().map(flat).collect()
}

fn flat(answer: Answer) -> (u64, Option<u64>, bool) {
    match answer {
        Answer::Confirmed {
            token,
            confirm,
            late,
        } => (token, confirm.position, late),
        Answer::Failed { token, .. } => (token, None, false),
    }
}

fn head(log: &MemoryLog) -> u64 {
    wait_for(log.bounds(0)).unwrap().head
}

#[test]
fn each_fault_lands_or_not_and_answers_as_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let publisher = log.publisher(0, "n");
    log.inject(Fault::LandedButFailed(Class::Unavailable), 1);
    log.inject(Fault::Fail(Class::NotFound), 1);
    log.inject(Fault::Twice, 1);
    log.inject(Fault::NoPosition, 1);
    publish(&publisher, 1..6);
    let mut got = answers(&publisher, 5);
    got.sort_unstable();
    assert_eq!(
        got,
        [
            (1, None, false),
            (2, None, false),
            (3, Some(1), false),
            (4, None, false),
            (5, Some(4), false)
        ]
    );
    assert_eq!(head(&log), 5, "1, 3 twice, 4 and 5 landed");
}

#[test]
fn an_answer_held_back_comes_after_the_next_ones() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let publisher = log.publisher(0, "n");
    log.inject(Fault::AfterNext(2), 1);
    publish(&publisher, 1..4);
    let tokens: Vec<u64> = answers(&publisher, 3).iter().map(|a| a.0).collect();
    assert_eq!(tokens, [2, 3, 1]);
}

#[test]
fn a_record_never_answered_expires_and_stays_held() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let publisher = log.publisher(0, "n");
    log.inject(Fault::Never, 1);
    log.inject(Fault::Lost, 1);
    publish(&publisher, 1..3);
    let mut out = Vec::new();
    publisher.tick(999, &mut out);
    assert_eq!(out, []);
    publisher.tick(1_000, &mut out);
    assert_eq!(out.len(), 2);
    assert_eq!(head(&log), 1, "one of them landed");
    assert_eq!(publisher.outstanding(), (2, 10));
}

#[test]
fn a_closed_log_is_found_again_with_its_identity_and_refuses_a_second_opener() {
    let dir = tempfile::tempdir().unwrap();
    let expected = Expected {
        backup_max_age_ms: 1,
        max_record_bytes: 1,
    };
    let log = open(dir.path());
    let publisher = log.publisher(0, "n");
    publish(&publisher, 1..4);
    assert_eq!(answers(&publisher, 3).len(), 3);
    let identity = wait_for(log.verify(expected)).unwrap().identity;
    let second = MemoryLog::open(MemoryOptions {
        dir: dir.path().to_owned(),
        partitions: 1,
        sync: false,
        retention_bytes: None,
    });
    assert!(second.is_err(), "two owners of one log");
    drop(publisher);
    drop(log);
    let log = open(dir.path());
    assert_eq!(head(&log), 3);
    assert_eq!(wait_for(log.verify(expected)).unwrap().identity, identity);
    wait_for(log.lose_from(0, 1)).unwrap();
    assert_eq!(head(&log), 1);
}
