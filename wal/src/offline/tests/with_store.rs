//! The second reader against the first: over logs that the store itself wrote, whatever is done
//! to them, `verify` calls sound exactly what opens, and what is repaired opens with exactly what
//! was not called lost.

use std::collections::BTreeMap;
use std::future::poll_fn;

use super::damage::verified;
use super::log::on;
use crate::disk::BLOCK_BYTES;
use crate::disk::sim::{CrashMode, SimDisk, SimDiskConfig, SimImage};
use crate::offline::judge::Expect;
use crate::offline::repair;
use crate::sim::{SimRng, SimWorld};
use crate::{
    Envelope, HookDraft, HookExtra, HookId, OpenReport, Outcome, Seq, SinkNo, Store, StoreConfig,
    Verification,
};

const UUID: [u8; 16] = *b"a store of tools";

fn config() -> StoreConfig {
    StoreConfig {
        store_uuid: UUID,
        segment_bytes: 64 << 10,
        group_bytes_max: 32 << 10,
        min_free_bytes: 0,
        cache_bytes_max: 0,
        ..StoreConfig::default()
    }
}

fn open(world: &SimWorld, disk: &SimDisk) -> Result<(Store<SimDisk>, OpenReport), String> {
    let opened = Store::open(disk.clone(), world.host(), config());
    world.block_on(opened).unwrap().map_err(|e| e.to_string())
}

async fn put(store: &Store<SimDisk>, number: u64, bytes: usize) -> Option<Seq> {
    let body = vec![number as u8; bytes];
    let draft = HookDraft {
        id: HookId([number as u8; 16]),
        received_at_ms: 1,
        tenant: b"t",
        source: b"s",
        method: b"POST",
        target: b"/",
        headers: &[],
        content_type: b"",
        body: &body,
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::None,
        client: ([127, 0, 0, 1], 1).into(),
        extra: HookExtra {
            sinks: &[SinkNo(1)],
            ..HookExtra::default()
        },
    };
    let mut group = loop {
        match store.try_begin_sized(bytes + 400) {
            Some(group) => break group,
            None => poll_fn(|cx| store.poll_ready(cx)).await,
        }
    };
    let seq = group.hook(&draft);
    store.submit(group);
    let settled = poll_fn(|cx| store.poll_settled(cx)).await;
    (settled.outcome == Outcome::Durable).then_some(seq)
}

/// Two lives of a store over a few segments; what was acked, and all that was ever written.
fn written() -> (SimImage, BTreeMap<Seq, u64>) {
    let world = SimWorld::new(5);
    let disk = SimDisk::new(&world, SimDiskConfig::new(5));
    let mut acked = BTreeMap::new();
    for life in 0..2 {
        let (store, _) = open(&world, &disk).unwrap();
        let run = async {
            for number in 0..14 {
                let number = life * 14 + number;
                let bytes = if number % 4 == 0 { 9_000 } else { 700 };
                acked.insert(put(&store, number, bytes).await.unwrap(), number);
            }
        };
        world.block_on(run).unwrap();
        drop(store);
    }
    (disk.snapshot().image(&CrashMode::EVERYTHING), acked)
}

/// Opens it and reads every hook that is there.
fn reopened(image: &SimImage) -> Result<(OpenReport, BTreeMap<Seq, u64>), String> {
    let world = SimWorld::new(9);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(9), image);
    let (store, report) = open(&world, &disk)?;
    let mut found = BTreeMap::new();
    for seq in (0..1u64 << 10)
        .chain((1 << 24)..(1 << 24) + (1 << 10))
        .chain((2 << 24)..(2 << 24) + 1024)
    {
        if let Ok(hook) = world.block_on(store.read(Seq(seq))).unwrap() {
            let envelope = Envelope::parse(&hook).unwrap();
            found.insert(Seq(seq), u64::from(envelope.body[0]));
        }
    }
    Ok((report, found))
}

fn compare(image: &SimImage, what: &str) -> bool {
    let report = verified(image);
    match reopened(image) {
        Ok((opened, _)) => {
            assert!(
                report.is_sound(),
                "{what}: it opens, but verify says\n{report}"
            );
            let j = &report.judgement;
            assert_eq!(opened.durable_claimed, j.claimed, "{what}\n{report}");
            assert_eq!(
                opened.last_lsn,
                j.last_kept().max(j.claimed),
                "{what}\n{report}"
            );
            true
        }
        Err(error) => {
            assert!(
                !report.is_sound(),
                "{what}: verify says sound, but the open: {error}"
            );
            false
        }
    }
}

/// Repairs and opens; what is missing is what the plan named.
fn check_repair(image: &SimImage, acked: &BTreeMap<Seq, u64>, what: &str, several: bool) {
    let (report, after) = on(image, async |disk| {
        repair(disk, Expect::default(), &mut |_| true).await
    });
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    let (_, found) = reopened(&after).unwrap_or_else(|e| panic!("{what}: {e}\n{report}"));
    for (seq, number) in acked {
        let named = report.plan.lost.iter().any(|d| {
            d.seqs
                .is_none_or(|(first, end)| first <= *seq && *seq < end)
        });
        // Nothing tells of what was cut off behind the last group that is there.
        let last = verified(&after)
            .judgement
            .kept
            .last()
            .map(|p| p.frame.header.next_seq);
        let named = named || several && last.is_some_and(|end| *seq >= end);
        match found.get(seq) {
            Some(n) => assert_eq!(n, number, "{what}"),
            None => assert!(named, "{what}: {seq} is lost and not named\n{report}"),
        }
    }
}

