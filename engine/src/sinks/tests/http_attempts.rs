//! Attempts against a server made of plain sockets.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use ankusa_net::client::ClientConfig;
use ankusa_net::dns::ResolverThreads;

use super::*;
use crate::config::{Cidr, EgressRule, HttpSinkConfig, SinkMethod, SinkUrl, UrlHost};
use crate::runtime::{CoreHost, spawn_core};

/// The names of these tests.
fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    let v4 = |a, b, c, d| IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    match name {
        "app.test" => Ok(vec![v4(127, 0, 0, 1)]),
        // Nobody listens on the first.
        "second.test" => Ok(vec![v4(127, 0, 0, 9), v4(127, 0, 0, 1)]),
        // The first one is not to be dialled.
        "mixed.test" => Ok(vec![v4(10, 9, 9, 9), v4(127, 0, 0, 1)]),
        "metadata.test" => Ok(vec![v4(169, 254, 169, 254)]),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn loopback_only() -> EgressConfig {
    let network = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
    EgressConfig {
        allow_http: false,
        allow_private: false,
        allow: vec![EgressRule::Cidr(Cidr {
            network,
            prefix_len: 8,
        })],
    }
}

fn closed() -> EgressConfig {
    EgressConfig {
        allow_http: false,
        allow_private: false,
        allow: Vec::new(),
    }
}

fn config(name: &str, port: u16) -> HttpSinkConfig {
    HttpSinkConfig {
        url: SinkUrl {
            https: false,
            host: UrlHost::Name(name.into()),
            port,
            path_and_query: "/in?token=1".into(),
        },
        method: SinkMethod::Put,
        timeout_ms: 20_000,
        headers: vec![("x-own".into(), Secret::from("1"))],
        secrets: Vec::new(),
        allow_unsigned: true,
        max_response_bytes: 1024,
    }
}

/// Makes the attempts, one for each body, on a core of their own.
fn attempts(config: HttpSinkConfig, egress: EgressConfig, bodies: Vec<Vec<u8>>) -> Vec<Outcome> {
    let core = spawn_core("test", None, move || async move {
        let threads = ResolverThreads::start_with(look_up).unwrap();
        let context = SinkContext {
            host: CoreHost::new(),
            client: Client::new(ClientConfig::default()),
            resolver: Resolver::new(threads),
            egress: Rc::new(egress),
            files: FileWriters::default(),
        };
        let sink = HttpSink::new(&config, ForwardRule::all(), &context).unwrap();
        let mut outcomes = Vec::new();
        for body in bodies {
            let envelope = HookSpec {
                body: &body,
                ..HookSpec::default()
            }
            .envelope();
            outcomes.push(sink.deliver(&delivery(&envelope)).await);
        }
        outcomes
    });
    core.unwrap().join().unwrap()
}

fn attempt(config: HttpSinkConfig, egress: EgressConfig) -> Outcome {
    attempts(config, egress, vec![b"{}".to_vec()]).remove(0)
}

/// Gives back the requests, and how many connections there were.
type Server = JoinHandle<(Vec<Vec<u8>>, usize)>;

/// Serves connections with `answer` until it has answered `count` requests.
fn serve(count: usize, answer: &'static [u8]) -> (u16, Server) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut requests, mut connections) = (Vec::new(), 0);
        while requests.len() < count {
            let (mut stream, _) = listener.accept().unwrap();
            connections += 1;
            while requests.len() < count
                && let Some(request) = read_request(&mut stream)
            {
                requests.push(request);
                stream.write_all(answer).unwrap();
            }
        }
        (requests, connections)
    });
    (port, thread)
}

/// Head and body; `None` when the client has gone.
fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut wanted = usize::MAX;
    while request.len() < wanted {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).ok().filter(|n| *n > 0)?;
        request.extend_from_slice(&piece[..read]);
        if wanted == usize::MAX
            && let Some(end) = request.windows(4).position(|w| w == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|l| l.strip_prefix("content-length: "))
                .unwrap();
            wanted = end + 4 + length.parse::<usize>().unwrap();
        }
    }
    Some(request)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[test]
