//! The cases, generic over the adapter. Each takes a fresh log.

use ankusa_intake::{Answer, AskError, Expected, From, Publisher, partition_of, wait_for};
use bytes::Bytes;

use crate::driver::{Driver, Harness, NODE, id, position, read_back};

pub const EXPECTED: Expected = Expected {
    backup_max_age_ms: 3_600_000,
    max_record_bytes: 10_000_000,
};

/// Every case by name, for one harness type.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Runs each case against a log of its own.
        pub fn run_all<H: Harness>(fresh: impl Fn(&str) -> H) {
            $(
                println!("case {}", stringify!($name));
                $name(&fresh(stringify!($name)));
            )*
        }
    };
}

cases!(
    what_was_confirmed_is_read_back_byte_for_byte_at_its_position,
    every_record_gets_one_answer_and_its_bytes_are_given_back,
    a_passed_deadline_is_answered_at_once_and_the_confirm_still_comes,
    replay_filters_by_node_and_names_what_it_skips,
    a_duplicate_record_is_returned_twice,
    replay_starts_where_it_is_told_and_says_when_it_cannot,
    retention_that_passed_the_start_is_an_error,
    another_log_under_the_same_name_has_another_identity_and_a_lower_position,
    a_large_record_comes_back_whole,
    the_partition_of_a_node_is_told_once_and_used_as_told,
    a_good_log_has_no_findings,
    a_partition_that_is_not_there_is_not_found,
);

fn body(n: u64) -> Bytes {
    Bytes::from(format!("hook {n} {}", "x".repeat(n as usize % 700)))
}

fn what_was_confirmed_is_read_back_byte_for_byte_at_its_position<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(2, NODE));
    let values: Vec<Bytes> = (0..300).map(body).collect();
    let answers = driver.commit(1000, &values);
    let (chunks, summary) = read_back(h.log(), NODE, 2, From::Earliest).unwrap();
    let read: Vec<_> = chunks.iter().flat_map(|c| &c.records).collect();
    assert_eq!(read.len(), 300);
    for (at, answer) in answers.iter().enumerate() {
        let position = position(*answer).unwrap_or_else(|| panic!("{answer:?}"));
        let record = read.iter().find(|r| r.position == position).unwrap();
        assert_eq!(record.value, values[at]);
        let seq = 1000 + at as u64;
        let place = (record.shard, record.seq, record.id, record.incarnation);
        assert_eq!(place, (1, seq, id(seq), 9));
    }
    let bounds = wait_for(h.log().bounds(2)).unwrap();
    assert_eq!((bounds.earliest, bounds.head), (0, 300));
    assert_eq!((summary.records, summary.read_below), (300, 300));
    assert!(chunks.iter().all(|c| c.records.len() <= 100));
}

fn every_record_gets_one_answer_and_its_bytes_are_given_back<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let value = Bytes::from(vec![3; 900]);
    let group: Vec<Bytes> = (0..50).map(|_| value.clone()).collect();
    for first in 0..20 {
        driver.publish(first * 50, &group, 20_000_000);
    }
    driver.until("all answers", |got| got.len() == 1000);
    for (token, answers) in &driver.answers {
        let [Answer::Confirmed { confirm, late, .. }] = answers[..] else {
            panic!("{token}: {answers:?}");
        };
        assert!(!late && !confirm.log_went_back());
    }
    assert_eq!(driver.publisher.outstanding(), (0, 0));
    drop(group);
    assert!(value.is_unique(), "a copy of the bytes is still held");
}

fn a_passed_deadline_is_answered_at_once_and_the_confirm_still_comes<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    driver.commit_one(1, b"first");
    driver.publish(2, &[Bytes::from_static(b"late")], 0);
    let mut out = Vec::new();
    driver.publisher.tick(driver.now_us(), &mut out);
    assert!(
        matches!(out[..], [Answer::Failed { token: 2, .. }]),
        "{out:?}"
    );
    driver.until("late confirm", |got| got.contains_key(&2));
    assert!(
        matches!(
            driver.answers[&2][..],
            [Answer::Confirmed { late: true, .. }]
        ),
        "{:?}",
        driver.answers
    );
}

fn replay_filters_by_node_and_names_what_it_skips<H: Harness>(h: &H) {
    let mut ours = Driver::new(h.publisher(1, NODE));
    let mut theirs = Driver::new(h.publisher(1, "node-b"));
    ours.commit_one(1, b"ours");
    theirs.commit_one(1, b"theirs");
    let base: [(&str, &[u8]); 4] = [
        ("ankusa_intake_shard", b"0"),
        ("ankusa_intake_seq", b"5"),
        ("ankusa_intake_id", b"00000000-0000-0000-0000-000000000005"),
        ("ankusa_intake_incarnation", b"0"),
    ];
    let raw = |version: &[u8], kind: &[u8]| {
        let mut headers = vec![
            ("ankusa_intake_v", version),
            ("ankusa_intake_kind", kind),
            ("ankusa_intake_node", NODE.as_bytes()),
        ];
        headers.extend(base);
        h.append_raw(1, &headers, b"raw");
    };
    raw(b"2", b"tombstone"); // 2
    raw(b"3", b"hook"); // 3
    raw(b"3", b"probe"); // 4
    raw(b"1", b"hook"); // 5
    h.append_raw(1, &[("other", b"x")], b"not ours at all"); // 6
    raw(b"2", b"hook"); // 7
    let (chunks, summary) = read_back(h.log(), NODE, 1, From::Earliest).unwrap();
    let read: Vec<_> = chunks
        .iter()
        .flat_map(|c| &c.records)
        .map(|r| (r.position, r.seq))
        .collect();
    assert_eq!(read, [(0, 1), (7, 5)]);
    assert_eq!(
        (summary.other_nodes, summary.skipped, summary.read_below),
        (1, 5, 8)
    );
    let newer: Vec<_> = chunks
        .iter()
        .flat_map(|c| &c.newer)
        .map(|n| (n.position, n.version))
        .collect();
    assert_eq!(newer, [(3, 3)], "only a hook holds the offset");
}

