//! Today's sinks of one core, by name: what dispatch asks for when it takes up a row.
//!
//! Made from a configuration at boot and again on every reload; rows in flight keep the sink they
//! started with. A row whose sink is not here any more becomes a dead letter.
//!
//! Runs on a shard core.

use std::collections::HashMap;
use std::rc::Rc;

use ankusa_wal::SinkName;
use ankusa_wal::format::Envelope;
use thiserror::Error;

use super::{Cause, Delivery, Outcome, Sink, SinkContext, SinkError};
use crate::config::{Config, RetryConfig, SinkKind};
use crate::dispatch::{Attempt, Plan, RetryPolicy, SinkTable, Target};
use crate::metrics::SinkLabel;
use crate::replay::ReplayId;

/// When an envelope that cannot be read is looked at again.
const UNREADABLE_AGAIN_MS: u64 = 30_000;

/// Longer than a sink's own timeout, which is the one that should be met.
const GRACE_MS: u64 = 1_000;

/// A sink of the configuration cannot be made.
#[derive(Debug, Error)]
#[error("sources.{source_name}.sinks {sink_name}: {error}")]
pub struct TableError {
    source_name: String,
    sink_name: String,
    error: SinkError,
}

/// The sinks of a configuration, on one core.
pub struct CoreSinks {
    /// By tenant, source and name.
    plans: HashMap<[Box<[u8]>; 3], Plan>,
}

impl CoreSinks {
    /// Makes every sink of `config`. `cores` share `dispatch.concurrency`; `label` gives a sink its
    /// place in the metrics.
    pub fn build(
        config: &Config,
        context: &SinkContext,
        cores: usize,
        label: impl Fn(&str) -> SinkLabel,
    ) -> Result<CoreSinks, TableError> {
        let share = config.dispatch.concurrency.div_ceil(cores.max(1) as u64);
        let mut plans = HashMap::new();
        for source in &config.sources {
            for sink in &source.sinks {
                let built = Sink::build(source, sink, context).map_err(|error| TableError {
                    source_name: source.name.clone(),
                    sink_name: sink.name.clone(),
                    error,
                })?;
                let own_ms = match &sink.kind {
                    SinkKind::Http(http) => http.timeout_ms.saturating_add(GRACE_MS),
                    _ => config.dispatch.attempt_timeout_ms,
                };
                let plan = Plan {
                    target: Rc::new(NamedSink {
                        name: format!("{}/{}", source.name, sink.name).into(),
                        sink: built,
                    }),
                    concurrency: u32::try_from(share).unwrap_or(u32::MAX),
                    retry: retry_policy(&source.retry),
                    timeout_ms: own_ms.min(config.dispatch.attempt_timeout_ms),
                    paused: sink.paused,
                    label: label(&sink.name),
                };
                plans.insert(key(&source.tenant, &source.name, &sink.name), plan);
            }
        }
        Ok(CoreSinks { plans })
    }
}

impl SinkTable for CoreSinks {
    fn plan(&self, name: &SinkName) -> Option<Plan> {
        let key = [name.tenant.clone(), name.source.clone(), name.name.clone()];
        self.plans.get(&key).cloned()
    }
}

fn key(tenant: &str, source: &str, name: &str) -> [Box<[u8]>; 3] {
    [tenant, source, name].map(|part| part.as_bytes().into())
}

fn retry_policy(config: &RetryConfig) -> RetryPolicy {
    RetryPolicy {
        base_ms: config.base_ms,
        max_ms: config.max_ms,
        attempts_max: config.max_attempts,
        jitter: config.jitter,
    }
}

/// A sink that says in the log why it did not deliver.
struct NamedSink {
    name: Box<str>,
    sink: Sink,
}

impl Target for NamedSink {
    fn deliver<'a>(&'a self, envelope: &'a [u8], replay: Option<ReplayId>) -> Attempt<'a> {
        Box::pin(async move {
            let replay_id = replay.map(|replay| replay.to_string());
            let hook = match Envelope::parse(envelope) {
                Ok(hook) => hook,
                Err(error) => {
                    tracing::error!(%error, sink = %self.name, "a stored hook cannot be read");
                    return crate::dispatch::Outcome::NotMade {
                        again_ms: UNREADABLE_AGAIN_MS,
                    };
                }
            };
            let outcome = self
                .sink
                .deliver(&Delivery {
                    hook,
                    replay_id: replay_id.as_deref(),
                })
                .await;
            match outcome {
                Outcome::Delivered => {}
                Outcome::NotMade {
                    cause: Cause::Busy, ..
                } => {
                    tracing::debug!(sink = %self.name, hook = %hook.id, "delivery put off: busy");
                }
                Outcome::Permanent { cause } => {
                    tracing::warn!(sink = %self.name, hook = %hook.id, %cause, "refused for good");
                }
                Outcome::Retry { cause, .. } | Outcome::NotMade { cause, .. } => {
                    tracing::debug!(sink = %self.name, hook = %hook.id, %cause, "not delivered");
                }
            }
            outcome.into()
        })
    }
}
