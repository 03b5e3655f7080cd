//! The ingest server under clients that are slow, many or gone: deadlines, ceilings, and its end.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ankusa_net::http1::Limits;

use crate::harness::{
    Live, lower_descriptor_limit, read_all, read_response, sockets_on_port, statuses, wait_for,
};

const GOOD: &[u8] = b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

fn quick() -> Limits {
    Limits {
        first_byte_ms: 300,
        head_ms: 300,
        body_ms: 60_000,
        body_rate_grace_ms: 300,
        idle_ms: 60_000,
        ..Limits::default()
    }
}
#[test]
fn slow_heads_and_bodies_are_refused_and_silent_connections_closed() {
    let live = Live::start(quick());
    // Nothing at all: closed without a word.
    assert_eq!(read_all(&mut live.connect()), "");
    for part in [
        &b"P"[..],
        b"POST /hook HTTP/1.1\r\nHost: a\r\n",
        b"\r\nPOST /hook HTTP/1.1\r",
        b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello",
    ] {
        let mut stream = live.connect();
        stream.write_all(part).unwrap();
        let answer = read_all(&mut stream);
        assert_eq!(statuses(&answer), [408], "{answer:?}");
    }
    let mut stream = live.connect();
    stream
        .write_all(b"POST /hook HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
        .unwrap();
    assert_eq!(statuses(&read_all(&mut stream)), [408]);
    assert_eq!(live.gauges.refused_timeout.get(), 5);

    // An idle connection is under another, longer deadline.
    let mut stream = live.connect();
    stream.write_all(GOOD).unwrap();
    assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
    std::thread::sleep(std::time::Duration::from_millis(600));
    stream.write_all(GOOD).unwrap();
    assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
}

#[test]
fn an_idle_connection_is_closed_silently_at_its_deadline() {
    let live = Live::start(Limits {
        idle_ms: 200,
        ..Limits::default()
    });
    let mut stream = live.connect();
    stream.write_all(GOOD).unwrap();
    assert_eq!(statuses(&read_all(&mut stream)), [201]);
}

#[test]
fn heads_over_the_limits_get_431() {
    let live = Live::start(Limits {
        head_bytes_max: 1024,
        headers_max: 10,
        ..Limits::default()
    });
    let many = format!(
        "POST /hook HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X: y\r\n".repeat(10)
    );
    let long = format!(
        "POST /hook HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "y".repeat(2000)
    );
    let endless = format!("POST /{}", "y".repeat(2000));
    for text in [many, long, endless] {
        assert_eq!(statuses(&live.converse(text.as_bytes())), [431]);
    }
    assert_eq!(live.gauges.refused_head_too_large.get(), 3);
}

#[test]
fn bodies_held_are_bounded() {
    let live = Live::start(Limits {
        body_bytes_held_max: 100_000,
        ..Limits::default()
    });
    let mut first = live.connect();
    let head =
        |len: u64| format!("POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
    first.write_all(head(60_000).as_bytes()).unwrap();
    wait_for("the first to be held", || {
        live.gauges.body_bytes_held.get() == 60_000
    });
    let answer = live.converse(head(60_000).as_bytes());
    assert_eq!(statuses(&answer), [503]);
    assert!(answer.contains("Retry-After: 1\r\n"), "{answer:?}");
    first.write_all(&vec![b'x'; 60_000]).unwrap();
    assert!(read_response(&mut first).starts_with("HTTP/1.1 201"));
    assert_eq!(live.gauges.body_bytes_held.get(), 0);
}

#[test]
fn a_length_that_is_merely_announced_takes_no_room_from_others() {
    let live = Live::start(Limits {
        body_bytes_held_max: 130_000,
        ..Limits::default()
    });
    let head =
        |len: u64| format!("POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
    let mut first = live.connect();
    first.write_all(head(90_000).as_bytes()).unwrap();
    wait_for("the first to be held", || {
        live.gauges.body_bytes_held.get() > 0
    });
    let mut second = head(60_000).into_bytes();
    second.resize(second.len() + 60_000, b'x');
    assert_eq!(statuses(&live.converse(&second)), [201]);
    first.write_all(&vec![b'x'; 90_000]).unwrap();
    assert!(read_response(&mut first).starts_with("HTTP/1.1 201"));
    assert_eq!(live.gauges.body_bytes_held.get(), 0);
}

#[test]
fn at_the_ceiling_idle_connections_make_room() {
    let live = Live::start(Limits {
        connections_max: 50,
        ..Limits::default()
    });
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut stream = live.connect();
        stream.write_all(GOOD).unwrap();
        assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
        assert!(live.gauges.connections_open.get() <= 50);
        streams.push(stream);
    }
    assert!(live.gauges.connections_evicted.get() >= 150);
}

#[test]
fn at_the_ceiling_half_sent_heads_make_room() {
    let live = Live::start(Limits {
        connections_max: 50,
        ..Limits::default()
    });
    let half: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = live.connect();
            stream.write_all(b"POST /hook HT").unwrap();
            stream
        })
        .collect();
    let mut stream = live.connect();
    stream.write_all(GOOD).unwrap();
    assert!(read_response(&mut stream).starts_with("HTTP/1.1 201"));
    drop(half);
}

