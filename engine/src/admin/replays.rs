//! `/v1/replays…`: jobs that deliver dead letters again ([`crate::replay`]).
//!
//! An order goes to every core and is durable in each shard before it is reported; the audit row
//! is written with the part of the admin core's home shard. Runs on the admin core.

use std::collections::BTreeMap;
use std::rc::Rc;

use ankusa_net::types::{HeaderValue, StatusCode};
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{Disk, Host, State};
use serde_json::{Map, Value, json};

use super::audit::{Order, Trail, Who};
use super::input::{Query, invalid, name_of};
use super::reply::{self, Refused, Reply};
use crate::node::ask;
use crate::node::core::Core;
use crate::replay::{
    self, Filter, Part, Pause, ReplayId, ReplayState, Wanted, part_of, slot_for_new,
};
use crate::shard::Shard;

/// Rows a second where the order does not say.
const PER_SECOND_DEFAULT: u16 = 200;
const PER_SECOND_MAX: u64 = 10_000;

/// A part, and what its shard knows of what was asked for.
type Told = (Part, Option<Wanted>);

/// One job as its parts tell it.
#[derive(Clone, Debug)]
struct Job {
    wanted: Option<Wanted>,
    parts: Vec<Part>,
}

/// `GET /v1/replays`: newest first.
pub async fn list(core: &Rc<Core>, query: &Query<'_>) -> Result<Reply, Refused> {
    let limit = query.limit()?;
    let before = match query.get("cursor") {
        None => u64::MAX,
        Some(text) => ReplayId::parse(text).ok_or_else(|| invalid("cursor"))?.0,
    };
    let jobs = jobs(core).await?;
    let mut below = jobs.range(..before).rev();
    let items: Vec<Value> = below
        .by_ref()
        .take(limit)
        .map(|(_, job)| job.view())
        .collect();
    let next = match below.next() {
        Some(_) => items.last().map(|last| last["id"].clone()),
        None => None,
    };
    Ok(reply::ok(&json!({ "items": items, "next": next })))
}

/// `GET /v1/replays/{id}`.
pub async fn show(core: &Rc<Core>, id: &str) -> Result<Reply, Refused> {
    let id = ReplayId::parse(id).ok_or_else(Refused::not_found)?;
    let jobs = jobs(core).await?;
    let job = jobs.get(&id.0).ok_or_else(Refused::not_found)?;
    Ok(reply::ok(&job.view()))
}

/// `POST /v1/replays`.
pub async fn start(
    core: &Rc<Core>,
    trail: &Trail,
    who: &Who,
    body: &Map<String, Value>,
) -> Result<Reply, Refused> {
    match body.get("kind").and_then(Value::as_str) {
        Some("dlq") => {}
        Some("quarantine" | "archive") => return Err(Refused::bad("unsupported_kind")),
        _ => return Err(invalid("kind")),
    }
    let wanted = Wanted {
        tenant: name_of(body, "tenant")?,
        source: name_of(body, "source")?,
        sink: name_of(body, "sink")?,
    };
    let per_second = match body.get("per_second") {
        None => PER_SECOND_DEFAULT,
        Some(value) => match value.as_u64() {
            Some(n @ 1..=PER_SECOND_MAX) => n as u16,
            _ => return Err(invalid("per_second")),
        },
    };
    let now_ms = core.host.wall_ms();
    let part = Part {
        id: ReplayId::mint(now_ms, core.host.random()),
        state: ReplayState::Running,
        filter: Filter::Nothing,
        per_second,
        started_at_ms: now_ms,
        moved: 0,
        skipped: 0,
        updated_at_ms: now_ms,
    };
    check_known(core, &wanted).await?;
    let order = Order {
        action: "replay.start",
        tenant: wanted.tenant.clone(),
        resource: format!("replays/{}", part.id),
        before: None,
        after: json!({
            "kind": "dlq", "tenant": wanted.tenant, "source": wanted.source,
            "sink": wanted.sink, "per_second": per_second,
        }),
    };
    trail.record(core, who, &order).await?;
    let question = move |core: Rc<Core>| -> LocalFuture<Result<(), &'static str>> {
        let wanted = wanted.clone();
        Box::pin(async move {
            let shards = core.shards.borrow().clone();
            for shard in shards {
                begin(&*core.host, &shard, part, &wanted).await?;
            }
            Ok(())
        })
    };
    if let Err(refused) = everywhere(core, question).await {
        // What was begun somewhere must not run without the rest.
        let _ = order_parts(core, part.id, ReplayState::Cancelled).await;
        return Err(refused.with("id", part.id.to_string()));
    }
    let jobs = jobs(core).await?;
    let job = jobs.get(&part.id.0).ok_or_else(Refused::not_found)?;
    let mut reply = reply::json_with(StatusCode::CREATED, &job.view());
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/replays/{}", part.id)) {
        reply.headers_mut().insert("location", place);
    }
    Ok(reply)
}

