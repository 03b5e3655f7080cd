//! A store that is full: no hook is taken, what was delivered is still written down, and that alone
//! brings the room back, without more disk and without a restart.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::disk::Disk;
use crate::disk::sim::{SimDisk, SimDiskConfig};
use crate::{Delivery, DeliveryState, Outcome, Record, Refusal, Seq, SinkNo, Store, StoreConfig};

const SEGMENT: u64 = 64 << 10;

fn outcome(seq: Seq, sink: u16) -> Record {
    Record::Delivery(Delivery {
        seq,
        sink: SinkNo(sink),
        attempts: 1,
        due_ms: 0,
        state: DeliveryState::Delivered,
        reason: 0,
    })
}

/// Writes what became of the hooks, as the commit of a shard does; each group is durable.
async fn deliver(store: &Store<SimDisk>, hooks: &[(Seq, u64)]) {
    for (seq, _) in hooks {
        assert!(store.enqueue(outcome(*seq, 3)) && store.enqueue(outcome(*seq, 9)));
    }
    while store.queued() > 0 {
        let group = loop {
            match store.try_begin() {
                Some(group) => break group,
                None => ready(store).await,
            }
        };
        store.submit(group);
        assert_eq!(next_settled(store).await.outcome, Outcome::Durable);
    }
}

/// The same, and the store gets a while for it.
fn delivered(rig: &Rig, hooks: &[(Seq, u64)]) {
    let (store, hooks) = (rig.store.clone(), hooks.to_vec());
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    rig.world.spawn(async move {
        deliver(&store, &hooks).await;
        is_done.set(true);
    });
    let limit = rig.world.now_us() + 60_000_000;
    let is_over = || done.get() || rig.world.now_us() > limit;
    rig.world.run_until(is_over).unwrap();
    assert!(done.get(), "the outcomes never found room");
}

/// Fills it until it refuses; what was acked.
fn fill(rig: &Rig, from: u64) -> Vec<(Seq, u64)> {
    let mut acked = Vec::new();
    for number in from..from + 1_000 {
        rig.world.run_for(Duration::from_millis(1_200));
        match rig.store.admit() {
            Ok(()) => {}
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Full);
                return acked;
            }
        }
        let put = put(&rig.store, number..number + 1, 3_000);
        let (hooks, outcome) = rig.world.block_on(put).unwrap();
        assert_eq!(outcome, Outcome::Durable);
        acked.extend(hooks);
    }
    panic!("never full");
}

/// Delivers all but each `keep`th, a few at a time; the rest.
fn drain(rig: &Rig, acked: &[(Seq, u64)], keep: u64) -> Vec<(Seq, u64)> {
    let (kept, gone): (Vec<_>, Vec<_>) = acked.iter().partition(|(_, n)| n % keep == 0);
    for hooks in gone.chunks(4) {
        delivered(rig, hooks);
        rig.world.run_for(Duration::from_millis(100));
    }
    kept
}

fn disk_of(capacity_bytes: u64) -> SimDiskConfig {
    SimDiskConfig {
        capacity_bytes,
        ..SimDiskConfig::new(6)
    }
}

/// A process that dies now opens again on the same disk.
fn opens_as_it_is(rig: &Rig, config: &StoreConfig, capacity: u64, what: &str) -> Rig {
    let seen = as_seen(rig);
    let again = open_image(1, Some(&seen), disk_of(capacity), config.clone());
    again.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn cycles(config: StoreConfig, capacity: u64) {
    let rig = open_image(6, None, disk_of(capacity), config.clone()).unwrap();
    let mut stragglers: Vec<(Seq, u64)> = Vec::new();
    for turn in 0..4 {
        let mut acked = fill(&rig, turn * 1_000);
        assert!(acked.len() >= 4, "turn {turn}: {}", acked.len());
        acked.append(&mut stragglers);
        opens_as_it_is(&rig, &config, capacity, "full");
        stragglers = drain(&rig, &acked, 20);
        // What is written down stays so, whatever happens now.
        let again = opens_as_it_is(&rig, &config, capacity, "drained");
        assert_eq!(
            again.report.live_hooks,
            stragglers.len() as u64,
            "turn {turn}"
        );
        rig.world.run_for(Duration::from_secs(30));
        assert_eq!(rig.store.admit(), Ok(()), "turn {turn}: room again");
        assert_eq!(rig.store.stats().fences, 0, "turn {turn}");
        let mut ledger = Ledger::default();
        ledger.add(&stragglers, 3_000);
        ledger.check(&rig, "stragglers");
    }
}

#[test]
fn a_full_disk_empties_by_deliveries_alone() {
    let config = StoreConfig {
        min_free_bytes: 2 * SEGMENT,
        ..config()
    };
    cycles(config, 8 * SEGMENT + (160 << 10));
}

#[test]
fn a_full_disk_empties_however_much_is_relocated() {
    let config = StoreConfig {
        min_free_bytes: 2 * SEGMENT,
        relocate_below_percent: 90,
        ..config()
    };
    cycles(config, 8 * SEGMENT + (160 << 10));
}

/// Other shards, or other programs, have the rest of the disk: what counts is the shard's own.
#[test]
fn an_emptied_shard_takes_hooks_again_on_a_disk_that_others_filled() {
    let config = StoreConfig {
        min_free_bytes: 8 * SEGMENT,
        ..config()
    };
    let rig = open_image(6, None, disk_of(13 * SEGMENT), config.clone()).unwrap();
    let acked = fill(&rig, 0);
    let listed = rig.world.block_on(rig.disk.list()).unwrap().unwrap();
    let used: u64 = listed.iter().map(|entry| entry.bytes).sum();
    rig.disk.set_capacity(used + (160 << 10));
    rig.world.run_for(Duration::from_secs(2));
    assert_eq!(rig.store.admit(), Err(Refusal::Full));
    let stragglers = drain(&rig, &acked, 1_000);
    assert_eq!(stragglers.len(), 1);
    rig.world.run_for(Duration::from_secs(30));
    assert_eq!(rig.store.admit(), Ok(()), "room again");
    let more = fill(&rig, 1_000);
    assert!(more.len() > 4, "{}", more.len());
    let mut ledger = Ledger::default();
    ledger.add(&more, 3_000);
    ledger.add(&stragglers, 3_000);
    ledger.check(&rig, "the second filling");
}

/// Without a reserve for hooks: the store runs into the end of the disk, with every slot in use.
/// A process that is killed there, and then again, still opens.
#[test]
fn what_fills_the_disk_leaves_the_next_open_its_segment() {
    for spare in [0, 4 << 10, 40 << 10, 63 << 10] {
        let capacity = 9 * SEGMENT + spare;
        let rig = open_image(6, None, disk_of(capacity), config()).unwrap();
        let acked = fill(&rig, 0);
        assert!(acked.len() > 20, "{}", acked.len());
        let (dead, kept) = acked.split_at(2);
        delivered(&rig, dead);
        let mut ledger = Ledger::default();
        ledger.add(kept, 3_000);
        let once = opens_as_it_is(&rig, &config(), capacity, "full");
        ledger.check(&once, "full");
        once.world.run_for(Duration::from_secs(5));
        let twice = opens_as_it_is(&once, &config(), capacity, "again");
        ledger.check(&twice, "again");
        for hooks in kept.chunks(4) {
            delivered(&twice, hooks);
            twice.world.run_for(Duration::from_secs(1));
        }
        twice.world.run_for(Duration::from_secs(30));
        assert_eq!(twice.store.admit(), Ok(()), "room again");
    }
}
