//! What an open need not read, and what neither it nor the tools can read.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::disk::sim::{Fault, FaultPlan, OpKind, SimDisk, SimDiskConfig, SimImage};
use crate::offline::judge::Expect;
use crate::offline::repair;
use crate::sim::SimWorld;
use crate::{HookId, OpenError, StoreConfig};

/// The ids of every dedupe row that stands, and whether some are said to be lost.
fn dedupe(rig: &Rig) -> (BTreeMap<[u8; 16], HookId>, bool) {
    let (mut rows, newest) = rig.store.take_boot_dedupe().unwrap();
    let mut found = BTreeMap::new();
    let mut is_told = false;
    let run = async {
        while let Some(block) = rows.next_block(0).await {
            match block {
                Ok(block) => found.extend(block.iter().map(|row| (row.hash, row.id))),
                Err(_) => is_told = true,
            }
        }
    };
    rig.world.block_on(run).unwrap();
    found.extend(newest.iter().map(|row| (row.hash, row.id)));
    (found, is_told)
}

#[test]
fn a_blank_slot_is_not_read_to_its_end_and_one_with_frames_behind_a_lost_header_is() {
    let large = StoreConfig {
        segment_bytes: 4 << 20,
        ..config()
    };
    let rig = open_image(1, None, SimDiskConfig::new(1), large.clone()).unwrap();
    rig.world.run_for(Duration::from_secs(2));
    for number in 0..3 {
        rig.world
            .block_on(put(&rig.store, number..number + 1, 100))
            .unwrap();
    }
    let image = as_seen(&rig);
    assert_eq!(
        image.names().iter().filter(|n| n.ends_with(".wal")).count(),
        2
    );
    let again = open_image(1, Some(&image), SimDiskConfig::new(1), large.clone()).unwrap();
    let reads = again.disk.log();
    let reads = reads.iter().filter(|op| op.kind == OpKind::Read).count();
    // The log's own tail is looked through to its end: four reads; the blank one takes one.
    assert!(again.report.bytes_scanned <= 6 << 20, "{:?}", again.report);
    assert!(reads < 20, "{reads}");
    let mut headless = image;
    headless.overwrite("slot-0000.wal", 0, &[0; 4096]);
    match open_image(1, Some(&headless), SimDiskConfig::new(1), large) {
        Err(OpenError::Damaged(_)) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened without its only header"),
    }
}

/// A disk that never gives a generation back stops every boot, since without its rows retries are
/// stored again. Giving them up is an operator's step, and it says what it costs.
#[test]
fn dedupe_rows_that_cannot_be_read_are_given_up_by_a_repair_and_nothing_else() {
    let rig = fresh(5);
    let mut ledger = Ledger::default();
    for number in 0..6 {
        let put = put(&rig.store, number..number + 1, 100);
        ledger.add(&rig.world.block_on(put).unwrap().0, 100);
    }
    rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
    let image = as_seen(&rig);
    let is_generation = |name: &String| name.ends_with(".dedupe");
    let name = image.names().into_iter().find(is_generation).unwrap();
    let on_disk = |image: &SimImage| {
        let world = SimWorld::new(3);
        let disk = SimDisk::with_image(&world, SimDiskConfig::new(3), image);
        (world, disk)
    };
    // The read of its whole, then of its blocks, as the tools meet them in the order of names.
    let (world, disk) = on_disk(&image);
    world
        .block_on(crate::offline::scan(&disk, &mut |_, _| {}))
        .unwrap()
        .unwrap();
    let log = disk.log();
    let reads: Vec<_> = log.iter().filter(|op| op.kind == OpKind::Read).collect();
    let nth = reads.iter().position(|op| *op.name == *name).unwrap() as u64;
    let blocks = image.read(&name).unwrap().len().div_ceil(4096) as u64;
    let (world, disk) = on_disk(&image);
    let bad = FaultPlan::none().nth_during(OpKind::Read, nth..nth + 1 + blocks, Fault::EIO);
    disk.set_faults(bad.clone());
    let scanned = world.block_on(crate::offline::scan(&disk, &mut |_, _| {}));
    assert_eq!(
        scanned.unwrap().unwrap().unreadable_generations,
        [(name.clone(), 0)]
    );
    let (world, disk) = on_disk(&image);
    disk.set_faults(bad);
    let mut told = String::new();
    let plan = world.block_on(repair(&disk, Expect::default(), &mut |plan| {
        told = plan.to_string();
        true
    }));
    plan.unwrap().unwrap();
    assert!(told.contains(&name) && told.contains("LOST"), "{told}");
    let rig = reopen(&disk.snapshot().as_seen()).unwrap();
    ledger.check(&rig, "repaired");
    assert!(dedupe(&rig).1, "and the boot says so again");
}
