//! Damage, one byte at a time: nothing claimed is lost in silence, nothing torn stops the boot.

use super::*;
use crate::disk::BLOCK_BYTES;
use crate::disk::sim::SimImage;
use crate::error::Damage;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::{Lsn, OpenError, Outcome, SegmentId, Seq};

const SLOT: &str = "slot-0000.wal";
const BODY: usize = 40;

struct Case {
    image: SimImage,
    /// Hooks of each group, group `n` at `n - 1`.
    ledgers: Vec<Ledger>,
    /// Offset and used bytes of each frame.
    frames: Vec<(u64, usize)>,
}

/// Groups of two hooks, one after the other: group `n` claims all before it.
fn case(groups: u64) -> Case {
    let rig = fresh(9);
    let mut ledgers = Vec::new();
    for group in 0..groups {
        let numbers = group * 2..group * 2 + 2;
        let (hooks, outcome) = rig.world.block_on(put(&rig.store, numbers, BODY)).unwrap();
        assert_eq!(outcome, Outcome::Durable);
        let mut ledger = Ledger::default();
        ledger.add(&hooks, BODY);
        ledgers.push(ledger);
    }
    let image = as_seen(&rig);
    let file = image.read(SLOT).unwrap();
    let mut frames = Vec::new();
    let mut pos = BLOCK_BYTES;
    for _ in 0..groups {
        let header = FrameHeader::decode(&file[pos..]).unwrap();
        frames.push((
            pos as u64,
            FRAME_HEADER_BYTES + header.payload_bytes as usize,
        ));
        pos += header.frame_bytes() as usize;
    }
    Case {
        image,
        ledgers,
        frames,
    }
}

fn damaged(result: Result<Rig, OpenError>, what: &str) -> Damage {
    match result {
        Err(OpenError::Damaged(damage)) => damage,
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: opened"),
    }
}

