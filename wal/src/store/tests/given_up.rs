//! Live hooks that cannot be read any more, below the checkpoint's start: what an open says of them,
//! and that a repair gives up these and nothing else, with their dedupe keys.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::disk::BLOCK_BYTES;
use crate::disk::sim::{Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig, SimImage};
use crate::error::Damage;
use crate::offline::judge::Expect;
use crate::offline::{RepairReport, VerifyReport, repair, verify};
use crate::sim::SimWorld;
use crate::{Delivery, DeliveryState, OpenError, Outcome, Record, Seq, SinkNo};

/// Hooks in one group.
const GROUP: u64 = 3;

/// The group before which the checkpoint is taken, in the middle of a segment.
const CHECKPOINT: u64 = 17;

struct Written {
    image: SimImage,
    /// Live and acked.
    live: Ledger,
    /// Their seqs.
    seqs: BTreeSet<Seq>,
}

fn deliver(rig: &Rig, seq: Seq) {
    for sink in [SinkNo(3), SinkNo(9)] {
        let row = Delivery {
            seq,
            sink,
            attempts: 1,
            due_ms: 0,
            state: DeliveryState::Delivered,
            reason: 0,
        };
        assert!(rig.store.enqueue(Record::Delivery(row)));
    }
}

/// Groups before and after a checkpoint; of each the second hook is delivered, of the first ones
/// only after the checkpoint.
fn written() -> Written {
    let rig = fresh(12);
    let mut live = Ledger::default();
    let mut middles = Vec::new();
    for group in 0..24 {
        if group == CHECKPOINT {
            rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
        }
        let bytes = if group % 5 == 0 { 3000 } else { 300 };
        let numbers = group * GROUP..(group + 1) * GROUP;
        let (hooks, outcome) = rig.world.block_on(put(&rig.store, numbers, bytes)).unwrap();
        assert_eq!(outcome, Outcome::Durable);
        live.add(&hooks, bytes);
        middles.push(hooks[1]);
        let due = if group < CHECKPOINT {
            middles.len() > 6
        } else {
            true
        };
        if due {
            let (seq, number) = middles.remove(0);
            deliver(&rig, seq);
            live.0.remove(&number);
        }
    }
    rig.world.block_on(put(&rig.store, 900..901, 10)).unwrap();
    let seqs = live.0.values().map(|(seq, _)| *seq).collect();
    Written {
        image: as_seen(&rig),
        live,
        seqs,
    }
}

fn on<T>(image: &SimImage, work: impl AsyncFnOnce(&SimDisk) -> T) -> (T, SimImage) {
    let world = SimWorld::new(1);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(1), image);
    let result = world.block_on(work(&disk)).unwrap();
    (result, disk.snapshot().as_seen())
}

fn verified(image: &SimImage) -> VerifyReport {
    let run = async |disk: &SimDisk| verify(disk, Expect::default(), &mut |_, _| {}).await;
    on(image, run).0.unwrap()
}

fn repaired(image: &SimImage) -> (RepairReport, SimImage) {
    let run = async |disk: &SimDisk| repair(disk, Expect::default(), &mut |_| true).await;
    let (report, after) = on(image, run);
    (report.unwrap(), after)
}

/// Where the live hook with this number lies: file and offset.
fn place(written: &Written, number: u64) -> (String, u64) {
    let rig = reopen(&written.image).unwrap();
    let seq = written.live.0[&number].0;
    let at = rig.store.state().location(seq).unwrap();
    let report = verified(&written.image);
    let piece = report
        .judgement
        .chain
        .iter()
        .find(|p| p.header.segment == at.segment);
    let slot = piece.unwrap().slot;
    let mut names = written.image.names();
    names.retain(|n| n.ends_with(".wal"));
    names.sort();
    (names[slot].clone(), at.offset)
}

fn named(report: &RepairReport) -> BTreeSet<Seq> {
    report.plan.lost_hooks.iter().map(|hook| hook.seq).collect()
}

