//! From the tree of the file and the variables of the environment to values, by the table.
//!
//! Goes on after every fault, so that one run reports them all. A variable wins over the file. What
//! is not built is refused here, from the list it is given. Runs at boot, at a reload and offline.

use super::expand::{Env, Given, expand};
use super::key::{Data, Fallback, Key, Kind};
use super::not_built::{NotBuilt, covers};
use super::problem::{At, Fault, Place};
use super::scalars::{leave_out_optional, read};
use super::secret::Secret;
use super::suggest;
use super::table::{self, children, fits, join, row};
use super::text;
use super::tree::{Node, NodeData};
use super::values::{Found, Values};

/// The most sources of a node.
pub(super) const SOURCES_MAX: usize = 10_000;

/// Reads everything.
pub(super) fn walk(root: &Node, env: &Env, not_built: &[NotBuilt]) -> Values {
    let mut walker = Walker {
        env,
        not_built,
        values: Values::default(),
    };
    walker.variables();
    match &root.data {
        NodeData::Map(entries) => walker.map("", "", root.at, entries),
        NodeData::Null => {}
        other => walker.values.fault(
            String::new(),
            Place::File(root.at),
            Fault::WrongType {
                want: "a map of keys".into(),
                got: other.noun(),
            },
        ),
    }
    walker.values
}

struct Walker<'a> {
    env: &'a Env,
    not_built: &'a [NotBuilt],
    values: Values,
}

