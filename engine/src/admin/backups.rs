//! Backups as the node knows them: how the last one ended, and one more when it is asked for.
//!
//! What lies in the folder is not looked at from here: that is blocking, and `ankusa backup list`
//! does it without the node. Runs on the core that serves the admin port.

use std::rc::Rc;

use ankusa_net::types::StatusCode;
use ankusa_wal::Host;
use serde_json::{Map, Value, json};

use super::audit::{Order, Trail, Who};
use super::input::invalid;
use super::reply::{self, Refused, Reply};
use crate::node::core::Core;

/// Longest note.
const NOTE_BYTES_MAX: usize = 200;

/// `GET /v1/backups`.
pub fn show(core: &Rc<Core>) -> Reply {
    let (backups, now_ms) = (&core.backups, core.host.wall_ms());
    let (begun, ended, last) = backups.runs();
    let newest = backups.newest().map(|(number, began_at_ms)| {
        json!({
            "backup": number,
            "began_at": began_at_ms,
            "age_ms": now_ms.saturating_sub(began_at_ms),
        })
    });
    let error = last
        .error
        .as_ref()
        .map(|(word, text)| json!({ "error": word, "text": text }));
    let last = (ended > 0).then(|| {
        json!({
            "run": last.run,
            "began_at": last.began_at_ms,
            "ended_at": last.ended_at_ms,
            "backup": last.number,
            "bytes_sent": last.bytes,
            "bytes": last.bytes_whole,
            "failed": error,
        })
    });
    reply::ok(&json!({
        "enabled": backups.is_on(),
        "place": backups.is_on().then(|| backups.place()),
        "backup": backups.word(now_ms),
        "running": begun > ended,
        "runs_begun": begun,
        "runs_ended": ended,
        "newest": newest,
        "last": last,
    }))
}

/// `POST /v1/backups`.
pub async fn start(
    core: &Rc<Core>,
    trail: &Trail,
    who: &Who,
    body: &Map<String, Value>,
) -> Result<Reply, Refused> {
    if !core.backups.is_on() {
        return Err(Refused::new(StatusCode::CONFLICT, "backup_disabled"));
    }
    let note = match body.get("note") {
        None => None,
        Some(Value::String(note)) if note.len() <= NOTE_BYTES_MAX => Some(note),
        Some(_) => return Err(invalid("note")),
    };
    let order = Order {
        action: "backup.start",
        tenant: None,
        resource: "backups".into(),
        before: None,
        after: json!({ "note": note }),
    };
    trail.record(core, who, &order).await?;
    match core.backups.now() {
        Some(run) => Ok(reply::json_with(
            StatusCode::ACCEPTED,
            &json!({ "run": run }),
        )),
        None => Err(Refused::unavailable("busy")),
    }
}
