//! A process that dies with any operation, and a power cut that loses what was not synced: the
//! backup before stays whole, and the next one succeeds.

use std::collections::BTreeMap;

use ankusa_wal::{DeliveryState, Seq};

use super::folder::{CUTS, MemFolder};
use super::rig::{Rig, key, prefix, restored};
use crate::backup::{catalog, check_objects};

/// Two backups and half of what they hold delivered, so that a third one sends, prunes and clears.
fn prepared() -> (Rig, MemFolder, BTreeMap<u64, Seq>) {
    let (rig, folder) = (Rig::open(1, None), MemFolder::default());
    let mut hooks = rig.put(0..60);
    let mut first = prefix(&folder, "00");
    rig.back_up(&mut first).unwrap();
    for number in 0..50 {
        rig.end(hooks.remove(&number).unwrap(), DeliveryState::Delivered);
    }
    rig.back_up(&mut first).unwrap();
    hooks.extend(rig.put(60..90));
    (rig, folder, hooks)
}

#[test]
fn death_at_any_operation_leaves_the_backup_before_whole() {
    let (rig, folder, hooks) = prepared();
    let all = {
        let copy = folder.after(super::folder::Cut::All);
        let before = copy.ops();
        rig.back_up(&mut prefix(&copy, "11")).unwrap();
        copy.ops() - before
    };
    assert!(all > 40, "{all}");
    let mut outcomes = [0; 2];
    for op in 0..all {
        for cut in CUTS {
            let copy = folder.after(super::folder::Cut::All);
            copy.die_at(copy.ops() + op);
            let ended = rig.back_up(&mut prefix(&copy, "11"));
            let left = copy.after(cut);
            let newest = catalog::pick(&left, &key(), None);
            let newest = newest.unwrap_or_else(|e| panic!("op {op} {cut:?}: {e}"));
            let checked = check_objects(&left, &newest, &mut |_, _| {});
            checked.unwrap_or_else(|e| panic!("op {op} {cut:?}: {e}"));
            if ended.is_ok() {
                assert_eq!(newest.number, 3, "op {op} {cut:?}");
            }
            outcomes[usize::from(newest.number == 3)] += 1;
            // The one before is there as well, unless it was pruned by a third that stands.
            let numbers: Vec<u64> = catalog::list(&left, &key())
                .unwrap()
                .iter()
                .filter(|l| l.manifest.is_ok())
                .map(|l| l.number)
                .collect();
            assert!(numbers.contains(&2), "op {op} {cut:?}: {numbers:?}");
            for number in numbers {
                let manifest = catalog::pick(&left, &key(), Some(number)).unwrap();
                check_objects(&left, &manifest, &mut |_, _| {})
                    .unwrap_or_else(|e| panic!("op {op} {cut:?} backup {number}: {e}"));
            }
            // And the next process goes on.
            rig.back_up(&mut prefix(&left, "22"))
                .unwrap_or_else(|e| panic!("op {op} {cut:?}: {e}"));
            let newest = catalog::pick(&left, &key(), None).unwrap();
            check_objects(&left, &newest, &mut |_, _| {}).unwrap();
            let unnamed = left.paths().into_iter().find(|p| p.contains("sending-"));
            assert_eq!(unnamed, None, "op {op} {cut:?}");
        }
    }
    assert!(outcomes.iter().all(|n| *n > 10), "{outcomes:?}");
    let last = folder.after(super::folder::Cut::All);
    rig.back_up(&mut prefix(&last, "33")).unwrap();
    restored(&last, None).0.check(&hooks);
}

#[test]
fn death_during_the_very_first_backup_leaves_nothing_that_is_taken_for_one() {
    let rig = Rig::open(2, None);
    rig.put(0..30);
    for op in 0..60 {
        for cut in CUTS {
            let folder = MemFolder::default();
            folder.die_at(op);
            let ended = rig.back_up(&mut prefix(&folder, "00"));
            let left = folder.after(cut);
            match catalog::pick(&left, &key(), None) {
                Ok(manifest) => check_objects(&left, &manifest, &mut |_, _| {}).unwrap(),
                Err(error) => {
                    assert!(ended.is_err(), "op {op} {cut:?}: {error}");
                    assert_eq!(error.word(), "no_backup", "op {op} {cut:?}: {error}");
                }
            }
            rig.back_up(&mut prefix(&left, "11"))
                .unwrap_or_else(|e| panic!("op {op} {cut:?}: {e}"));
        }
    }
}