impl Walker<'_> {
    /// Every key that a variable may set.
    fn variables(&mut self) {
        for key in table::rows() {
            let Some(name) = key.variable() else { continue };
            let Some(value) = self.env.get(&name) else {
                continue;
            };
            let place = Place::Env(name.clone());
            let text = match value {
                Ok(text) => text,
                Err(why) => {
                    self.values
                        .fault(key.path.into(), place, Fault::Expansion(why));
                    continue;
                }
            };
            // A cluster may set such a variable for a service of this name.
            if text.starts_with("tcp://") || text.starts_with("udp://") {
                let why = "holds the address of a service that the cluster put there; turn service links off, or rename the service";
                self.values
                    .fault(key.path.into(), place, Fault::Rule(why.into()));
                continue;
            }
            if self.refused(key.path, key.path, Some(text), &place) {
                continue;
            }
            let given: Vec<Given> = match key.kind {
                Kind::Texts(_) | Kind::Cores => {
                    text.split(',').map(|t| Given::plain(t.trim())).collect()
                }
                _ => vec![Given::plain(text)],
            };
            self.scalars(key, key.path, place, given, false);
        }
    }

    /// Whether it is not built; says so.
    fn refused(&mut self, pattern: &str, path: &str, value: Option<&str>, place: &Place) -> bool {
        let hit = self.not_built.iter().find(|n| match n.word {
            Some(word) => pattern == n.path && value == Some(word),
            None => covers(n, pattern),
        });
        // The map around an accepted key is accepted, and its other keys are refused one by one.
        let around = hit.is_some_and(|n| n.word.is_none() && n.but.is_some() && pattern == n.path);
        match hit {
            Some(n) if !around => {
                self.values
                    .fault(path.to_string(), place.clone(), Fault::NotBuilt(n.says));
                true
            }
            _ => false,
        }
    }

    fn map(&mut self, pattern: &str, path: &str, at: At, entries: &[(String, At, Node)]) {
        let names = entries.iter().map(|(name, _, _)| name.clone()).collect();
        self.values.found.insert(
            path.to_string(),
            Found {
                data: Data::Map(names),
                place: Place::File(at),
            },
        );
        let known = children(pattern);
        let kind = self.kind(pattern, entries);
        // What belongs to a type that is not built is not worth a word of its own.
        if let Some((_, _, node)) = entries.iter().find(|(name, _, _)| name == "type") {
            let place = Place::File(node.at);
            let list = pattern.ends_with('#');
            if list
                && kind.is_some()
                && self.refused(
                    &join(pattern, "type"),
                    &join(path, "type"),
                    kind.as_deref(),
                    &place,
                )
            {
                return;
            }
        }
        for (name, at, node) in entries {
            let below = join(path, name);
            if known.contains(&name.as_str()) && name != "*" && name != "#" {
                self.child(&join(pattern, name), &below, *at, node, kind.as_deref());
            } else if known.contains(&"*") {
                let mut inside = below.clone();
                if !text::is_name(name) {
                    let fault = Fault::NotValid {
                        got: format!("{name:?}"),
                        want: text::NAME.want.into(),
                    };
                    self.values.fault(below, Place::File(*at), fault);
                    // A name must not read as another path.
                    if name.contains(['.', '[']) {
                        inside = join(path, &format!("{name:?}"));
                    }
                }
                self.child(&join(pattern, "*"), &inside, *at, node, None);
            } else {
                let fault = Fault::UnknownKey(hint(pattern, name, &known, kind.as_deref()));
                self.values.fault(below, Place::File(*at), fault);
            }
        }
        if pattern == "sources" && entries.len() > SOURCES_MAX {
            self.values.fault(
                path.to_string(),
                Place::File(at),
                Fault::Length {
                    got: entries.len(),
                    allowed: format!("at most {SOURCES_MAX}"),
                },
            );
        }
        for name in known {
            let (child, below) = (join(pattern, name), join(path, name));
            let Some(key) = row(&child) else { continue };
            let absent = !entries.iter().any(|(n, _, _)| n == name)
                && !self.values.found.contains_key(&below);
            // Without a type nobody can say which of the keys that hang on it are required.
            let asked = key.types.is_empty() || kind.is_some();
            if matches!(key.fallback, Fallback::Required)
                && absent
                && asked
                && fits(&child, kind.as_deref())
            {
                let what = match key.kind {
                    Kind::Word(words) => format!(": one of {}", words.join(", ")),
                    _ => format!(": {}", key.want()),
                };
                self.values
                    .fault(below, Place::File(at), Fault::Missing(what));
            }
        }
    }

    /// The word of `type` in this map, where rows hang on it and it is a known one.
    fn kind(&self, pattern: &str, entries: &[(String, At, Node)]) -> Option<String> {
        let key = row(&join(pattern, "type"))?;
        let (_, _, node) = entries.iter().find(|(name, _, _)| name == "type")?;
        let NodeData::Scalar(text) = &node.data else {
            return None;
        };
        let text = expand(text, self.env).ok()?.text;
        match key.kind {
            Kind::Word(words) if words.contains(&text.as_str()) => Some(text),
            _ => None,
        }
    }

    fn child(&mut self, pattern: &str, path: &str, key_at: At, node: &Node, kind: Option<&str>) {
        let place = Place::File(key_at);
        if !fits(pattern, kind) {
            let parent = pattern.rsplit_once('.').map_or("", |(parent, _)| parent);
            let takes: Vec<_> = children(parent)
                .into_iter()
                .filter(|c| fits(&join(parent, c), kind))
                .collect();
            let fault = Fault::NotForType {
                kind: kind.unwrap_or_default().to_string(),
                takes: takes.join(", "),
            };
            return self.values.fault(path.to_string(), place, fault);
        }
        let value = match &node.data {
            NodeData::Scalar(text) => expand(text, self.env).ok().map(|given| given.text),
            _ => None,
        };
        if self.refused(pattern, path, value.as_deref(), &Place::File(node.at)) {
            return;
        }
        let key = row(pattern);
        match (&node.data, key.map(|k| k.kind)) {
            // An area, or a name of the user's.
            (NodeData::Map(entries), None | Some(Kind::Map(_))) => {
                self.map(pattern, path, node.at, entries)
            }
            (NodeData::Null, None | Some(Kind::Map(None))) => self.map(pattern, path, node.at, &[]),
            (NodeData::Scalar(_), Some(Kind::Map(Some(name)))) => {
                self.map(
                    pattern,
                    path,
                    node.at,
                    &[(name.to_string(), node.at, node.clone())],
                );
            }
            (NodeData::List(items), Some(Kind::List(min, max))) => {
                self.list(pattern, path, node.at, items, min, max)
            }
            (other, None) => {
                let fault = Fault::WrongType {
                    want: "a map of keys".into(),
                    got: other.noun(),
                };
                self.values
                    .fault(path.to_string(), Place::File(node.at), fault);
            }
            (_, Some(_)) => {
                if let Some(key) = key {
                    self.leaf(key, path, node);
                }
            }
        }
    }

    fn list(&mut self, pattern: &str, path: &str, at: At, items: &[Node], min: usize, max: usize) {
        self.values.found.insert(
            path.to_string(),
            Found {
                data: Data::List(items.len()),
                place: Place::File(at),
            },
        );
        if items.len() < min || items.len() > max {
            let fault = Fault::Length {
                got: items.len(),
                allowed: format!("{min} to {max}"),
            };
            self.values.fault(path.to_string(), Place::File(at), fault);
        }
        for (i, item) in items.iter().enumerate().take(max) {
            let (below, path) = (join(pattern, "#"), format!("{path}[{i}]"));
            match &item.data {
                NodeData::Map(entries) => self.map(&below, &path, item.at, entries),
                other => {
                    let hint = match other {
                        NodeData::Scalar(text) => suggest::type_map(&below, text),
                        _ => None,
                    };
                    let fault = match (hint, other) {
                        (Some(hint), NodeData::Scalar(text)) => Fault::NotValid {
                            got: format!("{text:?}"),
                            want: format!("a map{hint}"),
                        },
                        _ => Fault::WrongType {
                            want: "a map of keys".into(),
                            got: other.noun(),
                        },
                    };
                    self.values.fault(path, Place::File(item.at), fault);
                }
            }
        }
    }

    /// A value of the file that has no keys of the table below it.
    fn leaf(&mut self, key: &'static Key, path: &str, node: &Node) {
        let place = Place::File(node.at);
        let wrong = |values: &Values, node: &Node| {
            let fault = Fault::WrongType {
                want: key.want(),
                got: node.data.noun(),
            };
            values.fault(path.to_string(), Place::File(node.at), fault);
        };
        match (&node.data, key.kind) {
            (NodeData::Null, Kind::Secret | Kind::Secrets) => {
                self.values
                    .fault(path.into(), place, Fault::Secret("is empty"))
            }
            (NodeData::Null, _) => {
                self.values
                    .fault(path.into(), place, Fault::NoValue(key.want()))
            }
            (_, Kind::Opaque) => {}
            (NodeData::Map(entries), Kind::Pairs(names)) => self.pairs(names, path, place, entries),
            (NodeData::Scalar(text), Kind::Texts(_)) => {
                if let Some(given) = self.expand(text, path, node.at) {
                    let items = given
                        .text
                        .split(',')
                        .map(|t| Given {
                            text: t.trim().to_string(),
                            ..given.clone()
                        })
                        .collect();
                    self.scalars(key, path, place, items, false);
                }
            }
            (NodeData::Scalar(text), _) => {
                if let Some(given) = self.expand(text, path, node.at) {
                    self.scalars(key, path, place, vec![given], false);
                }
            }
            (NodeData::List(items), Kind::Texts(_) | Kind::Secrets | Kind::Cores) => {
                let mut given = Vec::new();
                for item in items {
                    match &item.data {
                        NodeData::Scalar(text) => given.extend(self.expand(text, path, item.at)),
                        NodeData::Null if key.hidden() => given.push(Given::plain("")),
                        _ => return wrong(&self.values, item),
                    }
                }
                // One that could not be expanded has been reported.
                if given.len() == items.len() {
                    leave_out_optional(key, &mut given);
                    self.scalars(key, path, place, given, true);
                }
            }
            _ => wrong(&self.values, node),
        }
    }

    fn expand(&self, text: &str, path: &str, at: At) -> Option<Given> {
        match expand(text, self.env) {
            Ok(given) => Some(given),
            Err(why) => {
                self.values
                    .fault(path.to_string(), Place::File(at), Fault::Expansion(why));
                None
            }
        }
    }

    /// Reads one or more scalars of a key; the file never replaces what a variable set.
    fn scalars(
        &mut self,
        key: &'static Key,
        path: &str,
        place: Place,
        given: Vec<Given>,
        listed: bool,
    ) {
        if matches!(key.kind, Kind::Secret | Kind::Secrets)
            && let Some(given) = given.iter().find(|g| g.defaults.written)
        {
            let published = (path.to_string(), place.clone(), given.show());
            self.values.published.push(published);
        }
        let data = match read(key, &given, listed) {
            Ok(data) => data,
            Err(fault) => return self.values.fault(path.to_string(), place, fault),
        };
        let taken = self
            .values
            .found
            .get(path)
            .is_some_and(|f| matches!(f.place, Place::Env(_)));
        if !taken {
            self.values
                .found
                .insert(path.to_string(), Found { data, place });
        }
    }

    fn pairs(
        &mut self,
        names: &super::text::Rule,
        path: &str,
        place: Place,
        entries: &[(String, At, Node)],
    ) {
        let mut pairs: Vec<(String, Secret)> = Vec::new();
        for (name, at, node) in entries {
            let below = join(path, name);
            let lower = name.to_ascii_lowercase();
            let bad = (names.check)(name).err();
            let twice = pairs.iter().any(|(n, _)| *n == lower);
            let fault = match (&node.data, bad) {
                (_, Some(why)) => Some(Fault::NotValid {
                    got: format!("{name:?}"),
                    want: format!("{}: {why}", names.want),
                }),
                _ if twice => Some(Fault::Rule(
                    "stands twice; header names have no case".into(),
                )),
                (NodeData::Scalar(text), None) => {
                    if let Some(given) = self.expand(text, &below, *at) {
                        if given.text.bytes().any(|b| b < b' ' || b == 0x7f) {
                            self.values.fault(
                                below,
                                Place::File(node.at),
                                Fault::Secret("holds a control character"),
                            );
                        } else {
                            pairs.push((lower, Secret::from(given.text.as_str())));
                        }
                    }
                    None
                }
                (NodeData::Null, None) => Some(Fault::NoValue("a text".into())),
                (other, None) => Some(Fault::WrongType {
                    want: "a text".into(),
                    got: other.noun(),
                }),
            };
            if let Some(fault) = fault {
                self.values.fault(join(path, name), Place::File(*at), fault);
            }
        }
        self.values.found.insert(
            path.to_string(),
            Found {
                data: Data::Pairs(pairs),
                place,
            },
        );
    }
}

/// What to say of an unknown key: what it is called here, or what it looks like.
fn hint(pattern: &str, name: &str, known: &[&'static str], kind: Option<&str>) -> String {
    let full = join(pattern, name);
    if let Some(says) = suggest::foreign(&full) {
        return format!("; {says}");
    }
    let fitting = || {
        known
            .iter()
            .copied()
            .filter(|c| fits(&join(pattern, c), kind))
    };
    if let Some(near) = suggest::nearest(name, fitting()) {
        return format!("; did you mean {near}?");
    }
    // A key that stands at the wrong place.
    let elsewhere: Vec<&Key> = table::rows()
        .filter(|k| k.name() == name && !matches!(k.kind, Kind::Opaque))
        .collect();
    if let [key] = elsewhere.as_slice() {
        return format!("; did you mean {}?", table::spoken(key.path));
    }
    let names: Vec<_> = fitting().collect();
    if names.len() > 20 {
        String::new()
    } else {
        format!("; known here: {}", names.join(", "))
    }
}
