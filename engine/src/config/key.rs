//! One row of the table of keys: its path, what it takes, its default, what it is for.
//!
//! The rows are the only place where a default or a range is stated; the validator, the JSON
//! Schema and the reference page are made from them. In a path `*` is a name of the user's and `#`
//! an item of a list. Pure; runs anywhere.

use super::areas::Cores;
use super::expand::Given;
use super::problem::Fault;
use super::secret::Secret;
use super::suggest;
use super::text::Rule;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Things; the word says which.
    Of(&'static str),
    Bytes,
    Millis,
    Seconds,
    Percent,
}

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A whole number from the first to the second.
    Int(u64, u64, Unit),
    /// `true` or `false`.
    Bool,
    /// One of these.
    Word(&'static [&'static str]),
    /// A text.
    Text(&'static Rule),
    /// A text that is never shown.
    Secret,
    /// One text that is never shown, or a list of at most eight.
    Secrets,
    /// Texts: a list, or one with commas between them.
    Texts(&'static Rule),
    /// Names and values that are never shown.
    Pairs(&'static Rule),
    /// A number of CPUs, or a list of them.
    Cores,
    /// A map with rows of its own; a single value stands for a map of this one key.
    Map(Option<&'static str>),
    /// A list of so many items with rows of their own.
    List(usize, usize),
    /// Anything: a part of which nothing is built.
    Opaque,
}

/// What holds where the key is absent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fallback {
    /// It must be there.
    Required,
    /// Nothing.
    Absent,
    /// This text, read like one of the file.
    Value(&'static str),
    /// Something that is known only at run time; this says what.
    Computed(&'static str),
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub path: &'static str,
    pub kind: Kind,
    pub fallback: Fallback,
    /// Whether a change is taken over by a reload.
    pub live: bool,
    /// The words of the `type` beside it under which it has a meaning; empty: under all.
    pub types: &'static [&'static str],
    pub doc: &'static str,
}

impl Key {
    const fn new(path: &'static str, kind: Kind, doc: &'static str) -> Key {
        Key {
            path,
            kind,
            fallback: Fallback::Absent,
            live: false,
            types: &[],
            doc,
        }
    }
    pub const fn int(path: &'static str, min: u64, max: u64, unit: Unit, doc: &'static str) -> Key {
        Key::new(path, Kind::Int(min, max, unit), doc)
    }
    pub const fn boolean(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Bool, doc)
    }
    pub const fn word(
        path: &'static str,
        words: &'static [&'static str],
        doc: &'static str,
    ) -> Key {
        Key::new(path, Kind::Word(words), doc)
    }
    pub const fn text(path: &'static str, rule: &'static Rule, doc: &'static str) -> Key {
        Key::new(path, Kind::Text(rule), doc)
    }
    pub const fn secret(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Secret, doc)
    }
    pub const fn secrets(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Secrets, doc)
    }
    pub const fn texts(path: &'static str, rule: &'static Rule, doc: &'static str) -> Key {
        Key::new(path, Kind::Texts(rule), doc)
    }
    pub const fn pairs(path: &'static str, names: &'static Rule, doc: &'static str) -> Key {
        Key::new(path, Kind::Pairs(names), doc)
    }
    pub const fn cores(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Cores, doc)
    }
    pub const fn map(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Map(None), doc)
    }
    pub const fn map_or(path: &'static str, shorthand: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Map(Some(shorthand)), doc)
    }
    pub const fn list(path: &'static str, min: usize, max: usize, doc: &'static str) -> Key {
        Key::new(path, Kind::List(min, max), doc)
    }
    pub const fn opaque(path: &'static str, doc: &'static str) -> Key {
        Key::new(path, Kind::Opaque, doc)
    }
    /// The default.
    pub const fn or(mut self, text: &'static str) -> Key {
        self.fallback = Fallback::Value(text);
        self
    }
    /// A default that is known at run time.
    pub const fn or_computed(mut self, what: &'static str) -> Key {
        self.fallback = Fallback::Computed(what);
        self
    }
    pub const fn required(mut self) -> Key {
        self.fallback = Fallback::Required;
        self
    }
    /// A reload takes it over.
    pub const fn live(mut self) -> Key {
        self.live = true;
        self
    }
    /// Only beside these words of `type`.
    pub const fn types(mut self, words: &'static [&'static str]) -> Key {
        self.types = words;
        self
    }

    /// The last part of the path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// Whether the value is never shown.
    pub fn hidden(&self) -> bool {
        matches!(
            self.kind,
            Kind::Secret | Kind::Secrets | Kind::Pairs(_) | Kind::Opaque
        )
    }

    /// Whether an environment variable may set it.
    pub fn variable(&self) -> Option<String> {
        let single = !matches!(
            self.kind,
            Kind::Map(_) | Kind::List(..) | Kind::Pairs(_) | Kind::Opaque
        );
        (single && !self.path.contains(['*', '#']))
            .then(|| format!("ANKUSA_{}", self.path.replace('.', "_").to_uppercase()))
    }

    /// What a value must be, for an error.
    pub fn want(&self) -> String {
        match self.kind {
            Kind::Int(_, _, unit) => unit.want().to_string(),
            Kind::Bool => "true or false".to_string(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Text(rule) | Kind::Texts(rule) => rule.want.to_string(),
            Kind::Secret => "a text".to_string(),
            Kind::Secrets => "a text, or a list of at most 8".to_string(),
            Kind::Pairs(_) => "a map of names and texts".to_string(),
            Kind::Cores => "a number of CPUs, or a list of them".to_string(),
            Kind::Map(_) => "a map".to_string(),
            Kind::List(..) => "a list".to_string(),
            Kind::Opaque => "a map".to_string(),
        }
    }

    /// The range of a number, with its unit.
    pub fn range(&self) -> String {
        match self.kind {
            Kind::Int(min, max, unit) => unit.range(min, max),
            _ => self.want(),
        }
    }

    /// Reads one scalar. Of a list this is one item.
    pub fn read(&self, given: &Given) -> Result<Data, Fault> {
        let not_valid = || Fault::NotValid {
            got: given.show(),
            want: self.want(),
        };
        let text = given.text.as_str();
        match self.kind {
            Kind::Int(min, max, unit) => match unit.parse(text) {
                Parsed::Number(n) if (min..=max).contains(&n) => Ok(Data::Int(n)),
                Parsed::Number(_) | Parsed::Beyond => Err(Fault::OutOfRange {
                    got: given.show(),
                    allowed: unit.range(min, max),
                }),
                Parsed::NotANumber => Err(not_valid()),
            },
            Kind::Bool => match text {
                "true" | "True" | "TRUE" => Ok(Data::Bool(true)),
                "false" | "False" | "FALSE" => Ok(Data::Bool(false)),
                _ => Err(not_valid()),
            },
            Kind::Word(words) => match words.iter().find(|&&word| word == text) {
                Some(_) => Ok(Data::Text(text.to_string())),
                None => {
                    let hint = match suggest::foreign_word(self.path, text) {
                        Some(says) => format!("; {says}"),
                        None => suggest::nearest(text, words.iter().copied())
                            .filter(|_| given.raw.is_none())
                            .map_or(String::new(), |near| format!("; did you mean {near}?")),
                    };
                    Err(Fault::NotValid {
                        got: given.show(),
                        want: self.want() + &hint,
                    })
                }
            },
            Kind::Text(rule) | Kind::Texts(rule) => match (rule.check)(text) {
                Ok(()) => Ok(Data::Text(text.to_string())),
                // A URL may hold a password or a token.
                Err(why) if rule.show == super::text::Show::Origin => Err(Fault::NotValid {
                    got: "its value".into(),
                    want: format!("{}: {why}", rule.want),
                }),
                Err("") => Err(not_valid()),
                Err(why) => Err(Fault::NotValid {
                    got: given.show(),
                    want: format!("{}: {why}", rule.want),
                }),
            },
            Kind::Secret | Kind::Secrets | Kind::Pairs(_) => {
                Ok(Data::Secrets(vec![Secret::from(text)]))
            }
            Kind::Cores => match text {
                "all" => Ok(Data::Cores(Cores::All)),
                _ => match text.parse::<u16>() {
                    Ok(n) if (1..=1024).contains(&n) => Ok(Data::Cores(Cores::Count(n))),
                    Ok(_) => Err(Fault::OutOfRange {
                        got: given.show(),
                        allowed: "1 to 1024 CPUs".into(),
                    }),
                    Err(_) => Err(not_valid()),
                },
            },
            Kind::Map(_) if given.raw.is_none() => Err(Fault::NotValid {
                got: given.show(),
                want: self.want() + &suggest::type_map(self.path, text).unwrap_or_default(),
            }),
            Kind::Map(_) | Kind::List(..) | Kind::Opaque => Err(not_valid()),
        }
    }
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Int(u64),
    Bool(bool),
    Text(String),
    Secrets(Vec<Secret>),
    Texts(Vec<String>),
    Pairs(Vec<(String, Secret)>),
    Cores(Cores),
    /// A map was there, with these names.
    Map(Vec<String>),
    /// A list was there, with so many items.
    List(usize),
}

