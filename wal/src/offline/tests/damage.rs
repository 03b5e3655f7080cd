//! What `verify` says of each kind of damage.

use std::ops::RangeInclusive;

use super::log::*;
use crate::disk::sim::{Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig, SimImage};
use crate::ids::{Lsn, Seq};
use crate::offline::judge::Expect;
use crate::offline::{VerifyReport, verify};
use crate::sim::SimWorld;

pub(super) fn verified(image: &SimImage) -> VerifyReport {
    on(image, async |disk| {
        verify(disk, Expect::default(), &mut |_, _| {})
            .await
            .unwrap()
    })
    .0
}

/// The only damage is these LSNs, in this file at this offset.
fn check_lsns(image: &SimImage, lsns: RangeInclusive<u64>, file: Option<&str>, offset: u64) {
    let report = verified(image);
    let found = &report.judgement.found;
    assert_eq!(found.len(), 1, "{report}");
    let damage = &found[0].damage;
    assert_eq!(
        damage.lsns,
        Some((Lsn(*lsns.start()), Lsn(*lsns.end()))),
        "{report}"
    );
    assert_eq!(
        (damage.file.as_deref(), damage.offset),
        (file, offset),
        "{report}"
    );
    assert!(!report.is_sound());
    assert!(
        report.to_string().contains("ankusa"),
        "it says what to do: {report}"
    );
    assert_eq!(report.to_json()["sound"], false);
}

#[test]
fn a_whole_log_and_an_empty_directory_are_sound() {
    let (image, _) = log();
    let report = verified(&image);
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.judgement.claimed, Lsn(LAST_LSN - 1));
    assert_eq!(report.judgement.last_kept(), Lsn(LAST_LSN));
    assert!(report.judgement.notes.is_empty(), "{report}");
    assert!(verified(&SimImage::default()).is_sound());
}

#[test]
fn every_flipped_byte_of_an_acked_group_is_found_and_named() {
    let (image, spots) = log();
    // A small group in the middle, a large one, and the last that is claimed.
    for lsn in [2, 6, LAST_LSN - 1] {
        let spot = spots[lsn as usize - 1];
        for byte in 0..spot.used {
            // Every byte of the header and the first record, then every 61st: each has the same
            // checksum over it.
            if byte > 600 && !byte.is_multiple_of(61) {
                continue;
            }
            let mut bad = image.clone();
            assert!(bad.flip(&spot.file(), spot.offset + byte, 1 << (byte % 8)));
            check_lsns(&bad, lsn..=lsn, Some(&spot.file()), spot.offset);
        }
    }
}

#[test]
fn a_flipped_byte_of_the_unclaimed_last_group_is_a_torn_tail() {
    let (image, spots) = log();
    let spot = spots[LAST_LSN as usize - 1];
    for byte in (0..spot.used).step_by(7) {
        let mut bad = image.clone();
        bad.flip(&spot.file(), spot.offset + byte, 0x40);
        let report = verified(&bad);
        assert!(report.is_sound(), "byte {byte}: {report}");
        assert_eq!(report.judgement.last_kept(), Lsn(LAST_LSN - 1));
    }
}

#[test]
fn padding_carries_nothing() {
    let (mut image, spots) = log();
    for spot in spots {
        image.flip(&spot.file(), spot.offset + spot.bytes - 1, 0xff);
    }
    assert!(verified(&image).is_sound());
}

#[test]
fn the_seqs_of_a_lost_group_are_named() {
    let (mut image, spots) = log();
    image.flip(&spots[5].file(), spots[5].offset + 100, 1);
    let report = verified(&image);
    let damage = &report.judgement.found[0].damage;
    assert_eq!(
        damage.seqs,
        Some((Seq(52), Seq(70))),
        "between its neighbours: 60 and 61 in it"
    );
    assert!(report.to_string().contains("seqs 52 to 69"), "{report}");
}

