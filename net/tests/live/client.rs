//! Calls, against a server whose every byte is scripted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ankusa_net::client::{
    Answer, Call, CallError, Chunks, Client, ClientConfig, Destination, Scheme, TlsClient,
};
use ankusa_net::types::{HeaderMap, Method, Uri};
use bytes::Bytes;
use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};

fn on_core<T>(work: impl Future<Output = T>) -> T {
    LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .unwrap()
        .run(work)
}

/// A server that treats its `n`th connection as `script` says, and tells what it received in all.
fn serve(
    connections: usize,
    script: impl Fn(usize, &mut TcpStream, &mut Vec<u8>) + Send + 'static,
) -> (Rc<Destination>, JoinHandle<Vec<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        (0..connections)
            .map(|n| {
                let (mut stream, _) = listener.accept().unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(30)))
                    .unwrap();
                let mut received = Vec::new();
                script(n, &mut stream, &mut received);
                received
            })
            .collect()
    });
    (to(Scheme::Http, "hooks.test", port), thread)
}

fn to(scheme: Scheme, host: &str, port: u16) -> Rc<Destination> {
    Rc::new(Destination {
        scheme,
        host: host.to_owned(),
        port,
        ip: Ipv4Addr::LOCALHOST.into(),
    })
}

/// Reads one request with a length.
fn read_request(stream: &mut impl Read, received: &mut Vec<u8>) -> bool {
    let start = received.len();
    let mut byte = [0];
    while !received[start..].ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => received.push(byte[0]),
            _ => return false,
        }
    }
    let head = String::from_utf8(received[start..].to_vec())
        .unwrap()
        .to_ascii_lowercase();
    let len = head
        .lines()
        .find_map(|l| l.strip_prefix("content-length: "))
        .map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    received.extend_from_slice(&body);
    true
}

