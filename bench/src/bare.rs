//! The receiver's own HTTP loop with nothing behind it: answers 201 right after parsing.
//!
//! What `ingest` is compared with. Same executor settings, same listener, same limits as the
//! node; the handler does no more than make the answer.
//!
//! Runs as a child process, on one pinned core.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use ankusa_net::Listener;
use ankusa_net::http1::{Handler, Head, HeadDecision, Limits, Refusal, Request, Response, Server};
use anyhow::Context as _;
use glommio::{Latency, LocalExecutorBuilder, Placement, Shares};

const BODY_BYTES_MAX: u64 = 8_000_000;
/// The slice the node's executors run with.
const SLICE: Duration = Duration::from_millis(1);

struct Answer201 {
    serial: Cell<u64>,
}

impl Handler for Answer201 {
    type Admitted = ();

    fn on_head(&self, head: &Head<'_>) -> HeadDecision<()> {
        if head.method() != b"POST" {
            return HeadDecision::Refuse(Response::fixed(405, r#"{"error":"method_not_allowed"}"#));
        }
        HeadDecision::Body {
            bytes_max: BODY_BYTES_MAX,
            admitted: (),
        }
    }

    async fn handle(&self, _request: Request, (): ()) -> Response {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        Response::json(
            201,
            format_args!(r#"{{"status":"accepted","id":"00000000-0000-7000-8000-{serial:012x}"}}"#),
        )
    }

    fn refusal(&self, refusal: Refusal) -> Response {
        let (status, body) = match refusal {
            Refusal::Malformed(_) => (400, r#"{"error":"malformed_request"}"#),
            Refusal::HeadTooLarge => (431, r#"{"error":"headers_too_large"}"#),
            Refusal::BodyTooLarge { .. } => (413, r#"{"error":"payload_too_large"}"#),
            Refusal::Timeout => (408, r#"{"error":"request_timeout"}"#),
            Refusal::BodyCut => (400, r#"{"error":"body_read_failed"}"#),
            Refusal::Overload => (503, r#"{"error":"overload"}"#),
        };
        Response::fixed(status, body)
    }
}

/// Serves for ever on a free port of loopback; prints `listening <address>` first.
pub fn serve(core: usize) -> anyhow::Result<()> {
    let executor = LocalExecutorBuilder::new(Placement::Fixed(core))
        .name("bare")
        .make()
        .map_err(|e| anyhow::anyhow!("cannot start an executor on core {core}: {e}"))?;
    executor.run(async move {
        let queue = glommio::executor().create_task_queue(
            Shares::Static(1000),
            Latency::Matters(SLICE),
            "ingest",
        );
        glommio::spawn_local_into(listen(), queue)
            .map_err(|e| anyhow::anyhow!("cannot start the server task: {e}"))?
            .await
    })
}

async fn listen() -> anyhow::Result<()> {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr();
    let _server = Server::start(
        listener,
        Rc::new(Answer201 {
            serial: Cell::new(0),
        }),
        Limits::default(),
    )
    .context("starting the server")?;
    println!("listening {address}");
    std::future::pending::<()>().await;
    Ok(())
}
