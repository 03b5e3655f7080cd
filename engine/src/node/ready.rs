//! Readiness: whether this core would commit a hook now, proven by committing something.
//!
//! A probe record is written and synced when somebody asks, at most once a second. Runs on a
//! shard core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ankusa_wal::Host;
use ankusa_wal::host::LocalFuture;

use crate::ingest::Readiness;

use super::core::Core;

/// How long an answer is good for.
const CACHE_US: u64 = 1_000_000;
/// A failed write in the last five seconds makes the node unready.
const FAILURE_US: u64 = 5_000_000;

/// The last answer of a core.
#[derive(Default)]
pub struct ReadyCache {
    at_us: Cell<Option<u64>>,
    answer: RefCell<Option<Readiness>>,
}

/// Asks a core.
pub fn ask(core: &Rc<Core>) -> LocalFuture<Readiness> {
    let core = Rc::clone(core);
    Box::pin(async move {
        let now_us = core.host.mono_us();
        let fresh = core
            .ready
            .at_us
            .get()
            .is_some_and(|at| now_us.saturating_sub(at) < CACHE_US);
        if fresh && let Some(answer) = core.ready.answer.borrow().clone() {
            return answer;
        }
        let store = probe(&core).await;
        let answer = answer(&core, store);
        core.ready.at_us.set(Some(core.host.mono_us()));
        *core.ready.answer.borrow_mut() = Some(answer.clone());
        answer
    })
}

/// The words of the node's parts; the log's and the backups' only where there are any.
fn answer(core: &Core, store: &'static str) -> Readiness {
    let intake = core.intake.as_ref().map(|intake| intake.word());
    let (backups, now_ms) = (&core.backups, core.host.wall_ms());
    let backup = backups.is_on().then(|| backups.word(now_ms));
    let serves = core.is_serving() && !core.is_stopping();
    let mut body = format!("{{\"store\":\"{store}\"");
    for (name, word) in [("intake", intake), ("backup", backup)] {
        if let Some(word) = word {
            body.push_str(&format!(",\"{name}\":\"{word}\""));
        }
    }
    body.push('}');
    Readiness {
        ready: serves
            && store == "up"
            && intake.is_none_or(|word| word == "up")
            && backups.lets_serve(now_ms),
        body,
    }
}

/// The state of the core's home shard, in a word.
async fn probe(core: &Rc<Core>) -> &'static str {
    let Ok(home) = core.home() else {
        return "down";
    };
    match home.commit.admit() {
        Err(ankusa_wal::Refusal::Full) => return "full",
        Err(ankusa_wal::Refusal::Stalled) => return "stalled",
        Err(_) => return "down",
        Ok(()) => {}
    }
    let within = Duration::from_millis(core.config.borrow().wal.stall_ms);
    if !home.commit.probe(within).await {
        return "stalled";
    }
    let since = core.observer.since_failure_us(core.host.mono_us());
    match since {
        Some(us) if us < FAILURE_US => "recovering",
        _ => "up",
    }
}
