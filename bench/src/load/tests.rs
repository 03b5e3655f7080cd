//! The client against servers that misbehave.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{LoadPlan, LoadResult, NoProbe, Pace, Stop, run};

const OK: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";

/// A server that hands each connection, with its number, to `each`.
fn server(each: impl Fn(usize, TcpStream) + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let each = each.clone();
            std::thread::spawn(move || each(number, stream));
        }
    });
    address
}

/// Reads one request with a body of 16 bytes; false at the end.
fn read_request(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    let mut byte = [0u8; 1];
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return false,
        }
    }
    stream.read_exact(&mut [0u8; 16]).is_ok()
}

fn plan(target: SocketAddr, count: u64) -> LoadPlan {
    let mut plan = LoadPlan::new(target, "/x");
    plan.connections = 1;
    plan.warmup = Duration::ZERO;
    plan.body.sizes = vec![16];
    plan.stop = Stop::Count(count);
    plan
}

fn count(result: &LoadResult, status: u16, word: &str) -> u64 {
    result
        .outcomes
        .iter()
        .filter(|(o, _)| o.status == status && o.word == word)
        .map(|(_, n)| n)
        .sum()
}

#[test]
fn error_words_and_duplicates_are_told_apart() {
    let target = server(|_, mut stream| {
        let bodies: [(&str, &str); 4] = [
            ("201 Created", r#"{"status":"accepted","id":"a"}"#),
            (
                "201 Created",
                r#"{"status":"accepted","id":"a","duplicate":true}"#,
            ),
            ("503 Service Unavailable", r#"{"error":"overload"}"#),
            (
                "202 Accepted",
                r#"{"status":"quarantined","reason":"no_match"}"#,
            ),
        ];
        for (status, body) in bodies {
            assert!(read_request(&mut stream));
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
        read_request(&mut stream);
    });
    let result = run(&plan(target, 4), &mut NoProbe).unwrap();
    assert_eq!(count(&result, 201, ""), 1);
    assert_eq!(count(&result, 201, "duplicate"), 1);
    assert_eq!(count(&result, 503, "overload"), 1);
    assert_eq!(count(&result, 202, "quarantined"), 1);
    assert_eq!(
        (result.acked.len(), result.refused.len(), result.not_acked()),
        (3, 1, 1)
    );
}

#[test]
fn a_refusal_during_the_upload_is_read_and_the_connection_replaced() {
    let target = server(|_, mut stream| {
        stream.read_exact(&mut [0u8; 100]).unwrap();
        let body = r#"{"error":"payload_too_large"}"#;
        let head = format!(
            "HTTP/1.1 413 Payload Too Large\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        // Take what still comes, as a server that closes politely does.
        let mut rest = vec![0u8; 1 << 20];
        while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
    });
    let mut plan = plan(target, 3);
    plan.body.sizes = vec![30_000_000];
    let result = run(&plan, &mut NoProbe).unwrap();
    assert_eq!(count(&result, 413, "payload_too_large"), 3);
    assert_eq!(result.reopened, 3);
}

#[test]
fn a_lost_connection_is_recorded_once_and_opened_again() {
    let target = server(|number, mut stream| {
        // The first connection takes a request and goes away.
        while read_request(&mut stream) && number > 0 {
            stream.write_all(OK).unwrap();
        }
    });
    let result = run(&plan(target, 10), &mut NoProbe).unwrap();
    assert_eq!(
        (result.acked.len(), result.not_acked(), result.sent),
        (9, 1, 10)
    );
    assert_eq!(count(&result, 0, "closed") + count(&result, 0, "reset"), 1);
    assert!(!result.cut_short);
}

#[test]
fn a_server_that_is_gone_for_good_ends_the_run() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        read_request(&mut stream);
    });
    let result = run(&plan(address, 10), &mut NoProbe).unwrap();
    thread.join().unwrap();
    assert!(result.cut_short);
    assert_eq!((result.acked.len(), result.not_acked()), (0, 1));
}

#[test]
fn a_request_without_an_answer_times_out() {
    let target = server(|number, mut stream| {
        while read_request(&mut stream) {
            if number > 0 {
                stream.write_all(OK).unwrap();
            }
        }
    });
    let mut plan = plan(target, 2);
    plan.timeout = Duration::from_millis(50);
    let result = run(&plan, &mut NoProbe).unwrap();
    assert_eq!((count(&result, 0, "timeout"), result.acked.len()), (1, 1));
}

#[test]
fn a_stalled_server_shows_in_every_request_that_was_due_meanwhile() {
    // One connection, 1,000 requests a second, and the first answer comes after 300 ms: without
    // omission, at least the 200 requests due in its first 200 ms waited 100 ms or longer.
    let target = server(|_, mut stream| {
        let mut first = true;
        while read_request(&mut stream) {
            if std::mem::take(&mut first) {
                std::thread::sleep(Duration::from_millis(300));
            }
            stream.write_all(OK).unwrap();
        }
    });
    let mut plan = plan(target, 0);
    plan.pace = Pace::Open {
        rate: 1000.0,
        ramp: Duration::ZERO,
    };
    plan.stop = Stop::After(Duration::from_millis(400));
    let result = run(&plan, &mut NoProbe).unwrap();
    assert_eq!(result.acked.len(), 400);
    let slow = result.acked.len() - result.acked.count_between(0, 99_000_000);
    assert!(slow >= 200, "{slow} requests waited 100 ms");
}
