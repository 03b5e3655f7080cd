//! Logs with a checkpoint: what it has need not be in the log any more, what it points at must.

use std::cell::RefCell;

use super::damage::verified;
use super::log::*;

use crate::checkpoint::{SegmentUse, Start, name, write};
use crate::disk::sim::{SimDisk, SimDiskConfig, SimImage};
use crate::format::Envelope;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::record::{decode_extra, read_record};
use crate::ids::{Lsn, SegmentId, Seq, ShardId};
use crate::offline::judge::Expect;
use crate::offline::repair;
use crate::record::Location;
use crate::sim::SimWorld;
use crate::state::State;

/// The log, and a checkpoint taken after LSN 8 with the first hook of each of these groups live.
fn with_checkpoint(live: &[u64]) -> (SimImage, Vec<Spot>) {
    let (image, spots) = log();
    let mut state = State::new(1);
    for lsn in live {
        let spot = &spots[*lsn as usize - 1];
        let content = image.read(&spot.file()).unwrap();
        let offset = spot.offset as usize + FRAME_HEADER_BYTES;
        let (record, _) = read_record(&content, offset).unwrap();
        let mut sinks = Vec::new();
        let extra = decode_extra(record.extra, &mut sinks).unwrap();
        let at = Location {
            segment: SegmentId((lsn - 1) / PER_SEGMENT + 1),
            offset: offset as u64,
            len: record.len as u32,
            lsn: Lsn(*lsn),
        };
        state.apply_hook(
            &Envelope::parse(record.body).unwrap().facts(false),
            &extra,
            at,
        );
    }
    state.settle(Lsn(8));
    let world = SimWorld::new(1);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(1), &image);
    let state = RefCell::new(state);
    let start = Start {
        store_uuid: UUID,
        shard: ShardId(1),
        number: 1,
        start_lsn: Lsn(0),
        hooks_expected: 0,
        wall_ms: 1,
    };
    let uses = (0..3).map(|n| SegmentUse {
        segment: SegmentId(n + 1),
        salt: 0x5a17 + n,
        slot: n as u32,
        end: 4096,
        last_lsn: (n < 2).then_some(Lsn((n + 1) * PER_SEGMENT)),
    });
    let uses: Vec<_> = uses.collect();
    let work = async {
        let host = world.host();
        let rest = async |_| Ok((uses.clone(), vec![0, 1, 2], Vec::new()));
        let unnamed = write(&disk, &*host, &state, start, rest).await.unwrap();
        name(&disk, &state, Lsn(8), unnamed).await.unwrap();
    };
    world.block_on(work).unwrap();
    (disk.snapshot().as_seen(), spots)
}

#[test]
fn segments_that_a_checkpoint_replaces_may_be_gone() {
    let (mut image, spots) = with_checkpoint(&[6]);
    assert!(verified(&image).is_sound(), "{}", verified(&image));
    let mut absent = image.clone();
    absent.remove(&file_of(0));
    let (report, after) = on(&absent, async |disk| {
        repair(disk, Expect::default(), &mut |_| true)
            .await
            .unwrap()
    });
    assert_eq!(report.plan.lost[0].file, Some(file_of(0)), "{report}");
    assert!(
        report.after.is_sound(),
        "an open asks for the slot: {report}"
    );
    assert!(after.read(&file_of(0)).is_some());
    image.overwrite(&file_of(0), 0, &[0; SLOT_BYTES]);
    let report = verified(&image);
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.to_json()["checkpoints"][0]["live_hooks"], 1);
    // What it has is not needed again; what came after it is.
    image.flip(&spots[4].file(), spots[4].offset + 80, 1);
    assert!(
        verified(&image).is_sound(),
        "LSN 5 is in the checkpoint, its hooks are finished"
    );
    image.flip(&spots[8].file(), spots[8].offset + 80, 1);
    assert!(!verified(&image).is_sound());
}

#[test]
fn a_damaged_live_hook_is_named_by_its_seq() {
    let (mut image, spots) = with_checkpoint(&[2, 6]);
    image.flip(&spots[5].file(), spots[5].offset + 120, 1);
    let report = verified(&image);
    assert!(!report.is_sound());
    let seqs: Vec<_> = report.lost_hooks.iter().map(|d| d.damage.seqs).collect();
    assert_eq!(seqs, [Some((Seq(60), Seq(61)))], "{report}");
    // The second hook of the same group is damaged: the live one is whole.
    let (mut image, spots) = with_checkpoint(&[2, 6]);
    image.flip(&spots[5].file(), spots[5].offset + spots[5].used - 1, 1);
    assert!(verified(&image).is_sound(), "{}", verified(&image));
}

#[test]
fn an_absent_segment_with_live_hooks_is_damage_and_repair_puts_an_empty_one() {
    let (image, _) = with_checkpoint(&[2, 6]);
    let mut bad = image.clone();
    bad.remove(&file_of(0));
    let report = verified(&bad);
    assert_eq!(
        report.judgement.found[0].damage.segment,
        Some(SegmentId(1)),
        "{report}"
    );
    assert_eq!(report.lost_hooks.len(), 1);
    let (report, after) = on(&bad, async |disk| {
        repair(disk, Expect::default(), &mut |_| true)
            .await
            .unwrap()
    });
    assert!(report.after.is_sound(), "{report}");
    let lost: Vec<_> = report.plan.lost_hooks.iter().map(|h| h.seq).collect();
    assert_eq!(lost, [Seq(20)], "{report}");
    assert!(after.read(&file_of(0)).is_some());
    // With its header gone only, nothing is lost.
    let mut headless = image.clone();
    headless.overwrite(&file_of(0), 0, &[0xee; 64]);
    assert!(!verified(&headless).is_sound());
    let (report, _) = on(&headless, async |disk| {
        repair(disk, Expect::default(), &mut |_| true)
            .await
            .unwrap()
    });
    assert!(
        report.after.is_sound() && report.plan.lost.is_empty(),
        "{report}"
    );
}

#[test]
fn everything_after_a_checkpoint_that_is_gone_is_damage() {
    let (image, _) = with_checkpoint(&[6]);
    // The two newest slots are gone: the checkpoint still needs the second, and nothing else
    // tells of the third.
    let mut bad = image.clone();
    bad.remove(&file_of(1));
    bad.remove(&file_of(2));
    let report = verified(&bad);
    assert!(!report.is_sound(), "{report}");
    let (report, after) = on(&bad, async |disk| {
        repair(disk, Expect::default(), &mut |_| true)
            .await
            .unwrap()
    });
    assert!(report.after.judgement.is_sound(), "{report}");
    let again = on(&after, async |disk| {
        repair(disk, Expect::default(), &mut |_| {
            panic!("nothing more to do")
        })
        .await
        .unwrap()
    });
    assert!(again.0.plan.steps.is_empty());
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_said() {
    let (mut image, _) = with_checkpoint(&[6]);
    let file = image
        .names()
        .into_iter()
        .find(|n| n.ends_with(".ckpt"))
        .unwrap();
    image.flip(&file, 40, 1);
    let report = verified(&image);
    assert!(
        report.is_sound(),
        "the log is whole from its start: {report}"
    );
    assert!(report.to_string().contains("not usable"), "{report}");
    image.remove(&file_of(0));
    assert!(
        !verified(&image).is_sound(),
        "now nothing has what was in it"
    );
}
