//! What a source is today: its sinks by name, and how its keys are hashed.
//!
//! Built from the configuration at the beginning of a run. Runs on a shard core and offline.

use std::collections::HashMap;
use std::rc::Rc;

use ankusa_recovery::{SourceToday, Today};
use ankusa_wal::{DedupeRow, Host};

use crate::config::Config;
use crate::dedupe::dedupe_hash;

/// Takes dedupe rows that became durable.
pub type Remember = Box<dyn Fn(&[DedupeRow])>;

/// Tenant and name.
type SourceName = (Box<[u8]>, Box<[u8]>);

/// The sources of a configuration.
pub struct ConfigToday {
    sources: HashMap<SourceName, SourceToday>,
    hash_key: [u8; 16],
    host: Rc<dyn Host>,
    remember: Remember,
}

impl ConfigToday {
    /// Of this configuration; `remember` is told of keys that a retry must meet from now on.
    pub fn new(
        config: &Config,
        hash_key: [u8; 16],
        host: Rc<dyn Host>,
        remember: Remember,
    ) -> ConfigToday {
        let sources = config.sources.iter().map(|source| {
            let key = (
                source.tenant.as_bytes().into(),
                source.name.as_bytes().into(),
            );
            let sinks = source.sinks.iter().map(|sink| sink.name.as_bytes().into());
            let today = SourceToday {
                sinks: sinks.collect(),
                archive: false,
            };
            (key, today)
        });
        ConfigToday {
            sources: sources.collect(),
            hash_key,
            host,
            remember,
        }
    }
}

impl Today for ConfigToday {
    fn source(&self, tenant: &[u8], source: &[u8]) -> Option<SourceToday> {
        // NOTE: asked once per source and shard, so that the key may be made anew.
        self.sources.get(&(tenant.into(), source.into())).cloned()
    }

    fn dedupe_hash(&self, tenant: &[u8], source: &[u8], key: &[u8]) -> [u8; 16] {
        dedupe_hash(&self.hash_key, tenant, source, key)
    }

    fn now_ms(&self) -> u64 {
        self.host.wall_ms()
    }

    fn remember(&self, rows: &[DedupeRow]) {
        (self.remember)(rows);
    }
}