fn post(body: impl IntoIterator<Item = Bytes>) -> Call {
    Call {
        method: Method::POST,
        target: Uri::from_static("/in?x=1"),
        headers: HeaderMap::new(),
        body: Chunks::new(body),
        connect_ms: 10_000,
        total_ms: 20_000,
        response_bytes_max: 1000,
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nok";

#[test]
fn a_connection_is_kept_and_used_again() {
    let (destination, server) = serve(1, |_, stream, received| {
        while read_request(stream, received) {
            stream.write_all(OK).unwrap();
        }
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        let large = Bytes::from(vec![b'z'; 300_000]);
        for body in [
            vec![Bytes::from_static(b"{\"a\":"), Bytes::from_static(b"1}")],
            vec![large.clone(), Bytes::new(), large],
            vec![],
        ] {
            let answer = client.call(&destination, post(body)).await.unwrap();
            assert_eq!(
                (answer.status.as_u16(), &answer.body[..], answer.is_cut),
                (200, &b"ok"[..], false)
            );
            assert_eq!(answer.headers["x-a"], "b");
        }
        assert_eq!(
            (
                client.gauges().connections_made.get(),
                client.gauges().reused.get()
            ),
            (1, 2)
        );
        client.close_idle();
        while client.gauges().connections_open.get() > 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
    });
    let received = server.join().unwrap().remove(0);
    assert!(
        received.starts_with(b"POST /in?x=1 HTTP/1.1\r\n"),
        "{}",
        received[..200].escape_ascii()
    );
    let first =
        String::from_utf8_lossy(&received[..received.iter().position(|b| *b == b'}').unwrap() + 1])
            .to_ascii_lowercase();
    assert!(
        first.contains(&format!("host: hooks.test:{}\r\n", destination.port)),
        "{first}"
    );
    assert!(first.ends_with("\r\n\r\n{\"a\":1}"), "{first}");
    assert_eq!(received.iter().filter(|b| **b == b'z').count(), 600_000);
}

#[test]
fn a_request_on_a_connection_closed_meanwhile_is_sent_once_more() {
    let (destination, server) = serve(2, |n, stream, received| {
        read_request(stream, received);
        stream.write_all(OK).unwrap();
        if n == 0 {
            // Takes the second request and ends without a byte.
            read_request(stream, received);
            stream.shutdown(Shutdown::Both).unwrap();
        }
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        for _ in 0..2 {
            let answer = client
                .call(&destination, post([Bytes::from_static(b"payload!")]))
                .await
                .unwrap();
            assert_eq!(&answer.body[..], b"ok");
        }
        assert_eq!(
            (
                client.gauges().resent.get(),
                client.gauges().connections_made.get()
            ),
            (1, 2)
        );
    });
    let received = server.join().unwrap();
    assert_eq!(
        received[0].windows(8).filter(|w| w == b"payload!").count(),
        2
    );
    assert_eq!(
        received[1].windows(8).filter(|w| w == b"payload!").count(),
        1
    );
}

#[test]
fn a_request_is_not_sent_again_after_a_byte_of_an_answer_or_on_a_new_connection() {
    let (destination, server) = serve(2, |n, stream, received| {
        read_request(stream, received);
        if n == 0 {
            stream.write_all(OK).unwrap();
            read_request(stream, received);
            stream.write_all(b"HTTP/1.1 20").unwrap();
        }
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        client.call(&destination, post([])).await.unwrap();
        for _ in 0..2 {
            let end = client.call(&destination, post([])).await;
            assert!(matches!(end, Err(CallError::Http(_))), "{end:?}");
        }
        assert_eq!(client.gauges().resent.get(), 0);
    });
    server.join().unwrap();
}

#[test]
fn an_answer_is_read_no_further_than_wanted() {
    let (destination, server) = serve(3, |n, stream, received| {
        read_request(stream, received);
        let answer = match n {
            0 => format!(
                "HTTP/1.1 500 No\r\nContent-Length: 1001\r\n\r\n{}",
                "x".repeat(1001)
            ),
            1 => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n{}",
                "x".repeat(1001)
            ),
            _ => format!(
                "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 1000\r\n\r\n{}",
                "x".repeat(1000)
            ),
        };
        stream.write_all(answer.as_bytes()).unwrap();
        // The client hangs up on an answer that is too long.
        let hung_up = matches!(stream.read(&mut [0]), Ok(0) | Err(_));
        assert!(hung_up);
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        let mut answers: Vec<Answer> = Vec::new();
        for _ in 0..3 {
            answers.push(client.call(&destination, post([])).await.unwrap());
        }
        let seen: Vec<_> = answers
            .iter()
            .map(|a| (a.status.as_u16(), a.body.len(), a.is_cut))
            .collect();
        assert_eq!(
            seen,
            [(500, 1000, true), (200, 1000, true), (302, 1000, false)]
        );
        assert_eq!(client.gauges().connections_made.get(), 3);
    });
    server.join().unwrap();
}

#[test]
fn deadlines_end_a_call_and_its_connection() {
    let (destination, server) = serve(2, |n, stream, received| {
        read_request(stream, received);
        if n == 1 {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
                .unwrap();
        }
        assert!(
            matches!(stream.read(&mut [0]), Ok(0) | Err(_)),
            "the client stayed"
        );
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        for _ in 0..2 {
            let end = client
                .call(
                    &destination,
                    Call {
                        total_ms: 100,
                        ..post([])
                    },
                )
                .await;
            assert!(matches!(end, Err(CallError::Timeout(100))), "{end:?}");
        }
        while client.gauges().connections_open.get() > 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
    });
    server.join().unwrap();
}

#[test]
fn framing_is_the_bodys_not_the_headers() {
    let (destination, server) = serve(1, |_, stream, received| {
        read_request(stream, received);
        stream.write_all(OK).unwrap();
    });
    on_core(async {
        let client = Client::new(ClientConfig::default());
        let mut call = post([Bytes::from_static(b"abc")]);
        for (name, value) in [
            ("content-length", "99"),
            ("transfer-encoding", "chunked"),
            ("host", "other"),
            ("x-a", "1"),
        ] {
            call.headers.insert(name, value.parse().unwrap());
        }
        client.call(&destination, call).await.unwrap();
    });
    let received = String::from_utf8(server.join().unwrap().remove(0))
        .unwrap()
        .to_ascii_lowercase();
    assert!(
        received.contains("content-length: 3\r\n") && received.contains("host: other\r\n"),
        "{received}"
    );
    assert!(
        received.contains("x-a: 1\r\n") && !received.contains("chunked"),
        "{received}"
    );
}

/// States of this process's connections to `port`, as the kernel numbers them.
fn connections_to(port: u16) -> Vec<String> {
    let remote = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 9 && fields[2].ends_with(&remote))
        .map(|fields| fields[3].to_owned())
        .collect()
}

