//! Drawn histories: faults of the disk, of the log and of both, in every order the seed draws, with
//! the marks, the claims and the counts held against what is really in both places.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ankusa_intake::{Class, PermanentAbout, Readiness};
use ankusa_wal::disk::sim::{Fate, Fault, SimDisk, SimDiskConfig};
use ankusa_wal::sim::{SimRng, SimWorld};
use ankusa_wal::{HookExtra, HookId, Outcome, Seq};

use super::rig::{Rig, Sent, UNAVAILABLE, settings};
use super::script::{Mode, Script};
use crate::dual::{BreakerState, DualSettings};

const SEEDS: u64 = 60;
const STEPS: u64 = 80;

fn rig(seed: u64, rng: &mut SimRng) -> Rig {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed));
    let script = Script::new(&world);
    let settings = DualSettings {
        breaker_failures: if rng.below(2) == 0 { 3 } else { 1_000 },
        pending_max_records: if rng.below(3) == 0 { 12 } else { 10_000 },
        // Claims are never given up in these histories, so one key is one hook.
        reconcile_deadline_us: 3_600_000_000,
        ..settings()
    };
    Rig::boot(world, disk, script, settings).serve()
}

fn draw_mode(rng: &mut SimRng) -> Mode {
    let after_ms = rng.below(40);
    match rng.below(9) {
        0 => Mode::Fail(UNAVAILABLE, after_ms),
        1 => Mode::LandAndFail(UNAVAILABLE, after_ms),
        2 => Mode::Silent,
        3 => Mode::Lost,
        4 => Mode::Fail(Class::NotFound, after_ms),
        5 => Mode::Fail(Class::Permanent(PermanentAbout::Access), after_ms),
        6 => Mode::Fail(
            Class::Throttled {
                retry_after_ms: Some(300),
            },
            after_ms,
        ),
        _ => Mode::Confirm(after_ms),
    }
}

fn draw_fault(rng: &mut SimRng) -> Fault {
    match rng.below(4) {
        0 => Fault::Delay(rng.below(200_000)),
        1 => Fault::Error(libc::EIO, Fate::Kept),
        2 => Fault::Error(libc::EIO, Fate::Lost),
        _ => Fault::Error(libc::EIO, Fate::Drawn),
    }
}

/// What is in the store now is what the marks say.
fn check_marks(rig: &Rig, seed: u64) {
    let state = rig.shard.store.state();
    let meta = state.meta();
    let landed = rig.script.landed.borrow();
    let in_log: BTreeSet<u64> = landed.iter().map(|r| r.seq).collect();
    for slot in state.hooks() {
        let hook = state.hook(slot).unwrap();
        if hook.is_durable && meta.is_confirmed(hook.seq) {
            assert!(
                in_log.contains(&hook.seq.0),
                "seed {seed}: seq {} is below the watermark and not in the log",
                hook.seq
            );
        }
    }
    // Of the record that is below the offset, a replay would know nothing.
    let below = meta.offset.offset.map_or(0, |at| at.0 + 1);
    for record in landed.iter().take(below as usize) {
        let seq = Seq(record.seq);
        let hook = state.slot_of_seq(seq).and_then(|slot| state.hook(slot));
        let is_here = state.finished().contains(seq) || hook.is_some_and(|h| h.is_durable);
        assert!(
            is_here,
            "seed {seed}: seq {seq} is at or below the offset and only in the log"
        );
    }
}

type Requests = Vec<(String, Rc<Sent>)>;

fn history(rig: &Rig, seed: u64, rng: &mut SimRng, steps: u64) -> Requests {
    let mut sent = Requests::new();
    for step in 0..steps {
        match rng.below(10) {
            0..=4 => {
                let key = format!("k{}", rng.below(12));
                sent.push((key.clone(), rig.post(&key)));
            }
            5 => rig.script.set(draw_mode(rng)),
            6 => rig.log_up(),
            7 => {
                let faults: Vec<Fault> = (0..=rng.below(3)).map(|_| draw_fault(rng)).collect();
                rig.syncs_meet(&faults);
            }
            8 => rig.script.let_go(),
            _ => {
                let up = match rng.below(3) {
                    0 => Readiness::NoLeader,
                    _ => Readiness::Up,
                };
                rig.node.set_readiness(up);
            }
        }
        if rng.below(3) > 0 {
            let wait_us = match rng.below(6) {
                0 => rng.below(4_000_000),
                1 => rng.below(300_000),
                _ => rng.below(20_000),
            };
            let end_us = rig.world.now_us() + wait_us;
            while rig.world.now_us() < end_us {
                rig.run_ms(1 + rng.below(50));
                check_marks(rig, seed);
            }
        }
        if step % 7 == 0 {
            rig.node.note_head(rig.script.head(), rig.node.epoch());
        }
    }
    sent
}

