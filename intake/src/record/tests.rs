//! The record's headers: written and read back, and every reason to skip.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn head() -> RecordHead<'static> {
    RecordHead {
        node: b"node-a",
        shard: 3,
        seq: 42,
        id: *b"0123456789abcdef",
        incarnation: 7,
        tenant: b"default",
        source: b"github",
    }
}

/// Writes the head, lets `change` edit the headers, and reads for node-a.
fn read(change: impl FnOnce(&mut Vec<(String, Option<Vec<u8>>)>)) -> Result<u64, Skip> {
    let head = head();
    let mut room = HeaderRoom::default();
    let mut all: Vec<_> = NAMES
        .iter()
        .zip(head.headers(&mut room))
        .map(|(n, v)| (n.to_string(), Some(v.to_vec())))
        .collect();
    change(&mut all);
    parse(
        all.iter().map(|(n, v)| (n.as_str(), v.as_deref())),
        b"node-a",
    )
    .map(|head| head.seq)
}

fn set(name: &str, value: &[u8]) -> Result<u64, Skip> {
    read(|all| {
        for (n, v) in all.iter_mut().filter(|(n, _)| n == name) {
            let _ = n;
            *v = Some(value.to_vec());
        }
    })
}

fn without(name: &str) -> Result<u64, Skip> {
    read(|all| all.retain(|(n, _)| n != name))
}

#[test]
fn header_texts_are_as_documented() {
    let head = head();
    let mut room = HeaderRoom::default();
    let texts: Vec<String> = NAMES
        .iter()
        .zip(head.headers(&mut room))
        .map(|(n, v)| format!("{n}={}", String::from_utf8_lossy(v)))
        .collect();
    assert_eq!(
        texts.join(" "),
        "ankusa_intake_v=2 ankusa_intake_kind=hook ankusa_intake_node=node-a \
         ankusa_intake_shard=3 ankusa_intake_seq=42 \
         ankusa_intake_id=30313233-3435-3637-3839-616263646566 ankusa_intake_incarnation=7 \
         ankusa_intake_tenant=default ankusa_intake_source=github"
    );
}

#[test]
fn every_reason_to_skip_has_its_case() {
    assert_eq!(read(|_| ()), Ok(42));
    assert_eq!(without("ankusa_intake_v"), Err(Skip::Foreign));
    assert_eq!(set("ankusa_intake_v", b"1"), Err(Skip::OlderVersion));
    assert_eq!(
        set("ankusa_intake_v", b"3"),
        Err(Skip::NewerHook { version: 3 })
    );
    assert_eq!(
        read(|all| {
            all[0].1 = Some(b"3".to_vec());
            all[1].1 = Some(b"probe".to_vec());
        }),
        Err(Skip::NewerOther { version: 3 })
    );
    assert_eq!(set("ankusa_intake_kind", b"probe"), Err(Skip::OtherKind));
    assert_eq!(set("ankusa_intake_kind", b"what"), Err(Skip::OtherKind));
    assert_eq!(set("ankusa_intake_node", b"node-b"), Err(Skip::OtherNode));
    for name in NAMES
        .iter()
        .filter(|n| !n.ends_with("tenant") && !n.ends_with("source"))
    {
        if *name == H_VERSION {
            continue;
        }
        assert_eq!(without(name), Err(Skip::Malformed(name)), "{name} missing");
    }
    for (name, bad) in [
        (H_VERSION, "two"),
        (H_SHARD, "65536"),
        (H_SHARD, "-1"),
        (H_SEQ, "18446744073709551616"),
        (H_SEQ, ""),
        (H_SEQ, "+1"),
        (H_ID, "30313233343536373839616263646566"),
        (H_INCARNATION, "4294967296"),
    ] {
        assert_eq!(
            set(name, bad.as_bytes()),
            Err(Skip::Malformed(name)),
            "{name}={bad}"
        );
    }
}

#[test]
fn another_nodes_newer_record_is_only_another_nodes() {
    let got = read(|all| {
        all[0].1 = Some(b"9".to_vec());
        all[2].1 = Some(b"node-b".to_vec());
    });
    assert_eq!(got, Err(Skip::OtherNode));
}

#[test]
fn an_unknown_header_is_ignored_and_a_repeated_one_is_not_guessed() {
    assert_eq!(read(|all| all.push(("trace".into(), None))), Ok(42));
    assert_eq!(
        read(|all| all.push((H_SEQ.into(), Some(b"43".to_vec())))),
        Err(Skip::Malformed(H_SEQ))
    );
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        shard: u16, seq: u64, id: [u8; 16], incarnation: u32,
        node in "[a-z0-9._-]{1,64}",
        tenant in proptest::collection::vec(any::<u8>(), 0..80),
        source in proptest::collection::vec(any::<u8>(), 0..80),
        rotate in 0usize..HEADERS,
    ) {
        let head = RecordHead {
            node: node.as_bytes(), shard, seq, id, incarnation, tenant: &tenant, source: &source,
        };
        let mut room = HeaderRoom::default();
        let mut all: Vec<_> = NAMES.iter().copied()
            .zip(head.headers(&mut room).map(Some)).collect();
        let bytes: usize = all.iter().map(|(n, v)| n.len() + v.map_or(0, <[u8]>::len)).sum();
        prop_assert!(bytes + node.len() < head.overhead_bytes());
        all.rotate_left(rotate);
        prop_assert_eq!(parse(all.into_iter(), node.as_bytes()), Ok(head));
    }

    #[test]
    fn no_headers_make_the_reader_panic(
        all in proptest::collection::vec(
            (0usize..HEADERS + 1,
             proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))),
            0..12),
    ) {
        let headers = all.iter().map(|(n, v)| (*NAMES.get(*n).unwrap_or(&"x"), v.as_deref()));
        let _ = parse(headers, b"node-a");
    }
}
