#![allow(clippy::unwrap_used)]

use super::*;
use crate::disk::sim::{CrashMode, Fate, Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig};
use crate::ids::{HookId, Seq};
use crate::sim::SimWorld;

fn row(n: u64, expires_at_s: u64) -> DedupeRow {
    let mut hash = [1; 16];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    DedupeRow {
        hash,
        id: HookId([n as u8; 16]),
        seq: Seq(n),
        expires_at_s,
    }
}

fn config() -> GenerationConfig {
    GenerationConfig {
        bytes_max: 64 << 10,
        ..GenerationConfig::new(ShardId(1), [4; 16])
    }
}

async fn read_all<D: Disk>(
    generations: &Generations<D>,
    now_s: u64,
) -> (Vec<DedupeRow>, Vec<GenerationDamage>) {
    let mut rows = generations.rows();
    let (mut all, mut damage) = (Vec::new(), Vec::new());
    while let Some(block) = rows.next_block(now_s).await {
        match block {
            Ok(block) => all.extend(block),
            Err(d) => damage.push(d),
        }
    }
    (all, damage)
}

#[test]
fn listed_rows_come_back_after_any_cut_in_their_order() {
    let world = SimWorld::new(1);
    let disk = SimDisk::new(&world, SimDiskConfig::new(1));
    let host = world.host();
    let (listed, wrote) = world
        .block_on(async {
            let mut generations = Generations::open(disk.clone(), config(), &[])
                .await
                .unwrap();
            let mut wrote = Vec::new();
            let mut listed = Vec::new();
            for batch in 0..40u64 {
                let rows: Vec<_> = (0..97)
                    .map(|i| row(batch * 1000 + i, 500 + batch))
                    .collect();
                wrote.extend(rows.iter().copied());
                generations.push(rows);
                listed = generations.flush(&*host).await.unwrap();
                assert_eq!(generations.queued(), 0);
            }
            // Begun and not synced: may or may not be there.
            generations.push([row(9_999_999, 1 << 40)]);
            (listed, wrote)
        })
        .unwrap();
    assert!(listed.len() > 2, "sealed by size");
    let snapshot = disk.snapshot();
    for mode in snapshot.modes(7, 4) {
        let world = SimWorld::new(2);
        let config2 = SimDiskConfig::new(2);
        let disk = SimDisk::with_image(&world, config2, &snapshot.image(&mode));
        world
            .block_on(async {
                let generations = Generations::open(disk, config(), &listed).await.unwrap();
                let (rows, damage) = read_all(&generations, 0).await;
                assert!(damage.is_empty());
                assert_eq!(rows, wrote);
                let (rows, _) = read_all(&generations, 520).await;
                assert!(rows.iter().all(|r| r.expires_at_s > 520) && !rows.is_empty());
            })
            .unwrap();
    }
}

#[test]
fn failed_write_or_sync_moves_the_rows_to_a_new_file() {
    for (kind, nth) in [
        (OpKind::Write, 2),
        (OpKind::Write, 3),
        (OpKind::SyncData, 0),
        (OpKind::SyncData, 1),
    ] {
        let world = SimWorld::new(3);
        let faults = FaultPlan::none().nth(kind, nth, Fault::Error(libc::EIO, Fate::Lost));
        let disk = SimDisk::new(&world, SimDiskConfig::new(3).faults(faults));
        let host = world.host();
        let (listed, failures) = world
            .block_on(async {
                let mut generations = Generations::open(disk.clone(), config(), &[])
                    .await
                    .unwrap();
                let mut failures = 0;
                let mut listed = Vec::new();
                for n in 0..4 {
                    generations.push([row(n, 100 + n)]);
                    match generations.flush(&*host).await {
                        Ok(now) => listed = now,
                        Err(_) => failures += 1,
                    }
                }
                (listed, failures)
            })
            .unwrap();
        assert_eq!(failures, 1, "{kind:?} {nth}");
        assert_eq!(disk.counters().syncs_after_failure, 0);
        let snapshot = disk.snapshot();
        for mode in [CrashMode::drawn(1), CrashMode::drawn(2)] {
            let world = SimWorld::new(4);
            let image = snapshot.image(&mode);
            let disk = SimDisk::with_image(&world, SimDiskConfig::new(4), &image);
            world
                .block_on(async {
                    let generations = Generations::open(disk, config(), &listed).await.unwrap();
                    let (rows, damage) = read_all(&generations, 0).await;
                    assert!(damage.is_empty(), "{kind:?} {nth}: {damage:?}");
                    let mut seqs: Vec<u64> = rows.iter().map(|r| r.seq.0).collect();
                    seqs.dedup();
                    assert_eq!(seqs, [0, 1, 2, 3], "{kind:?} {nth}");
                })
                .unwrap();
        }
    }
}

