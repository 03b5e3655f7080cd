//! Where a replayed hook goes: the source's sinks of today, as numbers of this shard.
//!
//! A record names only its tenant and source; which sinks these have is asked once per source and
//! run. New names are handed to the caller, which writes them in front of the first hook that uses
//! them. Runs on a shard core and offline.

use std::collections::HashMap;
use std::rc::Rc;

use ankusa_wal::state::NamesFull;
use ankusa_wal::{DedupeRow, Record, SinkNo, State};

/// A source as it is configured today.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceToday {
    /// The names of its sinks.
    pub sinks: Vec<Box<[u8]>>,
    /// Whether its hooks are archived.
    pub archive: bool,
}

/// What only the service knows.
pub trait Today {
    /// The source, if it is configured.
    fn source(&self, tenant: &[u8], source: &[u8]) -> Option<SourceToday>;

    /// The keyed hash of a dedupe triple.
    fn dedupe_hash(&self, tenant: &[u8], source: &[u8], key: &[u8]) -> [u8; 16];

    /// Wall clock, milliseconds.
    fn now_ms(&self) -> u64;

    /// These rows are durable now: a retry of their hooks is a duplicate.
    fn remember(&self, rows: &[DedupeRow]);
}

/// Where the hooks of a source go in this shard.
pub(super) struct Route {
    tenant: Box<[u8]>,
    source: Box<[u8]>,
    pub(super) sinks: Vec<SinkNo>,
    pub(super) archive: bool,
    pub(super) is_known: bool,
}

/// The routes asked for so far.
#[derive(Default)]
pub(super) struct Routes {
    by_source: HashMap<Box<[u8]>, Rc<Route>, foldhash::fast::RandomState>,
    last: Option<Rc<Route>>,
    key: Vec<u8>,
    /// Names that no group holds yet; they go in front of everything.
    pub(super) names_due: Vec<Record>,
}

impl Routes {
    /// The route of a source, if it was asked for before. No allocation.
    pub(super) fn known(&mut self, tenant: &[u8], source: &[u8]) -> Option<Rc<Route>> {
        if let Some(last) = &self.last
            && *last.source == *source
            && *last.tenant == *tenant
        {
            return Some(Rc::clone(last));
        }
        self.set_key(tenant, source);
        let route = self.by_source.get(&self.key[..])?;
        self.last = Some(Rc::clone(route));
        Some(Rc::clone(route))
    }

    /// Asks and remembers. An unknown source leads to `unroutable`, a sink that is not there.
    pub(super) fn add(
        &mut self,
        state: &mut State,
        today: &dyn Today,
        (tenant, source): (&[u8], &[u8]),
        unroutable: &[u8],
    ) -> Result<Rc<Route>, NamesFull> {
        let found = today.source(tenant, source);
        let is_known = found.is_some();
        let today = found.unwrap_or_else(|| SourceToday {
            sinks: vec![unroutable.into()],
            archive: false,
        });
        let mut sinks = Vec::with_capacity(today.sinks.len());
        for name in &today.sinks {
            let (sink, new) = state.sink_no(tenant, source, name)?;
            sinks.push(sink);
            self.names_due.extend(new);
        }
        let route = Rc::new(Route {
            tenant: tenant.into(),
            source: source.into(),
            sinks,
            archive: today.archive,
            is_known,
        });
        self.set_key(tenant, source);
        self.by_source
            .insert(self.key.as_slice().into(), Rc::clone(&route));
        self.last = Some(Rc::clone(&route));
        Ok(route)
    }

    fn set_key(&mut self, tenant: &[u8], source: &[u8]) {
        self.key.clear();
        self.key.extend((tenant.len() as u32).to_le_bytes());
        self.key.extend(tenant);
        self.key.extend(source);
    }
}
