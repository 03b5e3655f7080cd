//! The admin port: what an operator asks of the node and tells it to do.
//!
//! Owns the route table, who may ask, and each answer. Invariants: an error is always
//! `{"error": word, …}`; an unknown key is refused; what is reported as done is durable, where it
//! is kept at all; no answer carries a secret, and only `/v1/hooks/{id}?body=true` a body.
//! Does not serve hooks, and nothing here is on their path.
//!
//! Runs on core 0 in its dispatch class; what another core owns is asked of it ([`crate::node::ask`]).

mod guard;
#[allow(dead_code)]
mod input;
mod reply;
mod routes;
mod views;

use std::net::SocketAddr;
use std::rc::Rc;

use ankusa_net::Listener;
use ankusa_net::types::{Request, Response, StatusCode};
use ankusa_net::web::{WebLimits, WebServer, WebService};
use ankusa_wal::TaskClass;
use bytes::Bytes;
use http_body_util::Full;

use crate::node::core::Core;
use input::Query;
use reply::{Refused, Reply};
use routes::Action;

/// Most bytes of a body: orders are small.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Connections at once.
const CONNECTIONS_MAX: usize = 64;

/// The admin port of a node.
pub struct Admin {
    core: Rc<Core>,
}

impl Admin {
    /// Binds the port and serves it in the core's dispatch class.
    ///
    /// # Errors
    /// A text for the operator when the address cannot be had.
    pub fn start(core: &Rc<Core>) -> Result<SocketAddr, String> {
        let address = {
            let config = core.config.borrow();
            SocketAddr::new(config.admin.ip, config.admin.port)
        };
        let listener = Listener::bind(address).map_err(|e| format!("admin: {e}"))?;
        let bound = listener.local_addr();
        let admin = Rc::new(Admin {
            core: Rc::clone(core),
        });
        let core = Rc::clone(core);
        // The server's tasks run in the class of the task that starts it.
        core.host.start(TaskClass::Dispatch, {
            let core = Rc::clone(&core);
            async move {
                let limits = WebLimits {
                    connections_max: CONNECTIONS_MAX,
                    body_bytes_max: BODY_BYTES_MAX,
                    ..WebLimits::default()
                };
                let server = WebServer::start(listener, admin, limits);
                *core.admin.borrow_mut() = Some(server);
            }
        });
        Ok(bound)
    }

    async fn answer(&self, request: &Request<Bytes>) -> Result<Reply, Refused> {
        let core = &self.core;
        let token = core.config.borrow().admin.token.clone();
        guard::check(request.headers(), token.as_ref())?;
        let (route, _names) = routes::find(request.method().as_str(), request.uri().path())?;
        let _query = Query::parse(request.uri().query().unwrap_or_default(), route.query)?;
        if route.method == "GET" && !request.body().is_empty() {
            return Err(Refused::bad("unexpected_body"));
        }
        Ok(match route.action {
            Action::Health => views::health(core),
            Action::Ready => views::ready(core).await,
            Action::Metrics => views::metrics(core).await,
            Action::Config => views::config(core),
            Action::Wal => views::wal(core).await?,
        })
    }
}

impl WebService for Admin {
    async fn call(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        self.answer(&request).await.unwrap_or_else(Reply::from)
    }

    fn refusal(&self, status: StatusCode) -> Bytes {
        Bytes::from_static(match status {
            StatusCode::PAYLOAD_TOO_LARGE => b"{\"error\":\"payload_too_large\"}",
            StatusCode::REQUEST_TIMEOUT => b"{\"error\":\"request_timeout\"}",
            _ => b"{\"error\":\"body_read_failed\"}",
        })
    }
}
