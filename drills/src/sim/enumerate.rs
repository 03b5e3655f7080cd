//! Enumerated where it can be: every operation of a short history fails in turn in every way, and
//! the power is cut at every flush in every way worth trying.

use std::cell::RefCell;
use std::rc::Rc;

use ankusa_wal::disk::sim::{
    Fate, Fault, FaultPlan, FlushEdge, SimCounters, SimDisk, SimDiskConfig, SimSnapshot,
};
use ankusa_wal::sim::SimWorld;
use ankusa_wal::{HookId, Host, Store};

use super::book::{Book, Hex, Id, Kind, Violation};
use super::run::{Plan, Report, run_short};

/// The ways in which each operation fails.
pub const WAYS: [(&str, Fault); 6] = [
    ("EIO", Fault::EIO),
    (
        "EIO, then fine, and nothing landed",
        Fault::Error(5, Fate::Lost),
    ),
    ("ENOSPC", Fault::ENOSPC),
    ("short", Fault::Short(4_096)),
    ("hang", Fault::Hang),
    ("error told late", Fault::Late(Fate::Kept)),
];

/// What came of an enumeration.
#[derive(Debug, Default)]
pub struct Enumerated {
    /// Cases run.
    pub cases: u64,
    /// Faults met, by kind.
    pub counters: SimCounters,
    /// What was broken, with the case.
    pub broken: Vec<(String, Violation)>,
}

impl Enumerated {
    fn add(&mut self, case: &str, report: Report) {
        self.cases += 1;
        self.counters += report.counters;
        let all = report.violations.into_iter();
        self.broken
            .extend(all.map(|violation| (case.to_owned(), violation)));
    }
}

/// Fails operation `n` of either disk, for every `n` that a short history has, in every way.
pub fn every_operation(seed: u64) -> Enumerated {
    let mut all = Enumerated::default();
    let plan = Plan {
        ops: 24,
        faults: 0,
        ..Plan::of(seed)
    };
    let (report, ops) = run_short(&plan, None);
    all.add("no fault", report);
    for (shard, ops) in ops.into_iter().enumerate() {
        for n in 0..ops {
            for (way, fault) in WAYS {
                let faults = FaultPlan::none().at(n, fault);
                let (report, _) = run_short(&plan, Some((shard, faults)));
                if report.counters.faults() > 0 {
                    all.add(&format!("disk {shard}, operation {n}: {way}"), report);
                }
            }
        }
    }
    all
}

/// One flush edge, and what had been acked by then.
struct Edge {
    snapshot: SimSnapshot,
    shard: usize,
    acked: Vec<(u64, Id)>,
}

/// Cuts the power right before and right after every flush of a short history, in every mode
/// worth trying and `drawn` drawn ones; everything acked by then must be found, unaltered.
pub fn every_flush(seed: u64, drawn: usize) -> Enumerated {
    let edges: Rc<RefCell<Vec<Edge>>> = Rc::default();
    let plan = Plan {
        ops: 24,
        faults: 0,
        probes: false,
        ..Plan::of(seed)
    };
    let book = Book::new();
    let watch = {
        let (edges, book) = (Rc::clone(&edges), Rc::clone(&book));
        move |shard: usize, disk: &SimDisk| {
            let (edges, book) = (Rc::clone(&edges), Rc::clone(&book));
            disk.observe(move |_: FlushEdge, snapshot| {
                let acked = acked(&book, shard);
                edges.borrow_mut().push(Edge {
                    snapshot,
                    shard,
                    acked,
                });
            });
        }
    };
    let (report, store) = super::run::run_watched(&plan, &book, &watch);
    let mut all = Enumerated::default();
    all.add("no fault", report);
    for (at, edge) in edges.borrow().iter().enumerate() {
        for mode in edge.snapshot.modes(seed + at as u64, drawn) {
            let case = format!("disk {}, edge {at}, {mode:?}", edge.shard);
            all.cases += 1;
            let image = edge.snapshot.image(&mode);
            let world = SimWorld::new(seed + at as u64);
            let disk = SimDisk::with_image(&world, SimDiskConfig::new(seed), &image);
            let host = world.host();
            let opened = world.block_on(Store::open(disk, host as Rc<dyn Host>, store(edge.shard)));
            match opened {
                Ok(Ok((store, _))) => look(&world, &store, &book, edge, &case, &mut all),
                Ok(Err(error)) => all.refused(&case, error.to_string()),
                Err(stuck) => all.refused(&case, stuck.to_string()),
            }
            world.crash();
        }
    }
    all
}

impl Enumerated {
    fn refused(&mut self, case: &str, text: String) {
        let kind = Kind::Refused;
        self.broken
            .push((case.to_owned(), Violation { kind, text }));
    }
}

/// What had been acked by the shard, with the request of each.
fn acked(book: &Book, shard: usize) -> Vec<(u64, Id)> {
    let requests = book.requests.borrow();
    let mut all = Vec::new();
    for (number, sent) in requests.iter() {
        // With as many cores as shards, a core stores in its own: the id names it.
        let ids = sent
            .answers
            .iter()
            .filter(|a| !a.duplicate)
            .filter_map(|a| a.id);
        all.extend(
            ids.filter(|id| usize::from(id[9]) == shard)
                .map(|id| (*number, id)),
        );
    }
    all
}

fn look(
    world: &SimWorld,
    store: &Store<SimDisk>,
    book: &Book,
    edge: &Edge,
    case: &str,
    all: &mut Enumerated,
) {
    for (number, id) in &edge.acked {
        let seq = {
            let state = store.state();
            let slot = state.slot_of_id(HookId(*id));
            slot.and_then(|slot| state.hook(slot)).map(|hook| hook.seq)
        };
        let read = seq.map(|seq| world.block_on(store.read(seq)));
        let found = match &read {
            Some(Ok(Ok(envelope))) => book.recognise(envelope).map(|(_, id, number)| (number, id)),
            _ => None,
        };
        if found != Some((*number, *id)) {
            let kind = Kind::Missing;
            let text = format!("{} of request {number}", Hex(id));
            all.broken.push((case.to_owned(), Violation { kind, text }));
        }
    }
    for violation in book.violations() {
        all.broken.push((case.to_owned(), violation));
    }
}