#[test]
fn a_connection_attempt_given_up_leaves_no_socket() {
    const SYN_SENT: &str = "02";
    // A queue for one connection, and full: further attempts get no answer.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(
        &"127.0.0.1:0"
            .parse::<std::net::SocketAddr>()
            .unwrap()
            .into(),
    )
    .unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(address).unwrap();
    on_core(async {
        let client = Client::new(ClientConfig::default());
        let destination = to(Scheme::Http, "hooks.test", address.port());
        for _ in 0..3 {
            let end = client
                .call(
                    &destination,
                    Call {
                        connect_ms: 100,
                        ..post([])
                    },
                )
                .await;
            assert!(
                matches!(end, Err(CallError::ConnectTimeout(100))),
                "{end:?}"
            );
        }
        assert_eq!(client.gauges().connections_open.get(), 0);
        while connections_to(address.port())
            .iter()
            .any(|state| state == SYN_SENT)
        {
            Timer::new(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn what_cannot_be_connected_is_told() {
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    // Its queue of connections is never emptied, so TLS is never agreed on.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    on_core(async {
        let tls = Some(TlsClient::only(include_bytes!("tls/ca.pem")).unwrap());
        let client = Client::new(ClientConfig {
            tls,
            connections_per_destination_max: 1,
            ..ClientConfig::default()
        });
        let end = client
            .call(&to(Scheme::Http, "hooks.test", unused), post([]))
            .await;
        assert!(matches!(end, Err(CallError::Connect(_))), "{end:?}");
        let destination = to(Scheme::Https, "hooks.test", silent_port);
        let end = client
            .call(
                &destination,
                Call {
                    connect_ms: 100,
                    ..post([])
                },
            )
            .await;
        assert!(
            matches!(end, Err(CallError::ConnectTimeout(100))),
            "{end:?}"
        );
        assert_eq!(client.gauges().connections_open.get(), 0);
        let waiting = glommio::spawn_local({
            let (client, destination) = (client.clone(), Rc::clone(&destination));
            async move {
                client
                    .call(
                        &destination,
                        Call {
                            connect_ms: 300,
                            ..post([])
                        },
                    )
                    .await
            }
        });
        while client.gauges().connections_open.get() == 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
        let end = client.call(&destination, post([])).await;
        assert!(matches!(end, Err(CallError::TooManyConnections)), "{end:?}");
        assert!(waiting.await.is_err());
        let without = Client::new(ClientConfig::default());
        assert!(matches!(
            without.call(&destination, post([])).await,
            Err(CallError::NoTls)
        ));
    });
}

/// Serves one connection over TLS as `hooks.test`; whether the handshake and a request worked.
fn serve_tls() -> (u16, JoinHandle<bool>) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let certificate = CertificateDer::from_pem_slice(include_bytes!("tls/server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let (tcp, _) = listener.accept().unwrap();
        let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, tcp);
        let mut received = Vec::new();
        let mut worked = false;
        while read_request(&mut stream, &mut received) {
            stream.write_all(OK).unwrap();
            worked = true;
        }
        worked
    });
    (port, thread)
}

#[test]
fn tls_is_verified_against_the_trusted_authorities_and_the_name() {
    let trusting = Some(TlsClient::only(include_bytes!("tls/ca.pem")).unwrap());
    let stranger = TlsClient::load(None).unwrap();
    let cases = [
        ("hooks.test", trusting.clone(), true),
        ("other.test", trusting, false),
        ("hooks.test", Some(stranger), false),
    ];
    for (host, tls, expected) in cases {
        let (port, server) = serve_tls();
        on_core(async move {
            let client = Client::new(ClientConfig {
                tls,
                ..ClientConfig::default()
            });
            let large = Bytes::from(vec![b'z'; 300_000]);
            for _ in 0..2 {
                let end = client
                    .call(&to(Scheme::Https, host, port), post([large.clone()]))
                    .await;
                match end {
                    Ok(answer) => {
                        assert!(expected && answer.body == b"ok"[..], "{host}: {answer:?}")
                    }
                    Err(error) => {
                        assert!(
                            !expected && matches!(error, CallError::Tls(_)),
                            "{host}: {error:?}"
                        );
                        return;
                    }
                }
            }
            assert_eq!(client.gauges().reused.get(), 1);
        });
        assert_eq!(server.join().unwrap(), expected, "{host}");
    }
    assert!(
        TlsClient::only(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err()
    );
    assert_eq!(
        TlsClient::only(include_bytes!("tls/ca.pem"))
            .unwrap()
            .roots_count(),
        1
    );
}
