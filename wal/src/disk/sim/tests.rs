//! The medium itself, and a mini-log that is right, or wrong in one way on purpose: enumeration
//! of cuts and faults must tell them apart.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use super::*;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::sim::{SimRng, SimWorld, Stuck};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn filled(disk: &SimDisk, blocks: usize, byte: u8) -> Rc<SimBuf> {
    let mut buf = disk.alloc(blocks * BLOCK_BYTES);
    buf.as_mut().fill(byte);
    Rc::new(buf)
}

/// How a mini-log treats a block before it acks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Log {
    Right,
    RightDsync,
    AcksBeforeSync,
    SkipsDirSync,
    RetriesSync,
    IgnoresShortWrite,
    IgnoresWriteError,
}

const BLOCKS: u8 = 6;

async fn mini_log(disk: SimDisk, kind: Log, acked: Rc<Cell<u8>>) -> io::Result<()> {
    let file = disk.create("log").await?;
    if kind != Log::SkipsDirSync {
        disk.sync_dir().await?;
    }
    let file = if kind == Log::RightDsync {
        disk.close(file).await;
        disk.reopen_dsync("log").await?
    } else {
        file
    };
    for block in 1..=BLOCKS {
        let ends = append(&disk, &file, kind, block).await;
        if kind == Log::AcksBeforeSync || ends.is_ok() {
            acked.set(block);
        }
        if let Err(error) = ends {
            disk.close(file).await;
            return Err(error);
        }
        if kind == Log::AcksBeforeSync {
            disk.sync_data(&file).await?;
        }
    }
    disk.close(file).await;
    Ok(())
}

async fn append(disk: &SimDisk, file: &SimFile, kind: Log, block: u8) -> io::Result<()> {
    // Two blocks each, so that a short write can cut between them.
    let pos = u64::from(block - 1) * 2 * BLOCK;
    let wrote = disk.write_at(file, filled(disk, 2, block), pos).await;
    if kind != Log::IgnoresWriteError {
        let short = wrote? < 2 * BLOCK_BYTES;
        if short && kind != Log::IgnoresShortWrite {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
    }
    match kind {
        Log::AcksBeforeSync | Log::RightDsync => Ok(()),
        Log::RetriesSync => match disk.sync_data(file).await {
            Ok(()) => Ok(()),
            Err(_) => disk.sync_data(file).await,
        },
        _ => disk.sync_data(file).await,
    }
}

fn missing(image: &SimImage, acked: u8) -> bool {
    let content = image.read("log").unwrap_or_default();
    (1..=acked).any(|block| {
        let at = usize::from(block - 1) * 2 * BLOCK_BYTES;
        content
            .get(at..at + 2 * BLOCK_BYTES)
            .is_none_or(|b| b.iter().any(|x| *x != block))
    })
}

/// Runs it with cuts enumerated at every flush edge and after every step; counts lost acks.
fn cuts(kind: Log, seed: u64, faults: FaultPlan) -> (u64, SimCounters, u64) {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed).faults(faults));
    let acked = Rc::new(Cell::new(0));
    let losses = Rc::new(Cell::new(0));
    let check = {
        let (acked, losses) = (Rc::clone(&acked), Rc::clone(&losses));
        move |snapshot: &SimSnapshot| {
            for mode in snapshot.modes(seed, 4) {
                if missing(&snapshot.image(&mode), acked.get()) {
                    losses.set(losses.get() + 1);
                }
            }
        }
    };
    let at_edge = check.clone();
    disk.observe(move |_, snapshot| at_edge(&snapshot));
    let (inner, count) = (disk.clone(), Rc::clone(&acked));
    world.spawn(async move { drop(mini_log(inner, kind, count).await) });
    while world.step() != crate::sim::Step::Idle {
        if acked.get() > 0 && world.now_us().is_multiple_of(3) {
            check(&disk.snapshot());
        }
    }
    check(&disk.snapshot());
    (losses.get(), disk.counters(), disk.ops())
}

/// Lost acks over all plans that fail one operation, for every operation.
fn sweep(kind: Log, faults: &[Fault]) -> u64 {
    let (mut losses, _, ops) = cuts(kind, 1, FaultPlan::none());
    for op in 0..ops {
        for fault in faults {
            losses += cuts(kind, 1, FaultPlan::none().at(op, *fault)).0;
        }
    }
    losses
}

