//! The admin port: what an operator asks of the node and tells it to do.
//!
//! Owns the route table, who may ask, and each answer. Invariants: an error is always
//! `{"error": word, …}`; an unknown key is refused; what is reported as done is durable, where it
//! is kept at all; no answer carries a secret, and only `/v1/hooks/{id}?body=true` a body.
//! Does not serve hooks, and nothing here is on their path.
//!
//! Runs on core 0 in its dispatch class; what another core owns is asked of it ([`crate::node::ask`]).

mod audit;
mod backups;
mod dlq;
mod guard;
mod hooks;
mod input;
mod replays;
mod reply;
mod routes;
mod sources;
#[cfg(test)]
mod tests;
mod views;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use ankusa_net::Listener;
use ankusa_net::types::{Request, Response, StatusCode};
use ankusa_net::web::{Peer, WebLimits, WebServer, WebService};
use ankusa_wal::{Host, TaskClass};
use bytes::Bytes;
use http_body_util::Full;

use crate::node::core::Core;
use audit::{Trail, Who};
use input::Query;
use reply::{Refused, Reply};
use routes::{Action, Route};

/// The description of the port.
const OPENAPI: &str = include_str!("openapi.json");
/// Most bytes of a body: orders are small.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Connections at once.
const CONNECTIONS_MAX: usize = 64;

/// The admin port of a node.
pub struct Admin {
    core: Rc<Core>,
    trail: Trail,
    is_changing: Cell<bool>,
}

/// Held while an order is carried out: one at a time.
struct Turn<'a>(&'a Cell<bool>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
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
            trail: Trail::default(),
            is_changing: Cell::new(false),
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
        let (route, names) = routes::find(request.method().as_str(), request.uri().path())?;
        let query = Query::parse(request.uri().query().unwrap_or_default(), route.query)?;
        if !route.body.is_empty() {
            return self.order(request, route, &names, token.is_some()).await;
        }
        if !request.body().is_empty() {
            return Err(Refused::bad("unexpected_body"));
        }
        let name = |at: usize| names.get(at).copied().unwrap_or_default();
        Ok(match route.action {
            Action::Health => views::health(core),
            Action::Ready => views::ready(core).await,
            Action::Metrics => views::metrics(core).await,
            Action::Config => views::config(core),
            Action::Wal => views::wal(core).await,
            Action::DeadLetters => dlq::list(core, &query).await?,
            Action::Hook => hooks::show(core, name(0), &query).await?,
            Action::ReplayList => replays::list(core, &query).await?,
            Action::ReplayShow => replays::show(core, name(0)).await?,
            Action::SourceList => sources::list(core, name(0)),
            Action::SourceShow => sources::show(core, name(0), name(1)).await?,
            Action::SinkShow => sources::show_sink(core, &names).await?,
            Action::Audit => audit::list(core, &query).await?,
            Action::BackupShow => backups::show(core),
            Action::OpenApi => reply::text(StatusCode::OK, "application/json", OPENAPI.into()),
            Action::ReplayStart
            | Action::ReplayChange
            | Action::SinkChange
            | Action::BackupStart => {
                return Err(Refused::not_found());
            }
        })
    }

    /// Carries an order out: one at a time, so that numbers and slots are given once.
    async fn order(
        &self,
        request: &Request<Bytes>,
        route: &Route,
        names: &[&str],
        has_token: bool,
    ) -> Result<Reply, Refused> {
        let (core, headers) = (&self.core, request.headers());
        if !core.is_serving() {
            // What it would change is not in place yet.
            return Err(Refused::unavailable("starting"));
        }
        let content_type = headers.get("content-type").map(|v| v.as_bytes());
        let body = input::object(content_type, request.body(), route.body)?;
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        let who = Who::of(peer, headers, has_token, core.host.random());
        if self.is_changing.replace(true) {
            return Err(Refused::unavailable("busy"));
        }
        let _turn = Turn(&self.is_changing);
        let name = names.first().copied().unwrap_or_default();
        match route.action {
            Action::ReplayStart => replays::start(core, &self.trail, &who, &body).await,
            Action::ReplayChange => replays::change(core, &self.trail, &who, name, &body).await,
            Action::SinkChange => sources::change_sink(core, &self.trail, &who, names, &body).await,
            Action::BackupStart => backups::start(core, &self.trail, &who, &body).await,
            _ => Err(Refused::not_found()),
        }
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
