use std::cell::RefCell;
use std::pin::Pin;
use std::task::Context;

use futures_rustls::TlsConnector;
use glommio::net::TcpStream;
use glommio::{LocalExecutorBuilder, Placement};
use hyper::body::{Frame, SizeHint};
use hyper::client::conn::http2::SendRequest;
use hyper::{Method, Request as HttpRequest, StatusCode};

use super::*;
use crate::Listener;
use crate::client::TlsClient;
use crate::http1::{HeaderValue, Limits, Server};
use crate::tls::{CurrentIdentity, Identity};

const BODY_MAX: u64 = 100_000;

#[derive(Default)]
struct Service {
    /// Requests to `/slow` wait until this is set.
    gate: Cell<bool>,
    finished: Cell<u32>,
    seen: RefCell<Vec<String>>,
}

impl Handler for Service {
    type Admitted = ();

    fn on_head(&self, head: &Head<'_>) -> HeadDecision<()> {
        let lines = head
            .headers()
            .map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii()));
        self.seen
            .borrow_mut()
            .push(lines.collect::<Vec<_>>().join("|"));
        match (head.method(), head.path()) {
            (b"POST", b"/hook" | b"/slow") | (b"HEAD", b"/hook") => HeadDecision::Body {
                bytes_max: BODY_MAX,
                admitted: (),
            },
            (_, b"/hook") => HeadDecision::Refuse(
                Response::fixed(405, "{}").header("Allow", HeaderValue::Static("POST")),
            ),
            _ => HeadDecision::Refuse(Response::fixed(404, r#"{"error":"not_found"}"#)),
        }
    }

    async fn handle(&self, request: Request, (): ()) -> Response {
        while request.head().path() == b"/slow" && !self.gate.get() {
            Timer::new(Duration::from_millis(1)).await;
        }
        self.finished.set(self.finished.get() + 1);
        let sum: u64 = request.body.iter().map(|b| u64::from(*b)).sum();
        Response::json(201, format_args!("{} {sum}", request.body.len()))
    }

    fn refusal(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::BodyTooLarge { .. } => Response::fixed(413, "{}"),
            Refusal::HeadTooLarge => Response::fixed(431, "{}"),
            Refusal::Timeout => Response::fixed(408, "{}"),
            Refusal::Overload => Response::fixed(503, "{}").retry_after(1),
            Refusal::Malformed(_) | Refusal::BodyCut => Response::fixed(400, "{}"),
        }
    }
}

/// A client's body, which may stop half-way.
#[derive(Default)]
struct Upload {
    bytes: Option<Bytes>,
    stalls: bool,
}

impl Upload {
    fn new(bytes: Vec<u8>) -> Upload {
        Upload {
            bytes: Some(Bytes::from(bytes)).filter(|b| !b.is_empty()),
            stalls: false,
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            None if self.stalls => Poll::Pending,
            bytes => Poll::Ready(bytes.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none() && !self.stalls
    }

    fn size_hint(&self) -> SizeHint {
        let len = self.bytes.as_ref().map_or(0, |b| b.len() as u64);
        if self.stalls {
            SizeHint::default()
        } else {
            SizeHint::with_exact(len)
        }
    }
}

struct Live {
    server: Server,
    service: Rc<Service>,
}

impl Live {
    fn start(limits: Limits) -> Live {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/tls");
        let read = |name: &str| std::fs::read(format!("{directory}/{name}")).unwrap();
        let identity = Identity::from_pem(&read("server.pem"), &read("server.key")).unwrap();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let service = Rc::new(Service::default());
        let server = Server::start_tls(
            listener,
            Rc::clone(&service),
            limits,
            CurrentIdentity::new(identity),
        )
        .unwrap();
        Live { server, service }
    }

    /// A client's connection; it lives as long as its sender.
    async fn connect(&self) -> SendRequest<Upload> {
        let authority = include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/live/tls/ca.pem"
        ));
        let mut config = (*TlsClient::only(authority).unwrap().config()).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tcp = TcpStream::connect(self.server.local_addr()).await.unwrap();
        let tls = TlsConnector::from(Arc::new(config));
        let stream = tls
            .connect("hooks.test".try_into().unwrap(), tcp)
            .await
            .unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(LocalExecutor, HyperIo::new(stream))
                .await
                .unwrap();
        glommio::spawn_local(async move {
            let _ = connection.await;
        })
        .detach();
        sender
    }
}

fn post(path: &str, len: usize) -> HttpRequest<Upload> {
    request(Method::POST, path, Upload::new(vec![1; len]))
}

