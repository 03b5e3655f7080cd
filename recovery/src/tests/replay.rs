//! What a replay leaves in the store.

use ankusa_wal::home::StoreOrigin;

use super::*;
use crate::apply::DryShard;
use crate::boot::Start;
use crate::port::Progress;

/// A node that served: `count` hooks in both places, stopped.
fn served(log: &TestLog, shards: usize, count: u64) -> Remains {
    let node = Node::fresh(log, shards);
    node.run().unwrap();
    for shard in 0..shards {
        let base = shard as u64 * 1000;
        node.ingest(shard, base..base + count);
    }
    node.stop()
}

#[test]
fn replays_the_tail_after_the_offset_on_every_boot() {
    let log = TestLog::new();
    let remains = served(&log, 2, 5);
    let node = Node::reopen(&log, &remains);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.records, summary.counts.present), (10, 10));
    assert_eq!(node.offset(0), Some(9));
    assert_eq!(node.offset(1), Some(9));
    // What came since is the next tail, and nothing else is read.
    node.ingest(0, 50..53);
    let node = Node::reopen(&log, &node.stop());
    let summary = node.run().unwrap();
    assert_eq!(summary.counts.records, 3);
    assert_eq!(log.0.borrow().asked.last(), Some(&(0, 10)));
    assert_eq!(node.offset(1), Some(12));
}

#[test]
pub(crate) fn applies_a_record_once_whatever_the_order_and_however_often_it_comes() {
    let log = TestLog::new();
    let order = [5u64, 3, 5, 9, 1, 3, 7, 1, 1, 5, 9, 9, 2];
    for seq in order {
        log.push(record(0, seq * 10, seq));
    }
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!(summary.counts.records, 13);
    assert_eq!(summary.counts.applied, 6);
    assert_eq!(summary.counts.present, 7);
    let content = node.content();
    assert_eq!(content.len(), 6);
    for ((_, seq), (id, body, rows)) in &content {
        assert_eq!(*id, id_of(seq / 10));
        assert_eq!(*body, body_of(seq / 10));
        assert_eq!(rows[..], ["first due", "second due"]);
    }
    // The same again, from the start, by a second process.
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run_with(Options {
        start: Start::Earliest,
        ..options()
    });
    let summary = summary.unwrap();
    assert_eq!((summary.counts.applied, summary.counts.present), (0, 13));
    assert_eq!(again.content(), content);
}

#[test]
fn keeps_seqs_and_raises_next_seq_beyond_the_last_record_by_a_leap() {
    let log = TestLog::new();
    log.push(record(0, 77_000_000_000, 1));
    log.push(record(0, 5, 2));
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    let seqs: Vec<u64> = node.content().keys().map(|key| key.1).collect();
    assert_eq!(seqs, [5, 77_000_000_000]);
    let next = node.shard(0).mark().next_seq.0;
    assert!(next > 77_000_000_000 + (1 << 24), "{next}");
    assert!(node.ingest(0, 3..4)[0].0 >= next);
}

#[test]
fn dedupe_rows_come_back_and_end_when_they_would_have() {
    let log = TestLog::new();
    log.push(record(0, 5, 1));
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    let rows = node.today.remembered.borrow().clone();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].id, rows[0].seq.0), (id_of(1), 5));
    assert_eq!(rows[0].expires_at_s, 1_767_225_600 + 3_000_000_000);
}

#[test]
fn seq_of_another_hook_is_resequenced_never_overwritten_and_only_once() {
    let log = TestLog::new();
    let remains = served(&log, 1, 2);
    // The other copy of this node handed out the same seqs, and one hook twice.
    log.push(record(0, 1, 500));
    log.push(record(0, 1, 500));
    log.push(record(0, 2, 501));
    let node = Node::reopen(&log, &remains);
    let summary = node.run().unwrap();
    assert_eq!(summary.counts.collided, 2);
    assert_eq!(summary.counts.present, 3);
    let content = node.content();
    let ids: Vec<HookId> = content.values().map(|hook| hook.0).collect();
    assert_eq!(ids, [id_of(0), id_of(1), id_of(500), id_of(501)]);
    for (_, body, rows) in content.values() {
        assert!(!body.is_empty() && rows.len() == 2);
    }
    // Delivered and read again: the mark says that they were here.
    let fresh: Vec<Seq> = content.keys().skip(2).map(|key| Seq(key.1)).collect();
    node.finish(0, &fresh);
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run_with(Options {
        start: Start::Earliest,
        ..options()
    });
    assert_eq!(summary.unwrap().counts.present, 5);
    assert_eq!(again.content().len(), 2);
}

