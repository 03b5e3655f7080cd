//! What the node says about itself: alive, ready, metrics, configuration, stores.
//!
//! Runs on the core that serves the admin port; what other cores own is asked of them.

use std::rc::Rc;
use std::sync::Arc;

use ankusa_net::types::{HeaderValue, StatusCode};
use ankusa_wal::{Disk, Host};
use serde_json::{Value, json};

use super::reply::{self, Reply};
use crate::metrics::{CONTENT_TYPE, Renderer};
use crate::node::ask::{self, NoAnswer};
use crate::node::core::Core;
use crate::node::log::Intake;
use crate::node::ready;
use crate::shard::Shard;

/// `GET /health`: the process runs; nothing is asked of anybody.
pub fn health(core: &Rc<Core>) -> Reply {
    reply::ok(&json!({
        "status": "ok",
        "instance": core.config.borrow().node.name,
        "version": env!("CARGO_PKG_VERSION"),
        "roles": ["ingest", "dispatch", "admin"],
    }))
}

/// From best to worst.
const STORE_WORDS: &[&str] = &["up", "recovering", "full", "stalled", "down"];

/// `GET /ready`: every core is asked, the worst answer wins. Why not, where that is known: here
/// and not on the ingest port, which anybody may reach.
pub async fn ready(core: &Rc<Core>) -> Reply {
    let patience = ask::PATIENCE;
    let answers = ask::every_core(core, patience, |core| ready::ask(&core)).await;
    let mut is_ready = !core.is_stopping();
    let mut worst = 0;
    let mut cores = Vec::new();
    for (index, answer) in answers.into_iter().enumerate() {
        let word = match answer {
            Ok(answer) => {
                is_ready &= answer.ready;
                let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
                let word = body["store"].as_str().unwrap_or("down").to_string();
                cores.push(json!({ "core": index, "store": word }));
                word
            }
            Err(error) => {
                is_ready = false;
                cores.push(json!({ "core": index, "error": error.to_string() }));
                "down".to_string()
            }
        };
        let place = STORE_WORDS.iter().position(|known| *known == word);
        worst = worst.max(place.unwrap_or(STORE_WORDS.len() - 1));
    }
    let mut body = json!({ "store": STORE_WORDS[worst] });
    if let Some(intake) = &core.intake {
        body["intake"] = json!(intake.word());
        if let Some(reason) = intake.reason() {
            body["intake_reason"] = json!(reason);
        }
    }
    let now_ms = core.host.wall_ms();
    is_ready &= core.backups.lets_serve(now_ms);
    if core.backups.is_on() {
        body["backup"] = json!(core.backups.word(now_ms));
    }
    body["cores"] = json!(cores);
    if is_ready {
        return reply::ok(&body);
    }
    let mut reply = reply::json_with(StatusCode::SERVICE_UNAVAILABLE, &body);
    let headers = reply.headers_mut();
    headers.insert("retry-after", HeaderValue::from_static("1"));
    reply
}

/// `GET /metrics`: slice by slice, so that others run in between.
pub async fn metrics(core: &Rc<Core>) -> Reply {
    let mut out = String::with_capacity(64 * 1024);
    let mut renderer = Renderer::new(Arc::clone(core.observer.metrics.registry()));
    while renderer.next_slice(&mut out) {
        core.host.yield_now().await;
    }
    reply::text(StatusCode::OK, CONTENT_TYPE, out)
}

/// `GET /v1/config`: every key in effect; hidden values are hidden since the file was read.
pub fn config(core: &Rc<Core>) -> Reply {
    reply::ok(&core.config.borrow().to_json())
}