const FAULTS: [Fault; 9] = [
    Fault::Error(libc::EIO, Fate::Lost),
    Fault::Error(libc::EIO, Fate::Kept),
    Fault::EIO,
    Fault::ENOSPC,
    Fault::Short(0),
    Fault::Short(4096),
    Fault::Short(7680),
    Fault::Delay(50_000),
    Fault::Hang,
];

#[test]
fn a_right_log_loses_nothing_at_any_fault_and_any_cut() {
    assert_eq!(sweep(Log::Right, &FAULTS), 0);
    assert_eq!(sweep(Log::RightDsync, &FAULTS), 0);
    assert_eq!(sweep(Log::Right, &[Fault::Late(Fate::Kept)]), 0);
}

#[test]
fn ack_before_sync_is_caught_without_any_fault() {
    assert!(cuts(Log::AcksBeforeSync, 1, FaultPlan::none()).0 > 0);
}

#[test]
fn a_missing_directory_sync_is_caught_without_any_fault() {
    assert!(cuts(Log::SkipsDirSync, 1, FaultPlan::none()).0 > 0);
}

#[test]
fn a_retried_sync_is_caught_by_failing_each_operation() {
    assert_eq!(cuts(Log::RetriesSync, 1, FaultPlan::none()).0, 0);
    assert!(sweep(Log::RetriesSync, &[Fault::EIO]) > 0);
    let (_, counters, _) = cuts(
        Log::RetriesSync,
        1,
        FaultPlan::none().nth(OpKind::SyncData, 2, Fault::EIO),
    );
    assert_eq!(
        counters.syncs_after_failure, 4,
        "the retry and the three syncs after it"
    );
}

#[test]
fn ignored_write_results_are_caught() {
    assert!(sweep(Log::IgnoresShortWrite, &[Fault::Short(4096)]) > 0);
    assert!(sweep(Log::IgnoresWriteError, &[Fault::EIO]) > 0);
}

#[test]
fn a_lying_sync_loses_acks_even_of_a_right_log() {
    assert!(sweep(Log::Right, &[Fault::Lie]) > 0);
    assert!(sweep(Log::Right, &[Fault::Late(Fate::Lost)]) > 0);
}

/// Runs `work` on a fresh disk and answers its snapshot.
fn after<F: Future<Output = ()>>(seed: u64, work: impl FnOnce(SimDisk) -> F) -> SimSnapshot {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed));
    world.block_on(work(disk.clone())).unwrap();
    disk.snapshot()
}

#[test]
fn a_sync_covers_what_completed_before_it_was_issued_and_nothing_else() {
    let world = SimWorld::new(5);
    let disk = SimDisk::new(&world, SimDiskConfig::new(5));
    let work = async {
        let file = disk.create("f").await.unwrap();
        disk.sync_dir().await.unwrap();
        disk.write_at(&file, filled(&disk, 1, 1), 0).await.unwrap();
        // The second write is issued before the sync and completes before or after its issue,
        // but never before: both are issued in the same poll.
        let late = disk.write_at(&file, filled(&disk, 1, 2), BLOCK);
        let sync = disk.sync_data(&file);
        let (a, b) = futures_lite::future::zip(late, sync).await;
        a.unwrap();
        b.unwrap();
        disk.close(file).await;
    };
    world.block_on(work).unwrap();
    let snapshot = disk.snapshot();
    assert_eq!(snapshot.unflushed_writes(), 1);
    let image = snapshot.image(&CrashMode::NOTHING);
    assert_eq!(image.read("f").unwrap(), vec![1; BLOCK_BYTES]);
    let all = snapshot.image(&CrashMode::EVERYTHING).read("f").unwrap();
    assert_eq!(all[BLOCK_BYTES..], vec![2; BLOCK_BYTES]);
}

#[test]
fn every_subset_of_eight_sectors_is_enumerated() {
    let snapshot = after(1, |disk| async move {
        let file = disk.create("f").await.unwrap();
        disk.sync_dir().await.unwrap();
        disk.write_at(&file, filled(&disk, 1, 7), 0).await.unwrap();
        disk.close(file).await;
    });
    let follows = |m: &CrashMode| m.len == LenFate::Full || m.len == LenFate::Follows;
    let images: BTreeSet<Vec<bool>> = snapshot
        .modes(1, 0)
        .iter()
        .filter(|m| follows(m))
        .map(|mode| {
            let mut content = snapshot.image(mode).read("f").unwrap();
            content.resize(BLOCK_BYTES, 0);
            content
                .chunks(512)
                .map(|s| s.iter().all(|b| *b == 7))
                .collect()
        })
        .collect();
    assert_eq!(images.len(), 256);
}

