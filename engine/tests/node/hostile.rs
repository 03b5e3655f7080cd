//! Clients and sinks that behave badly: resets at any moment, odd bytes, paths that are nobody's,
//! sinks that take nothing, a stop in the middle of it all. Each kind that was met in the field.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::*;

const KEYED: &str = "\x20 keyed:\n\x20   verify: { type: none }\n\x20   dedupe: { header: X-Key }\n\x20   sinks: [ { name: out, type: http, url: \"http://SINK/\", allow_unsigned: true } ]\n";

fn keyed(sink: &Sink) -> Node {
    let source = KEYED.replace("SINK", &sink.address.to_string());
    Node::start_as(sink.address, &[], "", &source)
}

fn request(path: &str, key: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nx-key: {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Closes with a reset instead of an orderly end.
fn reset(stream: TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    #[expect(unsafe_code, reason = "std sets no SO_LINGER on stable")]
    // SAFETY: the descriptor is open and the option is a whole `linger`.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
}

/// One answer: its status and body.
fn read_answer(stream: &mut TcpStream) -> Option<(u16, String)> {
    let (mut got, mut byte) = (Vec::new(), [0; 1]);
    while !got.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        got.push(byte[0]);
    }
    let head = String::from_utf8(got).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.split("content-length: ").nth(1);
    let length = length.map_or(0, |rest| {
        rest.split("\r\n").next().unwrap().parse().unwrap()
    });
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((status, String::from_utf8(body).unwrap()))
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The id in the answer, and whether it is called a duplicate.
fn post_key(node: &Node, key: &str, body: &[u8]) -> (String, bool) {
    let mut stream = connect(node.ingest);
    stream
        .write_all(&request("/webhooks/keyed", key, body))
        .unwrap();
    let (status, text) = read_answer(&mut stream).unwrap();
    assert_eq!(status, 201, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let id = answer["id"].as_str().unwrap().to_owned();
    (id, answer["duplicate"] == true)
}

#[test]
fn reset_at_any_moment_leaks_no_claim_and_never_makes_two_hooks() {
    let sink = Sink::start(200);
    let mut node = keyed(&sink);
    // Within the body: nothing was stored.
    for key in 0..20 {
        let whole = request("/webhooks/keyed", &format!("cut-{key}"), &[b'x'; 4000]);
        let mut stream = connect(node.ingest);
        stream
            .write_all(&whole[..whole.len() - 1 - key * 100])
            .unwrap();
        reset(stream);
        let (_, is_duplicate) = post_key(&node, &format!("cut-{key}"), &[b'x'; 4000]);
        assert!(!is_duplicate, "a hook that was cut was stored");
    }
    // Right behind the body, and some time later: stored or not, but once.
    for key in 0..60 {
        let name = format!("gone-{key}");
        let mut stream = connect(node.ingest);
        stream
            .write_all(&request("/webhooks/keyed", &name, b"{}"))
            .unwrap();
        std::thread::sleep(Duration::from_micros(key * 50));
        reset(stream);
        let (first, _) = post_key(&node, &name, b"{}");
        let (again, is_duplicate) = post_key(&node, &name, b"{}");
        assert!(
            is_duplicate && again == first,
            "{name}: {first}, then {again}"
        );
    }
    node.until("all delivered", || {
        node.get("/v1/wal").1["wal"]["hooks"] == 0
    });
    let seen = sink.seen.lock().unwrap();
    let key_of = |head: &str| {
        let rest = head.split("x-ankusa-dedupe-key: ").nth(1).unwrap();
        rest.split("\r\n").next().unwrap().to_owned()
    };
    let ids: BTreeSet<(String, String)> = seen
        .iter()
        .map(|(head, _)| (key_of(head), id_of(head)))
        .collect();
    assert_eq!(ids.len(), 80, "one hook for each key");
    drop(seen);
    node.stop();
}

fn id_of(head: &str) -> String {
    let rest = head.split("x-ankusa-id: ").nth(1).unwrap();
    rest.split("\r\n").next().unwrap().to_owned()
}

#[test]
fn retry_with_another_body_is_the_first_hook_and_counted() {
    let sink = Sink::start(200);
    let mut node = keyed(&sink);
    let series = "ankusa_dedupe_mismatches_total";
    let (first, _) = post_key(&node, "k", b"one");
    for _ in 0..3 {
        assert_eq!(post_key(&node, "k", b"one"), (first.clone(), true));
    }
    assert_eq!(node.metric(series), 0.0);
    assert_eq!(post_key(&node, "k", b"two"), (first.clone(), true));
    node.until("counted", || node.metric(series) == 1.0);
    // Also over a restart, from either core.
    node.stop();
    node.child = node.run_again();
    node.until("ready again", || node.get("/ready").0 == 200);
    for _ in 0..4 {
        assert_eq!(post_key(&node, "k", b"three"), (first.clone(), true));
    }
    node.until("counted", || node.metric(series) == 4.0);
    node.stop();
}

#[test]
fn odd_bytes_are_delivered_as_they_came() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let bodies: [&[u8]; 10] = [
        b"\xff\xfe\x80\xc3\x28 not UTF-8",
        b"{\"a\":\"\\ud800\",\"b\":\"\\udfff\\ud83d\"}",
        b"\0\0{\0}\0",
        "\u{fffd}\u{feff}".as_bytes(),
        "\u{feff}{\"bom\":1}\n".as_bytes(),
        b"a=1&a=2&b=x+y&c=%00&=&&a=1",
        b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n",
        b"{\"n\":1.0e2,\"n\":100, \"s\":\"\\/\"}  ",
        b"",
        b"\x1f\x8b\x08\x00gzip or not",
    ];
    for body in bodies {
        let mut stream = connect(node.ingest);
        stream
            .write_all(&request("/webhooks/app", "none", body))
            .unwrap();
        assert_eq!(read_answer(&mut stream).unwrap().0, 201);
    }
    node.until("delivered", || {
        sink.hits.load(Ordering::SeqCst) >= bodies.len()
    });
    let seen = sink.seen.lock().unwrap();
    for body in bodies {
        let count = seen.iter().filter(|(_, got)| got == body).count();
        assert_eq!(count, 1, "{}", body.escape_ascii());
    }
    drop(seen);
    node.stop();
}

#[test]
fn what_a_client_says_of_tenant_and_source_is_not_believed() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let mut stream = connect(node.ingest);
    let head = "POST /webhooks/app?tenant=evil&source=evil HTTP/1.1\r\nhost: evil.example\r\n\
                x-ankusa-tenant: evil\r\nx-ankusa-source: evil\r\nx-ankusa-id: evil\r\n\
                x-tenant-id: evil\r\nx-forwarded-host: evil\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(head.as_bytes()).unwrap();
    let (status, text) = read_answer(&mut stream).unwrap();
    assert_eq!(status, 201, "{text}");
    node.until("delivered", || sink.hits.load(Ordering::SeqCst) == 1);
    let seen = sink.seen.lock().unwrap();
    let head = seen[0].0.to_ascii_lowercase();
    assert!(head.contains("x-ankusa-source: app\r\n"), "{head}");
    for line in head.lines().filter(|line| line.starts_with("x-ankusa-")) {
        assert!(!line.contains("evil"), "{line}");
    }
    drop(seen);
    node.stop();
}

#[test]
fn paths_that_are_nobodys_are_refused_unread_and_make_no_series() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let series = |node: &Node| {
        let (_, text) = node.call(node.admin, "GET", "/metrics", None);
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    node.post("app", &json!({}));
    node.call(node.ingest, "POST", "/webhooks/nobody", Some(&json!({})));
    node.call(node.ingest, "POST", "/nobody", Some(&json!({})));
    let before = series(&node);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..2_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let path = match random % 3 {
            0 => format!("/webhooks/{random:x}"),
            1 => format!("/{random:x}/webhooks/app"),
            _ => format!("/webhooks/app/{random:x}%2e%2e"),
        };
        let mut stream = connect(node.ingest);
        // The body is announced and never sent.
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream).unwrap().0, 404, "{path}");
    }
    assert_eq!(series(&node), before);
    assert_eq!(node.get("/v1/wal").1["wal"]["hooks"], 0);
    node.stop();
}

