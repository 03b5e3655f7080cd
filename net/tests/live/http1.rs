//! The ingest server, as its clients meet it.

use std::io::Write;

use ankusa_net::http1::Limits;

use crate::harness::{Live, read_response, statuses};

#[test]
fn posts_on_one_connection_are_answered_in_order() {
    let live = Live::start(Limits::default());
    let mut stream = live.connect();
    for n in 1..=3 {
        stream
            .write_all(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
            .unwrap();
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
    let pipelined = b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".repeat(200);
    let text = live.converse(&pipelined);
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