fn a_duplicate_record_is_returned_twice<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let first = driver.commit_one(4, b"same");
    let again = driver.commit_one(4, b"same");
    assert!(again > first);
    let (chunks, _) = read_back(h.log(), NODE, 0, From::Earliest).unwrap();
    let seqs: Vec<_> = chunks
        .iter()
        .flat_map(|c| &c.records)
        .map(|r| r.seq)
        .collect();
    assert_eq!(seqs, [4, 4]);
}

fn replay_starts_where_it_is_told_and_says_when_it_cannot<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let values: Vec<Bytes> = (0..10).map(body).collect();
    driver.commit(0, &values);
    let (chunks, _) = read_back(h.log(), NODE, 0, From::Position(7)).unwrap();
    let positions: Vec<_> = chunks
        .iter()
        .flat_map(|c| &c.records)
        .map(|r| r.position)
        .collect();
    assert_eq!(positions, [7, 8, 9]);
    let (_, at_head) = read_back(h.log(), NODE, 0, From::Position(10)).unwrap();
    assert_eq!((at_head.records, at_head.read_below), (0, 10));
    let above = read_back(h.log(), NODE, 0, From::Position(11)).map(|(_, s)| s);
    let want = AskError::AboveHead {
        wanted: 11,
        head: 10,
    };
    assert_eq!(above, Err(want));
}

fn retention_that_passed_the_start_is_an_error<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let values: Vec<Bytes> = (0..10).map(body).collect();
    driver.commit(0, &values);
    h.drop_below(0, 6);
    let bounds = wait_for(h.log().bounds(0)).unwrap();
    assert_eq!((bounds.earliest, bounds.head), (6, 10));
    let early = read_back(h.log(), NODE, 0, From::Position(5)).map(|(_, s)| s);
    assert_eq!(
        early,
        Err(AskError::Truncated {
            wanted: 5,
            earliest: 6
        })
    );
    let (_, rest) = read_back(h.log(), NODE, 0, From::Earliest).unwrap();
    assert_eq!(rest.records, 4);
}

fn another_log_under_the_same_name_has_another_identity_and_a_lower_position<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let values: Vec<Bytes> = (0..20).map(body).collect();
    driver.commit(0, &values);
    let before = wait_for(h.log().verify(EXPECTED)).unwrap().identity;
    assert!(!before.is_empty());
    h.recreate();
    let after = wait_for(h.log().verify(EXPECTED)).unwrap().identity;
    assert_ne!(before, after);
    driver.commit_one(100, b"into the new one");
    let confirm = driver.answers[&100].iter().find_map(|a| match a {
        Answer::Confirmed { confirm, .. } => Some(*confirm),
        Answer::Failed { .. } => None,
    });
    assert!(confirm.unwrap().log_went_back(), "{confirm:?}");
    driver.publisher.forget_head();
    driver.commit_one(101, b"known by now");
    let last = driver.answers[&101].last().copied();
    assert!(
        matches!(last, Some(Answer::Confirmed { confirm, .. }) if !confirm.log_went_back()),
        "{last:?}"
    );
}

fn a_large_record_comes_back_whole<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(0, NODE));
    let mut value = vec![0u8; 9_900_000];
    for (at, byte) in value.iter_mut().enumerate() {
        *byte = (at * 31 % 251) as u8;
    }
    driver.commit_one(1, &value);
    let (chunks, _) = read_back(h.log(), NODE, 0, From::Earliest).unwrap();
    assert!(chunks[0].records[0].value == value, "altered");
}

fn the_partition_of_a_node_is_told_once_and_used_as_told<H: Harness>(h: &H) {
    let assigned = wait_for(h.log().assign_partition(NODE)).unwrap();
    assert_eq!(assigned, partition_of(NODE, 8));
    for partition in [assigned, (assigned + 1) % 8] {
        let mut driver = Driver::new(h.publisher(partition, NODE));
        driver.commit_one(1, b"here");
        assert_eq!(wait_for(h.log().bounds(partition)).unwrap().head, 1);
    }
}

fn a_good_log_has_no_findings<H: Harness>(h: &H) {
    let verified = wait_for(h.log().verify(EXPECTED)).unwrap();
    assert_eq!(verified.findings, []);
    assert_eq!(verified.partitions, 8);
    let stricter = Expected {
        max_record_bytes: u64::MAX,
        ..EXPECTED
    };
    let findings = wait_for(h.log().verify(stricter)).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].setting, "max.message.bytes");
}

fn a_partition_that_is_not_there_is_not_found<H: Harness>(h: &H) {
    let mut driver = Driver::new(h.publisher(77, NODE));
    let answer = driver.commit(1, &[Bytes::from_static(b"nowhere")])[0];
    let Answer::Failed { failure, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(failure.class, ankusa_intake::Class::NotFound, "{failure:?}");
    assert!(matches!(
        wait_for(h.log().bounds(77)),
        Err(AskError::NotFound(_))
    ));
}
