//! A process that dies at any operation of its disks during a replay, and the next one.

use std::cell::{Cell, RefCell};

use ankusa_wal::disk::sim::{CrashMode, Fault, FaultPlan};
use ankusa_wal::home::StoreOrigin;

use super::*;
use crate::apply::ShardApply;
use crate::boot::run;

/// A restored store and a log with everything in it: duplicates, disorder, collisions, an unknown
/// source, a newer hook, a second shard.
fn scene() -> (TestLog, Remains) {
    let log = TestLog::new();
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    let seqs = node.ingest(0, 0..4);
    node.finish(0, &seqs[..1]);
    let mut remains = node.stop();
    remains.facts.origin = StoreOrigin::Restored;
    remains.facts.incarnation = 2;
    for number in [20, 15, 30, 15, 22, 20, 41, 17] {
        log.push(record(0, 1000 + number, number));
        log.push(record(1, number, 100 + number));
    }
    log.push(record(0, seqs[2].0, 600));
    log.push(record_of(0, 3000, 61, b"gone", 1));
    log.push(Entry::Newer(3));
    log.push(record(0, 1022, 601));
    log.push(record(0, 1099, 99));
    (log, remains)
}

/// What must be the same whoever died where: fresh seqs may differ.
type Told = Vec<(usize, HookId, Vec<u8>, Vec<String>)>;

fn told(node: &Node) -> Told {
    let mut told: Vec<_> = node
        .content()
        .into_iter()
        .map(|((shard, _), (id, body, rows))| (shard, id, body, rows))
        .collect();
    told.sort();
    told
}

fn whole() -> (TestLog, Remains, Told, u64) {
    let (log, remains) = scene();
    let node = Node::reopen(&log, &remains);
    let before: u64 = node.disks.borrow().iter().map(|d| d.ops()).sum();
    node.run().unwrap();
    let after: u64 = node.disks.borrow().iter().map(|d| d.ops()).sum();
    assert_eq!(node.hold(0), Some(22));
    (log, remains, told(&node), after - before)
}

/// Runs until the disks have begun `ops` more operations, and dies there.
fn killed_after(log: &TestLog, remains: &Remains, ops: u64) -> (Rc<Node>, bool) {
    let node = Node::reopen(log, remains);
    let done = Rc::new(Cell::new(false));
    let count = |node: &Node| -> u64 { node.disks.borrow().iter().map(|d| d.ops()).sum() };
    let end = count(&node) + ops;
    {
        let (node, done) = (Rc::clone(&node), Rc::clone(&done));
        let (log, world) = (log.clone(), node.world.clone());
        world.spawn(async move {
            run(&log, &*node, &options()).await.unwrap();
            done.set(true);
        });
    }
    node.world
        .run_until(|| done.get() || count(&node) >= end)
        .unwrap();
    let finished = done.get();
    (node, finished)
}

#[test]
fn process_that_dies_at_any_operation_leaves_what_the_next_makes_whole() {
    let (log, remains, expected, ops) = whole();
    assert!(ops > 20, "{ops}");
    let mut died = 0;
    for at in 0..=ops {
        let mut modes = vec![CrashMode::NOTHING, CrashMode::EVERYTHING];
        modes.push(CrashMode::drawn(at));
        for mode in modes {
            let head = log.head();
            let (node, finished) = killed_after(&log, &remains, at);
            died += u64::from(!finished);
            let left = node.remains(&mode);
            node.world.crash();
            let next = Node::reopen(&log, &left);
            next.run().unwrap_or_else(|e| panic!("after {at}: {e}"));
            assert_eq!(
                told(&next),
                expected,
                "died after {at} operations, {mode:?}"
            );
            // Once more changes nothing.
            let content = next.content();
            let third = Node::reopen(&log, &next.stop());
            third.run().unwrap();
            assert_eq!(
                third.content(),
                content,
                "died after {at} operations, then again"
            );
            // What was republished is not part of the next round.
            log.0.borrow_mut().partitions[0].truncate(head as usize);
        }
    }
    assert!(died > ops, "{died}");
}

#[test]
fn any_one_failed_operation_is_fenced_and_the_replay_goes_on_behind_it() {
    let (log, remains, expected, ops) = whole();
    let mut fences = 0;
    for at in 0..ops {
        for fault in [Fault::EIO, Fault::Short(4096)] {
            let head = log.head();
            let node = Node::reopen(&log, &remains);
            let plan = |from: u64| FaultPlan::none().at(from + at, fault);
            for disk in node.disks.borrow().iter() {
                disk.set_faults(plan(disk.ops()));
            }
            node.run().unwrap();
            for disk in node.disks.borrow().iter() {
                disk.set_faults(FaultPlan::none());
            }
            let shards = node.shards.borrow().clone();
            let fenced = |s: &ShardApply<_>| s.store().stats().fences;
            fences += shards.iter().map(fenced).sum::<u64>();
            assert_eq!(
                told(&node),
                expected,
                "operation {at} failed with {fault:?}"
            );
            let next = Node::reopen(&log, &node.remains(&CrashMode::NOTHING));
            assert_eq!(told(&next), expected, "operation {at} failed, then a cut");
            log.0.borrow_mut().partitions[0].truncate(head as usize);
        }
    }
    assert!(fences > 10, "{fences}");
}

#[test]
fn offset_never_passes_a_record_that_is_not_durable() {
    let (log, remains, _, ops) = whole();
    let durable_seqs = RefCell::new(0);
    for at in 0..=ops {
        let head = log.head();
        let (node, _) = killed_after(&log, &remains, at);
        let left = node.remains(&CrashMode::NOTHING);
        node.world.crash();
        let next = Node::reopen(&log, &left);
        for shard in 0..next.shards.borrow().len() {
            let Some(offset) = next.offset(shard) else {
                continue;
            };
            for (position, entry) in log.0.borrow().partitions[0].iter().enumerate() {
                let Entry::Hook(_, record) = entry else {
                    continue;
                };
                if position as u64 > offset || usize::from(record.shard) != shard {
                    continue;
                }
                let apply = next.shard(shard);
                let state = apply.store().state();
                let (seq, id) = (Seq(record.seq), HookId(record.id));
                let is_there = state.slot_of_id(id).is_some()
                    || state.finished().contains(seq)
                    || state.meta().resequenced(seq, id).is_some();
                assert!(
                    is_there,
                    "died after {at}: position {position} is below offset {offset}"
                );
                *durable_seqs.borrow_mut() += 1;
            }
        }
        log.0.borrow_mut().partitions[0].truncate(head as usize);
    }
    assert!(*durable_seqs.borrow() > 100);
}
