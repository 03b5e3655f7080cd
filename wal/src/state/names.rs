//! What sink numbers stand for. A number is never given to another name.
//!
//! At most 65,536 names in the life of a shard. Pure.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::ids::SinkNo;
use crate::record::SinkName;

/// Every sink number of this shard was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all 65,536 sink numbers of the shard are given out")]
pub struct NamesFull;

type Key = (Box<[u8]>, Box<[u8]>, Box<[u8]>);

/// Names by number and numbers by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkNames {
    by_no: BTreeMap<SinkNo, SinkName>,
    by_name: BTreeMap<Key, SinkNo>,
}

impl SinkNames {
    /// What `sink` stands for.
    pub fn get(&self, sink: SinkNo) -> Option<&SinkName> {
        self.by_no.get(&sink)
    }

    /// The number of a name, if it has one.
    pub fn find(&self, tenant: &[u8], source: &[u8], name: &[u8]) -> Option<SinkNo> {
        self.by_name
            .get(&(tenant.into(), source.into(), name.into()))
            .copied()
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &SinkName> {
        self.by_no.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_no.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_no.is_empty()
    }

    pub(super) fn at_or_after(&self, from: u32) -> Option<&SinkName> {
        let from = SinkNo(u16::try_from(from).ok()?);
        self.by_no.range(from..).next().map(|(_, name)| name)
    }

    pub(super) fn put(&mut self, name: &SinkName) {
        if let Some(old) = self.by_no.insert(name.sink, name.clone()) {
            self.by_name.remove(&(old.tenant, old.source, old.name));
        }
        let key = (name.tenant.clone(), name.source.clone(), name.name.clone());
        self.by_name.insert(key, name.sink);
    }

    pub(super) fn assign(
        &mut self,
        tenant: &[u8],
        source: &[u8],
        name: &[u8],
    ) -> Result<(SinkNo, Option<SinkName>), NamesFull> {
        if let Some(sink) = self.find(tenant, source, name) {
            return Ok((sink, None));
        }
        let sink = match self.by_no.last_key_value() {
            Some((last, _)) => SinkNo(last.0.checked_add(1).ok_or(NamesFull)?),
            None => SinkNo(0),
        };
        let new = SinkName {
            sink,
            tenant: tenant.into(),
            source: source.into(),
            name: name.into(),
        };
        self.put(&new);
        Ok((sink, Some(new)))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let one = |n: &SinkName| {
            2 * (n.tenant.len() + n.source.len() + n.name.len()) + 2 * size_of::<SinkName>() + 64
        };
        self.by_no.values().map(one).sum()
    }
}
