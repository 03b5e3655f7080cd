//! A process that dies with any operation, and a power cut that loses what was not synced: the
//! backup before stays whole, and the next one succeeds.

use std::collections::BTreeMap;

use ankusa_wal::home::{Home, HomeError};
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

#[test]
fn run_that_failed_is_taken_up_where_it_was_and_its_checkpoint_goes() {
    let (rig, folder) = (Rig::open(3, None), MemFolder::default());
    rig.put(0..120);
    folder.die_at(60);
    let mut first = prefix(&folder, "00");
    rig.back_up(&mut first).unwrap_err();
    folder.live();
    let there: Vec<String> = folder.paths();
    let segments = there.iter().filter(|p| p.contains("/segment-")).count();
    assert!(segments > 0, "{there:?}");
    let sent = rig.back_up(&mut first).unwrap();
    assert!(sent.bytes < sent.bytes_whole, "{sent:?}");
    let needed = catalog::pick(&folder, &key(), None).unwrap();
    let objects = folder
        .paths()
        .iter()
        .filter(|p| p.starts_with("shard-"))
        .count();
    assert_eq!(objects, needed.parts().count());
    check_objects(&folder, &needed, &mut |_, _| {}).unwrap();
    restored(&folder, None);
}

#[test]
fn restore_that_dies_anywhere_is_never_taken_for_a_store_and_is_begun_again() {
    let (rig, folder, hooks) = prepared();
    rig.back_up(&mut prefix(&folder, "11")).unwrap();
    let whole = folder.after(super::folder::Cut::All);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut died = [0; 2];
    for op in 0.. {
        let copy = folder.after(super::folder::Cut::All);
        copy.die_at(op);
        let ended = super::rig::unpacked(&copy, &data);
        if ended.is_ok() {
            break;
        }
        let opened = Home::open(&data, 1, |bytes| bytes.fill(1));
        match opened {
            Err(HomeError::HalfRestored { .. }) => died[1] += 1,
            // Nothing was begun yet: it was still reading.
            Ok(home) if home.is_fresh() => {
                died[0] += 1;
                drop(home);
                std::fs::remove_dir_all(&data).unwrap();
            }
            other => panic!("op {op}: {other:?}"),
        }
    }
    assert!(died.iter().all(|n| *n > 3), "{died:?}");
    // The last one went through, over what the one before had left.
    assert!(matches!(Home::open(&data, 1, |_| {}), Ok(home) if !home.is_fresh()));
    restored(&whole, None).0.check(&hooks);
}