#[test]
fn neighbouring_damages_are_one_and_distant_ones_are_two() {
    let (image, spots) = log();
    let mut near = image.clone();
    near.flip(&spots[4].file(), spots[4].offset + 70, 1);
    near.flip(&spots[5].file(), spots[5].offset + 70, 1);
    check_lsns(&near, 5..=6, Some(&spots[4].file()), spots[4].offset);
    let mut far = image.clone();
    far.flip(&spots[1].file(), spots[1].offset + 70, 1);
    far.flip(&spots[9].file(), spots[9].offset + 70, 1);
    let report = verified(&far);
    let lsns: Vec<_> = report
        .judgement
        .found
        .iter()
        .map(|f| f.damage.lsns.unwrap().0.0)
        .collect();
    assert_eq!(lsns, [2, 10], "{report}");
}

#[test]
fn a_cut_file_is_damage_below_the_claim_and_a_torn_tail_above() {
    let (image, spots) = log();
    let mut bad = image.clone();
    bad.truncate(&file_of(0), spots[2].offset + 512);
    check_lsns(&bad, 3..=4, Some(&file_of(0)), spots[2].offset);
    let mut torn = image.clone();
    torn.truncate(&file_of(2), spots[11].offset + 512);
    assert!(verified(&torn).is_sound());
}

#[test]
fn an_absent_segment_is_named_and_no_more_than_it_is_lost() {
    let (image, _) = log();
    let mut bad = image.clone();
    bad.remove(&file_of(1));
    check_lsns(&bad, 5..=8, None, 0);
    let segment = verified(&bad).judgement.found[0].damage.segment;
    assert_eq!(segment.map(|s| s.0), Some(2));
    let mut first = image.clone();
    first.remove(&file_of(0));
    check_lsns(&first, 1..=4, None, 0);
    // The newest is gone: what the others claim is whole. Only a checkpoint or the intake log
    // could tell; no reader of these files can.
    let mut last = image.clone();
    last.remove(&file_of(2));
    assert!(verified(&last).is_sound());
}

#[test]
fn a_lost_header_with_intact_frames_is_damage_of_which_everything_can_be_saved() {
    let (image, _) = log();
    for index in 0..2 {
        let mut bad = image.clone();
        bad.overwrite(&file_of(index), 0, &[0xee; 64]);
        let report = verified(&bad);
        assert_eq!(report.judgement.found.len(), 1, "{report}");
        assert_eq!(
            report.judgement.found[0].salvage.len(),
            PER_SEGMENT as usize,
            "{report}"
        );
        assert!(report.judgement.found[0].advice.contains("nothing is lost"));
    }
    // Of the newest segment the groups up to the claim are acked.
    let mut bad = image.clone();
    bad.overwrite(&file_of(2), 0, &[0; 4096]);
    let report = verified(&bad);
    let damage = &report.judgement.found[0].damage;
    assert_eq!(damage.lsns, Some((Lsn(9), Lsn(11))), "{report}");
}

#[test]
fn strangers_are_told_apart_from_damage() {
    let (image, _) = log();
    let mut twice = image.clone();
    let content = image.read(&file_of(1)).unwrap();
    twice.put("slot-0009.wal", &content);
    let report = verified(&twice);
    assert!(
        report.to_string().contains("there twice in slot-0009.wal"),
        "{report}"
    );
    let other = Expect {
        store_uuid: Some([9; 16]),
        shard: None,
    };
    let run = async |disk: &SimDisk| verify(disk, other, &mut |_, _| {}).await.unwrap();
    let report = on(&image, run).0;
    assert_eq!(report.judgement.found.len(), 3, "{report}");
    assert!(report.to_string().contains("another store"));
}

#[test]
fn a_block_that_cannot_be_read_is_found_by_its_place() {
    let (image, spots) = log();
    let world = SimWorld::new(1);
    // Reads: the second slot as a whole fails, and then, block by block, its second group.
    let bad_block = spots[5].offset / 4096;
    let plan = FaultPlan::none().nth(OpKind::Read, 1, Fault::EIO).nth(
        OpKind::Read,
        2 + bad_block,
        Fault::EIO,
    );
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(1).faults(plan), &image);
    let report = world
        .block_on(verify(&disk, Expect::default(), &mut |_, _| {}))
        .unwrap()
        .unwrap();
    let damage = &report.judgement.found[0].damage;
    assert_eq!(damage.what, "acked frames cannot be read", "{report}");
    assert_eq!(damage.lsns, Some((Lsn(6), Lsn(6))));
    assert_eq!(damage.offset, spots[5].offset);
    assert!(report.to_string().contains("cannot be read"));
}
