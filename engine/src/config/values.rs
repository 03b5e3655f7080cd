//! The raw configuration: what was found under each path, and the reader that areas use.
//!
//! A reader stands at one path and answers for the keys below it: what the file or the
//! environment said, else the table's default. It is total: where a value was faulty it answers
//! the default, so that the rules between keys can still be checked; the result is thrown away
//! then. Runs at boot, at a reload and offline.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::areas::Cores;
use super::expand::Given;
use super::key::{Data, Fallback, Key};
use super::problem::{Fault, Place, Problem};
use super::secret::Secret;
use super::table;

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub data: Data,
    pub place: Place,
}

/// What was found, by concrete path.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub found: BTreeMap<String, Found>,
    /// Defaults that were computed at run time.
    pub computed: RefCell<BTreeMap<String, Data>>,
    /// Secrets whose text is a default that stands in the file: path, place, and the text with the
    /// `${…}`.
    pub published: Vec<(String, Place, String)>,
    /// The faults so far.
    pub problems: RefCell<Vec<Problem>>,
}

impl Values {
    /// Reports a fault.
    pub fn fault(&self, path: String, place: Place, fault: Fault) {
        self.problems
            .borrow_mut()
            .push(Problem { path, place, fault });
    }

    /// Whether something at or under this path is faulty.
    pub fn faulty(&self, path: &str) -> bool {
        self.problems.borrow().iter().any(|p| {
            p.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Whether the map of this path, or anything below it, was there.
    pub fn present(&self, path: &str) -> bool {
        let below = format!("{path}.");
        self.found.contains_key(path)
            || self
                .found
                .range(below.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&below))
    }

    /// Where the value of a path, or else the nearest map around it, stands.
    pub fn place(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(found) = self.found.get(path) {
                return found.place.clone();
            }
            match path.rfind(['.', '[']) {
                Some(i) => path = &path[..i],
                None => return Place::Default,
            }
        }
    }
}

/// A place in the raw configuration.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    pub values: &'a Values,
    /// The concrete path: `sources.payments`.
    pub path: String,
    /// The path in the table: `sources.*`.
    pub pattern: String,
}

impl<'a> Reader<'a> {
    /// At the root.
    pub fn new(values: &'a Values) -> Reader<'a> {
        Reader {
            values,
            path: String::new(),
            pattern: String::new(),
        }
    }

    /// At a map below.
    pub fn at(&self, name: &str) -> Reader<'a> {
        Reader {
            values: self.values,
            path: table::join(&self.path, name),
            pattern: table::join(&self.pattern, name),
        }
    }