/// Whether the newest dedupe row of a hook says that its key is free.
fn is_free(rig: &Rig, number: u64) -> bool {
    let (mut rows, newest) = rig.store.take_boot_dedupe().unwrap();
    let mut all = Vec::new();
    while let Some(block) = rig.world.block_on(rows.next_block(0)).unwrap() {
        all.extend(block.unwrap());
    }
    all.extend(newest);
    let last = all.iter().rfind(|row| row.id == id_of(number));
    last.is_none_or(|row| row.expires_at_s == 0)
}

/// Repairs it; then it opens, everything that is not named is there, what is named is nowhere.
fn check(written: &Written, bad: &SimImage, what: &str) -> (RepairReport, SimImage) {
    let (report, after) = repaired(bad);
    assert!(report.after.is_sound(), "{what}: {report}");
    let rig = reopen(&after).unwrap_or_else(|error| panic!("{what}: {error}\n{report}"));
    let lost = named(&report);
    // A delivery that was told in a lost group is not known any more.
    let is_live = lost.is_subset(&written.seqs) || !report.plan.lost.is_empty();
    assert!(is_live, "{what}: {lost:?} {report}");
    let in_groups = |seq: Seq| {
        let ranges = report.plan.lost.iter().filter_map(|d| d.seqs);
        ranges
            .into_iter()
            .any(|(first, end)| (first..end).contains(&seq))
    };
    let mut rest = written.live.clone();
    rest.0
        .retain(|_, (seq, _)| !lost.contains(seq) && !in_groups(*seq));
    rest.check(&rig, what);
    for hook in &report.plan.lost_hooks {
        let state = rig.store.state();
        assert!(state.location(hook.seq).is_none(), "{what}: {hook}");
        assert!(state.slot_of_id(hook.id).is_none(), "{what}: {hook}");
        assert!(!state.finished().contains(hook.seq), "{what}: {hook}");
    }
    if !lost.is_empty() {
        let text = report.to_string();
        assert!(!text.contains("nothing is lost"), "{what}: {text}");
    }
    let later = as_seen(&rig);
    let report_later = verified(&later);
    assert!(report_later.is_sound(), "{what}, opened: {report_later}");
    let (again, same) = repaired(&after);
    assert!(again.plan.steps.is_empty(), "{what}: a second run: {again}");
    assert!(same.same_as(&after), "{what}");
    (report, after)
}

fn refused(image: &SimImage) -> Damage {
    match reopen(image) {
        Err(OpenError::Damaged(damage)) => damage,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it opened"),
    }
}

/// The group right before the checkpoint: in the segment that an open reads.
const NEAR: u64 = (CHECKPOINT - 1) * GROUP;

#[test]
fn a_flipped_bit_in_a_live_hook_below_the_checkpoint_is_named_and_that_hook_alone_is_given_up() {
    let written = written();
    let (file, offset) = place(&written, NEAR);
    let seq = written.live.0[&NEAR].0;
    let mut bad = written.image.clone();
    bad.flip(&file, offset + 150, 1);
    let damage = refused(&bad);
    assert_eq!(damage.seqs, Some((seq, seq.next())), "{damage}");
    assert_eq!(damage.file.as_ref(), Some(&file), "{damage}");
    assert!(
        damage.to_string().contains(&format!("seq {seq}")),
        "{damage}"
    );
    let (report, after) = check(&written, &bad, "one bit");
    let lost = &report.plan.lost_hooks;
    assert_eq!(lost.len(), 1, "{report}");
    assert_eq!((lost[0].seq, lost[0].id), (seq, id_of(NEAR)));
    assert_eq!(lost[0].dedupe_hash, Some([NEAR as u8; 16]));
    let text = report.to_string();
    assert!(text.contains(&id_of(NEAR).to_string()), "{text}");
    // Its key is free at the next boot, and at the one after a checkpoint; its neighbour's is not.
    let rig = reopen(&after).unwrap();
    assert!(is_free(&rig, NEAR));
    let rig = reopen(&after).unwrap();
    assert!(!is_free(&rig, NEAR + 2));
    rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
    rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
    let later = reopen(&as_seen(&rig)).unwrap();
    assert!(is_free(&later, NEAR));
    let later = reopen(&as_seen(&rig)).unwrap();
    assert!(later.store.state().location(seq).is_none());
    assert!(!is_free(&later, NEAR + 2));
    // Without a repair nothing else stops the boot: the same damage to a hook that is finished.
    let finished = offset + 150 + 600;
    let mut harmless = written.image.clone();
    harmless.flip(&file, finished, 1);
    let rig = reopen(&harmless).unwrap_or_else(|error| panic!("{error}"));
    written.live.check(&rig, "a finished hook's bit");
    assert!(verified(&harmless).is_sound(), "{}", verified(&harmless));
}

