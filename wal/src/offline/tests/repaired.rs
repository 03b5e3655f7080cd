//! What `repair` does about each damage: the rest opens, and exactly what was said is lost.

use std::collections::BTreeSet;

use super::damage::verified;
use super::log::*;
use crate::disk::sim::{Fault, FaultPlan, SimDisk, SimDiskConfig, SimImage};
use crate::ids::Lsn;
use crate::offline::judge::Expect;
use crate::offline::{DumpItem, DumpOptions, OfflineError, RepairReport, dump, repair};
use crate::sim::SimWorld;

fn repaired(image: &SimImage) -> (RepairReport, SimImage) {
    on(image, async |disk| {
        repair(disk, Expect::default(), &mut |_| true)
            .await
            .unwrap()
    })
}

/// Seqs of the hooks in the frames that a report keeps.
fn seqs(image: &SimImage) -> BTreeSet<u64> {
    let kept: Vec<(String, u64)> = {
        let report = verified(image);
        let names = image.names();
        let slots: Vec<&String> = names.iter().filter(|n| n.ends_with(".wal")).collect();
        let place = |p: &crate::offline::judge::Placed| (slots[p.slot].clone(), p.frame.offset);
        report.judgement.kept.iter().map(place).collect()
    };
    let mut seqs = BTreeSet::new();
    let options = DumpOptions {
        records: true,
        ..DumpOptions::default()
    };
    on(image, async |disk| {
        let mut in_log = false;
        dump(disk, &options, &mut |item| match item {
            DumpItem::Frame { file, frame, .. } => {
                in_log = kept.contains(&(file.to_owned(), frame.offset));
            }
            DumpItem::Record { .. } if in_log => {
                if let Some(seq) = item.to_json()["record"]["seq"].as_u64() {
                    seqs.insert(seq);
                }
            }
            _ => {}
        })
        .await
        .unwrap();
    });
    seqs
}

fn all_but(lost: &[u64]) -> BTreeSet<u64> {
    let kept = (1..=LAST_LSN).filter(|lsn| !lost.contains(lsn));
    kept.flat_map(|lsn| [10 * lsn, 10 * lsn + 1]).collect()
}

/// Repairs; afterwards it is sound, holds all but these LSNs, says so, and keeps copies.
fn check(image: &SimImage, lost: &[u64]) -> SimImage {
    let before = image.clone();
    let (report, after) = repaired(image);
    assert!(report.after.is_sound(), "{report}");
    assert_eq!(seqs(&after), all_but(lost), "{report}");
    let told: Vec<u64> = report
        .plan
        .lost
        .iter()
        .filter_map(|d| d.lsns)
        .flat_map(|(first, last)| first.0..=last.0)
        .collect();
    assert_eq!(told, lost, "{report}");
    for copy in &report.copies {
        let (name, _) = copy.split_once(".damaged-").unwrap();
        // A file that did not end on a block is filled up with zeros.
        let (copied, was) = (after.read(copy).unwrap(), before.read(name).unwrap());
        assert!(copied.starts_with(&was), "{copy} is what {name} was");
    }
    assert_eq!(report.to_json()["after"]["sound"], true);
    let again = repaired(&after).0;
    assert!(
        again.plan.steps.is_empty(),
        "a second run does nothing: {again}"
    );
    after
}

#[test]
fn a_sound_log_is_left_alone_and_nobody_is_asked() {
    let (image, _) = log();
    let (_, after) = on(&image, async |disk| {
        repair(disk, Expect::default(), &mut |_| panic!("nothing to ask"))
            .await
            .unwrap()
    });
    assert!(after.same_as(&image));
}

#[test]
fn without_consent_nothing_changes() {
    let (mut image, spots) = log();
    image.flip(&spots[1].file(), spots[1].offset + 70, 1);
    let (result, after) = on(&image, async |disk| {
        repair(disk, Expect::default(), &mut |plan| {
            assert!(plan.to_string().contains("LSN 2"), "{plan}");
            false
        })
        .await
    });
    assert!(matches!(result, Err(OfflineError::Declined)));
    assert!(after.same_as(&image));
}

