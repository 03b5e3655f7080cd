//! `GET /v1/hooks/{id}`: one live hook, wherever it is: what came, and how each delivery stands.
//!
//! A hook whose deliveries have all ended is not kept, so it is not found here. Its body and its
//! headers, which are the sender's, are shown only when they are asked for. Runs on the admin
//! core, the looking on each shard's.

use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::format::Envelope;
use ankusa_wal::state::RowState;
use ankusa_wal::{Disk, HookId, Host, Verification};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::input::Query;
use super::reply::{self, Refused, Reply};
use crate::dispatch::DeadReason;
use crate::dual::Halves;
use crate::node::ask;
use crate::node::core::Core;
use crate::shard::Shard;
use ankusa_net::types::StatusCode;

/// Reading a large hook from a busy disk may take a while.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes encoded without a yield; whole groups of three.
const SLICE_BYTES: usize = 96 * 1024;

/// What a shard knows of a hook: its view, and its body in base64 where asked for.
type Found = (Value, Option<String>);

/// Answers.
pub async fn show(core: &Rc<Core>, id: &str, query: &Query<'_>) -> Result<Reply, Refused> {
    let with_body = query.flag("body")?;
    let id = HookId::parse(id).ok_or_else(Refused::not_found)?;
    let question = move |core: Rc<Core>| -> ankusa_wal::host::LocalFuture<Option<Found>> {
        Box::pin(async move {
            let shards = core.shards.borrow().clone();
            for shard in shards {
                if let Some(found) = find(&*core.host, &shard, id, with_body).await {
                    return Some(found);
                }
            }
            None
        })
    };
    let mut silent = None;
    for answer in ask::every_core(core, PATIENCE, question).await {
        match answer {
            Ok(Some((view, body))) => return Ok(whole(&view, body)),
            Ok(None) => {}
            Err(error) => silent = Some(error),
        }
    }
    Err(match silent {
        None => Refused::not_found(),
        Some(e) => Refused::unavailable("core_unavailable").with("reason", e.to_string()),
    })
}

/// The body is put in as text: it may be large, and needs no escapes.
fn whole(view: &Value, body: Option<String>) -> Reply {
    let mut text = view.to_string();
    if let Some(body) = body {
        text.pop();
        text.reserve(body.len() + 20);
        text.push_str(",\"body_base64\":\"");
        text.push_str(&body);
        text.push_str("\"}");
    }
    reply::text(StatusCode::OK, "application/json", text)
}

async fn find<D: Disk>(
    host: &dyn Host,
    shard: &Shard<D>,
    id: HookId,
    with_body: bool,
) -> Option<Found> {
    let Some(mut view) = rows(shard, id) else {
        return only_in_the_log(shard, id).map(|view| (view, None));
    };
    let seq = ankusa_wal::Seq(view["seq"].as_u64()?);
    let stored = match shard.store.read(seq).await {
        Ok(stored) => stored,
        Err(error) => {
            view["read_error"] = json!(error.to_string());
            return Some((view, None));
        }
    };
    let envelope = match Envelope::parse(&stored) {
        Ok(envelope) => envelope,
        Err(error) => {
            view["read_error"] = json!(error.to_string());
            return Some((view, None));
        }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let facts = json!({
        "received_at": envelope.received_at_ms,
        "tenant": text(envelope.tenant),
        "source": text(envelope.source),
        "method": text(envelope.method),
        "target": text(envelope.target),
        "content_type": text(envelope.content_type),
        "size": envelope.body.len(),
        "dedupe_key": envelope.dedupe_key.map(text),
        "verification": match envelope.verification {
            Verification::None => "none",
            Verification::Verified => "verified",
            Verification::Flagged => "flagged",
        },
        "client": envelope.client.to_string(),
    });
    if let (Some(view), Value::Object(facts)) = (view.as_object_mut(), facts) {
        view.extend(facts);
    }
    if !with_body {
        return Some((view, None));
    }
    let headers = envelope.headers();
    view["headers"] = headers.map(|(n, v)| json!([text(n), text(v)])).collect();
    let mut body = String::with_capacity(envelope.body.len().div_ceil(3) * 4);
    for piece in envelope.body.chunks(SLICE_BYTES) {
        STANDARD.encode_string(piece, &mut body);
        host.yield_now().await;
    }
    Some((view, Some(body)))
}

/// The hook's place and its deliveries.
fn rows<D: Disk>(shard: &Shard<D>, id: HookId) -> Option<Value> {
    let state = shard.store.state();
    let slot = state.slot_of_id(id)?;
    let hook = state.hook(slot)?;
    let deliveries: Vec<Value> = state
        .rows(slot)
        .map(|row_id| {
            let row = state.row(row_id);
            let name = state.names().get(row.sink);
            let mut view = json!({
                "sink": name.map(|n| String::from_utf8_lossy(&n.name).into_owned()),
                "attempts": row.attempts,
            });
            match row.state {
                RowState::Due { due_ms } => {
                    view["state"] = json!("due");
                    view["due_at"] = json!(due_ms);
                }
                RowState::Dead { at_s, reason } => {
                    view["state"] = json!("dead");
                    view["died_at"] = json!(super::dlq::died_ms(at_s, &id.0));
                    view["reason"] = json!(DeadReason::from_code(reason).map(DeadReason::word));
                }
                RowState::Finished => view["state"] = json!("finished"),
            }
            view
        })
        .collect();
    let mut view = json!({
        "id": id.to_string(),
        "shard": shard.id.0,
        "seq": hook.seq.0,
        "segment": hook.location.segment.0,
        "is_durable": hook.is_durable,
        "deliveries": deliveries,
    });
    if let Some(log) = shard.log() {
        let carried = log.halves(id);
        let word = match (&carried, state.meta().is_confirmed(hook.seq)) {
            (Some(carried), _) if carried.state != HALF_LOG => "missing",
            (Some(_), _) | (None, true) => "confirmed",
            (None, false) => "pending",
        };
        let local = if hook.is_durable {
            "durable"
        } else {
            "pending"
        };
        view["halves"] = halves(local, word, carried);
    }
    Some(view)
}

/// The state of a carried record of which the log has its half and the store does not.
const HALF_LOG: &str = "half_log";

fn halves(local: &str, log: &str, carried: Option<Halves>) -> Value {
    let mut view = json!({ "local": local, "log": log });
    if let Some(carried) = carried {
        view["carried"] = json!(carried.state);
        view["stuck"] = json!(carried.stuck);
        view["age_ms"] = json!(carried.age_ms);
    }
    view
}

/// A hook that is carried and has no local half.
fn only_in_the_log<D: Disk>(shard: &Shard<D>, id: HookId) -> Option<Value> {
    let carried = shard.log()?.halves(id)?;
    let log = match carried.state {
        HALF_LOG => "confirmed",
        _ => "missing",
    };
    Some(json!({
        "id": id.to_string(),
        "shard": shard.id.0,
        "seq": carried.seq.0,
        "is_durable": false,
        "deliveries": [],
        "halves": halves("missing", log, Some(carried)),
    }))
}
