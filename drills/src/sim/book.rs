//! What the client sent and was told, what the sinks were given, and what was found broken.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use crate::ledger;

use super::reader;

/// A hook's id.
pub type Id = [u8; 16];

/// What a broken promise is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Acked and never delivered.
    Missing,
    /// Delivered or read with other content than was sent.
    Altered,
    /// Delivered and never sent.
    Invented,
    /// A second hook for one dedupe key.
    DuplicateHook,
    /// A 201 before the hook was on the medium.
    EarlyAck,
    /// A delivery before the hook was on the medium.
    EarlyDelivery,
    /// A delivery beyond what a crash or a sink's lost answer explains.
    ExtraDelivery,
    /// One seq for two hooks, or two for one.
    SeqReused,
    /// The store did not open although only ordinary faults were met.
    Refused,
    /// Something that must end did not.
    Stuck,
    /// The disk was used in a way that promises nothing.
    Contract,
    /// Opening a second time, or counting, gave something else.
    NotIdempotent,
    /// An assertion of the heart failed.
    Panicked,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub kind: Kind,
    /// What exactly.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

/// One answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The hook's id, in a 201.
    pub id: Option<Id>,
    /// It was called a duplicate.
    pub duplicate: bool,
}

/// One request, sent once or more often.
#[derive(Clone, Debug)]
pub struct Sent {
    /// SHA-256 of the body.
    pub sha256: [u8; 32],
    /// Bytes of the body.
    pub bytes: usize,
    /// Its source.
    pub source: &'static str,
    /// Its dedupe key.
    pub key: Option<String>,
    /// Every answer it got.
    pub answers: Vec<Answer>,
    /// Times it was sent.
    pub sent_count: u32,
    /// Times it is under way now.
    pub open_count: u32,
}

impl Sent {
    /// Whether a 201 came.
    pub fn is_acked(&self) -> bool {
        self.answers.iter().any(|answer| answer.status == 201)
    }
}

/// One delivery.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// In which life of the node.
    pub life: u32,
    /// From which shard.
    pub shard: u16,
    /// The hook's place there.
    pub seq: u64,
    /// The hook.
    pub id: Id,
    /// The request it came from.
    pub number: u64,
    /// To which sink.
    pub sink: &'static str,
}

/// Everything that is known outside the node.
#[derive(Default)]
pub struct Book {
    /// By the number in the body.
    pub requests: RefCell<BTreeMap<u64, Sent>>,
    /// In order.
    pub deliveries: RefCell<Vec<Delivered>>,
    /// Deliveries that a sink confirmed, by hook and sink: the life of each.
    pub confirmed: RefCell<BTreeMap<(Id, &'static str), Vec<u32>>>,
    /// Refused for good, by hook and sink.
    pub refused: RefCell<BTreeSet<(Id, &'static str)>>,
    /// Attempts, by hook and sink.
    pub attempts: RefCell<BTreeMap<(Id, &'static str), u32>>,
    /// Lives that ended with a clean stop.
    pub clean_lives: RefCell<BTreeSet<u32>>,
    /// Lives after which the host was lost, with everything on it.
    pub host_losses: RefCell<BTreeSet<u32>>,
    /// Hooks whose key may be another's as well: their claim was given up, or they were in one
    /// place only when that place was lost.
    pub given_up: RefCell<BTreeSet<Id>>,
    /// The present life.
    pub life: Cell<u32>,
    violations: RefCell<Vec<Violation>>,
}

impl Book {
    /// An empty one.
    pub fn new() -> Rc<Book> {
        Rc::default()
    }

    /// A promise was broken.
    pub fn broken(&self, kind: Kind, text: String) {
        let mut violations = self.violations.borrow_mut();
        if violations.len() < 50 {
            violations.push(Violation { kind, text });
        }
    }

    /// What was broken so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.violations.borrow().clone()
    }

    /// A request is sent (again).
    pub fn sending(&self, number: u64, body: &[u8], source: &'static str, key: Option<&str>) {
        let mut requests = self.requests.borrow_mut();
        let row = requests.entry(number).or_insert_with(|| Sent {
            sha256: ledger::sha256(body),
            bytes: body.len(),
            source,
            key: key.map(str::to_owned),
            answers: Vec::new(),
            sent_count: 0,
            open_count: 0,
        });
        row.sent_count += 1;
        row.open_count += 1;
    }

    /// A request was answered.
    pub fn answered(&self, number: u64, answer: Answer) {
        if let Some(row) = self.requests.borrow_mut().get_mut(&number) {
            row.open_count = row.open_count.saturating_sub(1);
            row.answers.push(answer);
        }
    }

    /// The node is gone: nothing that was under way is answered any more.
    pub fn hung_up(&self) {
        for row in self.requests.borrow_mut().values_mut() {
            row.open_count = 0;
        }
        self.life.set(self.life.get() + 1);
    }

    /// Reads an envelope and compares it with what was sent. The hook's seq, id and number.
    pub fn recognise(&self, envelope: &[u8]) -> Option<(u64, Id, u64)> {
        let Some(hook) = reader::read(envelope) else {
            self.broken(Kind::Altered, "not an envelope".into());
            return None;
        };
        let requests = self.requests.borrow();
        let number = ledger::number_of(hook.body);
        let Some((number, sent)) = number.and_then(|n| Some((n, requests.get(&n)?))) else {
            self.broken(Kind::Invented, format!("{}", Hex(&hook.id)));
            return None;
        };
        let is_same = hook.body.len() == sent.bytes
            && ledger::sha256(hook.body) == sent.sha256
            && hook.source == sent.source.as_bytes()
            && hook.target == target(sent.source, number).as_bytes()
            && hook.key == sent.key.as_deref().map(str::as_bytes);
        if !is_same {
            self.broken(
                Kind::Altered,
                format!("{} of request {number}", Hex(&hook.id)),
            );
        }
        Some((hook.seq, hook.id, number))
    }

    /// A carried hook gave its claim up.
    pub fn gave_up(&self, id: Id) {
        self.given_up.borrow_mut().insert(id);
    }

    /// Host losses before this life.
    pub fn losses_before(&self, life: u32) -> usize {
        self.host_losses.borrow().range(..life).count()
    }

    /// Whether a hook has reached some sink.
    pub fn is_delivered(&self, id: &Id) -> bool {
        self.deliveries.borrow().iter().any(|d| d.id == *id)
    }
}

/// Path and query of a request.
pub fn target(source: &str, number: u64) -> String {
    format!("/webhooks/{source}?n={number}")
}

/// An id as text.
pub struct Hex<'a>(pub &'a Id);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The id that a text is.
pub fn parse_id(text: &str) -> Option<Id> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}
