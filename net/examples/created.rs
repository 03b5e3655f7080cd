//! Answers 201 to every POST on one core: the ceiling of what the ingest server can take in.
//!
//! `created [ADDRESS] [CPU]`, by default `127.0.0.1:4100` on CPU 1. Runs until killed.

use std::rc::Rc;
use std::time::Duration;

use ankusa_net::Listener;
use ankusa_net::http1::{Handler, Head, HeadDecision, Limits, Refusal, Request, Response, Server};
use glommio::{LocalExecutorBuilder, Placement};

struct Created;

impl Handler for Created {
    type Admitted = ();

    fn on_head(&self, head: &Head<'_>) -> HeadDecision<()> {
        match head.method() {
            b"POST" => HeadDecision::Body {
                bytes_max: 8_000_000,
                admitted: (),
            },
            _ => HeadDecision::Refuse(Response::fixed(405, r#"{"error":"method_not_allowed"}"#)),
        }
    }

    async fn handle(&self, request: Request, (): ()) -> Response {
        let len = request.body.len();
        Response::json(
            201,
            format_args!(r#"{{"status":"accepted","bytes":"{len:08}"}}"#),
        )
    }

    fn refusal(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Overload => Response::fixed(503, r#"{"error":"overload"}"#),
            Refusal::Timeout => Response::fixed(408, r#"{"error":"request_timeout"}"#),
            Refusal::BodyTooLarge { .. } => {
                Response::fixed(413, r#"{"error":"payload_too_large"}"#)
            }
            Refusal::HeadTooLarge => Response::fixed(431, r#"{"error":"headers_too_large"}"#),
            Refusal::Malformed(_) | Refusal::BodyCut => {
                Response::fixed(400, r#"{"error":"malformed_request"}"#)
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:4100".to_owned())
        .parse()?;
    let cpu = arguments.next().map_or(Ok(1), |cpu| cpu.parse())?;
    let executor = LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .preempt_timer(Duration::from_millis(1))
        .make()?;
    executor.run(async move {
        let listener = Listener::bind(address)?;
        let server = Server::start(listener, Rc::new(Created), Limits::default())?;
        let gauges = server.gauges();
        println!("listening on {}", server.local_addr());
        loop {
            glommio::timer::Timer::new(Duration::from_secs(5)).await;
            println!(
                "{} open, {} requests",
                gauges.connections_open.get(),
                gauges.requests.get()
            );
        }
    })
}