#[test]
fn unflushed_names_are_lost_or_kept_each_by_itself() {
    let snapshot = after(1, |disk| async move {
        let file = disk.create("old").await.unwrap();
        disk.write_at(&file, filled(&disk, 1, 1), 0).await.unwrap();
        disk.sync_data(&file).await.unwrap();
        disk.sync_dir().await.unwrap();
        disk.rename("old", "new").await.unwrap();
        let other = disk.create("other").await.unwrap();
        disk.close(file).await;
        disk.close(other).await;
    });
    let found: BTreeSet<Vec<String>> = snapshot
        .modes(1, 16)
        .iter()
        .map(|m| snapshot.image(m).names())
        .collect();
    let want: [&[&str]; 4] = [&["new"], &["new", "other"], &["old"], &["old", "other"]];
    let want: BTreeSet<Vec<String>> = want
        .iter()
        .map(|names| names.iter().map(ToString::to_string).collect())
        .collect();
    assert_eq!(found, want);
}

#[test]
fn a_failed_sync_settles_for_good_what_it_did_not_write() {
    let world = SimWorld::new(2);
    let plan = FaultPlan::none().nth(OpKind::SyncData, 0, Fault::Error(libc::EIO, Fate::Lost));
    let disk = SimDisk::new(&world, SimDiskConfig::new(2).faults(plan));
    let work = async {
        let file = disk.create("f").await.unwrap();
        disk.sync_dir().await.unwrap();
        disk.write_at(&file, filled(&disk, 1, 1), 0).await.unwrap();
        let error = disk.sync_data(&file).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        disk.write_at(&file, filled(&disk, 1, 2), BLOCK)
            .await
            .unwrap();
        disk.sync_data(&file).await.unwrap();
        disk.close(file).await;
    };
    world.block_on(work).unwrap();
    let image = disk.snapshot().image(&CrashMode::EVERYTHING);
    let content = image.read("f").unwrap();
    assert!(
        content[..BLOCK_BYTES].iter().all(|b| *b == 0),
        "a later success saves nothing"
    );
    assert!(content[BLOCK_BYTES..].iter().all(|b| *b == 2));
    assert_eq!(disk.counters().syncs_after_failure, 1);
}

#[test]
fn a_synced_write_is_durable_alone_and_replaces_older_unflushed_ones() {
    let snapshot = after(3, |disk| async move {
        let file = disk.create("f").await.unwrap();
        disk.sync_dir().await.unwrap();
        disk.write_at(&file, filled(&disk, 2, 1), 0).await.unwrap();
        let synced = disk.reopen_dsync("f").await.unwrap();
        disk.write_at(&synced, filled(&disk, 1, 2), 0)
            .await
            .unwrap();
        disk.close(file).await;
        disk.close(synced).await;
    });
    for mode in snapshot.modes(1, 20) {
        let content = snapshot.image(&mode).read("f").unwrap();
        assert!(content[..BLOCK_BYTES].iter().all(|b| *b == 2), "{mode:?}");
    }
    assert_eq!(
        snapshot.unflushed_sectors(),
        8,
        "the second block of the first write still waits"
    );
}

#[test]
fn a_hang_ends_when_released_and_not_before() {
    let world = SimWorld::new(4);
    let plan = FaultPlan::none().nth(OpKind::Write, 0, Fault::Hang);
    let disk = SimDisk::new(&world, SimDiskConfig::new(4).faults(plan));
    let done = Rc::new(Cell::new(false));
    let (inner, flag) = (disk.clone(), Rc::clone(&done));
    world.spawn(async move {
        let file = inner.create("f").await.unwrap();
        inner
            .write_at(&file, filled(&inner, 1, 1), 0)
            .await
            .unwrap();
        inner.close(file).await;
        flag.set(true);
    });
    assert_eq!(world.run_until_idle(), Ok(1));
    assert!(!done.get());
    assert_eq!(disk.release_hangs(), 1);
    assert_eq!(world.run_until_idle(), Ok(0));
    assert!(done.get());
}