fn run(seed: u64) {
    let mut rng = SimRng::stream(seed, 77);
    let rig = rig(seed, &mut rng);
    let sent = history(&rig, seed, &mut rng, STEPS);
    // Everything recovers.
    rig.script.set(Mode::Confirm(2));
    rig.syncs_meet(&[]);
    rig.node.set_readiness(Readiness::Up);
    rig.run_ms(30_000);
    rig.node.note_head(rig.script.head(), rig.node.epoch());
    rig.run_ms(3_000);
    check_marks(&rig, seed);
    // Half open: nothing came that could have probed it.
    let breaker = rig.node.breaker();
    assert!(
        matches!(breaker, BreakerState::Closed | BreakerState::HalfOpen),
        "seed {seed}: {breaker:?}"
    );
    let pending = rig.node.pending();
    assert_eq!(
        (pending.records, pending.bytes, pending.carried),
        (0, 0, 0),
        "seed {seed}"
    );
    assert_eq!(rig.desk.counts().1, 0, "seed {seed}: a claim is open");
    check_hooks(&rig, &sent, seed);
    rig.node.note_head(rig.script.head(), rig.node.epoch());
    rig.run_ms(2_500);
    let last = rig.script.landed.borrow().iter().map(|r| r.seq).max();
    let (watermark, exceptions, offset) = rig.stored_marks();
    assert!(watermark >= last.unwrap_or(0), "seed {seed}");
    assert!(exceptions.is_empty(), "seed {seed}");
    assert_eq!(offset, rig.script.head().checked_sub(1), "seed {seed}");
    assert_eq!(rig.shard.store.state().counts().hooks, 0, "seed {seed}");
}

fn check_hooks(rig: &Rig, sent: &[(String, Rc<Sent>)], seed: u64) {
    let delivered = rig.delivered();
    let once: BTreeSet<HookId> = delivered.iter().copied().collect();
    assert_eq!(once.len(), delivered.len(), "seed {seed}: delivered twice");
    let logged: BTreeSet<HookId> = rig.logged().into_iter().collect();
    assert_eq!(logged, once, "seed {seed}: in one place only");
    let mut acked: BTreeMap<&str, HookId> = BTreeMap::new();
    for (key, sent) in sent {
        let answered = sent.answered();
        if let Some(id) = answered.id {
            assert!(once.contains(&id), "seed {seed}: acked and lost");
            let first = *acked.entry(key).or_insert(id);
            assert_eq!(first, id, "seed {seed}: two ids for key {key}");
        }
    }
    // Every hook that came to be anywhere has its key: a retry hears its id.
    for key in sent.iter().map(|(key, _)| key) {
        let retry = rig.posted(key).answered();
        assert_eq!(retry.status, 201, "seed {seed}");
        if let Some(first) = acked.get(key.as_str()) {
            assert_eq!(retry.id, Some(*first), "seed {seed}");
        } else {
            acked.insert(key, retry.id.unwrap());
        }
    }
    let ids: BTreeSet<HookId> = acked.values().copied().collect();
    assert!(once.is_subset(&ids), "seed {seed}: a hook without its key");
}

#[test]
fn in_drawn_histories_nothing_is_lost_doubled_or_said_too_early() {
    for seed in 0..seeds() {
        run(seed);
    }
}

/// `DUAL_SEEDS` for a long run by hand.
fn seeds() -> u64 {
    let asked = std::env::var("DUAL_SEEDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

/// The replay of a boot, in its barest form: what is above the offset and not here is written.
fn replay(rig: &Rig) {
    let from = rig.stored_marks().2.map_or(0, |at| at + 1);
    let records: Vec<_> = rig.script.landed.borrow()[from as usize..].to_vec();
    for record in records {
        let (seq, sink, store) = (Seq(record.seq), rig.sink(), rig.shard.store.clone());
        let written = rig.shard.commit.write_group(2_000, 2_000, move |builder| {
            let is_here = {
                let state = store.state();
                state.slot_of_seq(seq).is_some() || state.finished().contains(seq)
            };
            let extra = HookExtra {
                sinks: &[sink],
                log: true,
                ..HookExtra::default()
            };
            if !is_here {
                builder.hook_again(seq, &record.value, &extra);
            }
        });
        assert_eq!(rig.world.block_on(written).unwrap(), Outcome::Durable);
    }
}

fn cut_off(seed: u64) {
    let mut rng = SimRng::stream(seed, 78);
    let mut rig = rig(seed, &mut rng);
    let mut acked = BTreeSet::new();
    let mut delivered = BTreeSet::new();
    for life in 0..3 {
        let steps = 5 + rng.below(30);
        let sent = history(&rig, seed, &mut rng, steps);
        let answers = sent.iter().filter(|(_, sent)| !sent.is_open());
        acked.extend(answers.filter_map(|(_, sent)| sent.answered().id));
        delivered.extend(rig.delivered());
        let world = SimWorld::new(seed * 10 + life);
        rig = rig.crash_drawn(world, rng.below(1_000));
        replay(&rig);
        rig = rig.serve();
    }
    rig.run_ms(5_000);
    check_marks(&rig, seed);
    let last: BTreeSet<HookId> = rig.delivered().into_iter().collect();
    delivered.extend(&last);
    let logged: BTreeSet<HookId> = rig.logged().into_iter().collect();
    assert!(acked.is_subset(&delivered), "seed {seed}: acked and lost");
    assert!(
        acked.is_subset(&logged),
        "seed {seed}: acked and not in the log"
    );
    assert!(
        last.is_subset(&logged),
        "seed {seed}: stored, and not in the log"
    );
    assert!(logged.is_subset(&delivered), "seed {seed}: logged and lost");
}

#[test]
fn cut_off_anywhere_a_replay_and_a_republish_make_both_places_whole() {
    for seed in 0..seeds() {
        cut_off(seed);
    }
}
