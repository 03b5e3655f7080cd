//! The configuration as it is in effect: every key, its value as far as it may be shown, and where
//! it came from. And what changed between two of them.
//!
//! Hidden values are hidden when an entry is made, so nothing that prints entries can leak one.
//! Runs at boot, at a reload and offline.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::areas::Cores;
use super::key::{Data, Fallback, Key, Kind};
use super::not_built::{NotBuilt, covers};
use super::problem::Place;
use super::secret::REDACTED;
use super::table::{children, fits, join, row};
use super::text::{Show, parse_url};
use super::values::{Values, default};

/// One key in effect.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key's path.
    pub path: String,
    /// Its value, hidden where it must be; null for none.
    pub value: Value,
    /// Where it came from.
    pub place: Place,
    /// What holds where the value is null and known only at run time.
    pub note: Option<&'static str>,
    /// Whether a reload takes a change over.
    pub live: bool,
    data: Option<Data>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({})", self.path, self.value, self.place)
    }
}

/// What changed from one configuration to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Keys whose change a reload takes over.
    pub live: Vec<String>,
    /// Keys whose change needs a restart.
    pub restart: Vec<String>,
}

impl Diff {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.restart.is_empty()
    }
}

/// Compares two configurations, key by key.
pub(super) fn diff(old: &[Entry], new: &[Entry]) -> Diff {
    let index = |entries: &'_ [Entry]| -> HashMap<String, Option<Data>> {
        entries
            .iter()
            .map(|e| (e.path.clone(), e.data.clone()))
            .collect()
    };
    let (before, after) = (index(old), index(new));
    let gone = old.iter().filter(|e| !after.contains_key(&e.path));
    let changed = new.iter().filter(|e| before.get(&e.path) != Some(&e.data));
    let mut diff = Diff::default();
    for entry in gone.chain(changed) {
        if entry.live {
            &mut diff.live
        } else {
            &mut diff.restart
        }
        .push(entry.path.clone());
    }
    diff
}

/// Every key in effect, in the order of the table.
pub(super) fn entries(values: &Values, not_built: &[NotBuilt]) -> Vec<Entry> {
    let mut out = Vec::new();
    below(values, "", "", &mut out);
    // Defaults of what is not built would look like promises.
    out.retain(|e| e.place != Place::Default || !not_built.iter().any(|n| covers(n, &e.path)));
    out
}

fn below(values: &Values, pattern: &str, path: &str, out: &mut Vec<Entry>) {
    let kind = match values.found.get(&join(path, "type")).map(|f| &f.data) {
        Some(Data::Text(kind)) => Some(kind.as_str()),
        _ => None,
    };
    for name in children(pattern) {
        let child = join(pattern, name);
        if name == "*" {
            if let Some(Data::Map(names)) = values.found.get(path).map(|f| &f.data) {
                for name in names {
                    below(values, &child, &join(path, name), out);
                }
            }
            continue;
        }
        let path = join(path, name);
        if !fits(&child, kind) {
            continue;
        }
        match row(&child).map(|key| (key, key.kind)) {
            Some((_, Kind::Opaque)) => {}
            Some((_, Kind::Map(_))) if !values.present(&path) => {}
            None | Some((_, Kind::Map(_))) => below(values, &child, &path, out),
            Some((_, Kind::List(..))) => {
                if let Some(Data::List(n)) = values.found.get(&path).map(|f| &f.data) {
                    for i in 0..*n {
                        below(values, &join(&child, "#"), &format!("{path}[{i}]"), out);
                    }
                }
            }
            Some((key, _)) => out.extend(entry(values, key, path)),
        }
    }
}

fn entry(values: &Values, key: &'static Key, path: String) -> Option<Entry> {
    let found = values.found.get(&path);
    let place = found.map_or(Place::Default, |f| f.place.clone());
    let data = match found {
        Some(found) => Some(found.data.clone()),
        None => values
            .computed
            .borrow()
            .get(&path)
            .cloned()
            .or_else(|| default(key)),
    };
    let note = match key.fallback {
        Fallback::Computed(what) if data.is_none() => Some(what),
        _ => None,
    };
    let value = match &data {
        Some(data) => show(key, data),
        // A hidden key that is not set says so by its absence.
        None if key.hidden() => return None,
        None => Value::Null,
    };
    Some(Entry {
        path,
        value,
        place,
        note,
        live: key.live,
        data,
    })
}

fn show(key: &Key, data: &Data) -> Value {
    match (data, key.kind) {
        (Data::Secrets(secrets), Kind::Secrets) if secrets.len() > 1 => {
            secrets.iter().map(|_| REDACTED).collect()
        }
        (Data::Pairs(pairs), _) => Value::Object(
            pairs
                .iter()
                .map(|(name, _)| (name.clone(), json!(REDACTED)))
                .collect(),
        ),
        _ if key.hidden() => json!(REDACTED),
        (Data::Int(n), _) => json!(n),
        (Data::Bool(on), _) => json!(on),
        (Data::Text(text), Kind::Text(rule)) if rule.show == Show::Origin => {
            match parse_url(text) {
                Ok(url) => json!(format!("{url:?}")),
                Err(_) => json!(REDACTED),
            }
        }
        (Data::Text(text), _) => json!(text),
        (Data::Texts(texts), _) => json!(texts),
        (Data::Cores(Cores::All), _) => json!("all"),
        (Data::Cores(Cores::Count(n)), _) => json!(n),
        (Data::Cores(Cores::List(list)), _) => json!(list),
        _ => json!(REDACTED),
    }
}