#[test]
fn large_body_that_is_refused_lets_no_request_behind_it_through() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let mut stream = connect(node.ingest);
    let mut bytes = format!(
        "POST /webhooks/app HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        64 << 20
    )
    .into_bytes();
    // What is sent as its body looks like a request.
    for _ in 0..100 {
        bytes.extend_from_slice(&request("/webhooks/app", "none", b"smuggled"));
    }
    stream.write_all(&bytes).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().0, 413);
    let mut rest = Vec::new();
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"", "nothing else is answered");
    node.post("app", &json!({ "good": 1 }));
    node.until("delivered", || sink.hits.load(Ordering::SeqCst) >= 1);
    let seen = sink.seen.lock().unwrap();
    assert!(seen.iter().all(|(_, body)| body != b"smuggled"));
    drop(seen);
    node.stop();
}

#[test]
fn sinks_that_take_nothing_fill_the_store_to_its_ceiling_and_a_refusal_says_so() {
    let sink = Sink::start(503);
    let settings = "wal: { segment_bytes: 16777216, max_live_hooks: 1000 }\n";
    let mut node = Node::start_as(sink.address, &[], settings, "");
    let mut streams: Vec<TcpStream> = (0..4).map(|_| connect(node.ingest)).collect();
    let (mut acked, mut refused) = (0, false);
    'posting: for _ in 0..2_000 {
        for stream in &mut streams {
            stream
                .write_all(&request("/webhooks/app", "none", b"{}"))
                .unwrap();
            match read_answer(stream).unwrap() {
                (201, _) => acked += 1,
                (503, text) => {
                    assert!(text.contains("store_full"), "{text}");
                    refused = true;
                    break 'posting;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Each of the two shards has half of the ceiling.
    assert!(refused && (500..=1_100).contains(&acked), "{acked}");
    assert_eq!(node.get("/v1/wal").1["wal"]["hooks"], acked);
    sink.status.store(200, Ordering::SeqCst);
    node.until("room again", || {
        let answer = node.call(node.ingest, "POST", "/webhooks/app", Some(&json!({})));
        answer.0 == 201
    });
    node.stop();
}

#[test]
fn stop_under_load_answers_what_is_in_flight_and_ends_in_time() {
    let sink = Sink::start(200);
    let mut node = Node::start(sink.address);
    let idle: Vec<TcpStream> = (0..100).map(|_| connect(node.ingest)).collect();
    let (acked, odd) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let to = node.ingest;
    let threads: Vec<_> = (0..50)
        .map(|_| {
            let (acked, odd) = (Arc::clone(&acked), Arc::clone(&odd));
            std::thread::spawn(move || {
                let Ok(mut stream) = TcpStream::connect(to) else {
                    return;
                };
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                loop {
                    if stream
                        .write_all(&request("/webhooks/app", "none", b"{}"))
                        .is_err()
                    {
                        return;
                    }
                    match read_answer(&mut stream) {
                        Some((201, _)) => acked.fetch_add(1, Ordering::SeqCst),
                        Some((503, _)) => 0,
                        Some(_) => odd.fetch_add(1, Ordering::SeqCst),
                        // The connection was closed between two requests.
                        None => return,
                    };
                }
            })
        })
        .collect();
    node.until("under load", || acked.load(Ordering::SeqCst) > 200);
    let began = Instant::now();
    node.stop();
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "{:?}",
        began.elapsed()
    );
    for thread in threads {
        thread.join().unwrap();
    }
    drop(idle);
    assert_eq!(odd.load(Ordering::SeqCst), 0, "neither 201 nor 503");
    // Everything acked is delivered by the next process.
    node.child = node.run_again();
    node.until("ready again", || node.get("/ready").0 == 200);
    node.until("delivered", || node.get("/v1/wal").1["wal"]["hooks"] == 0);
    let seen = sink.seen.lock().unwrap();
    let ids: BTreeSet<String> = seen.iter().map(|(head, _)| id_of(head)).collect();
    assert!(ids.len() >= acked.load(Ordering::SeqCst), "{}", ids.len());
    drop(seen);
    node.stop();
}
