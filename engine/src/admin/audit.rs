//! The audit trail: one durable row for every order given over the admin port.
//!
//! Rows are kept in the home shard of the core that serves the port (the shard of core 0), at
//! most 16,384 of them, the oldest go first. A row is durable before its order is carried out or
//! reported. Runs on that core.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use ankusa_net::types::HeaderMap;
use ankusa_wal::{Disk, Host, Record, State, TrailRow};
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::input::{Query, invalid};
use super::reply::{self, Refused, Reply};
use crate::config::is_name;
use crate::node::ask;
use crate::node::core::Core;
use crate::shard::Shard;

/// Who gives an order.
pub struct Who {
    /// Where from.
    pub ip: Option<IpAddr>,
    /// How it proved that it may.
    pub actor: &'static str,
    /// The request, as its sender or we named it.
    pub request_id: String,
}

impl Who {
    /// Who sent a request.
    pub fn of(ip: Option<IpAddr>, headers: &HeaderMap, has_token: bool, random: u64) -> Who {
        let given = headers.get("x-request-id").and_then(|v| v.to_str().ok());
        Who {
            ip,
            actor: if has_token { "token" } else { "loopback" },
            request_id: match given {
                Some(id) if is_name(id) => id.to_string(),
                _ => format!("{random:016x}"),
            },
        }
    }
}

/// An order, and what it changes.
pub struct Order {
    /// Its word.
    pub action: &'static str,
    /// The tenant it is about.
    pub tenant: Option<String>,
    /// What it is about.
    pub resource: String,
    /// What was, where something was.
    pub before: Option<Value>,
    /// What is from now on.
    pub after: Value,
}

/// Gives the rows their numbers.
#[derive(Default)]
pub struct Trail {
    last_no: Cell<u64>,
}

impl Trail {
    /// The row of an order, with the next number.
    pub fn row(&self, state: &State, who: &Who, order: &Order, at_ms: u64) -> TrailRow {
        // NOTE: rows that are queued and not applied yet are not in the state.
        let no = self.last_no.get().max(state.meta().audit_last()) + 1;
        self.last_no.set(no);
        let body = json!({
            "actor": who.actor,
            "remote_ip": who.ip,
            "action": order.action,
            "tenant": order.tenant,
            "resource": order.resource,
            "before_hash": order.before.as_ref().map(hash),
            "after_hash": hash(&order.after),
            "request_id": who.request_id,
            "result": "ok",
            "detail": order.after,
        });
        TrailRow {
            no,
            at_ms,
            body: body.to_string().into_bytes().into(),
        }
    }

    /// Writes the row of an order and completes when it is durable.
    pub async fn record(&self, core: &Rc<Core>, who: &Who, order: &Order) -> Result<(), Refused> {
        let home = home(core)?;
        let row = self.row(&home.store.state(), who, order, core.host.wall_ms());
        let no = row.no;
        let records = vec![Record::Audit(row)];
        let is_there = move |state: &State| state.meta().audit_last() >= no;
        let host = &*core.host;
        match home.write(host, records, is_there, ask::PATIENCE).await {
            true => Ok(()),
            false => Err(Refused::unavailable("store_unavailable")),
        }
    }
}

/// The shard that keeps the trail.
pub fn home(core: &Core) -> Result<Rc<Shard<ankusa_wal::disk::glommio::GlommioDisk>>, Refused> {
    core.home()
        .map_err(|_| Refused::unavailable("store_unavailable"))
}

fn hash(value: &Value) -> String {
    let text = value.to_string();
    let digest = digest(&SHA256, text.as_bytes());
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// `GET /v1/audit`: newest first.
pub async fn list(core: &Rc<Core>, query: &Query<'_>) -> Result<Reply, Refused> {
    let limit = query.limit()?;
    let before = match query.get("cursor") {
        None => u64::MAX,
        Some(text) => text.parse().map_err(|_| invalid("cursor"))?,
    };
    let home = home(core)?;
    // What is shown is durable.
    if !home.settled(&*core.host, ask::PATIENCE).await {
        return Err(Refused::unavailable("store_unavailable"));
    }
    let rows = rows(&home, before, limit);
    let next = match rows.last() {
        Some(row) if rows.len() == limit => row["seq"].as_u64().map(|no| no.to_string()),
        _ => None,
    };
    Ok(reply::ok(&json!({ "items": rows, "next": next })))
}

fn rows<D: Disk>(home: &Shard<D>, before: u64, limit: usize) -> Vec<Value> {
    let state = home.store.state();
    let rows = state.meta().audit_before(before).take(limit);
    rows.map(|row| {
        let mut body: Value = serde_json::from_slice(&row.body).unwrap_or_else(|_| json!({}));
        body["seq"] = json!(row.no);
        body["at"] = json!(row.at_ms);
        body
    })
    .collect()
}