#[test]
fn a_last_group_torn_at_any_byte_is_cut_and_nothing_before_it_is_lost() {
    let case = case(3);
    let (pos, used) = case.frames[2];
    for cut in 0..used {
        let mut image = case.image.clone();
        let zeros = vec![0; used - cut];
        image.overwrite(SLOT, pos + cut as u64, &zeros);
        let what = format!("cut at {cut}");
        let rig = reopen(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(rig.report.last_lsn, Lsn(2), "{what}");
        assert_eq!(rig.report.live_hooks, 4, "{what}");
        case.ledgers[0].check(&rig, &what);
        case.ledgers[1].check(&rig, &what);
    }
}

#[test]
fn a_flip_in_a_claimed_group_refuses_and_names_it() {
    let case = case(4);
    let (pos, used) = case.frames[1];
    for at in 0..used {
        let mut image = case.image.clone();
        image.flip(SLOT, pos + at as u64, 1 << (at % 8));
        let what = format!("flip at {at}");
        let damage = damaged(reopen(&image), &what);
        assert_eq!(damage.file.as_deref(), Some(SLOT), "{what}");
        assert_eq!(damage.segment, Some(SegmentId(1)), "{what}");
        assert_eq!(damage.offset, pos, "{what}");
        assert_eq!(damage.lsns, Some((Lsn(2), Lsn(2))), "{what}");
        assert_eq!(damage.seqs, Some((Seq(3), Seq(5))), "{what}");
    }
}

#[test]
fn a_flip_in_an_unclaimed_last_group_cuts_only_that_group() {
    let case = case(3);
    let (pos, used) = case.frames[2];
    for at in 0..used {
        let mut image = case.image.clone();
        image.flip(SLOT, pos + at as u64, 1 << (at % 8));
        let what = format!("flip at {at}");
        let rig = reopen(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(rig.report.live_hooks, 4, "{what}");
        case.ledgers[0].check(&rig, &what);
        case.ledgers[1].check(&rig, &what);
    }
}

#[test]
fn a_flip_in_the_padding_changes_nothing() {
    let case = case(3);
    for (pos, used) in &case.frames {
        for at in (*used..BLOCK_BYTES).step_by(97) {
            let mut image = case.image.clone();
            image.flip(SLOT, pos + at as u64, 0x10);
            let rig = reopen(&image).unwrap();
            for ledger in &case.ledgers {
                ledger.check(&rig, &format!("flip at {at}"));
            }
        }
    }
}

#[test]
fn a_flip_in_the_segment_header_is_damage_once_a_frame_behind_it_claims() {
    let case = case(3);
    for at in 0..128 {
        let mut image = case.image.clone();
        image.flip(SLOT, at, 0x40);
        let what = format!("flip at {at}");
        match reopen(&image) {
            Err(OpenError::Damaged(damage)) => {
                assert_eq!(damage.lsns, Some((Lsn(1), Lsn(2))), "{what}");
            }
            Err(other) => panic!("{what}: {other}"),
            Ok(_) => panic!("{what}: opened"),
        }
    }
}

#[test]
pub(super) fn a_torn_group_followed_by_a_whole_one_is_an_ordinary_power_cut() {
    let rig = fresh(10);
    let mut ledger = Ledger::default();
    let (hooks, _) = rig.world.block_on(put(&rig.store, 0..2, BODY)).unwrap();
    ledger.add(&hooks, BODY);
    rig.world
        .block_on(async {
            submit(&rig.store, 2..3, BODY).await;
            submit(&rig.store, 3..4, BODY).await;
            next_settled(&rig.store).await;
            next_settled(&rig.store).await;
        })
        .unwrap();
    let mut image = as_seen(&rig);
    // Groups 2 and 3 both claim group 1 only.
    image.overwrite(SLOT, 2 * BLOCK_BYTES as u64 + 100, &[0xff; 64]);
    let again = reopen(&image).unwrap();
    assert_eq!(again.report.frames_dropped, 1);
    assert_eq!(again.report.live_hooks, 2);
    ledger.check(&again, "cut");
    // What was dropped stays dropped.
    let third = reopen(&as_seen(&again)).unwrap();
    assert_eq!(third.report.live_hooks, 2);
    ledger.check(&third, "cut, then opened again");
}

#[test]
pub(super) fn a_zeroed_swapped_or_repeated_block_at_or_below_the_claim_refuses() {
    let case = case(5);
    let block = BLOCK_BYTES as u64;
    let file = case.image.read(SLOT).unwrap();
    let of = |n: usize| &file[n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES];
    // Frames 1..=5 lie in blocks 1..=5; 1..=4 are claimed.
    let mut zeroed = case.image.clone();
    zeroed.overwrite(SLOT, 2 * block, &[0; BLOCK_BYTES]);
    assert_eq!(
        damaged(reopen(&zeroed), "zeroed").lsns,
        Some((Lsn(2), Lsn(2)))
    );
    let mut swapped = case.image.clone();
    swapped.overwrite(SLOT, 2 * block, of(3));
    swapped.overwrite(SLOT, 3 * block, of(2));
    assert_eq!(damaged(reopen(&swapped), "swapped").lsns.unwrap().0, Lsn(2));
    let mut repeated = case.image.clone();
    repeated.overwrite(SLOT, 3 * block, of(2));
    assert_eq!(
        damaged(reopen(&repeated), "repeated").lsns,
        Some((Lsn(3), Lsn(3)))
    );
    let mut all = case.image.clone();
    all.overwrite(SLOT, block, &vec![0; 3 * BLOCK_BYTES]);
    assert_eq!(
        damaged(reopen(&all), "three zeroed").lsns,
        Some((Lsn(1), Lsn(3)))
    );
}

#[test]
fn a_segment_that_is_absent_renamed_copied_or_of_another_store_is_named() {
    let rig = fresh(11);
    for at in 0..40 {
        rig.world
            .block_on(put(&rig.store, at..at + 1, 6000))
            .unwrap();
    }
    let image = as_seen(&rig);
    let mut missing = image.clone();
    missing.remove("slot-0001.wal");
    let damage = damaged(reopen(&missing), "absent");
    assert!(
        damage.segment.is_some() && damage.what.contains("absent"),
        "{damage}"
    );
    let mut renamed = image.clone();
    renamed.rename("slot-0001.wal", "slot-0077.wal");
    reopen(&renamed).unwrap();
    let mut copied = image.clone();
    copied.put("slot-0077.wal", &image.read("slot-0001.wal").unwrap());
    assert!(damaged(reopen(&copied), "copied").segment.is_some());
    let other = crate::StoreConfig {
        store_uuid: [9; 16],
        ..config()
    };
    let result = open_image(
        1,
        Some(&image),
        crate::disk::sim::SimDiskConfig::new(1),
        other,
    );
    assert!(matches!(result, Err(OpenError::ForeignStore { .. })));
    let other = crate::StoreConfig {
        shard: crate::ShardId(4),
        ..config()
    };
    let result = open_image(
        1,
        Some(&image),
        crate::disk::sim::SimDiskConfig::new(1),
        other,
    );
    assert!(matches!(result, Err(OpenError::WrongShard { .. })));
}

#[test]
fn bytes_behind_the_tail_that_only_look_like_a_frame_claim_nothing() {
    let case = case(3);
    let file = case.image.read(SLOT).unwrap();
    let (pos, _) = case.frames[2];
    let real = FrameHeader::decode(&file[pos as usize..]).unwrap();
    // As a client would send it in a body that a power cut tears: all but the salt is right.
    let forged = FrameHeader {
        salt: real.salt ^ 1,
        lsn: Lsn(1 << 40),
        durable_lsn: Lsn((1 << 40) - 1),
        ..real
    };
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    forged.encode(&mut bytes);
    let mut image = case.image.clone();
    for block in 1..4 {
        image.overwrite(SLOT, pos + block * BLOCK_BYTES as u64, &bytes);
    }
    let rig = reopen(&image).unwrap_or_else(|error| panic!("refused: {error}"));
    for ledger in &case.ledgers {
        ledger.check(&rig, "forged claims");
    }
}