#[test]
fn a_damaged_group_is_given_up_and_nothing_else() {
    let (image, spots) = log();
    for lsn in 1..LAST_LSN {
        let spot = spots[lsn as usize - 1];
        for byte in [3, 70, spot.used - 1] {
            let mut bad = image.clone();
            bad.flip(&spot.file(), spot.offset + byte, 4);
            let after = check(&bad, &[lsn]);
            // Every other file is untouched.
            for name in image.names().iter().filter(|n| **n != spot.file()) {
                assert_eq!(after.read(name), image.read(name));
            }
        }
    }
}

#[test]
fn runs_of_damage_and_whole_segments_are_given_up() {
    let (image, spots) = log();
    let mut bad = image.clone();
    for spot in &spots[1..7] {
        bad.flip(&spot.file(), spot.offset + 9, 4);
    }
    check(&bad, &[2, 3, 4, 5, 6, 7]);
    let mut middle = image.clone();
    middle.remove(&file_of(1));
    check(&middle, &[5, 6, 7, 8]);
    let mut first = image.clone();
    first.remove(&file_of(0));
    check(&first, &[1, 2, 3, 4]);
    let mut cut = image.clone();
    cut.truncate(&file_of(0), spots[2].offset + 512);
    check(&cut, &[3, 4]);
    let mut tail = image.clone();
    tail.flip(&spots[10].file(), spots[10].offset + 9, 4);
    tail.flip(&spots[11].file(), spots[11].offset + 900, 4);
    // LSN 12's header still claims 11; LSN 12 itself was never acked.
    let (report, after) = repaired(&tail);
    assert!(report.after.is_sound(), "{report}");
    assert_eq!(seqs(&after), all_but(&[11, 12]));
    assert_eq!(report.plan.lost[0].lsns, Some((Lsn(11), Lsn(11))));
}

#[test]
fn a_lost_header_costs_nothing() {
    let (image, spots) = log();
    for index in 0..3 {
        for content in [&[0xee; 64][..], &[0; 4096][..]] {
            let mut bad = image.clone();
            bad.overwrite(&file_of(index), 0, content);
            check(&bad, &[]);
        }
    }
    // The header and one group of the same segment.
    let mut bad = image.clone();
    bad.overwrite(&file_of(1), 0, &[0xee; 64]);
    bad.flip(&spots[5].file(), spots[5].offset + 9, 4);
    check(&bad, &[6]);
    let mut bad = image.clone();
    bad.overwrite(&file_of(1), 0, &[0xee; 64]);
    bad.flip(&spots[4].file(), spots[4].offset + 9, 4);
    check(&bad, &[5]);
}

#[test]
fn a_stranger_is_moved_out_of_the_way() {
    let (image, _) = log();
    let mut twice = image.clone();
    twice.put("slot-0009.wal", &image.read(&file_of(1)).unwrap());
    let after = check(&twice, &[]);
    assert!(after.read("slot-0009.wal").is_none());
    assert!(after.read("slot-0009.wal.damaged-1").is_some());
}

#[test]
fn a_repair_that_is_cut_anywhere_can_be_run_again() {
    let (image, spots) = log();
    let mut bad = image.clone();
    bad.flip(&spots[1].file(), spots[1].offset + 70, 1);
    bad.overwrite(&file_of(1), 0, &[0xee; 64]);
    let run = |plan: FaultPlan| {
        let world = SimWorld::new(3);
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(3).faults(plan), &bad);
        let result = world
            .block_on(repair(&disk, Expect::default(), &mut |_| true))
            .unwrap();
        (result, disk)
    };
    let (result, disk) = run(FaultPlan::none());
    assert!(result.unwrap().after.is_sound());
    let want = all_but(&[2]);
    for op in 0..disk.ops() {
        for fault in [Fault::EIO, Fault::ENOSPC, Fault::Short(512)] {
            let (_, disk) = run(FaultPlan::none().at(op, fault));
            let snapshot = disk.snapshot();
            for mode in snapshot.modes(op, 3) {
                let found = snapshot.image(&mode);
                let (report, after) = repaired(&found);
                assert!(
                    report.after.is_sound(),
                    "op {op} {fault:?} {mode:?}: {report}"
                );
                assert_eq!(seqs(&after), want, "op {op} {fault:?} {mode:?}: {report}");
            }
        }
    }
}