#[test]
fn a_hook_that_was_given_up_can_be_written_again_under_its_seq() {
    let written = written();
    let (file, offset) = place(&written, NEAR);
    let seq = written.live.0[&NEAR].0;
    let whole = reopen(&written.image).unwrap();
    let envelope = whole
        .world
        .block_on(whole.store.read(seq))
        .unwrap()
        .unwrap()
        .to_vec();
    let mut bad = written.image.clone();
    bad.flip(&file, offset + 150, 1);
    let (_, after) = repaired(&bad);
    let rig = reopen(&after).unwrap();
    let store = rig.store.clone();
    let work = async move {
        let mut group = store.try_begin_sized(1000).unwrap();
        let extra = crate::HookExtra {
            sinks: &[SinkNo(3)],
            ..crate::HookExtra::default()
        };
        group.hook_again(seq, &envelope, &extra);
        store.submit(group);
        next_settled(&store).await.outcome
    };
    assert_eq!(rig.world.block_on(work).unwrap(), Outcome::Durable);
    let again = reopen(&as_seen(&rig)).unwrap();
    written.live.check(&again, "as a recovery does");
}

#[test]
fn hooks_of_an_absent_segment_are_given_up_with_their_keys_and_named() {
    let written = written();
    let mut names = written.image.names();
    names.retain(|n| n.ends_with(".wal"));
    let mut with_hooks = 0;
    for name in names {
        let mut bad = written.image.clone();
        bad.remove(&name);
        if reopen(&bad).is_ok() {
            continue;
        }
        let (report, after) = check(&written, &bad, &format!("{name} gone"));
        with_hooks += usize::from(!report.plan.lost_hooks.is_empty());
        for hook in &report.plan.lost_hooks {
            let number = u64::from(hook.id.0[15]);
            assert_eq!(hook.id, id_of(number));
            assert!(is_free(&reopen(&after).unwrap(), number), "{name}: {hook}");
        }
    }
    assert!(with_hooks > 0);
}

#[test]
fn every_damaged_block_of_a_store_with_a_checkpoint_opens_after_a_repair_without_what_it_named() {
    let written = written();
    let report = verified(&written.image);
    assert!(report.is_sound(), "{report}");
    let (mut given_up, mut refusals, mut passed) = (0, 0, 0);
    let mut names = written.image.names();
    names.retain(|n| n.ends_with(".wal"));
    for name in names {
        let len = written.image.read(&name).unwrap().len();
        for block in 0..len / BLOCK_BYTES {
            let at = (block * BLOCK_BYTES) as u64;
            for kind in ["start", "middle", "late", "zeros"] {
                let mut bad = written.image.clone();
                match kind {
                    "start" => bad.flip(&name, at + 3, 8),
                    "middle" => bad.flip(&name, at + 90, 8),
                    "late" => bad.flip(&name, at + 1400, 8),
                    _ => bad.overwrite(&name, at, &[0; BLOCK_BYTES]),
                };
                let what = format!("{kind} of block {block} of {name}");
                let report = verified(&bad);
                match reopen(&bad) {
                    Ok(rig) => {
                        assert!(report.judgement.is_sound(), "{what}: opens\n{report}");
                        passed += 1;
                        if report.is_sound() {
                            written.live.check(&rig, &what);
                            continue;
                        }
                    }
                    Err(error) => {
                        assert!(!report.is_sound(), "{what}: {error}\n{report}");
                        refusals += 1;
                    }
                }
                let (report, _) = check(&written, &bad, &what);
                given_up += usize::from(!report.plan.lost_hooks.is_empty());
            }
        }
    }
    assert!(
        given_up > 20 && refusals > 20 && passed > 20,
        "{given_up} {refusals} {passed}"
    );
}

