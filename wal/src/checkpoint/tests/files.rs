//! Checkpoint files on the simulated disk: cuts at every flush edge, a fault at every operation.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::disk::Disk;
use crate::disk::sim::{CrashMode, Fate, Fault, FaultPlan, SimDisk, SimDiskConfig, SimImage};
use crate::error::CheckpointError;
use crate::host::Host;
use crate::sim::SimWorld;
use crate::state::State;
use crate::state::model::Snapshot;

fn history(hooks: usize) -> History {
    let mut history = History::new();
    for n in 0..hooks {
        let op = Op::Hook {
            sinks: 1 + (n % 3) as u8,
            archive: n % 5 == 0,
            log: false,
            dedupe: false,
        };
        history.step(&op);
    }
    history.settle_all();
    history
}

fn with_number(number: u64) -> Start {
    Start { number, ..start() }
}

/// Takes checkpoint `number`, the state being durable throughout.
async fn take(
    disk: &SimDisk,
    host: &dyn Host,
    state: &RefCell<State>,
    segments: Vec<SegmentUse>,
    number: u64,
) -> Result<(), CheckpointError> {
    let rest = async |_| Ok((segments, Vec::new(), Vec::new()));
    let unnamed = write(disk, host, state, with_number(number), rest).await?;
    let durable = state.borrow().durable();
    name(disk, state, durable, unnamed).await?;
    prune(disk).await?;
    Ok(())
}

/// Every named checkpoint of the image, loaded whole; newest first.
fn load_named(image: &SimImage) -> Vec<Result<(u64, Snapshot), String>> {
    let mut numbers: Vec<u64> = image.names().iter().filter_map(|n| parse_name(n)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let world = SimWorld::new(77);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(77), image);
    let load_one = |number| {
        let host = world.host();
        let disk = disk.clone();
        let loaded = world.block_on(async move {
            let manifest = read_manifest(&disk, number).await;
            let loaded = load(&disk, &*host, number, ShardId(3), UUID).await;
            (manifest, loaded)
        });
        match loaded.unwrap() {
            (Ok(manifest), Ok(loaded)) => {
                assert_eq!(manifest, (loaded.start, loaded.end));
                Ok((number, snapshot(&loaded.state)))
            }
            (_, Err(error)) => Err(error.to_string()),
            (Err(error), _) => Err(format!("manifest: {error}")),
        }
    };
    numbers.into_iter().map(load_one).collect()
}

/// Takes three checkpoints and cuts the power at every flush edge; answers with what was wrong.
fn cut_everywhere() -> Vec<String> {
    let world = SimWorld::new(5);
    let disk = SimDisk::new(&world, SimDiskConfig::new(5));
    let host = world.host();
    let history = history(300);
    let segments = uses(&history);
    let expected = snapshot(&history.state);
    let state = RefCell::new(history.state);
    let taken = Rc::new(RefCell::new(0u64));
    let faults = Rc::new(RefCell::new(Vec::new()));
    disk.observe({
        let (taken, faults) = (Rc::clone(&taken), Rc::clone(&faults));
        let expected = expected.clone();
        move |_, medium| {
            for mode in medium.modes(9, 2) {
                let named = load_named(&medium.image(&mode));
                let newest = named.iter().flatten().map(|(number, _)| *number).max();
                if newest.unwrap_or(0) < *taken.borrow() {
                    let fault = format!("{} was taken, {newest:?} is there", taken.borrow());
                    faults.borrow_mut().push(fault);
                }
                for one in named {
                    match one {
                        Ok((_, seen)) if seen == expected => {}
                        Ok((number, _)) => {
                            faults
                                .borrow_mut()
                                .push(format!("{number} has another state"));
                        }
                        Err(error) => faults.borrow_mut().push(error),
                    }
                }
            }
        }
    });
    world
        .block_on(async {
            for number in 1..=3 {
                take(&disk, &*host, &state, segments.clone(), number)
                    .await
                    .unwrap();
                *taken.borrow_mut() = number;
            }
            let kept = prune(&disk).await.unwrap();
            assert_eq!(kept, [3, 2]);
            // An edge after the last one.
            disk.sync_dir().await.unwrap();
        })
        .unwrap();
    assert_eq!(disk.open_files(), 0);
    faults.take()
}

#[test]
fn named_checkpoint_is_whole_and_stays_after_a_cut_at_any_flush() {
    assert_eq!(cut_everywhere(), Vec::<String>::new());
}

