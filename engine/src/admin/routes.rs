//! The route table of the admin port: every path, its methods, the query keys it knows.
//!
//! `openapi.json` describes the same table; a test compares the two. Pure.

use super::reply::Refused;
use crate::config::is_name;
use ankusa_net::types::StatusCode;

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Health,
    Ready,
    Metrics,
    Config,
    Wal,
    DeadLetters,
    Hook,
    ReplayList,
    ReplayStart,
    ReplayShow,
    ReplayChange,
    SourceList,
    SourceShow,
    SinkShow,
    SinkChange,
    Audit,
    BackupShow,
    BackupStart,
    OpenApi,
}

/// One route.
#[derive(Debug)]
pub struct Route {
    /// Its method.
    pub method: &'static str,
    /// Its path; what stands in braces is a name.
    pub path: &'static str,
    /// The query keys it knows.
    pub query: &'static [&'static str],
    /// The members of the body it knows; empty: it takes none.
    pub body: &'static [&'static str],
    /// What it does.
    pub action: Action,
}

const fn order(
    method: &'static str,
    path: &'static str,
    body: &'static [&'static str],
    action: Action,
) -> Route {
    Route {
        method,
        path,
        query: &[],
        body,
        action,
    }
}

const fn route(
    method: &'static str,
    path: &'static str,
    query: &'static [&'static str],
    action: Action,
) -> Route {
    Route {
        method,
        path,
        query,
        body: &[],
        action,
    }
}

const PAGE: &[&str] = &["limit", "cursor"];
const DLQ: &[&str] = &["limit", "cursor", "tenant", "source", "sink"];
const REPLAY: &[&str] = &["kind", "tenant", "source", "sink", "per_second"];
const SINK: &str = "/v1/tenants/{tenant}/sources/{source}/sinks/{sink}";

/// Every route.
pub const ROUTES: &[Route] = &[
    route("GET", "/health", &[], Action::Health),
    route("GET", "/ready", &[], Action::Ready),
    route("GET", "/metrics", &[], Action::Metrics),
    route("GET", "/v1/config", &[], Action::Config),
    route("GET", "/v1/wal", &[], Action::Wal),
    route("GET", "/v1/dlq", DLQ, Action::DeadLetters),
    route("GET", "/v1/hooks/{id}", &["body"], Action::Hook),
    route("GET", "/v1/replays", PAGE, Action::ReplayList),
    order("POST", "/v1/replays", REPLAY, Action::ReplayStart),
    route("GET", "/v1/replays/{id}", &[], Action::ReplayShow),
    order(
        "PATCH",
        "/v1/replays/{id}",
        &["state"],
        Action::ReplayChange,
    ),
    route(
        "GET",
        "/v1/tenants/{tenant}/sources",
        &[],
        Action::SourceList,
    ),
    route(
        "GET",
        "/v1/tenants/{tenant}/sources/{source}",
        &[],
        Action::SourceShow,
    ),
    route("GET", SINK, &[], Action::SinkShow),
    order("PATCH", SINK, &["paused"], Action::SinkChange),
    route("GET", "/v1/audit", PAGE, Action::Audit),
    route("GET", "/v1/backups", &[], Action::BackupShow),
    order("POST", "/v1/backups", &["note"], Action::BackupStart),
    route("GET", "/openapi.json", &[], Action::OpenApi),
];

/// Finds the route of a request, and the names in its path. `HEAD` is a `GET`.
pub fn find<'a>(method: &str, path: &'a str) -> Result<(&'static Route, Vec<&'a str>), Refused> {
    let wanted = if method == "HEAD" { "GET" } else { method };
    let mut allowed = Vec::new();
    for route in ROUTES {
        let Some(names) = matches(route.path, path) else {
            continue;
        };
        if route.method == wanted {
            return Ok((route, names));
        }
        allowed.push(route.method);
        if route.method == "GET" {
            allowed.push("HEAD");
        }
    }
    if allowed.is_empty() {
        return Err(Refused::not_found());
    }
    let refused = Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
    Err(refused.header("allow", allowed.join(", ")))
}

fn matches<'a>(pattern: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut names = Vec::new();
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(names),
            (Some(part), Some(name)) if part.starts_with('{') && is_name(name) => names.push(name),
            (Some(part), Some(same)) if part == same => {}
            _ => return None,
        }
    }
}
