//! The operator's server.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ankusa_net::Listener;
use ankusa_net::types::{Full, Request, Response, StatusCode};
use ankusa_net::web::{Peer, WebLimits, WebServer, WebService};
use bytes::Bytes;
use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};

use crate::harness::{read_all, statuses};

struct Echo;

impl WebService for Echo {
    async fn call(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        assert!(
            request
                .extensions()
                .get::<Peer>()
                .unwrap()
                .0
                .ip()
                .is_loopback()
        );
        let line = format!(
            "{} {} {}",
            request.method(),
            request.uri(),
            request.body().len()
        );
        Response::new(Full::new(Bytes::from(line)))
    }

    fn refusal(&self, status: StatusCode) -> Bytes {
        Bytes::from(format!("refused {}", status.as_u16()))
    }
}

/// Runs a server while `client` runs; how many connections were left at the end.
fn with_server(limits: WebLimits, client: impl FnOnce(SocketAddr)) -> usize {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let flag = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        LocalExecutorBuilder::new(Placement::Unbound)
            .make()
            .unwrap()
            .run(async move {
                let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
                let server = WebServer::start(listener, Rc::new(Echo), limits);
                tell.send(server.local_addr()).unwrap();
                while !flag.load(Ordering::SeqCst) {
                    Timer::new(Duration::from_millis(2)).await;
                }
                server.stop(Duration::from_secs(20)).await
            })
    });
    client(told.recv().unwrap());
    stop.store(true, Ordering::SeqCst);
    thread.join().unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
}

fn converse(address: SocketAddr, bytes: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes.as_bytes()).unwrap();
    read_all(&mut stream)
}

#[test]
fn requests_are_whole_and_bounded() {
    let limits = WebLimits {
        body_bytes_max: 100,
        ..WebLimits::default()
    };
    let left = with_server(limits, |address| {
        let idle = connect(address);
        let text = converse(
            address,
            "GET /a?b HTTP/1.1\r\nHost: x\r\n\r\nPOST /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
        );
        assert_eq!(statuses(&text), [200, 200], "{text}");
        assert!(
            text.contains("GET /a?b 0") && text.ends_with("POST /c 3"),
            "{text}"
        );
        for body in [
            "Content-Length: 101\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n65\r\n",
        ] {
            let request = format!("POST /c HTTP/1.1\r\nHost: x\r\n{body}{}", "y".repeat(101));
            let text = converse(address, &request);
            assert_eq!(statuses(&text), [413], "{text}");
            assert!(text.ends_with("refused 413"), "{text}");
        }
        drop(idle);
    });
    assert_eq!(left, 0);
}

#[test]
fn slow_clients_are_cut_off_and_idle_ones_closed_at_the_stop() {
    let mut idle = None;
    let limits = WebLimits {
        phase_ms: 200,
        connections_max: 2,
        ..WebLimits::default()
    };
    with_server(limits, |address| {
        for part in ["", "GET /"] {
            assert_eq!(converse(address, part), "");
        }
        let text = converse(
            address,
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
        );
        assert_eq!(statuses(&text), [408], "{text}");
    });
    let left = with_server(WebLimits::default(), |address| {
        let mut stream = connect(address);
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert!(crate::harness::read_response(&mut stream).contains("200 OK"));
        idle = Some(stream);
    });
    assert_eq!(left, 0);
    assert_eq!(read_all(&mut idle.unwrap()), "");
}
