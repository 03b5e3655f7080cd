//! The client: requests handed to a core's pipeline as the server would hand them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use ankusa_net::http1::{Handler, HeadDecision, Request};
use ankusa_wal::disk::sim::SimDisk;
use ankusa_wal::sim::SimRng;
use ankusa_wal::{Host, TaskClass};
use bytes::Bytes;

use crate::ledger;

use super::book::{Answer, Book, Hex, Id, Kind, parse_id, target};
use super::log::SimLog;
use super::medium;
use super::node::{Core, Node};
use super::trace::Trace;

/// The client of a run.
pub struct Client {
    rng: RefCell<SimRng>,
    book: Rc<Book>,
    trace: Rc<Trace>,
    next_number: Cell<u64>,
    keys: Cell<u64>,
    has_probes: bool,
    /// The disks of today, for the probes.
    pub disks: RefCell<Vec<SimDisk>>,
    /// The intake log, where there is one, for the probes.
    pub log: Option<SimLog>,
}

impl Client {
    /// A client that has sent nothing.
    pub fn new(
        book: &Rc<Book>,
        trace: &Rc<Trace>,
        seed: u64,
        has_probes: bool,
        log: Option<SimLog>,
    ) -> Rc<Client> {
        Rc::new(Client {
            rng: RefCell::new(SimRng::stream(seed, 22)),
            book: Rc::clone(book),
            trace: Rc::clone(trace),
            next_number: Cell::new(1),
            keys: Cell::new(0),
            has_probes,
            disks: RefCell::default(),
            log,
        })
    }

    fn draw(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    /// A size: mostly small, sometimes more than a group takes.
    fn bytes(&self) -> usize {
        let mut rng = self.rng.borrow_mut();
        let bytes = match rng.below(20) {
            0..14 => rng.between(32, 2_000),
            14..18 => rng.between(2_000, 9_000),
            18 => rng.between(12_000, 17_000),
            _ => rng.between(17_000, 40_000),
        };
        bytes as usize
    }

    /// Sends a hook without a key to some core.
    pub fn post_plain(self: &Rc<Self>, node: &Node) {
        let bytes = self.bytes();
        self.post_new(node, bytes, None);
    }

    /// Sends a hook with a key: mostly a new one, sometimes one used a while ago.
    pub fn post_keyed(self: &Rc<Self>, node: &Node) {
        let newest = self.keys.get();
        let key = if newest == 0 || self.draw(3) > 0 {
            self.keys.set(newest + 1);
            newest + 1
        } else {
            newest - self.draw(newest.min(6))
        };
        let bytes = self.bytes();
        self.post_new(node, bytes, Some(format!("key-{key}")));
    }

    /// Sends two requests with one new key to every core at once.
    pub fn post_same_key(self: &Rc<Self>, node: &Node) {
        self.keys.set(self.keys.get() + 1);
        let key = format!("key-{}", self.keys.get());
        for core in &node.cores {
            let number = self.new_number();
            let bytes = self.bytes();
            self.send(core, number, bytes, "keyed", Some(key.clone()));
        }
    }

    fn new_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// Sends a new request of this size.
    pub fn post_new(self: &Rc<Self>, node: &Node, bytes: usize, key: Option<String>) {
        let number = self.new_number();
        let source = if key.is_some() { "keyed" } else { "plain" };
        let core = self.draw(node.cores.len() as u64) as usize;
        self.send(&node.cores[core], number, bytes, source, key);
    }

    /// Sends something again that was not acked and is not under way. False: there is none.
    pub fn retry(self: &Rc<Self>, node: &Node) -> bool {
        let open = self.unacked();
        if open.is_empty() {
            return false;
        }
        let number = open[self.draw(open.len() as u64) as usize];
        self.send_again(node, number);
        true
    }

    /// Requests that were not acked and are not under way.
    pub fn unacked(&self) -> Vec<u64> {
        let requests = self.book.requests.borrow();
        let open = requests
            .iter()
            .filter(|(_, sent)| !sent.is_acked() && sent.open_count == 0);
        open.map(|(number, _)| *number).collect()
    }

    /// Sends a request once more.
    pub fn send_again(self: &Rc<Self>, node: &Node, number: u64) {
        let Some(sent) = self.book.requests.borrow().get(&number).cloned() else {
            return;
        };
        let core = self.draw(node.cores.len() as u64) as usize;
        self.send(&node.cores[core], number, sent.bytes, sent.source, sent.key);
    }

    fn send(
        self: &Rc<Self>,
        core: &Rc<Core>,
        number: u64,
        bytes: usize,
        source: &'static str,
        key: Option<String>,
    ) {
        let body = ledger::body(number, bytes);
        let header = key
            .as_ref()
            .map_or(String::new(), |key| format!("x-key: {key}\r\n"));
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n{header}\
             content-length: {}\r\n\r\n",
            target(source, number),
            body.len(),
        );
        self.book.sending(number, &body, source, key.as_deref());
        self.trace
            .note(format_args!("send {number} ({bytes} bytes, key {key:?})"));
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let Some(request) = Request::of(head.into(), body.into(), peer) else {
            panic!("a head that the server refuses");
        };
        let Some(ingest) = core.ingest.borrow().clone() else {
            return;
        };
        let client = Rc::clone(self);
        let task = async move {
            let decision = ingest.on_head(&request.head());
            let response = match decision {
                HeadDecision::Body { admitted, .. } => ingest.handle(request, admitted).await,
                HeadDecision::Refuse(response) => response,
            };
            client.answered(
                number,
                response.status(),
                Bytes::copy_from_slice(response.body()),
            );
        };
        core.host.spawn(TaskClass::Ingest, Box::pin(task));
    }