#[test]
pub(crate) fn finished_hook_does_not_come_back_as_new() {
    let log = TestLog::new();
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    let seqs = node.ingest(0, 0..6);
    node.finish(0, &seqs[..4]);
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run().unwrap();
    assert_eq!(summary.counts.present, 6);
    assert_eq!(again.content().len(), 2);
}

#[test]
fn finished_seq_of_another_incarnation_is_a_collision() {
    let log = TestLog::new();
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    let seqs = node.ingest(0, 0..2);
    node.finish(0, &seqs);
    log.push(record_of(0, seqs[0].0, 700, b"github", 2));
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run().unwrap();
    assert_eq!((summary.counts.present, summary.counts.collided), (2, 1));
    let ids: Vec<HookId> = again.content().values().map(|hook| hook.0).collect();
    assert_eq!(ids, [id_of(700)]);
}

#[test]
fn hooks_that_a_fresh_store_took_over_and_finished_stay_finished() {
    let log = TestLog::new();
    // Two incarnations wrote before the disk was lost.
    for seq in 1..4 {
        log.push(record_of(0, seq, seq, b"github", 1));
    }
    for seq in 1001..1004 {
        log.push(record_of(0, seq, seq, b"github", 2));
    }
    let node = Node::fresh(&log, 1);
    assert_eq!(node.run().unwrap().counts.applied, 6);
    // Its own seqs are those of a third.
    assert_eq!(node.facts.borrow().incarnation, 3);
    let own = node.ingest(0, 2000..2001)[0];
    let shard = node.shard(0);
    let of = |seq| shard.store().state().meta().incarnation_of(seq);
    assert_eq!(
        (of(Seq(2)), of(Seq(1002)), of(own)),
        (Some(1), Some(2), Some(3))
    );
    let all: Vec<Seq> = node.content().keys().map(|key| Seq(key.1)).collect();
    node.finish(0, &all);
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run_with(Options {
        start: Start::Earliest,
        ..options()
    });
    assert_eq!(summary.unwrap().counts.present, 7);
    assert!(again.content().is_empty());
    assert_eq!(again.facts.borrow().incarnation, 3);
}

#[test]
pub(crate) fn fenced_hook_that_only_the_log_has_is_applied() {
    let log = TestLog::new();
    let remains = served(&log, 1, 2);
    // Seq 3 was handed out, its local half failed, its record landed; then the process died. The
    // next one took a hook whose seq is higher, and died too.
    log.push(record(0, 3, 3));
    let node = Node::reopen(&log, &remains);
    assert!(node.ingest_local(&node.shard(0), 4).0 > 3);
    let node = Node::reopen(&log, &node.stop());
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.present, summary.counts.applied), (2, 1));
    assert_eq!(node.content()[&(0, 3)].0, id_of(3));
}

#[test]
fn local_hooks_above_the_watermark_that_the_log_lacks_are_republished() {
    let log = TestLog::new();
    let node = Node::fresh(&log, 1);
    node.run().unwrap();
    node.ingest(0, 0..2);
    for number in 10..13 {
        node.ingest_local(&node.shard(0), number);
    }
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run().unwrap();
    assert_eq!((summary.counts.present, summary.republished), (2, 3));
    assert_eq!(log.head(), 5);
    let third = Node::reopen(&log, &again.stop());
    let summary = third.run().unwrap();
    assert_eq!((summary.counts.present, summary.republished), (3, 0));
}

#[test]
fn store_without_intake_rows_boots_under_dual_and_republishes_everything() {
    let log = TestLog::new();
    let node = Node::fresh(&log, 2);
    node.facts.borrow_mut().origin = StoreOrigin::Existing;
    for number in 0..3 {
        node.ingest_local(&node.shard(0), number);
        node.ingest_local(&node.shard(1), 100 + number);
    }
    let again = Node::reopen(&log, &node.stop());
    assert_eq!(again.run().unwrap().republished, 6);
    let facts = again.facts.borrow().clone();
    assert_eq!(
        (facts.node.as_deref(), facts.partition),
        (Some(NODE), Some(0))
    );
    assert_eq!(facts.log.as_deref(), Some("log-1"));
    let shard = again.shard(0);
    let state = shard.store().state();
    assert_eq!(state.meta().incarnation_of(Seq(1)), Some(1));
    assert_eq!(state.meta().intake.as_ref().unwrap().partition, 0);
}