#[cfg(feature = "mutations")]
#[test]
fn cuts_notice_a_checkpoint_that_is_named_without_a_sync() {
    crate::mutations::set(Some("checkpoint_rename_without_sync"));
    let faults = cut_everywhere();
    crate::mutations::set(None);
    assert!(!faults.is_empty());
}

#[test]
fn fault_at_any_operation_leaves_the_checkpoints_before_and_the_next_one_is_taken() {
    let ops = {
        let world = SimWorld::new(6);
        let disk = SimDisk::new(&world, SimDiskConfig::new(6));
        let host = world.host();
        let history = history(90);
        let segments = uses(&history);
        let state = RefCell::new(history.state);
        world
            .block_on(take(&disk, &*host, &state, segments, 1))
            .unwrap()
            .unwrap();
        disk.ops()
    };
    for fate in [Fate::Lost, Fate::Kept] {
        for op in ops..3 * ops {
            let world = SimWorld::new(6);
            let disk = SimDisk::new(&world, SimDiskConfig::new(6));
            let host = world.host();
            let history = history(90);
            let segments = uses(&history);
            let expected = snapshot(&history.state);
            let state = RefCell::new(history.state);
            world
                .block_on(async {
                    take(&disk, &*host, &state, segments.clone(), 1)
                        .await
                        .unwrap();
                    disk.set_faults(FaultPlan::none().at(op, Fault::Error(libc::EIO, fate)));
                    let second = take(&disk, &*host, &state, segments.clone(), 2).await;
                    let third = take(&disk, &*host, &state, segments.clone(), 3).await;
                    assert!(
                        second.is_ok() || third.is_ok(),
                        "op {op}: {second:?} {third:?}"
                    );
                })
                .unwrap();
            assert_eq!(disk.counters().syncs_after_failure, 0, "op {op}");
            assert_eq!(disk.open_files(), 0, "op {op}");
            // Every subset of what is unflushed is the other test's business.
            let medium = disk.snapshot();
            for mode in [
                CrashMode::NOTHING,
                CrashMode::EVERYTHING,
                CrashMode::drawn(op),
            ] {
                let named = load_named(&medium.image(&mode));
                let good = named
                    .into_iter()
                    .flatten()
                    .filter(|(_, seen)| *seen == expected);
                assert!(good.count() >= 2, "op {op}");
            }
        }
    }
}

#[test]
fn checkpoint_during_which_the_shard_was_fenced_gets_no_name() {
    let world = SimWorld::new(8);
    let disk = SimDisk::new(&world, SimDiskConfig::new(8));
    let host = world.host();
    let history = history(50);
    let segments = uses(&history);
    let state = RefCell::new(history.state);
    let fence = || {
        let durable = state.borrow().durable();
        state.borrow_mut().undo_above(durable);
    };
    world
        .block_on(async {
            let rest = async |_| {
                fence();
                Ok((segments.clone(), Vec::new(), Vec::new()))
            };
            let result = write(&disk, &*host, &state, with_number(1), rest).await;
            assert!(matches!(result, Err(CheckpointError::Fenced)));
            let rest = async |_| Ok((segments.clone(), Vec::new(), Vec::new()));
            let unnamed = write(&disk, &*host, &state, with_number(2), rest)
                .await
                .unwrap();
            fence();
            let durable = state.borrow().durable();
            let result = name(&disk, &state, durable, unnamed).await;
            assert!(matches!(result, Err(CheckpointError::Fenced)));
            assert!(disk.list().await.unwrap().is_empty());
        })
        .unwrap();
}

#[test]
#[should_panic(expected = "named only once everything it saw is durable")]
fn checkpoint_is_not_named_before_what_it_saw_is_durable() {
    let world = SimWorld::new(9);
    let disk = SimDisk::new(&world, SimDiskConfig::new(9));
    let host = world.host();
    let mut history = history(50);
    history.step(&Op::Hook {
        sinks: 1,
        archive: false,
        log: false,
        dedupe: false,
    });
    history.end_group();
    let segments = uses(&history);
    let state = RefCell::new(history.state);
    let _ = world.block_on(async {
        let rest = async |_| Ok((segments, Vec::new(), Vec::new()));
        let unnamed = write(&disk, &*host, &state, with_number(1), rest)
            .await
            .unwrap();
        let durable = state.borrow().durable();
        assert!(durable < unnamed.end_lsn());
        name(&disk, &state, durable, unnamed).await
    });
}