/// `PATCH /v1/replays/{id}` with `{"state": "running" | "paused" | "cancelled"}`.
pub async fn change(
    core: &Rc<Core>,
    trail: &Trail,
    who: &Who,
    id: &str,
    body: &Map<String, Value>,
) -> Result<Reply, Refused> {
    let id = ReplayId::parse(id).ok_or_else(Refused::not_found)?;
    let (to, action) = match body.get("state").and_then(Value::as_str) {
        Some("running") => (ReplayState::Running, "replay.resume"),
        Some("paused") => (ReplayState::Paused(Pause::Operator), "replay.pause"),
        Some("cancelled") => (ReplayState::Cancelled, "replay.cancel"),
        _ => return Err(invalid("state")),
    };
    let jobs_now = jobs(core).await?;
    let job = jobs_now.get(&id.0).ok_or_else(Refused::not_found)?;
    if job.state().is_ended() {
        return Err(Refused::new(StatusCode::CONFLICT, "replay_ended"));
    }
    let order = Order {
        action,
        tenant: job.wanted.as_ref().and_then(|w| w.tenant.clone()),
        resource: format!("replays/{id}"),
        before: Some(json!({ "state": job.state().word() })),
        after: json!({ "state": to.word() }),
    };
    trail.record(core, who, &order).await?;
    order_parts(core, id, to).await?;
    show(core, &id.to_string()).await
}

async fn order_parts(core: &Rc<Core>, id: ReplayId, to: ReplayState) -> Result<(), Refused> {
    let question = move |core: Rc<Core>| -> LocalFuture<Result<(), &'static str>> {
        Box::pin(async move {
            let shards = core.shards.borrow().clone();
            for shard in shards {
                turn(&*core.host, &shard, id, to).await?;
            }
            Ok(())
        })
    };
    everywhere(core, question).await
}

/// Asks every core to do something, and refuses unless all did.
async fn everywhere<Q>(core: &Rc<Core>, question: Q) -> Result<(), Refused>
where
    Q: Fn(Rc<Core>) -> LocalFuture<Result<(), &'static str>> + Clone + Send + 'static,
{
    for answer in ask::every_core(core, 2 * ask::PATIENCE, question).await {
        match answer {
            Ok(Ok(())) => {}
            Ok(Err("too_many_replays")) => {
                return Err(Refused::new(StatusCode::CONFLICT, "too_many_replays"));
            }
            Ok(Err(word)) => return Err(Refused::unavailable(word)),
            Err(e) => {
                return Err(Refused::unavailable("core_unavailable").with("reason", e.to_string()));
            }
        }
    }
    Ok(())
}

/// Refuses a filter that names what no shard has ever heard of.
async fn check_known(core: &Rc<Core>, wanted: &Wanted) -> Result<(), Refused> {
    let asked = wanted.clone();
    let question = move |core: Rc<Core>| -> LocalFuture<bool> {
        let asked = asked.clone();
        Box::pin(async move {
            let shards = core.shards.borrow();
            shards
                .iter()
                .any(|shard| Filter::of(&asked, shard.store.state().names()) != Filter::Nothing)
        })
    };
    let answers = ask::every_core(core, ask::PATIENCE, question).await;
    if answers.iter().any(|answer| matches!(answer, Ok(true))) {
        Ok(())
    } else {
        Err(Refused {
            word: "unknown_sink",
            ..Refused::not_found()
        })
    }
}

async fn begin<D: Disk>(
    host: &dyn Host,
    shard: &Shard<D>,
    part: Part,
    wanted: &Wanted,
) -> Result<(), &'static str> {
    let (slot, part) = {
        let state = shard.store.state();
        let counter = |no| state.meta().counter(no);
        let slot = slot_for_new(counter).ok_or("too_many_replays")?;
        let filter = Filter::of(wanted, state.names());
        (slot, Part { filter, ..part })
    };
    let id = part.id;
    let is_there = move |state: &State| part_of(id, |no| state.meta().counter(no)).is_some();
    let records = vec![part.record(slot)];
    match shard.write(host, records, is_there, ask::PATIENCE).await {
        true => Ok(()),
        false => Err("store_unavailable"),
    }
}