#[test]
fn unknown_version_and_kind_are_skipped_and_counted_and_a_newer_hook_holds_the_offset() {
    let log = TestLog::new();
    log.push(record(0, 1, 1));
    log.push(Entry::Other);
    log.push(Entry::Newer(9));
    log.push(record(0, 2, 2));
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.applied, summary.newer), (2, 1));
    assert!(summary.skipped.contains(&("other_kind", 1)));
    assert_eq!((node.offset(0), node.hold(0)), (Some(1), Some(2)));
    // The newer binary reads it.
    let held = log.0.borrow().partitions[0][2].clone();
    log.0.borrow_mut().partitions[0][2] = match record(0, 3, 3) {
        Entry::Hook(node, hook) => Entry::Hook(
            node,
            ankusa_intake::Replayed {
                position: 2,
                ..hook
            },
        ),
        other => other,
    };
    let newer = Node::reopen(&log, &node.stop());
    let summary = newer.run().unwrap();
    assert_eq!((summary.counts.applied, summary.counts.present), (1, 1));
    assert_eq!((newer.offset(0), newer.hold(0)), (Some(3), None));
    // Or the operator gives it up.
    log.0.borrow_mut().partitions[0][2] = held;
    let other = Node::reopen(&log, &node.stop());
    let summary = other.run_with(Options {
        allow_gap: true,
        ..options()
    });
    assert_eq!(summary.unwrap().counts.present, 1);
    assert_eq!((other.offset(0), other.hold(0)), (Some(3), None));
}

#[test]
fn unreadable_and_contradicting_records_are_counted_and_pass() {
    let log = TestLog::new();
    let broken = |change: fn(&mut ankusa_intake::Replayed)| match record(0, 7, 7) {
        Entry::Hook(node, mut hook) => {
            change(&mut hook);
            Entry::Hook(node, hook)
        }
        other => other,
    };
    log.push(broken(|hook| hook.seq = 8));
    log.push(broken(|hook| hook.id = [1; 16]));
    log.push(broken(|hook| hook.value = hook.value.slice(..40)));
    log.push(broken(|hook| hook.value = Default::default()));
    log.push(broken(|hook| hook.shard = 60_000));
    log.push(record(0, u64::MAX, 1));
    log.push(record(0, 0, 1));
    log.push(record(0, 9, 9));
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.malformed, summary.counts.applied), (7, 1));
    assert_eq!(node.offset(0), Some(7));
    assert_eq!(node.content().len(), 1);
}

#[test]
fn newer_envelope_holds_the_offset_of_its_shard() {
    let log = TestLog::new();
    log.push(record(0, 1, 1));
    log.push(match record(0, 2, 2) {
        Entry::Hook(node, mut hook) => {
            let mut value = hook.value.to_vec();
            value[0] = 2;
            hook.value = value.into();
            Entry::Hook(node, hook)
        }
        other => other,
    });
    log.push(record(0, 3, 3));
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.applied, summary.counts.held), (2, 1));
    assert_eq!((node.offset(0), node.hold(0)), (Some(0), Some(1)));
}

#[test]
fn unknown_source_is_kept_as_a_dead_letter_and_counted() {
    let log = TestLog::new();
    log.push(record_of(0, 1, 1, b"gone", 1));
    log.push(record(0, 2, 2));
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.unroutable, summary.counts.applied), (1, 1));
    let content = node.content();
    assert_eq!(content[&(0, 1)].1, body_of(1));
    assert_eq!(content[&(0, 1)].2, ["(no source) dead 4"]);
    let again = Node::reopen(&log, &node.stop());
    assert_eq!(again.content(), content);
    assert_eq!(again.run().unwrap().counts.records, 0);
}

#[test]
fn shard_that_the_store_lacks_is_made_first() {
    let log = TestLog::new();
    log.push(record(0, 1, 1));
    log.push(record(3, 1, 2));
    let node = Node::fresh(&log, 1);
    assert_eq!(node.run().unwrap().counts.applied, 2);
    assert_eq!(node.shards.borrow().len(), 4);
    assert_eq!(node.content()[&(3, 1)].0, id_of(2));
    for shard in 0..4 {
        assert_eq!(node.offset(shard), Some(1), "shard {shard}");
    }
}

#[test]
fn node_without_a_partition_reads_every_one_and_only_then_stamps_its_own() {
    let log = TestLog::new();
    log.0
        .borrow_mut()
        .partitions
        .extend([Vec::new(), Vec::new()]);
    log.push_to(2, record(0, 1, 1));
    log.push_to(0, record(0, 2, 2));
    let node = Node::fresh(&log, 1);
    assert_eq!(node.run().unwrap().counts.applied, 2);
    assert_eq!(node.facts.borrow().partition, Some(0));
    assert_eq!(node.offset(0), Some(0));
    let asked: Vec<u32> = log.0.borrow().asked.iter().map(|a| a.0).collect();
    assert_eq!(asked, [1, 2, 0]);
}