#[test]
fn a_full_disk_writes_what_fits_then_refuses() {
    let world = SimWorld::new(4);
    let mut config = SimDiskConfig::new(4);
    config.capacity_bytes = 3 * BLOCK;
    let disk = SimDisk::new(&world, config);
    let work = async {
        let file = disk.create("f").await.unwrap();
        let wrote = disk.write_at(&file, filled(&disk, 2, 1), 0).await.unwrap();
        assert_eq!(wrote, 2 * BLOCK_BYTES);
        let wrote = disk
            .write_at(&file, filled(&disk, 2, 1), 2 * BLOCK)
            .await
            .unwrap();
        assert_eq!(wrote, BLOCK_BYTES);
        assert_eq!(disk.space().await.unwrap().free_bytes, 0);
        let error = disk
            .write_at(&file, filled(&disk, 1, 1), 3 * BLOCK)
            .await
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!(
            disk.write_at(&file, filled(&disk, 2, 9), 0).await.is_ok(),
            "in place it fits"
        );
        disk.close(file).await;
    };
    world.block_on(work).unwrap();
    assert_eq!(disk.counters().enospc, 2);
    assert_eq!(disk.open_files(), 0);
}

#[test]
fn a_dropped_write_still_happens_and_an_unclosed_file_is_counted() {
    let world = SimWorld::new(4);
    let disk = SimDisk::new(&world, SimDiskConfig::new(4));
    world
        .block_on(async {
            let file = disk.create("f").await.unwrap();
            let write = disk.write_at(&file, filled(&disk, 1, 1), 0);
            assert!(futures_lite::future::poll_once(write).await.is_none());
        })
        .unwrap();
    assert_eq!(world.run_until_idle(), Ok(0));
    assert_eq!(
        disk.snapshot().as_seen().read("f").unwrap(),
        vec![1; BLOCK_BYTES]
    );
    assert_eq!(disk.counters().unclosed_files, 1);
}

#[test]
fn misaligned_io_is_refused_like_a_direct_file_does() {
    let world = SimWorld::new(4);
    let disk = SimDisk::new(&world, SimDiskConfig::new(4));
    let ends = world.block_on(async {
        let file = disk.create("f").await.unwrap();
        let error = disk
            .write_at(&file, filled(&disk, 1, 1), 512)
            .await
            .unwrap_err();
        disk.close(file).await;
        error.raw_os_error()
    });
    assert_eq!(ends, Ok(Some(libc::EINVAL)));
}

/// A random history against a model of what a reader must see.
fn history(seed: u64, faults: FaultPlan) -> Result<SimCounters, Stuck> {
    let world = SimWorld::new(seed);
    let disk = SimDisk::new(&world, SimDiskConfig::new(seed).faults(faults));
    let mut rng = SimRng::stream(seed, 99);
    world.block_on(async {
        for round in 0..5 {
            let Ok(file) = disk.create(&format!("f{round}")).await else {
                continue;
            };
            drop(disk.sync_dir().await);
            for _ in 0..20 {
                let (pos, byte) = (rng.below(16) * BLOCK, rng.next_u64() as u8);
                let buf = filled(&disk, 1 + rng.below(4) as usize, byte);
                let wrote = disk.write_at(&file, buf, pos).await.unwrap_or(0);
                if wrote >= BLOCK_BYTES {
                    let (read, n) = disk.read_at(&file, pos, BLOCK_BYTES).await.unwrap();
                    assert_eq!(n, BLOCK_BYTES);
                    assert!(read.as_ref().iter().all(|b| *b == byte), "seed {seed}");
                }
                if rng.coin() {
                    drop(disk.sync_data(&file).await);
                }
            }
            disk.close(file).await;
        }
    })?;
    let snapshot = disk.snapshot();
    for drawn in 0..4 {
        snapshot.image(&CrashMode::drawn(drawn));
    }
    Ok(disk.counters())
}

#[test]
fn two_thousand_histories_meet_every_drawn_fault_and_repeat_exactly() {
    let mut total = SimCounters::default();
    for seed in 0..2_000 {
        let plan = FaultPlan::none().rates(FaultRates::mixed(100));
        let counters = history(seed, plan.clone()).unwrap();
        if seed % 100 == 0 {
            assert_eq!(
                history(seed, plan).unwrap(),
                counters,
                "seed {seed} repeats"
            );
        }
        total += counters;
    }
    println!("{total}");
    let met = [
        total.write_errors,
        total.enospc,
        total.short_writes,
        total.sync_errors,
    ];
    assert!(met.into_iter().all(|n| n > 100), "{total}");
    assert!(
        total.late_errors > 50 && total.name_errors > 50 && total.delays > 50,
        "{total}"
    );
    assert_eq!(total.overlapping_writes, 0);
}