#[test]
fn verify_and_open_agree_on_every_damaged_block_and_repair_mends_it() {
    let (image, acked) = written();
    assert!(compare(&image, "whole"));
    assert_eq!(reopened(&image).unwrap().1, acked);
    let slots: Vec<String> = image
        .names()
        .into_iter()
        .filter(|n| n.ends_with(".wal"))
        .collect();
    assert!(slots.len() >= 4, "{slots:?}");
    let (mut open, mut refused) = (0, 0);
    for name in &slots {
        let len = image.read(name).unwrap().len() as u64;
        for block in 0..len / BLOCK_BYTES as u64 {
            let at = block * BLOCK_BYTES as u64;
            for kind in ["start", "middle", "zeros", "cut"] {
                let mut bad = image.clone();
                match kind {
                    "start" => assert!(bad.flip(name, at + 3, 8)),
                    "middle" => assert!(bad.flip(name, at + 90, 8)),
                    "zeros" => assert!(bad.overwrite(name, at, &[0; BLOCK_BYTES])),
                    _ => assert!(bad.truncate(name, at)),
                }
                let what = format!("{kind} of block {block} of {name}");
                if compare(&bad, &what) {
                    open += 1;
                } else {
                    refused += 1;
                    check_repair(&bad, &acked, &what, false);
                }
            }
        }
        let mut gone = image.clone();
        gone.remove(name);
        if !compare(&gone, &format!("{name} gone")) {
            check_repair(&gone, &acked, &format!("{name} gone"), false);
        }
    }
    assert!(open > 20 && refused > 20, "{open} {refused}");
}

#[test]
fn a_damaged_group_before_a_torn_one_is_acked_by_its_header_and_not_cut() {
    let (image, acked) = written();
    let report = verified(&image);
    let tail = &report.judgement.chain.last().unwrap();
    let slots: Vec<String> = image
        .names()
        .into_iter()
        .filter(|n| n.ends_with(".wal"))
        .collect();
    let frames: Vec<_> = report
        .judgement
        .kept
        .iter()
        .filter(|p| p.slot == tail.slot)
        .map(|p| p.frame)
        .collect();
    let [.., last_but_one, last] = frames.as_slice() else {
        panic!("too few: {report}")
    };
    let mut bad = image.clone();
    for frame in [last_but_one, last] {
        // Behind the header: the records.
        assert!(bad.flip(&slots[tail.slot], frame.offset + 100, 1));
    }
    assert!(
        !compare(&bad, "the last two groups"),
        "the last header says that the other is durable"
    );
    check_repair(&bad, &acked, "the last two groups", false);
}

#[test]
fn verify_and_open_agree_on_several_damages_at_once_and_repair_mends_them() {
    let (image, acked) = written();
    let slots: Vec<String> = image
        .names()
        .into_iter()
        .filter(|n| n.ends_with(".wal"))
        .collect();
    let (mut open, mut refused) = (0, 0);
    // 197: the first group of a segment whose header is gone too was a copy made by an open.
    for seed in (0..100).chain([197]) {
        let mut rng = SimRng::new(seed);
        let mut bad = image.clone();
        let mut what = format!("seed {seed}:");
        for _ in 0..rng.between(2, 4) {
            let name = &slots[rng.below(slots.len() as u64) as usize];
            let Some(content) = bad.read(name) else {
                continue;
            };
            // Where something lies more often than where nothing does.
            let blocks = if rng.coin() {
                content.len() as u64 / 4096
            } else {
                6
            };
            let at = rng.below(blocks) * BLOCK_BYTES as u64;
            what += &match rng.below(6) {
                0 => format!(" {name} gone {}", bad.remove(name)),
                1 => format!(" {name} cut at {at} {}", bad.truncate(name, at)),
                2 => format!(
                    " {name} zeros at {at} {}",
                    bad.overwrite(name, at, &[0; 4096])
                ),
                3 => {
                    let other = &slots[rng.below(slots.len() as u64) as usize];
                    let block = bad.read(other).unwrap_or_default();
                    let block = block
                        .get(at as usize..at as usize + 4096)
                        .unwrap_or(&[9; 4096]);
                    format!(
                        " {name} block {at} of {other} {}",
                        bad.overwrite(name, at, block)
                    )
                }
                _ => format!(
                    " {name} flip at {at} {}",
                    bad.flip(name, at + rng.below(200), 1)
                ),
            };
        }
        if compare(&bad, &what) {
            open += 1;
        } else {
            refused += 1;
            check_repair(&bad, &acked, &what, true);
        }
    }
    assert!(open > 5 && refused > 50, "{open} {refused}");
}