    /// At the map of one of the user's names.
    pub fn named(&self, name: &str) -> Reader<'a> {
        Reader {
            values: self.values,
            path: table::join(&self.path, name),
            pattern: table::join(&self.pattern, "*"),
        }
    }

    /// At an item of this list.
    pub fn item(&self, i: usize) -> Reader<'a> {
        Reader {
            values: self.values,
            path: format!("{}[{i}]", self.path),
            pattern: table::join(&self.pattern, "#"),
        }
    }

    /// Whether the map this stands at was there.
    pub fn present(&self) -> bool {
        self.values.present(&self.path)
    }

    /// Whether the key was there.
    pub fn has(&self, name: &str) -> bool {
        self.values
            .found
            .contains_key(&table::join(&self.path, name))
    }

    /// The names of the map this stands at.
    pub fn names(&self) -> &'a [String] {
        match self.values.found.get(&self.path).map(|f| &f.data) {
            Some(Data::Map(names)) => names,
            _ => &[],
        }
    }

    /// The number of items of the list this stands at.
    pub fn len(&self) -> usize {
        match self.values.found.get(&self.path).map(|f| &f.data) {
            Some(Data::List(n)) => *n,
            _ => 0,
        }
    }

    /// Reports a fault in a key here, or in the map itself where the name is empty.
    pub fn fault(&self, name: &str, fault: Fault) {
        let path = if name.is_empty() {
            self.path.clone()
        } else {
            table::join(&self.path, name)
        };
        let place = self.values.place(&path);
        self.values.fault(path, place, fault);
    }

    fn data(&self, name: &str) -> Option<Data> {
        if let Some(found) = self.values.found.get(&table::join(&self.path, name)) {
            return Some(found.data.clone());
        }
        table::row(&table::join(&self.pattern, name)).and_then(default)
    }

    /// A number; 0 where it has no default and is absent.
    pub fn int(&self, name: &str) -> u64 {
        self.int_opt(name).unwrap_or(0)
    }

    /// A number that may be absent.
    pub fn int_opt(&self, name: &str) -> Option<u64> {
        match self.data(name) {
            Some(Data::Int(n)) => Some(n),
            _ => None,
        }
    }

    /// A number of a smaller type; ranges of the table make it fit.
    pub fn small<T: TryFrom<u64> + Default>(&self, name: &str) -> T {
        T::try_from(self.int(name)).unwrap_or_default()
    }

    /// A number whose default is computed.
    pub fn int_or(&self, name: &str, compute: impl FnOnce() -> u64) -> u64 {
        match self.int_opt(name) {
            Some(n) => n,
            None => {
                let n = compute();
                self.values
                    .computed
                    .borrow_mut()
                    .insert(table::join(&self.path, name), Data::Int(n));
                n
            }
        }
    }

    /// A switch.
    pub fn boolean(&self, name: &str) -> bool {
        matches!(self.data(name), Some(Data::Bool(true)))
    }

    /// A switch whose default is computed.
    pub fn boolean_or(&self, name: &str, compute: bool) -> bool {
        match self.data(name) {
            Some(Data::Bool(on)) => on,
            _ => {
                self.values
                    .computed
                    .borrow_mut()
                    .insert(table::join(&self.path, name), Data::Bool(compute));
                compute
            }
        }
    }

    /// A text; empty where it has no default and is absent.
    pub fn text(&self, name: &str) -> String {
        self.text_opt(name).unwrap_or_default()
    }

    /// A text that may be absent.
    pub fn text_opt(&self, name: &str) -> Option<String> {
        match self.data(name) {
            Some(Data::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A text whose default is computed.
    pub fn text_or(&self, name: &str, compute: impl FnOnce() -> String) -> String {
        self.text_opt(name).unwrap_or_else(|| {
            let text = compute();
            self.values
                .computed
                .borrow_mut()
                .insert(table::join(&self.path, name), Data::Text(text.clone()));
            text
        })
    }

    /// Secrets, one or more.
    pub fn secrets(&self, name: &str) -> Vec<Secret> {
        match self.data(name) {
            Some(Data::Secrets(secrets)) => secrets,
            _ => Vec::new(),
        }
    }

    /// One secret.
    pub fn secret(&self, name: &str) -> Option<Secret> {
        self.secrets(name).into_iter().next()
    }

    /// Texts.
    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        match self.data(name) {
            Some(Data::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    /// Names and hidden values.
    pub fn pairs(&self, name: &str) -> Vec<(String, Secret)> {
        match self.data(name) {
            Some(Data::Pairs(pairs)) => pairs,
            _ => Vec::new(),
        }
    }

    /// CPUs.
    pub fn cores(&self, name: &str) -> Cores {
        match self.data(name) {
            Some(Data::Cores(cores)) => cores,
            _ => Cores::All,
        }
    }
}

/// The default of a row, where it is a value.
pub(super) fn default(key: &'static Key) -> Option<Data> {
    match key.fallback {
        Fallback::Value(text) => match key.read(&Given::plain(text)).ok()? {
            Data::Text(text) if matches!(key.kind, super::key::Kind::Texts(_)) => {
                Some(Data::Texts(vec![text]))
            }
            data => Some(data),
        },
        _ => None,
    }
}
