//! `/v1/tenants/{t}/sources…`: the sources of the configuration and their sinks, with what waits
//! for each; pausing and resuming a sink.
//!
//! A pause given here is not kept: it lasts until the next reload or restart, after which
//! `paused` of the file holds again. Runs on the admin core; every core is asked.

use std::rc::Rc;

use ankusa_wal::host::LocalFuture;
use serde_json::{Map, Value, json};

use super::audit::{Order, Trail, Who};
use super::input::invalid;
use super::reply::{self, Refused, Reply};
use crate::config::{SinkKind, SourceConfig};
use crate::dispatch::{BreakerState, LaneState};
use crate::node::ask;
use crate::node::core::Core;

/// From best to worst.
const BREAKER_WORDS: [&str; 3] = ["closed", "half_open", "open"];

/// What one core knows of a sink.
#[derive(Clone, Copy, Default)]
struct SinkLoad {
    waiting: u64,
    in_flight: u64,
    is_paused: bool,
    /// Its place in [`BREAKER_WORDS`].
    breaker: u8,
}

/// `GET /v1/tenants/{t}/sources`.
pub fn list(core: &Rc<Core>, tenant: &str) -> Reply {
    let config = core.config.borrow();
    let of_tenant = config.sources.iter().filter(|s| s.tenant == tenant);
    let items: Vec<Value> = of_tenant
        .map(|source| {
            let sinks: Vec<&str> = source.sinks.iter().map(|s| s.name.as_str()).collect();
            json!({ "source": source.name, "tenant": source.tenant, "sinks": sinks })
        })
        .collect();
    reply::ok(&json!({ "items": items, "next": null }))
}

/// `GET /v1/tenants/{t}/sources/{s}`: with its sinks.
pub async fn show(core: &Rc<Core>, tenant: &str, source: &str) -> Result<Reply, Refused> {
    let source = find(core, tenant, source)?;
    let mut sinks = Vec::new();
    for sink in &source.sinks {
        sinks.push(sink_view(core, &source, &sink.name).await?);
    }
    Ok(reply::ok(&json!({
        "source": source.name, "tenant": source.tenant, "sinks": sinks,
    })))
}

/// `GET …/sinks/{name}`.
pub async fn show_sink(core: &Rc<Core>, names: &[&str]) -> Result<Reply, Refused> {
    let (source, sink) = find_sink(core, names)?;
    Ok(reply::ok(&sink_view(core, &source, &sink).await?))
}

/// `PATCH …/sinks/{name}` with `{"paused": bool}`.
pub async fn change_sink(
    core: &Rc<Core>,
    trail: &Trail,
    who: &Who,
    names: &[&str],
    body: &Map<String, Value>,
) -> Result<Reply, Refused> {
    let (source, sink) = find_sink(core, names)?;
    let paused = body.get("paused").and_then(Value::as_bool);
    let paused = paused.ok_or_else(|| invalid("paused"))?;
    let before = sink_view(core, &source, &sink).await?;
    let order = Order {
        action: if paused { "sink.pause" } else { "sink.resume" },
        tenant: Some(source.tenant.clone()),
        resource: format!("sources/{}/sinks/{sink}", source.name),
        before: Some(json!({ "paused": before["paused"] })),
        after: json!({ "paused": paused }),
    };
    trail.record(core, who, &order).await?;
    let key = [source.tenant.clone(), source.name.clone(), sink.clone()];
    let question = move |core: Rc<Core>| -> LocalFuture<()> {
        let key = key.clone();
        Box::pin(async move {
            for shard in core.shards.borrow().iter() {
                if let Some(no) = number(shard, &key) {
                    shard.dispatch.sink_state(no);
                    shard.dispatch.set_paused(no, paused);
                }
            }
        })
    };
    for answer in ask::every_core(core, ask::PATIENCE, question).await {
        answer.map_err(unanswered)?;
    }
    Ok(reply::ok(&sink_view(core, &source, &sink).await?))
}

fn unanswered(error: ask::NoAnswer) -> Refused {
    Refused::unavailable("core_unavailable").with("reason", error.to_string())
}

fn find(core: &Rc<Core>, tenant: &str, source: &str) -> Result<SourceConfig, Refused> {
    let config = core.config.borrow();
    let mut sources = config.sources.iter();
    sources
        .find(|s| s.tenant == tenant && s.name == source)
        .cloned()
        .ok_or_else(|| Refused {
            word: "unknown_source",
            ..Refused::not_found()
        })
}

fn find_sink(core: &Rc<Core>, names: &[&str]) -> Result<(SourceConfig, String), Refused> {
    let [tenant, source, sink] = names else {
        return Err(Refused::not_found());
    };
    let source = find(core, tenant, source)?;
    if source.sinks.iter().any(|s| s.name == *sink) {
        Ok((source, (*sink).to_string()))
    } else {
        Err(Refused {
            word: "unknown_sink",
            ..Refused::not_found()
        })
    }
}

fn number<D: ankusa_wal::Disk>(
    shard: &crate::shard::Shard<D>,
    [tenant, source, sink]: &[String; 3],
) -> Option<ankusa_wal::SinkNo> {
    let state = shard.store.state();
    state
        .names()
        .find(tenant.as_bytes(), source.as_bytes(), sink.as_bytes())
}

async fn sink_view(core: &Rc<Core>, source: &SourceConfig, sink: &str) -> Result<Value, Refused> {
    let key = [source.tenant.clone(), source.name.clone(), sink.to_string()];
    let question = move |core: Rc<Core>| -> LocalFuture<SinkLoad> {
        let key = key.clone();
        Box::pin(async move { load(&core, &key) })
    };
    let mut all = SinkLoad::default();
    for answer in ask::every_core(core, ask::PATIENCE, question).await {
        let one = answer.map_err(unanswered)?;
        all.waiting += one.waiting;
        all.in_flight += one.in_flight;
        all.is_paused |= one.is_paused;
        all.breaker = all.breaker.max(one.breaker);
    }
    let kind = source
        .sinks
        .iter()
        .find(|s| s.name == sink)
        .map(|s| &s.kind);
    Ok(json!({
        "tenant": source.tenant,
        "source": source.name,
        "sink": sink,
        "type": match kind {
            Some(SinkKind::Http(_)) => "http",
            Some(SinkKind::File { .. }) => "file",
            Some(SinkKind::Log) | None => "log",
        },
        "paused": all.is_paused,
        "waiting": all.waiting,
        "in_flight": all.in_flight,
        "breaker": BREAKER_WORDS[usize::from(all.breaker)],
    }))
}

fn load(core: &Rc<Core>, key: &[String; 3]) -> SinkLoad {
    let mut all = SinkLoad::default();
    for shard in core.shards.borrow().iter() {
        let Some(no) = number(shard, key) else {
            continue;
        };
        let (waiting, in_flight) = shard.dispatch.sink_load(no);
        all.waiting += u64::from(waiting);
        all.in_flight += u64::from(in_flight);
        let state = shard.dispatch.sink_state(no);
        all.is_paused |= matches!(state, LaneState::Live(lane) if lane.paused);
        all.breaker = all.breaker.max(match shard.dispatch.breaker(no) {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen | BreakerState::Probing => 1,
            BreakerState::Open { .. } => 2,
        });
    }
    all
}