fn request(method: Method, path: &str, body: Upload) -> HttpRequest<Upload> {
    let uri = format!("https://hooks.test{path}");
    HttpRequest::builder()
        .method(method)
        .uri(uri)
        .header("x-sig", "v1")
        .body(body)
        .unwrap()
}

async fn send(sender: &SendRequest<Upload>, request: HttpRequest<Upload>) -> (StatusCode, String) {
    let response = sender.clone().send_request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn on_core<T>(work: impl Future<Output = T>) -> T {
    LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .unwrap()
        .run(work)
}

#[test]
fn requests_reach_the_same_handler() {
    on_core(async {
        let live = Live::start(Limits::default());
        let sender = live.connect().await;
        let created = |n: usize| (StatusCode::CREATED, format!("{n} {n}"));
        assert_eq!(send(&sender, post("/hook?a=b", 5)).await, created(5));
        assert_eq!(
            live.service.seen.borrow()[0],
            "host=hooks.test|x-sig=v1|content-length=5"
        );
        let many: Vec<_> = (0..60)
            .map(|n| {
                let sender = sender.clone();
                glommio::spawn_local(async move { send(&sender, post("/hook", n * 1000)).await })
            })
            .collect();
        for (n, task) in many.into_iter().enumerate() {
            assert_eq!(task.await, created(n * 1000));
        }
        let at_limit = BODY_MAX as usize;
        assert_eq!(
            send(&sender, post("/hook", at_limit)).await,
            created(at_limit)
        );
        assert_eq!(
            send(&sender, post("/hook", at_limit + 1)).await.0,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(
            send(&sender, post("/nowhere", 50)).await,
            (StatusCode::NOT_FOUND, r#"{"error":"not_found"}"#.to_owned())
        );
        let put = sender
            .clone()
            .send_request(request(Method::PUT, "/hook", Upload::default()))
            .await
            .unwrap();
        assert_eq!(
            (put.status(), put.headers()["allow"].to_str().unwrap()),
            (StatusCode::METHOD_NOT_ALLOWED, "POST")
        );
        assert_eq!(
            send(&sender, request(Method::HEAD, "/hook", Upload::default())).await,
            (StatusCode::CREATED, String::new())
        );
        let mut wide = post("/hook", 0);
        for n in 0..101 {
            wide.headers_mut().append("x-many", n.into());
        }
        assert_eq!(
            send(&sender, wide).await.0,
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        );
        assert_eq!(live.server.gauges().body_bytes_held.get(), 0);
        drop(sender);
        assert_eq!(
            live.server
                .stop(Duration::from_secs(20))
                .await
                .connections_left,
            0
        );
    });
}

#[test]
fn a_reset_stream_does_not_end_its_handler_and_stopping_waits_for_it() {
    on_core(async {
        let live = Live::start(Limits::default());
        let sender = live.connect().await;
        let idle = live.connect().await;
        let gauges = live.server.gauges();
        let given_up = glommio::spawn_local({
            let sender = sender.clone();
            async move { send(&sender, post("/slow", 5)).await }
        });
        let kept = glommio::spawn_local({
            let sender = sender.clone();
            async move { send(&sender, post("/slow", 6)).await }
        });
        while gauges.requests_inflight.get() < 2 {
            Timer::new(Duration::from_millis(1)).await;
        }
        given_up.cancel().await;
        let service = Rc::clone(&live.service);
        let stopping =
            glommio::spawn_local(async move { live.server.stop(Duration::from_secs(20)).await });
        // The idle connection goes first.
        while gauges.connections_open.get() > 1 {
            Timer::new(Duration::from_millis(1)).await;
        }
        assert_eq!(service.finished.get(), 0);
        service.gate.set(true);
        assert_eq!(kept.await, (StatusCode::CREATED, "6 6".to_owned()));
        drop((sender, idle));
        assert_eq!(stopping.await.connections_left, 0);
        assert_eq!(service.finished.get(), 2);
    });
}

#[test]
fn idle_connections_and_slow_bodies_meet_their_deadlines() {
    on_core(async {
        let live = Live::start(Limits {
            first_byte_ms: 200,
            head_ms: 200,
            idle_ms: 200,
            body_ms: 100,
            ..Limits::default()
        });
        let sender = live.connect().await;
        let never = HttpRequest::builder()
            .method("POST")
            .uri("https://hooks.test/hook");
        let never = never
            .body(Upload {
                stalls: true,
                ..Upload::new(b"abc".to_vec())
            })
            .unwrap();
        assert_eq!(send(&sender, never).await.0, StatusCode::REQUEST_TIMEOUT);
        let gauges = live.server.gauges();
        while gauges.connections_open.get() > 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
        assert_eq!(gauges.refused_timeout.get(), 1);
    });
}