/// `GET /v1/wal`.
pub async fn wal(core: &Rc<Core>) -> Reply {
    let answers = ask::every_core(core, ask::PATIENCE, |core| {
        Box::pin(async move {
            let shards = core.shards.borrow();
            shards
                .iter()
                .map(|shard| shard_view(core.index, shard))
                .collect::<Vec<Value>>()
        })
    })
    .await;
    let mut shards = Vec::new();
    let mut silent = Vec::new();
    for answer in answers {
        match answer {
            Ok(more) => shards.extend(more),
            Err(NoAnswer(index)) => silent.push(json!({
                "core": index, "error": NoAnswer(index).to_string(),
            })),
        }
    }
    shards.sort_by_key(|shard| shard["shard"].as_u64());
    let sum = |key: &str| -> u64 { shards.iter().filter_map(|s| s[key].as_u64()).sum() };
    let next_seq = shards.iter().filter_map(|s| s["next_seq"].as_u64()).max();
    let mut view = json!({
        "instance": core.config.borrow().node.name,
        "wal": {
            "next_seq": next_seq,
            "hooks": sum("hooks"),
            "deliveries": sum("deliveries"),
            "disk_bytes": sum("disk_bytes"),
        },
    });
    if let Some(intake) = &core.intake {
        view["intake"] = intake_view(intake, &shards);
    }
    view["shards"] = json!(shards);
    view["unanswered"] = json!(silent);
    reply::ok(&view)
}

/// The node's place in its log. `offset`: the least over the shards, null while one has none.
fn intake_view(intake: &Intake, shards: &[Value]) -> Value {
    let sums = intake.log.pending();
    let offsets: Option<Vec<u64>> = shards.iter().map(|s| s["offset"].as_u64()).collect();
    json!({
        "node": intake.node,
        "topic": intake.topic,
        "partition": intake.status.partition(),
        "offset": offsets.and_then(|all| all.into_iter().min()),
        "earliest": intake.status.earliest(),
        "head": intake.log.head().map(|head| head.0),
        "pending": sums.records,
        "pending_bytes": sums.bytes,
        "carried": sums.carried,
        "stuck": sums.stuck,
        "oldest_ms": sums.oldest_ms,
        "state": intake.word(),
        "reason": intake.reason(),
        "breaker": intake.log.breaker().word(),
        "log": intake.adapter.log().ready().to_string(),
    })
}

fn shard_view<D: Disk>(core: usize, shard: &Shard<D>) -> Value {
    let stats = shard.store.stats();
    let state = shard.store.state();
    let counts = state.counts();
    let (waiting, waiting_bytes, inflight) = shard.commit.depth();
    let mut view = json!({
        "shard": shard.id.0,
        "core": core,
        "next_seq": state.next_seq().0,
        "applied_lsn": shard.store.applied_lsn().0,
        "durable_lsn": shard.store.durable_lsn().0,
        "hooks": counts.hooks,
        "deliveries": counts.rows_pending + counts.rows_scheduled + counts.rows_dead,
        "pending": counts.rows_pending,
        "scheduled": counts.rows_scheduled,
        "dead": counts.rows_dead,
        "live_bytes": state.live_bytes(),
        "disk_bytes": u64::from(stats.slots) * shard.segment_bytes,
        "free_bytes": stats.free_bytes,
        "segments_live": state.segments_live().count(),
        "slots": stats.slots,
        "slots_spare": stats.slots_spare,
        "segment_bytes": shard.segment_bytes,
        "is_fenced": shard.store.is_fenced(),
        "fences": stats.fences,
        "io_failures": stats.io_failures,
        "read_failures": stats.read_failures,
        "groups": stats.groups,
        "records": stats.records,
        "appended_bytes": stats.bytes,
        "groups_inflight": inflight,
        "stalled_ms": stats.stalled_ms,
        "last_group_us": stats.last_group_us,
        "waiting": waiting,
        "waiting_bytes": waiting_bytes,
        "records_queued": shard.store.queued(),
        "cache": { "bytes": stats.cache_bytes, "hits": stats.cache_hits, "misses": stats.cache_misses },
        "memory_bytes": state.memory_bytes(),
    });
    if let Some(log) = shard.log() {
        let (meta, facts) = (state.meta(), log.facts());
        view["watermark"] = json!(meta.watermark.seq.0);
        view["watermark_exceptions"] = json!(meta.watermark.exceptions.len());
        view["offset"] = json!(meta.offset.offset.map(|at| at.0));
        view["hold"] = json!(meta.offset.hold.map(|at| at.0));
        view["carried"] = json!(facts.carried);
        view["stuck"] = json!(facts.stuck);
        view["unreadable"] = json!(facts.unreadable);
    }
    view
}