#[test]
fn damage_below_the_listed_end_is_reported_and_the_rest_is_read() {
    let world = SimWorld::new(5);
    let disk = SimDisk::new(&world, SimDiskConfig::new(5));
    let host = world.host();
    let listed = world
        .block_on(async {
            let mut generations = Generations::open(disk.clone(), config(), &[])
                .await
                .unwrap();
            for n in 0..4000 {
                generations.push([row(n, 100)]);
                if n % 90 == 0 {
                    generations.flush(&*host).await.unwrap();
                }
            }
            generations.flush(&*host).await.unwrap()
        })
        .unwrap();
    assert!(listed.len() >= 2);
    let mut image = disk.snapshot().as_seen();
    assert!(image.flip(&file_name(listed[0].number), 3 * 4096 + 100, 1));
    // Above the listed end anything goes.
    let last = listed[listed.len() - 1];
    let content = image.read(&file_name(last.number)).unwrap();
    image.put(
        &file_name(last.number),
        &[content, vec![0x5a; 12288]].concat(),
    );
    let world = SimWorld::new(6);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(6), &image);
    world
        .block_on(async {
            let generations = Generations::open(disk, config(), &listed).await.unwrap();
            let (rows, damage) = read_all(&generations, 0).await;
            assert_eq!(damage.len(), 1);
            assert_eq!(damage[0].offset, 3 * 4096);
            assert!(rows.iter().any(|r| r.seq == Seq(0)));
            assert!(rows.iter().any(|r| r.seq == Seq(3999)));
        })
        .unwrap();
}

#[test]
fn generation_is_dropped_when_its_last_row_expired_and_not_before() {
    let world = SimWorld::new(7);
    let disk = SimDisk::new(&world, SimDiskConfig::new(7));
    let host = world.host();
    world
        .block_on(async {
            let small = GenerationConfig {
                bytes_max: 4096,
                ..config()
            };
            let mut generations = Generations::open(disk.clone(), small, &[]).await.unwrap();
            generations.push([row(1, 900), row(2, 100)]);
            generations.flush(&*host).await.unwrap();
            // Says that key 1 no longer stands: must be there as long as row 1 is.
            generations.push([DedupeRow {
                expires_at_s: 0,
                ..row(1, 0)
            }]);
            let listed = generations.flush(&*host).await.unwrap();
            assert_eq!(listed.len(), 2);
            assert_eq!(generations.drop_expired(899).await.unwrap(), 0);
            let (rows, _) = read_all(&generations, 899).await;
            assert_eq!(rows.len(), 2);
            assert_eq!(generations.drop_expired(900).await.unwrap(), 2);
            assert!(disk.list().await.unwrap().is_empty());
            // An older checkpoint may still list them: nothing is missing.
            let old = Generations::open(disk.clone(), small, &listed)
                .await
                .unwrap();
            let (rows, damage) = read_all(&old, 900).await;
            assert!(rows.is_empty() && damage.is_empty());
            let (_, damage) = read_all(&old, 899).await;
            assert_eq!(damage.len(), 2);
        })
        .unwrap();
}

#[test]
fn files_that_no_checkpoint_lists_are_removed_at_open() {
    let world = SimWorld::new(8);
    let disk = SimDisk::new(&world, SimDiskConfig::new(8));
    let host = world.host();
    world
        .block_on(async {
            let mut generations = Generations::open(disk.clone(), config(), &[])
                .await
                .unwrap();
            generations.push([row(1, 900)]);
            let listed = generations.flush(&*host).await.unwrap();
            let mut again = Generations::open(disk.clone(), config(), &listed)
                .await
                .unwrap();
            again.push([row(2, 900)]);
            again.flush(&*host).await.unwrap();
            let third = Generations::open(disk.clone(), config(), &listed)
                .await
                .unwrap();
            assert_eq!(disk.list().await.unwrap().len(), 1);
            assert_eq!(read_all(&third, 0).await.0, [row(1, 900)]);
            assert_eq!(third.next_number, 3, "a number is not used twice");
        })
        .unwrap();
}