pub(super) enum Parsed {
    Number(u64),
    /// A number, and too large or too small for 64 bits.
    Beyond,
    NotANumber,
}

impl Unit {
    fn suffixes(self) -> &'static [(&'static str, u64)] {
        match self {
            Unit::Of(_) => &[],
            Unit::Bytes => &[
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
                ("TiB", 1 << 40),
                ("kB", 1_000),
                ("MB", 1_000_000),
                ("GB", 1_000_000_000),
                ("TB", 1_000_000_000_000),
                ("B", 1),
            ],
            Unit::Millis => &[
                ("ms", 1),
                ("s", 1_000),
                ("m", 60_000),
                ("h", 3_600_000),
                ("d", 86_400_000),
            ],
            Unit::Seconds => &[("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)],
            Unit::Percent => &[("%", 1)],
        }
    }

    /// What a value must be.
    pub fn want(self) -> &'static str {
        match self {
            Unit::Of(_) => "a whole number",
            Unit::Bytes => "a whole number of bytes (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
            Unit::Millis => "a whole number of milliseconds (units: ms, s, m, h, d)",
            Unit::Seconds => "a whole number of seconds (units: s, m, h, d)",
            Unit::Percent => "a whole number of percent",
        }
    }

    /// The unit of a plain number.
    pub fn word(self) -> &'static str {
        match self {
            Unit::Of(word) => word,
            Unit::Bytes => "bytes",
            Unit::Millis => "ms",
            Unit::Seconds => "s",
            Unit::Percent => "%",
        }
    }

    /// From where to where, for people: the largest unit that keeps a number whole, in brackets.
    pub fn range(self, min: u64, max: u64) -> String {
        let word = if self.word().is_empty() {
            String::new()
        } else {
            format!(" {}", self.word())
        };
        let (short_min, short_max) = (self.short(min), self.short(max));
        if short_min.is_none() && short_max.is_none() {
            return format!("{min} to {max}{word}");
        }
        let side = |short: Option<String>, n: u64| {
            short.unwrap_or_else(|| match self {
                Unit::Bytes => format!("{n} B"),
                _ => format!("{n}{word}"),
            })
        };
        format!(
            "{min} to {max}{word} ({} to {})",
            side(short_min, min),
            side(short_max, max)
        )
    }

    /// `128 MiB` for 134217728 bytes; none where the plain number is as short.
    pub fn short(self, n: u64) -> Option<String> {
        let best = self.suffixes().iter().filter(|(suffix, scale)| {
            *scale > 1
                && n >= *scale
                && n.is_multiple_of(*scale)
                && (self != Unit::Bytes || suffix.ends_with("iB"))
        });
        best.max_by_key(|(_, scale)| *scale)
            .map(|(suffix, scale)| format!("{} {suffix}", n / scale))
    }

    /// Reads a number, with a unit or without.
    pub fn parse(self, text: &str) -> Parsed {
        let text = text.trim();
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '-'))
            .unwrap_or(text.len());
        let (digits, suffix) = (&text[..split], text[split..].trim());
        let scale = match suffix {
            "" => 1,
            _ => match self.suffixes().iter().find(|(s, _)| *s == suffix) {
                Some((_, scale)) => *scale,
                None => return Parsed::NotANumber,
            },
        };
        let (negative, digits) = match digits.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, digits),
        };
        let plain = digits.replace('_', "");
        let odd = digits.starts_with('_')
            || digits.ends_with('_')
            || (plain.len() > 1 && plain.starts_with('0'));
        if plain.is_empty() || odd || !plain.bytes().all(|b| b.is_ascii_digit()) {
            return Parsed::NotANumber;
        }
        match plain.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)) {
            Some(n) if !negative || n == 0 => Parsed::Number(n),
            _ => Parsed::Beyond,
        }
    }
}
