//! A server on its own core, and a client that speaks bytes.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use ankusa_net::Listener;
use ankusa_net::http1::{
    Gauges, Handler, Head, HeadDecision, Limits, Refusal, Request, Response, Server, StopReport,
};
use ankusa_net::tls::{CurrentIdentity, Identity};
use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Body limit of the test service.
pub const BODY_MAX: u64 = 100_000;

/// What the tests look at from outside.
#[derive(Default)]
pub struct Seen {
    pub handled: AtomicU64,
    pub finished: AtomicU64,
    /// Requests to `/slow` wait until this is set.
    pub gate: AtomicBool,
}

/// `POST /hook` and `/slow` answer 201 with the body's length; `GET /health` 200; the rest 404.
pub struct Service {
    seen: Arc<Seen>,
    serial: Cell<u64>,
}

impl Handler for Service {
    type Admitted = u64;

    fn on_head(&self, head: &Head<'_>) -> HeadDecision<u64> {
        match (head.method(), head.path()) {
            (b"POST", b"/hook" | b"/slow") => {}
            (b"GET" | b"HEAD", b"/health") => {}
            (_, b"/hook") => {
                let allow = ankusa_net::http1::HeaderValue::Static("POST");
                let response = Response::fixed(405, r#"{"error":"method_not_allowed"}"#);
                return HeadDecision::Refuse(response.header("Allow", allow));
            }
            _ => return HeadDecision::Refuse(Response::fixed(404, r#"{"error":"not_found"}"#)),
        }
        self.serial.set(self.serial.get() + 1);
        HeadDecision::Body {
            bytes_max: BODY_MAX,
            admitted: self.serial.get(),
        }
    }

    async fn handle(&self, request: Request, serial: u64) -> Response {
        self.seen.handled.fetch_add(1, Ordering::SeqCst);
        if request.head().path() == b"/slow" {
            while !self.seen.gate.load(Ordering::SeqCst) {
                Timer::new(Duration::from_millis(2)).await;
            }
        }
        self.seen.finished.fetch_add(1, Ordering::SeqCst);
        let sum: u64 = request.body.iter().map(|b| u64::from(*b)).sum();
        let len = request.body.len();
        let status = if request.head().method() == b"POST" {
            201
        } else {
            200
        };
        Response::json(
            status,
            format_args!(r#"{{"serial":{serial},"len":{len},"sum":{sum}}}"#),
        )
    }

    fn refusal(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Malformed(_) => Response::fixed(400, r#"{"error":"malformed_request"}"#),
            Refusal::BodyCut => Response::fixed(400, r#"{"error":"body_read_failed"}"#),
            Refusal::HeadTooLarge => Response::fixed(431, r#"{"error":"headers_too_large"}"#),
            Refusal::Timeout => Response::fixed(408, r#"{"error":"request_timeout"}"#),
            Refusal::Overload => Response::fixed(503, r#"{"error":"overload"}"#).retry_after(1),
            Refusal::BodyTooLarge { limit } => Response::json(
                413,
                format_args!(r#"{{"error":"payload_too_large","limit":{limit}}}"#),
            ),
        }
    }
}

/// A running server.
pub struct Live {
    pub addr: SocketAddr,
    pub gauges: Arc<Gauges>,
    pub seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<StopReport>>,
}

impl Live {
    pub fn start(limits: Limits) -> Live {
        Live::start_at("127.0.0.1:0".parse().unwrap(), limits)
    }

    pub fn start_at(address: SocketAddr, limits: Limits) -> Live {
        Live::start_with(address, limits, false)
    }

    /// Over TLS, as `hooks.test`.
    pub fn start_tls(limits: Limits) -> Live {
        Live::start_with("127.0.0.1:0".parse().unwrap(), limits, true)
    }

    fn start_with(address: SocketAddr, limits: Limits, tls: bool) -> Live {
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Seen::default());
        let (stop_flag, seen_there) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let executor = LocalExecutorBuilder::new(Placement::Unbound)
                .make()
                .unwrap();
            executor.run(async move {
                let listener = Listener::bind(address).unwrap();
                let service = Rc::new(Service {
                    seen: seen_there,
                    serial: Cell::new(0),
                });
                let server = if tls {
                    let identity = CurrentIdentity::new(hooks_test());
                    Server::start_tls(listener, service, limits, identity).unwrap()
                } else {
                    Server::start(listener, service, limits).unwrap()
                };
                tell.send((server.local_addr(), server.gauges())).unwrap();
                while !stop_flag.load(Ordering::SeqCst) {
                    Timer::new(Duration::from_millis(2)).await;
                }
                server.stop(Duration::from_secs(20)).await
            })
        });
        let (addr, gauges) = told.recv().unwrap();
        Live {
            addr,
            gauges,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    pub fn begin_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub fn stop(mut self) -> StopReport {
        self.begin_stop();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends `bytes` and reads to the end of the connection.
    pub fn converse(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        read_all(&mut stream)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// The certificate of `hooks.test`.
fn hooks_test() -> Identity {
    Identity::from_pem(
        include_bytes!("tls/server.pem"),
        include_bytes!("tls/server.key"),
    )
    .unwrap()
}

/// A TLS session with a server that it trusts to be `hooks.test`.
pub fn tls_client(stream: TcpStream) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(include_bytes!("tls/ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = "hooks.test".try_into().unwrap();
    rustls::StreamOwned::new(
        rustls::ClientConnection::new(Arc::new(config), name).unwrap(),
        stream,
    )
}

/// Reads until the other side ends; a reset is told in the text.
pub fn read_all(stream: &mut impl Read) -> String {
    let mut out = Vec::new();
    let end = stream.read_to_end(&mut out);
    let text = String::from_utf8_lossy(&out).into_owned();
    match end {
        Ok(_) => text,
        Err(error) => format!("{text}<{error}>"),
    }
}

/// Reads one answer with a length.
pub fn read_response(stream: &mut impl Read) -> String {
    let mut out = Vec::new();
    let mut byte = [0u8; 1];
    while !out.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => out.push(byte[0]),
            other => return format!("{}<{other:?}>", String::from_utf8_lossy(&out)),
        }
    }
    let head = String::from_utf8(out).unwrap();
    let length = head.to_ascii_lowercase();
    let length = length
        .lines()
        .find_map(|l| l.strip_prefix("content-length: "));
    let len = length.map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// The status codes of the answers in `text`.
pub fn statuses(text: &str) -> Vec<u16> {
    text.split("HTTP/1.1 ")
        .skip(1)
        .map(|part| part[..3].parse().unwrap())
        .collect()
}

/// Waits until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many sockets of this process are bound to `port`, listeners included.
pub fn sockets_on_port(port: u16) -> usize {
    let ours: std::collections::HashSet<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local_port = format!(":{port:04X}");
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| {
            fields.len() > 9 && fields[1].ends_with(&local_port) && ours.contains(fields[9])
        })
        .count()
}

/// Lowers this process's limit on open descriptors.
pub fn lower_descriptor_limit(most: u64) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    #[expect(unsafe_code, reason = "no safe call for it")]
    // SAFETY: the pointer is to a whole rlimit that outlives the call.
    let end = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(end, 0);
}