async fn turn<D: Disk>(
    host: &dyn Host,
    shard: &Shard<D>,
    id: ReplayId,
    to: ReplayState,
) -> Result<(), &'static str> {
    let found = {
        let state = shard.store.state();
        part_of(id, |no| state.meta().counter(no))
    };
    let Some((slot, part)) = found.filter(|(_, part)| !part.state.is_ended()) else {
        return Ok(());
    };
    let record = Part { state: to, ..part }.state_record(slot, host.wall_ms());
    let is_there = move |state: &State| {
        let now = part_of(id, |no| state.meta().counter(no));
        now.is_none_or(|(_, part)| part.state == to || part.state.is_ended())
    };
    match shard
        .write(host, vec![record], is_there, ask::PATIENCE)
        .await
    {
        true => Ok(()),
        false => Err("store_unavailable"),
    }
}

/// Every job, by its id; what is told is durable.
async fn jobs(core: &Rc<Core>) -> Result<BTreeMap<u64, Job>, Refused> {
    let question = |core: Rc<Core>| -> LocalFuture<Option<Vec<Told>>> {
        Box::pin(async move {
            let shards = core.shards.borrow().clone();
            let mut found = Vec::new();
            for shard in shards {
                found.extend(parts(&shard));
                if !shard.settled(&*core.host, ask::PATIENCE).await {
                    return None;
                }
            }
            Some(found)
        })
    };
    let mut jobs: BTreeMap<u64, Job> = BTreeMap::new();
    for answer in ask::every_core(core, ask::PATIENCE, question).await {
        let parts = answer
            .map_err(|e| Refused::unavailable("core_unavailable").with("reason", e.to_string()))?;
        let parts = parts.ok_or_else(|| Refused::unavailable("store_unavailable"))?;
        for (part, wanted) in parts {
            let job = jobs.entry(part.id.0).or_insert_with(|| Job {
                wanted: None,
                parts: Vec::new(),
            });
            job.wanted = job.wanted.take().or(wanted);
            job.parts.push(part);
        }
    }
    Ok(jobs)
}

fn parts<D: Disk>(shard: &Shard<D>) -> Vec<Told> {
    let state = shard.store.state();
    (0..replay::PARTS_MAX)
        .filter_map(|slot| Part::read(slot, |no| state.meta().counter(no)))
        .map(|part| (part, part.filter.wanted(state.names())))
        .collect()
}

impl Job {
    /// Running while a part runs, else paused while one is, else as they ended.
    fn state(&self) -> ReplayState {
        let rank = |state: ReplayState| match state {
            ReplayState::Running => 0,
            ReplayState::Paused(Pause::KeepsDying) => 1,
            ReplayState::Paused(Pause::Operator) => 2,
            ReplayState::Cancelled => 3,
            ReplayState::Done => 4,
        };
        let states = self.parts.iter().map(|part| part.state);
        states.min_by_key(|s| rank(*s)).unwrap_or(ReplayState::Done)
    }

    fn view(&self) -> Value {
        let state = self.state();
        let sum = |count: fn(&Part) -> u64| self.parts.iter().map(count).sum::<u64>();
        let in_state = |word| self.parts.iter().filter(|p| p.state.word() == word).count();
        let first = self.parts.first();
        let wanted = self.wanted.clone().unwrap_or_default();
        json!({
            "id": first.map(|p| p.id.to_string()),
            "kind": "dlq",
            "state": state.word(),
            "reason": match state {
                ReplayState::Paused(why) => Some(why.word()),
                _ => None,
            },
            "tenant": wanted.tenant,
            "source": wanted.source,
            "sink": wanted.sink,
            "per_second": first.map(|p| p.per_second),
            "started_at": first.map(|p| p.started_at_ms),
            "updated_at": self.parts.iter().map(|p| p.updated_at_ms).max(),
            "moved": sum(|p| p.moved),
            "skipped": sum(|p| p.skipped),
            "shards": {
                "running": in_state("running"), "paused": in_state("paused"),
                "done": in_state("done"), "cancelled": in_state("cancelled"),
            },
        })
    }
}