#[test]
fn log_that_breaks_off_or_does_not_answer_is_asked_again_and_goes_on_where_it_was() {
    let log = TestLog::new();
    for seq in 1..40 {
        log.push(record(0, seq, seq));
    }
    log.0.borrow_mut().breaks = (2, 2);
    log.0.borrow_mut().silent = 3;
    let node = Node::fresh(&log, 1);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.records, summary.counts.applied), (39, 39));
    let starts: Vec<u64> = log.0.borrow().asked.iter().map(|a| a.1).collect();
    assert_eq!(starts, [0, 14, 28]);
    let waits = node.progress.borrow();
    let waits = waits.iter().filter(|p| matches!(p, Progress::Waiting(_)));
    assert_eq!(waits.count(), 5);
}

#[test]
fn damaged_hook_gets_its_bytes_back_and_keeps_its_deliveries() {
    let log = TestLog::new();
    let remains = served(&log, 1, 3);
    let node = Node::reopen_damaged(&log, &remains, vec![Seq(2)]);
    let summary = node.run().unwrap();
    assert_eq!((summary.counts.restored, summary.counts.present), (1, 2));
    assert_eq!(node.content().len(), 3);
    assert!(node.shard(0).came_back().contains(Seq(2)));
}

#[test]
fn dry_run_counts_what_a_run_does_and_leaves_every_byte() {
    let log = TestLog::new();
    let remains = served(&log, 1, 3);
    log.push(record(0, 1, 500));
    log.push(record_of(0, 90, 90, b"gone", 1));
    log.push(record(0, 91, 91));
    log.push(record(0, 91, 91));
    let world = ankusa_wal::sim::SimWorld::new(3);
    let disk = ankusa_wal::disk::sim::SimDisk::with_image(
        &world,
        ankusa_wal::disk::sim::SimDiskConfig::new(3),
        &remains.images[0],
    );
    let host: Rc<dyn Host> = world.host();
    let store = config(0);
    let read = ankusa_wal::open::read_only(&disk, &host, &store);
    let (state, _) = world.block_on(read).unwrap().unwrap();
    let mut dry = DryShard::new(state);
    let batch = Batch {
        records: log.0.borrow().partitions[0]
            .iter()
            .filter_map(|entry| match entry {
                Entry::Hook(_, record) => Some(record.clone()),
                _ => None,
            })
            .collect(),
        ..Batch::default()
    };
    let node = Node::reopen(&log, &remains);
    let counts = dry.count(&batch, &*node.today);
    assert!(disk.snapshot().as_seen().same_as(&remains.images[0]));
    assert_eq!(counts, node.run().unwrap().counts);
}

#[test]
fn clean_stop_at_the_head_leaves_nothing_to_replay() {
    let log = TestLog::new();
    let node = Node::reopen(&log, &served(&log, 1, 3));
    node.run().unwrap();
    assert_eq!(node.offset(0), Some(log.head() - 1));
    let again = Node::reopen(&log, &node.stop());
    let summary = again.run().unwrap();
    assert_eq!(summary.counts, Applied::default());
    assert_eq!(again.offset(0), Some(log.head() - 1));
}

#[test]
fn restored_store_gets_all_that_came_since_and_its_own_incarnation() {
    let log = TestLog::new();
    let backup = {
        let node = Node::fresh(&log, 1);
        node.run().unwrap();
        node.ingest(0, 0..2);
        let node = Node::reopen(&log, &node.stop());
        node.run().unwrap();
        node.stop()
    };
    {
        let node = Node::reopen(&log, &backup);
        node.run().unwrap();
        node.ingest(0, 10..13);
    }
    let mut restored = backup.clone();
    restored.facts.origin = StoreOrigin::Restored;
    restored.facts.incarnation = 2;
    let node = Node::reopen(&log, &restored);
    let summary = node.run().unwrap();
    assert_eq!(summary.counts.applied, 3);
    assert_eq!(node.content().len(), 5);
    assert_eq!(node.facts.borrow().origin, StoreOrigin::Existing);
    let own = node.ingest(0, 20..21)[0];
    let shard = node.shard(0);
    assert_eq!(shard.store().state().meta().incarnation_of(own), Some(2));
    // Restored again from the same backup, the number is not used twice.
    let node = Node::reopen(&log, &restored);
    assert_eq!(node.run().unwrap().counts.applied, 4);
    assert_eq!(node.facts.borrow().incarnation, 3);
}
