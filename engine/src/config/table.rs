//! The table of all keys, and look-ups in it.
//!
//! Invariants, tested: paths are unique, every default is valid, every row has a text, no two keys
//! share an environment variable. Pure; runs anywhere.

use super::areas::{dedupe, dispatch, http, intake, node, sinks, sources, verify, wal};
use super::key::Key;

/// Every row, in the order of the reference page.
pub(super) fn rows() -> impl Iterator<Item = &'static Key> + Clone {
    const AREAS: [&[Key]; 10] = [
        node::KEYS,
        http::KEYS,
        wal::KEYS,
        dispatch::KEYS,
        dedupe::KEYS,
        dispatch::EGRESS_KEYS,
        sources::KEYS,
        verify::KEYS,
        sinks::KEYS,
        intake::KEYS,
    ];
    AREAS.iter().flat_map(|rows| rows.iter())
}

/// The row of this path.
pub(super) fn row(pattern: &str) -> Option<&'static Key> {
    rows().find(|key| key.path == pattern)
}

/// The path of a child.
pub(super) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_string()
    } else {
        format!("{parent}.{name}")
    }
}

/// The names of what may stand in the map of this path, in the order of the table.
pub(super) fn children(pattern: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in rows() {
        let rest = match pattern {
            "" => Some(key.path),
            _ => key
                .path
                .strip_prefix(pattern)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        if let Some(name) = rest.and_then(|rest| rest.split('.').next())
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Whether the row of this child has a meaning beside this `type`.
pub(super) fn fits(pattern: &str, kind: Option<&str>) -> bool {
    match (row(pattern), kind) {
        (Some(key), Some(kind)) => key.types.is_empty() || key.types.contains(&kind),
        _ => true,
    }
}

/// A path as people write it: `sources.<name>.sinks[].url`.
pub(super) fn spoken(pattern: &str) -> String {
    pattern.replace(".#", "[]").replace('*', "<name>")
}