#[test]
fn a_client_that_takes_no_answers_is_cut_off() {
    let live = Live::start(Limits {
        write_ms: 200,
        ..Limits::default()
    });
    let mut stream = live.connect();
    stream
        .set_write_timeout(Some(std::time::Duration::from_millis(100)))
        .unwrap();
    let many = GOOD.repeat(1000);
    wait_for("the connection to be cut", || {
        let _ = stream.write(&many);
        live.gauges.connections_broken.get() == 1
    });
}

#[test]
fn stopping_closes_idle_connections_and_lets_requests_end() {
    let live = Live::start(Limits::default());
    let mut idle: Vec<_> = (0..500).map(|_| live.connect()).collect();
    for stream in idle.iter_mut().step_by(2) {
        stream.write_all(GOOD).unwrap();
        assert!(read_response(stream).starts_with("HTTP/1.1 201"));
    }
    let mut busy: Vec<_> = (0..200).map(|_| live.connect()).collect();
    for stream in &mut busy {
        stream
            .write_all(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
            .unwrap();
    }
    let mut partial = live.connect();
    partial.write_all(&GOOD[..30]).unwrap();
    wait_for("all to be open", || {
        live.gauges.connections_open.get() == 701
    });
    wait_for("the handlers", || {
        live.gauges.requests_inflight.get() == 200
    });

    live.begin_stop();
    for stream in &mut idle {
        assert_eq!(read_all(stream), "");
    }
    assert!(
        std::net::TcpStream::connect(live.addr).is_err(),
        "still listening"
    );
    partial.write_all(&GOOD[30..]).unwrap();
    live.seen.gate.store(true, Ordering::SeqCst);
    for stream in busy.iter_mut().chain([&mut partial]) {
        let answer = read_all(stream);
        assert_eq!(statuses(&answer), [201], "{answer:?}");
        assert!(answer.contains("Connection: close"), "{answer:?}");
    }
    assert_eq!(live.stop().connections_left, 0);
}

#[test]
fn connections_that_come_and_go_leave_nothing_open() {
    let live = Live::start(Limits::default());
    let mut sink = [0u8; 512];
    for n in 0..1500 {
        let mut stream = live.connect();
        match n % 5 {
            0 => {}
            1 => stream.write_all(&GOOD[..n % GOOD.len()]).unwrap(),
            2 => stream.write_all(b"nonsense\n").unwrap(),
            3 => {
                stream.write_all(GOOD).unwrap();
                assert!(stream.read(&mut sink).unwrap() > 0);
            }
            // Closed with the answer unread: a reset.
            _ => stream.write_all(GOOD).unwrap(),
        }
    }
    wait_for("all to be accepted", || {
        live.gauges.connections_accepted.get() == 1500
    });
    wait_for("all to be closed", || {
        live.gauges.connections_open.get() == 0
    });
    wait_for("their descriptors to be closed", || {
        sockets_on_port(live.addr.port()) == 1
    });
}

#[test]
fn a_port_is_free_again_at_once_and_a_second_claim_is_noticed() {
    let live = Live::start(Limits::default());
    assert!(ankusa_net::ensure_unclaimed(live.addr, Duration::ZERO).is_err());
    let mut stream = live.connect();
    // The server ends this connection first, so its port lingers in the kernel.
    stream
        .write_all(b"POST /hook HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert_eq!(statuses(&read_all(&mut stream)), [201]);
    drop(stream);
    let address = live.addr;
    assert_eq!(live.stop().connections_left, 0);
    ankusa_net::ensure_unclaimed(address, Duration::ZERO).unwrap();
    let again = Live::start_at(address, Limits::default());
    assert_eq!(statuses(&again.converse(GOOD)), [201]);
}

/// A node killed with `kill -9` and started again at once was once refused with "address in use".
#[test]
fn a_listener_that_is_about_to_go_is_waited_for() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let is_held = ankusa_net::ensure_unclaimed(address, Duration::ZERO);
    assert!(is_held.is_err());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ankusa_net::ensure_unclaimed(address, Duration::from_secs(60)));
        drop(held);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn an_address_that_cannot_be_bound_is_an_error() {
    let end = glommio::LocalExecutorBuilder::default()
        .make()
        .unwrap()
        .run(async {
            ankusa_net::Listener::bind("192.0.2.1:80".parse().unwrap()).map(|l| l.local_addr())
        });
    let text = end.unwrap_err().to_string();
    assert!(
        text.starts_with("cannot listen on 192.0.2.1:80: bind: "),
        "{text}"
    );
}

/// Runs in a process of its own, whose limit on descriptors it lowers.
#[test]
fn out_of_descriptors_it_waits_and_goes_on() {
    const CHILD: &str = "ANKUSA_NET_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "http1::out_of_descriptors_it_waits_and_goes_on",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let live = Live::start(Limits::default());
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    lower_descriptor_limit(used + 30);
    // Both ends of a connection are in this process. When all descriptors are taken, one more is
    // set free for a client: there is none for the server's end.
    let spare = std::fs::File::open("/dev/null").unwrap();
    let connect = || std::net::TcpStream::connect(live.addr).ok();
    let mut streams: Vec<_> = std::iter::from_fn(connect).collect();
    drop(spare);
    streams.extend(connect());
    wait_for("accepts to fail", || live.gauges.accept_failures.get() > 0);
    assert!(live.gauges.accept_failures.get() < 1000, "spinning");
    streams.drain(..streams.len() / 2 + 1);
    for stream in &mut streams {
        stream.write_all(GOOD).unwrap();
        assert!(read_response(stream).starts_with("HTTP/1.1 201"));
    }
    assert!(live.gauges.accept_failures.get() < 1000, "spinning");
}
