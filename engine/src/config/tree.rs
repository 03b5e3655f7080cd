//! From YAML to a tree of maps, lists and scalars that know their line and column.
//!
//! Bounded in bytes, depth and nodes (aliases are copied, and the copies count). Scalars stay
//! texts: what a text means is the table's to say, so `port: 4000` and `port: "4000"` are the
//! same. Duplicate keys are faults, and so are merge keys, tags of one's own, and a second
//! document. Pure; runs at boot, at a reload and offline.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::problem::{At, Fault, Place, Problem};

/// The largest file that is read.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The most nodes of a tree.
pub const NODES_MAX: usize = 100_000;
/// The deepest nesting.
pub const DEPTH_MAX: usize = 32;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: At,
    pub data: NodeData,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum NodeData {
    /// Nothing, `~` or `null`.
    Null,
    /// Any other scalar.
    Scalar(String),
    /// A list.
    List(Vec<Node>),
    /// A map in the order of the file; keys are unique.
    Map(Vec<(String, At, Node)>),
}

impl NodeData {
    /// What it is, for an error.
    pub fn noun(&self) -> &'static str {
        match self {
            NodeData::Null => "nothing",
            NodeData::Scalar(_) => "a single value",
            NodeData::List(_) => "a list",
            NodeData::Map(_) => "a map",
        }
    }
}

/// Reads one document. The problems are all of them when the text is YAML at all, else those up
/// to the place where it stops being YAML.
pub(super) fn parse(bytes: &[u8]) -> (Node, Vec<Problem>) {
    let nothing = Node {
        at: At { line: 1, column: 1 },
        data: NodeData::Null,
    };
    let whole = |fault: String| Problem {
        path: String::new(),
        place: Place::File(At::default()),
        fault: Fault::Syntax(fault),
    };
    if bytes.len() > FILE_BYTES_MAX {
        return (
            nothing,
            vec![whole(format!(
                "the file has {} bytes; allowed: at most {FILE_BYTES_MAX} (1 MiB)",
                bytes.len()
            ))],
        );
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
            let start = before
                .iter()
                .rposition(|&b| b == b'\n')
                .map_or(0, |i| i + 1);
            let column = 1 + String::from_utf8_lossy(&before[start..]).chars().count();
            let place = Place::File(At { line, column });
            return (
                nothing,
                vec![Problem {
                    path: String::new(),
                    place,
                    fault: Fault::Syntax("the file is not UTF-8 here".into()),
                }],
            );
        }
    };
    let mut builder = Builder {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        problems: Vec::new(),
        path: Vec::new(),
    };
    let root = match builder.document() {
        Ok(root) => root.unwrap_or(nothing),
        Err(stop) => {
            let (at, what) = stop.explain(text);
            builder.problems.push(Problem {
                path: String::new(),
                place: Place::File(at),
                fault: Fault::Syntax(what),
            });
            nothing
        }
    };
    (root, builder.problems)
}

/// Why reading ends early.
enum Stop {
    Yaml(ScanError),
    At(At, String),
}

impl From<ScanError> for Stop {
    fn from(error: ScanError) -> Stop {
        Stop::Yaml(error)
    }
}

impl Stop {
    fn explain(self, text: &str) -> (At, String) {
        match self {
            Stop::At(at, what) => (at, what),
            Stop::Yaml(error) => {
                let at = At {
                    line: error.marker().line(),
                    column: error.marker().col() + 1,
                };
                // The parser notices a tab in its own line, or on either side of it.
                let tab = [at.line, at.line + 1, at.line.saturating_sub(1)]
                    .into_iter()
                    .find(|&n| {
                        let line = text.lines().nth(n.saturating_sub(1)).unwrap_or_default();
                        line.chars()
                            .take_while(|c| c.is_whitespace())
                            .any(|c| c == '\t')
                    });
                match tab {
                    Some(line) => (
                        At { line, column: 1 },
                        "a tab cannot indent YAML; use spaces".into(),
                    ),
                    None => (at, format!("not YAML: {}", error.info())),
                }
            }
        }
    }
}

struct Builder<'a> {
    parser: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    problems: Vec<Problem>,
    path: Vec<String>,
}

fn at(span: &Span) -> At {
    At {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next_event() {
            Some(event) => Ok(event?),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Stop> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Stop::At(
                        at(&span),
                        "a second document starts here; the file must hold one".into(),
                    ));
                }
                Event::DocumentStart(..) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, &span, 0)?);
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node, Stop> {
        let here = at(span);
        if depth > DEPTH_MAX {
            return Err(Stop::At(
                here,
                format!("nested deeper than {DEPTH_MAX} levels"),
            ));
        }
        self.count(1, here)?;
        let first = self.nodes;
        let (anchor, data) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                check_tag(tag.as_deref(), here)?;
                let null = style == ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                (
                    anchor,
                    if null {
                        NodeData::Null
                    } else {
                        NodeData::Scalar(text.into_owned())
                    },
                )
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), here)?;
                (anchor, NodeData::List(self.list(depth)?))
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), here)?;
                (anchor, NodeData::Map(self.map(depth)?))
            }
            Event::Alias(id) => {
                let Some(target) = self.anchors.get(&id).cloned() else {
                    return Err(Stop::At(here, "an alias inside of what it names".into()));
                };
                let size = size(&target);
                self.count(size, here)?;
                // The copy stands where the alias does: that is the line to change.
                (0, target.data)
            }
            _ => return Err(Stop::At(here, "not YAML: a value is missing".into())),
        };
        let node = Node { at: here, data };
        if anchor != 0 {
            debug_assert!(self.nodes >= first);
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn count(&mut self, more: usize, here: At) -> Result<(), Stop> {
        self.nodes += more;
        if self.nodes > NODES_MAX {
            return Err(Stop::At(
                here,
                format!("more than {NODES_MAX} values, copies of aliases included"),
            ));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Stop> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(items),
                event => {
                    self.path.push(format!("[{}]", items.len()));
                    let item = self.node(event, &span, depth + 1);
                    self.path.pop();
                    items.push(item?);
                }
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, At, Node)>, Stop> {
        let mut entries: Vec<(String, At, Node)> = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            let here = at(&span);
            let name = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(Stop::At(here, "a key must be a plain text".into())),
            };
            self.count(1, here)?;
            if name == "<<" {
                return Err(Stop::At(
                    here,
                    "merge keys (<<) are not supported; repeat the keys".into(),
                ));
            }
            self.path.push(format!(".{name}"));
            let (event, span) = self.next()?;
            let value = self.node(event, &span, depth + 1);
            let path = self.path.concat().trim_start_matches('.').to_string();
            self.path.pop();
            let value = value?;
            match seen.get(&name) {
                Some(&first_line) => self.problems.push(Problem {
                    path,
                    place: Place::File(here),
                    fault: Fault::DuplicateKey { first_line },
                }),
                None => {
                    seen.insert(name.clone(), here.line);
                    entries.push((name, here, value));
                }
            }
        }
    }
}

fn check_tag(tag: Option<&serde_saphyr::granit_parser::Tag>, here: At) -> Result<(), Stop> {
    match tag {
        Some(tag) if tag.is_custom() => Err(Stop::At(
            here,
            format!("the tag {} has no meaning here", tag.original()),
        )),
        _ => Ok(()),
    }
}

fn size(node: &Node) -> usize {
    match &node.data {
        NodeData::Null | NodeData::Scalar(_) => 1,
        NodeData::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        NodeData::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, _, node)| 1 + size(node))
                .sum::<usize>()
        }
    }
}
