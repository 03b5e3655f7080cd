//! The ingest server, as its clients meet it: what is read, what is refused, what is answered.

use std::io::Write;
use std::sync::atomic::Ordering;

use ankusa_net::http1::Limits;

use crate::harness::{BODY_MAX, Live, read_all, read_response, statuses, tls_client, wait_for};

const GOOD: &[u8] = b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn posts_on_one_connection_are_answered_in_order() {
    let live = Live::start(Limits::default());
    let mut stream = live.connect();
    for n in 1..=3 {
        stream.write_all(GOOD).unwrap();
        let response = read_response(&mut stream);
        assert!(
            response.starts_with("HTTP/1.1 201 Created\r\n"),
            "{response}"
        );
        assert!(
            response.ends_with(&format!(r#"{{"serial":{n},"len":5,"sum":532}}"#)),
            "{response}"
        );
    }
    let text = live.converse(&GOOD.repeat(200));
    assert_eq!(statuses(&text), vec![201; 200]);
    let serials: Vec<u64> = text
        .split(r#""serial":"#)
        .skip(1)
        .map(|part| part.split(',').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(serials, (4..=203).collect::<Vec<_>>());
    drop(stream);
    assert_eq!(live.stop().connections_left, 0);
}

#[test]
fn nothing_after_a_doubtful_request_is_executed() {
    let live = Live::start(Limits::default());
    let bad = [
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 46\r\nContent-Length: 0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
        "POST /hook HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        "POST /hook HTTP/1.1\nHost: a\n\n",
        "POST /hook HTTP/1.1\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000000\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0;a\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\nz\r\n\r\n",
        "\r\n\r\nPOST /hook HTTP/1.1\r\nHost: a\r\n\r\n",
        "hello\r\n\r\n",
    ];
    for text in bad {
        let mut bytes = text.as_bytes().to_vec();
        bytes.extend_from_slice(GOOD);
        let answer = live.converse(&bytes);
        assert_eq!(statuses(&answer), [400], "{text:?} -> {answer:?}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer:?}");
        assert!(
            answer.ends_with(r#"{"error":"malformed_request"}"#),
            "{answer:?}"
        );
    }
    assert_eq!(live.seen.handled.load(Ordering::SeqCst), 0);
    assert_eq!(live.gauges.refused_malformed.get(), bad.len() as u64);
}

#[test]
fn a_request_split_anywhere_gets_the_same_answer() {
    let live = Live::start(Limits::default());
    let rows: &[(&[u8], &str)] = &[
        (b"\r\nPOST /hook?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", r#""len":5,"sum":532}"#),
        (
            b"POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=\"y\"\r\nlo\r\n0\r\nT: v\r\n\r\n",
            r#""len":5,"sum":532}"#,
        ),
        (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", r#""len":0,"sum":0}"#),
        (b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", "malformed_request\"}"),
    ];
    for (request, expected) in rows {
        for at in 1..request.len() {
            let mut stream = live.connect();
            let before = live.gauges.bytes_in.get();
            stream.write_all(&request[..at]).unwrap();
            wait_for("the first part", || {
                live.gauges.bytes_in.get() >= before + at as u64
            });
            // A refusal may have come before the rest.
            let _ = stream.write_all(&request[at..]);
            let answer = read_response(&mut stream);
            assert!(answer.ends_with(expected), "cut at {at}: {answer:?}");
        }
    }
}

#[test]
fn large_bodies_in_any_pieces_arrive_whole() {
    let live = Live::start(Limits::default());
    for len in [1, 8 * 1024, 65_000, 65_536, 70_000, BODY_MAX as usize] {
        let body: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
        let sum: u64 = body.iter().map(|b| u64::from(*b)).sum();
        let expected = format!(r#""len":{len},"sum":{sum}}}"#);
        let mut by_length =
            format!("POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n").into_bytes();
        by_length.extend_from_slice(&body);
        let mut by_chunks =
            b"POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(4099) {
            by_chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            by_chunks.extend_from_slice(chunk);
            by_chunks.extend_from_slice(b"\r\n");
        }
        by_chunks.extend_from_slice(b"0\r\n\r\n");
        for request in [by_length, by_chunks] {
            let mut stream = live.connect();
            for piece in request.repeat(3).chunks(33_333) {
                stream.write_all(piece).unwrap();
            }
            for _ in 0..3 {
                let answer = read_response(&mut stream);
                assert!(
                    answer.starts_with("HTTP/1.1 201") && answer.ends_with(&expected),
                    "{len}: {answer:?}"
                );
            }
        }
    }
    wait_for("the bodies to be let go", || {
        live.gauges.body_bytes_held.get() == 0
    });
}

#[test]
fn a_body_over_its_limit_is_refused_and_the_answer_readable_while_uploading() {
    let live = Live::start(Limits::default());
    let heads = [
        format!("Content-Length: {}\r\n\r\n", 100_000_000),
        "Transfer-Encoding: chunked\r\n\r\n5f5e100\r\n".to_owned(),
        format!(
            "Transfer-Encoding: chunked\r\n\r\n{BODY_MAX:x}\r\n{}\r\n5f5e100\r\n",
            "x".repeat(BODY_MAX as usize)
        ),
    ];
    for head in heads {
        let mut stream = live.connect();
        stream
            .write_all(format!("POST /hook HTTP/1.1\r\nHost: a\r\n{head}").as_bytes())
            .unwrap();
        let block = vec![b'x'; 1_000_000];
        for _ in 0..100 {
            stream.write_all(&block).unwrap();
        }
        let answer = read_all(&mut stream);
        assert_eq!(statuses(&answer), [413], "{answer:?}");
        assert!(
            answer.ends_with(r#"{"error":"payload_too_large","limit":100000}"#),
            "{answer:?}"
        );
    }
    assert_eq!(live.seen.handled.load(Ordering::SeqCst), 0);
    // One byte over, announced late.
    let over = format!(
        "POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{BODY_MAX:x}\r\n{}\r\n1\r\n",
        "x".repeat(BODY_MAX as usize)
    );
    assert_eq!(statuses(&live.converse(over.as_bytes())), [413]);
}

#[test]
fn a_refusal_at_the_head_does_not_wait_for_the_body() {
    let live = Live::start(Limits::default());
    for (line, status) in [("POST /nowhere", 404), ("PUT /hook", 405)] {
        let mut stream = live.connect();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\nExpect: 100-continue\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_all(&mut stream);
        assert_eq!(statuses(&answer), [status], "{answer:?}");
        assert!(answer.contains("Connection: close"), "{answer:?}");
    }
    // With its body here, or without one, the connection goes on.
    let mut bytes = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_vec();
    bytes.extend_from_slice(b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
    bytes.extend_from_slice(GOOD);
    assert_eq!(statuses(&live.converse(&bytes)), [404, 404, 201]);
    // With part of it here, it does not, and the rest is not taken for a request.
    let mut bytes = format!(
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        500_000
    )
    .into_bytes();
    bytes.extend_from_slice(&GOOD.repeat(1000));
    assert_eq!(statuses(&live.converse(&bytes)), [404]);
}

#[test]
fn going_on_is_told_only_to_who_was_accepted_and_waits() {
    let live = Live::start(Limits::default());
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let mut stream = live.connect();
        let head =
            format!("POST /hook HTTP/1.1\r\nHost: a\r\n{framing}\r\nExpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_response(&mut stream), "HTTP/1.1 100 Continue\r\n\r\n");
        let body: &[u8] = if framing.starts_with('C') {
            b"hello"
        } else {
            b"5\r\nhello\r\n0\r\n\r\n"
        };
        stream.write_all(body).unwrap();
        assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
        // Whoever sent the body already does not need to be told.
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
    }
    let mut stream = live.connect();
    let head = format!(
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        BODY_MAX + 1
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(statuses(&read_all(&mut stream)), [413]);
}

#[test]
fn versions_methods_and_persistence() {
    let live = Live::start(Limits::default());
    let answer = live.converse(
        b"HEAD /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(statuses(&answer), [200, 200]);
    assert_eq!(answer.matches("serial").count(), 1, "{answer:?}");
    let mut closing =
        b"POST /hook HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            .to_vec();
    closing.extend_from_slice(GOOD);
    let answer = live.converse(&closing);
    assert_eq!(statuses(&answer), [201]);
    assert!(answer.contains("Connection: close"), "{answer:?}");
    let old = b"POST /hook HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello";
    assert!(live.converse(&old.repeat(2)).contains("Connection: close"));
    assert_eq!(live.seen.handled.load(Ordering::SeqCst), 4);
    let kept = b"POST /hook HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello";
    let answer = live.converse(&kept.repeat(2));
    assert_eq!(statuses(&answer), [201, 201]);
    assert!(answer.contains("Connection: keep-alive"), "{answer:?}");
}

#[test]
fn a_body_cut_by_its_client_is_never_handled() {
    let live = Live::start(Limits::default());
    for part in [
        "Content-Length: 9\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        let request = format!("POST /hook HTTP/1.1\r\nHost: a\r\n{part}");
        assert_eq!(statuses(&live.converse(request.as_bytes())), [400]);
    }
    assert_eq!(live.gauges.bodies_cut.get(), 2);
    // A head cut off is nobody's request.
    assert_eq!(live.converse(b"POST /hook HTTP/1.1\r\nHost: a"), "");
    assert_eq!(live.seen.handled.load(Ordering::SeqCst), 0);
}

#[test]
fn a_handler_runs_to_its_end_though_the_client_is_gone() {
    let live = Live::start(Limits::default());
    let mut stream = live.connect();
    stream
        .write_all(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        .unwrap();
    wait_for("the handler", || {
        live.seen.handled.load(Ordering::SeqCst) == 1
    });
    // Unread bytes at close make this a reset.
    drop(stream);
    live.seen.gate.store(true, Ordering::SeqCst);
    wait_for("the handler's end", || {
        live.seen.finished.load(Ordering::SeqCst) == 1
    });
    wait_for("the connection's end", || {
        live.gauges.connections_open.get() == 0
    });
}

#[test]
fn tls_lies_under_the_same_server() {
    let live = Live::start_tls(Limits {
        first_byte_ms: 500,
        head_ms: 500,
        ..Limits::default()
    });
    let mut stream = tls_client(live.connect());
    let large = format!(
        "POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY_MAX}\r\n\r\n{}",
        "x".repeat(BODY_MAX as usize)
    );
    for _ in 0..2 {
        stream.write_all(GOOD).unwrap();
        assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
        stream.write_all(large.as_bytes()).unwrap();
        assert!(read_response(&mut stream).contains(r#""len":100000,"#));
    }
    stream.write_all(&GOOD.repeat(50)).unwrap();
    for _ in 0..50 {
        assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
    }
    stream.write_all(b"nonsense\n").unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.ends_with("malformed_request\"}"), "{answer:?}");

    // Plain HTTP, silence, and a half-sent greeting do not get far.
    let plain = live.converse(GOOD);
    assert!(!plain.contains("HTTP"), "{plain:?}");
    assert_eq!(read_all(&mut live.connect()), "");
    let mut half = live.connect();
    half.write_all(&[22, 3, 1, 0]).unwrap();
    assert_eq!(read_all(&mut half), "");
    assert_eq!(live.gauges.handshakes_failed.get(), 3);
    // Greeted, then silent: closed at the same deadline.
    let mut silent = tls_client(live.connect());
    silent.flush().unwrap();
    assert_eq!(read_all(&mut silent), "");
    assert_eq!(live.stop().connections_left, 0);
}

#[test]
fn an_identity_is_replaced_for_later_connections() {
    let good = (
        &include_bytes!("tls/server.pem")[..],
        &include_bytes!("tls/server.key")[..],
    );
    let identity = || ankusa_net::tls::Identity::from_pem(good.0, good.1).unwrap();
    let current = ankusa_net::tls::CurrentIdentity::new(identity());
    current.replace(identity());
    for (chain, key) in [
        (&b""[..], good.1),
        (good.0, &b""[..]),
        (
            good.0,
            &b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"[..],
        ),
        (&include_bytes!("tls/ca.pem")[..], good.1),
    ] {
        assert!(ankusa_net::tls::Identity::from_pem(chain, key).is_err());
    }
}