    fn answered(&self, number: u64, status: u16, body: Bytes) {
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let id = json.get("id").and_then(|id| parse_id(id.as_str()?));
        let duplicate = json.get("duplicate").is_some_and(|d| d == true);
        let word = json.get("error").and_then(|e| e.as_str()).unwrap_or("");
        self.trace.note(format_args!(
            "answer {number}: {status} {word}{} {}",
            if duplicate { "duplicate" } else { "" },
            Hex(&id.unwrap_or_default()),
        ));
        if let (201, Some(id)) = (status, id) {
            self.probe_ack(number, id);
        }
        if status != 201 && status != 503 {
            self.book.broken(
                Kind::Invented,
                format!("request {number} was answered {status} {word}"),
            );
        }
        let answer = Answer {
            status,
            id,
            duplicate,
        };
        self.book.answered(number, answer);
    }

    /// A hook that is acked, or whose duplicate is, is in the log where there is one, and on the
    /// medium or was delivered.
    fn probe_ack(&self, number: u64, id: Id) {
        let is_in_log = self.log.as_ref().is_none_or(|log| log.ever_held(&id));
        if self.has_probes && !is_in_log {
            let text = format!("{} for request {number}: not in the log", Hex(&id));
            self.book.broken(Kind::EarlyAck, text);
        }
        if !self.has_probes || self.draw(8) > 0 || self.book.is_delivered(&id) {
            return;
        }
        if !medium::holds(&self.disks.borrow(), &id) {
            let text = format!("{} for request {number}", Hex(&id));
            self.book.broken(Kind::EarlyAck, text);
        }
    }

    /// Reads a hook that was acked, as the admin API would; it may be finished and gone.
    pub fn read(self: &Rc<Self>, node: &Node) {
        let acked: Vec<Id> = {
            let requests = self.book.requests.borrow();
            let ids = requests
                .values()
                .rev()
                .take(20)
                .flat_map(|sent| &sent.answers);
            ids.filter_map(|answer| answer.id).collect()
        };
        if acked.is_empty() {
            return;
        }
        let id = acked[self.draw(acked.len() as u64) as usize];
        for core in &node.cores {
            for shard in core.shards.borrow().iter() {
                let (store, client) = (shard.store.clone(), Rc::clone(self));
                let task = async move {
                    let seq = {
                        let state = store.state();
                        let slot = state.slot_of_id(ankusa_wal::HookId(id));
                        slot.and_then(|slot| state.hook(slot)).map(|hook| hook.seq)
                    };
                    let Some(seq) = seq else { return };
                    if let Ok(envelope) = store.read(seq).await {
                        client.book.recognise(&envelope);
                        client.trace.note(format_args!("read {}", Hex(&id)));
                    }
                };
                core.host.spawn(TaskClass::Ingest, Box::pin(task));
            }
        }
    }
}
