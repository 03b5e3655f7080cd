//! The sources of the configuration as the pipeline needs them, and the way from a path to one.
//!
//! Built once per core at boot and at every reload, then shared read-only by its requests.

use std::collections::HashMap;
use std::rc::Rc;

use ankusa_wal::SinkNo;

use crate::config::{Config, OnVerifyFailure, Routing, VerifyConfig};
use crate::dedupe::KeyPlan;
use crate::verify::Verifier;

/// One source.
pub struct Source {
    /// Its place in the configuration: the index of its metrics.
    pub index: usize,
    /// Whose it is.
    pub tenant: Box<[u8]>,
    /// Its name.
    pub name: Box<[u8]>,
    /// Its verifier.
    pub verifier: Verifier,
    /// Whether a verified `url_verification` is answered instead of stored.
    pub answers_challenge: bool,
    /// What a failed verification leads to.
    pub on_verify_failure: OnVerifyFailure,
    /// Where its dedupe key is, and for how many seconds it is remembered.
    pub dedupe: Option<(KeyPlan, u32)>,
    /// Its sinks, by their numbers in the core's home shard.
    pub sinks: Box<[SinkNo]>,
}

/// Where a path leads.
#[derive(Clone)]
pub enum Route {
    /// A source's own path.
    Source(Rc<Source>),
    /// The shape of a source's path, and no such source.
    UnknownSource,
    /// `GET /health`.
    Health,
    /// `GET /ready`.
    Ready,
    /// Nothing here.
    NotFound,
}

/// All sources of a core.
pub struct SourceTable {
    prefix: Box<[u8]>,
    by_path: HashMap<Box<[u8]>, Rc<Source>, foldhash::fast::RandomState>,
    /// In the order of the configuration.
    pub all: Vec<Rc<Source>>,
}

impl SourceTable {
    /// Builds the table. `sink_no` gives a sink's number in the home shard.
    pub fn build(
        config: &Config,
        mut sink_no: impl FnMut(&[u8], &[u8], &[u8]) -> Result<SinkNo, String>,
    ) -> Result<SourceTable, String> {
        let mut by_path = HashMap::default();
        let mut all = Vec::new();
        for (index, source) in config.sources.iter().enumerate() {
            let (tenant, name) = (source.tenant.as_bytes(), source.name.as_bytes());
            let fault = |why: String| format!("sources.{}: {why}", source.name);
            let verifier = Verifier::build(&source.verify).map_err(|e| fault(e.to_string()))?;
            let dedupe = match &source.dedupe {
                Some(dedupe) => {
                    let plan = KeyPlan::build(&dedupe.key).map_err(|e| fault(e.to_string()))?;
                    Some((plan, dedupe.ttl_seconds))
                }
                None => None,
            };
            let built = Rc::new(Source {
                index,
                tenant: tenant.into(),
                name: name.into(),
                verifier,
                answers_challenge: matches!(source.verify, VerifyConfig::Slack { .. }),
                on_verify_failure: source.on_verify_failure,
                dedupe,
                sinks: source
                    .sinks
                    .iter()
                    .map(|sink| sink_no(tenant, name, sink.name.as_bytes()).map_err(fault))
                    .collect::<Result<_, _>>()?,
            });
            if config.http.routing == Routing::Path {
                by_path.insert(name.into(), Rc::clone(&built));
            }
            by_path.insert([tenant, b"/", name].concat().into(), Rc::clone(&built));
            all.push(built);
        }
        let prefix = config.http.prefix.trim_end_matches('/');
        Ok(SourceTable {
            prefix: [prefix.as_bytes(), b"/"].concat().into(),
            by_path,
            all,
        })
    }

    /// Where a path (without its query) leads.
    pub fn route(&self, path: &[u8]) -> Route {
        // Before the sources: without a prefix these would be the names of some.
        match path {
            b"/health" => return Route::Health,
            b"/ready" => return Route::Ready,
            _ => {}
        }
        if let Some(rest) = path.strip_prefix(&*self.prefix) {
            return match self.by_path.get(rest) {
                Some(source) => Route::Source(Rc::clone(source)),
                None if is_source_shaped(rest) => Route::UnknownSource,
                None => Route::NotFound,
            };
        }
        Route::NotFound
    }
}

/// One or two names.
fn is_source_shaped(rest: &[u8]) -> bool {
    let mut names = rest.split(|b| *b == b'/');
    let ok = |name: &[u8]| {
        (1..=64).contains(&name.len())
            && name
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    match (names.next(), names.next(), names.next()) {
        (Some(one), None, None) => ok(one),
        (Some(one), Some(two), None) => ok(one) && ok(two),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn health_and_readiness_are_found_whatever_the_prefix() {
        for prefix in ["", "/webhooks", "/health"] {
            let mut config = Config::tryout();
            config.http.prefix = prefix.into();
            let table = SourceTable::build(&config, |_, _, _| Ok(SinkNo(0))).unwrap();
            assert!(matches!(table.route(b"/health"), Route::Health), "{prefix}");
            assert!(matches!(table.route(b"/ready"), Route::Ready), "{prefix}");
            let source = format!("{prefix}/demo");
            assert!(matches!(table.route(source.as_bytes()), Route::Source(_)));
        }
    }
}