#[test]
fn a_repair_that_gives_hooks_up_and_is_cut_anywhere_can_be_run_again() {
    let written = written();
    let (near, offset) = place(&written, NEAR);
    let (far, _) = place(&written, 0);
    assert_ne!(near, far);
    let mut bad = written.image.clone();
    bad.flip(&near, offset + 150, 1);
    bad.remove(&far);
    let want = named(&repaired(&bad).0);
    assert!(want.len() > 1);
    let run = |plan: FaultPlan| {
        let world = SimWorld::new(3);
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(3).faults(plan), &bad);
        let result = world.block_on(repair(&disk, Expect::default(), &mut |_| true));
        (result.unwrap().is_ok(), disk)
    };
    let (is_done, disk) = run(FaultPlan::none());
    assert!(is_done);
    let ops = disk.ops();
    for op in (0..ops).rev().take(40).chain((0..ops).step_by(29)) {
        let (_, disk) = run(FaultPlan::none().at(op, Fault::EIO));
        let snapshot = disk.snapshot();
        for mode in snapshot.modes(op, 3) {
            let found = snapshot.image(&mode);
            let what = format!("op {op} {mode:?}");
            let (report, after) = repaired(&found);
            assert!(report.after.is_sound(), "{what}: {report}");
            let rig = reopen(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut rest = written.live.clone();
            rest.0.retain(|_, (seq, _)| !want.contains(seq));
            rest.check(&rig, &what);
            assert!(
                want.iter()
                    .all(|seq| rig.store.state().location(*seq).is_none()),
                "{what}"
            );
        }
    }
}

#[test]
fn a_hook_that_cannot_be_read_holds_up_no_other_relocation_and_is_tried_once_a_minute() {
    let written = written();
    // Of the first segment one hook stays, in a record that is damaged, and one that is whole.
    let (file, offset) = place(&written, 0);
    let mut bad = written.image.clone();
    bad.flip(&file, offset + 150, 1);
    let config = crate::StoreConfig {
        relocate_below_percent: 15,
        ..config()
    };
    let rig = open_image(1, Some(&bad), SimDiskConfig::new(1), config).unwrap();
    let (lost, whole) = (written.live.0[&0].0, written.live.0[&2].0);
    let segment = rig.store.state().location(lost).unwrap().segment;
    let others: Vec<Seq> = {
        let state = rig.store.state();
        let hooks = state.hooks().filter_map(|slot| state.hook(slot));
        let hooks = hooks.filter(|hook| hook.location.segment == segment);
        hooks
            .map(|h| h.seq)
            .filter(|s| *s != lost && *s != whole)
            .collect()
    };
    for seq in others {
        deliver(&rig, seq);
    }
    rig.world.block_on(put(&rig.store, 950..951, 10)).unwrap();
    let reads = || {
        rig.disk
            .log()
            .iter()
            .filter(|op| op.kind == OpKind::Read)
            .count()
    };
    rig.world.run_for(Duration::from_secs(10));
    assert_eq!(rig.store.stats().read_failures, 1);
    let moved = rig.store.state().location(whole).unwrap().segment;
    assert_ne!(moved, segment, "its neighbour was moved");
    let before = reads();
    rig.world.run_for(Duration::from_secs(40));
    assert_eq!(reads(), before);
    rig.world.run_for(Duration::from_secs(200));
    let failures = rig.store.stats().read_failures;
    assert!(
        (3..=5).contains(&failures),
        "{failures} in about four minutes"
    );
    assert_eq!(rig.store.state().location(lost).unwrap().segment, segment);
}