fn hook_arrives_as_it_was_received() {
    let (port, server) = serve(1, OK);
    let body: Vec<u8> = (0..300_000u32).map(|n| (n * 31 + n / 7) as u8).collect();
    let outcomes = attempts(
        config("app.test", port),
        loopback_only(),
        vec![body.clone()],
    );
    assert_eq!(outcomes, [Outcome::Delivered]);
    let (requests, _) = server.join().unwrap();
    assert!(requests[0].ends_with(&body));
    let head = String::from_utf8(requests[0][..requests[0].len() - body.len()].to_vec()).unwrap();
    assert!(head.starts_with("PUT /in?token=1 HTTP/1.1\r\n"), "{head}");
    let head = head.to_ascii_lowercase();
    for line in [
        &format!("host: app.test:{port}"),
        "content-length: 300000",
        "x-own: 1",
        &format!("x-ankusa-id: {ID}"),
    ] {
        assert_eq!(
            head.lines().filter(|l| *l == line).count(),
            1,
            "{line} in {head}"
        );
    }
    assert!(!head.contains("transfer-encoding"));
}

#[test]
fn connection_is_kept_between_attempts() {
    let (port, server) = serve(3, OK);
    let outcomes = attempts(
        config("app.test", port),
        loopback_only(),
        vec![b"{}".to_vec(); 3],
    );
    assert_eq!(outcomes, [Outcome::Delivered; 3]);
    assert_eq!(server.join().unwrap().1, 1);
}

#[test]
fn answers_become_outcomes() {
    for (answer, expected) in [
        (
            &b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"[..],
            Outcome::Permanent {
                cause: Cause::Status(404),
            },
        ),
        (
            b"HTTP/1.1 503 x\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n",
            Outcome::Retry {
                cause: Cause::Status(503),
                retry_after_ms: Some(9_000),
            },
        ),
        (
            b"HTTP/1.1 307 x\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            Outcome::retry(Cause::Redirect(307)),
        ),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Outcome::retry(Cause::Protocol)),
    ] {
        let (port, server) = serve(1, answer);
        assert_eq!(attempt(config("app.test", port), loopback_only()), expected);
        drop(server);
    }
}

#[test]
fn endless_answer_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .unwrap();
        while stream.write_all(b"10\r\n0123456789abcdef\r\n").is_ok() {}
    });
    assert_eq!(
        attempt(config("app.test", port), loopback_only()),
        Outcome::Delivered
    );
    server.join().unwrap();
}

#[test]
fn silent_endpoint_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config("app.test", listener.local_addr().unwrap().port());
    config.timeout_ms = 50;
    assert_eq!(
        attempt(config, loopback_only()),
        Outcome::retry(Cause::Timeout)
    );
}

#[test]
fn closed_egress_dials_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (name, rules) in [("app.test", closed()), ("metadata.test", loopback_only())] {
        assert_eq!(
            attempt(config(name, port), rules),
            Outcome::retry(Cause::Egress),
            "{name}"
        );
    }
    listener.set_nonblocking(true).unwrap();
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn only_addresses_that_passed_are_dialled() {
    let (port, server) = serve(1, OK);
    assert_eq!(
        attempt(config("mixed.test", port), loopback_only()),
        Outcome::Delivered
    );
    server.join().unwrap();
}

#[test]
fn next_address_is_tried_when_nobody_listens() {
    let (port, server) = serve(1, OK);
    assert_eq!(
        attempt(config("second.test", port), loopback_only()),
        Outcome::Delivered
    );
    server.join().unwrap();
    assert_eq!(
        attempt(config("app.test", port), loopback_only()),
        Outcome::retry(Cause::Connect)
    );
}

#[test]
fn name_that_does_not_resolve_is_retried() {
    assert_eq!(
        attempt(config("nobody.test", 1), loopback_only()),
        Outcome::retry(Cause::Resolve)
    );
}

#[test]
fn plain_server_is_no_tls_endpoint() {
    let (port, _server) = serve(1, OK);
    let mut config = config("app.test", port);
    config.url.https = true;
    // This client trusts nobody.
    assert_eq!(attempt(config, loopback_only()), Outcome::retry(Cause::Tls));
}
