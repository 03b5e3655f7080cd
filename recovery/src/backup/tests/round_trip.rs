//! What comes back is what went in.

use std::collections::BTreeMap;
use std::rc::Rc;

use ankusa_wal::disk::blocking::block_on;
use ankusa_wal::home::StoreOrigin;
use ankusa_wal::offline::{self, judge::Expect};
use ankusa_wal::{DeliveryState, Incarnation, LogOffset, Record, Seq, ShardId};

use super::folder::MemFolder;
use super::rig::{Free, Rig, UUID, facts, key, prefix, restored};
use crate::backup::{BackupDisk, catalog, check_objects};

fn live(rig: &Rig, hooks: &BTreeMap<u64, Seq>) -> usize {
    let state = rig.store.state();
    hooks
        .values()
        .filter(|seq| state.location(**seq).is_some())
        .count()
}

#[test]
fn live_delivered_and_dead_hooks_keys_and_marks_come_back() {
    let (rig, folder) = (Rig::open(1, None), MemFolder::default());
    let mut hooks = rig.put(0..200);
    for number in 0..60 {
        rig.end(hooks.remove(&number).unwrap(), DeliveryState::Delivered);
    }
    let dead = hooks[&60];
    rig.end(dead, DeliveryState::Dead);
    rig.marks(hooks[&100], 4711);
    let next_seq = rig.store.next_seq();
    let sent = rig.back_up(&mut prefix(&folder, "00")).unwrap();
    assert_eq!(sent.number, 1);

    let (back, facts) = restored(&folder, None);
    assert_eq!(
        (facts.incarnation, facts.origin),
        (2, StoreOrigin::Restored)
    );
    assert_eq!(facts.intake_partition, Some(3));
    back.check(&hooks);
    let state = back.store.state();
    assert_eq!(state.live_hooks(), hooks.len() as u64);
    assert_eq!(state.counts().rows_dead, 2);
    let meta = state.meta();
    assert_eq!(meta.watermark.seq, hooks[&100]);
    assert_eq!(meta.offset.offset, Some(LogOffset(4711)));
    let rows: Vec<Incarnation> = meta.incarnations().collect();
    assert_eq!(rows.len(), 1);
    assert!(rows[0].incarnation == 2 && rows[0].first_seq >= next_seq);
    assert_eq!(meta.lifecycle_last(), 1);
    drop(state);
    assert!(back.store.next_seq() > rows[0].first_seq);
    assert!(back.put(1000..1001)[&1000] >= rows[0].first_seq);

    let (mut rows, newest) = back.store.take_boot_dedupe().unwrap();
    let mut keys: Vec<_> = newest.iter().map(|row| row.id).collect();
    while let Some(block) = back.world.block_on(rows.next_block(0)).unwrap() {
        keys.extend(block.unwrap().iter().map(|row| row.id));
    }
    for number in 0..200 {
        // Also of hooks long delivered.
        assert!(keys.contains(&super::rig::id_of(number)), "key of {number}");
    }
}

#[test]
fn what_is_there_is_not_sent_again_and_a_growing_segment_goes_in_parts() {
    let (rig, folder) = (Rig::open(2, None), MemFolder::default());
    let mut prefix = prefix(&folder, "00");
    let mut hooks = rig.put(0..150);
    let first = rig.back_up(&mut prefix).unwrap();
    assert_eq!(first.bytes, first.bytes_whole);
    hooks.extend(rig.put(150..154));
    let second = rig.back_up(&mut prefix).unwrap();
    assert!(second.bytes * 4 < second.bytes_whole, "{second:?}");
    // Hardly anything: the checkpoint, and what four hooks take.
    assert!(second.objects <= 3, "{second:?}");
    let (back, _) = restored(&folder, Some(2));
    back.check(&hooks);
    hooks.retain(|number, _| *number < 150);
    let (back, _) = restored(&folder, Some(1));
    back.check(&hooks);
    assert_eq!(back.store.state().live_hooks(), 150);
}

#[test]
fn idle_shard_is_taken_over_from_the_last_backup_of_this_process_only() {
    let (rig, folder) = (Rig::open(3, None), MemFolder::default());
    rig.put(0..20);
    let mut ours = prefix(&folder, "00");
    rig.back_up(&mut ours).unwrap();
    let at = rig.source().durable_lsn.0;
    let mut run = ours.begin(5).unwrap();
    assert!(!run.same_as_last(ShardId(0), at + 1));
    assert!(run.same_as_last(ShardId(0), at));
    let sent = run.finish(&facts(), 6).unwrap();
    assert_eq!((sent.number, sent.objects), (2, 0));
    let mut next = prefix(&folder, "11");
    assert!(!next.begin(7).unwrap().same_as_last(ShardId(0), at));
}

#[test]
fn only_the_newest_are_kept_and_objects_go_once_no_manifest_names_them() {
    let (rig, folder) = (Rig::open(4, None), MemFolder::default());
    let mut prefix = prefix(&folder, "00");
    let mut all = BTreeMap::new();
    for round in 0..8 {
        for seq in std::mem::take(&mut all).into_values() {
            rig.end(seq, DeliveryState::Delivered);
        }
        all = rig.put(round * 100..round * 100 + 100);
        rig.back_up(&mut prefix).unwrap();
        for listed in catalog::list(&folder, &key()).unwrap() {
            let manifest = listed.manifest.unwrap();
            check_objects(&folder, &manifest, &mut |_, _| {}).unwrap();
        }
    }
    let numbers: Vec<u64> = catalog::list(&folder, &key())
        .unwrap()
        .iter()
        .map(|listed| listed.number)
        .collect();
    assert_eq!(numbers, [8, 7]);
    let mut needed: Vec<String> = Vec::new();
    for listed in catalog::list(&folder, &key()).unwrap() {
        needed.extend(listed.manifest.unwrap().parts().map(|p| p.object.clone()));
    }
    let objects = folder
        .paths()
        .into_iter()
        .filter(|p| p.starts_with("shard-"));
    for object in objects {
        assert!(needed.contains(&object), "{object} is garbage");
    }
    restored(&folder, Some(7));
    restored(&folder, None).0.check(&all);
}

#[test]
fn offset_never_runs_ahead_of_what_the_backup_holds() {
    for seed in 0..30 {
        let (rig, folder) = (Rig::open(seed, None), MemFolder::default());
        let mut prefix = prefix(&folder, "00");
        // Hook n is record n of the log: the offset n says that hooks 1..=n are here.
        let mut hooks = rig.put(1..20);
        rig.marks(hooks[&19], 19);
        // While the checkpoint is taken, hooks and marks go on.
        let (source, late) = rig
            .world
            .block_on(async {
                let taking = rig.store.backup_source();
                let going_on = async {
                    let mut late = Vec::new();
                    for number in 20..60u64 {
                        let offset = Record::Offset(ankusa_wal::IntakeOffset {
                            offset: Some(LogOffset(number - 1)),
                            hold: None,
                        });
                        late.extend(rig.group(&[number], &[offset]).await);
                    }
                    late
                };
                let (source, late) = zip(taking, going_on).await;
                (source.unwrap().0, late)
            })
            .unwrap();
        hooks.extend(late);
        let mut run = prefix.begin(1).unwrap();
        run.shard(&rig.files(), &source, &mut Free).unwrap();
        run.finish(&facts(), 2).unwrap();
        let claimed = catalog::pick(&folder, &key(), None)
            .unwrap()
            .offset()
            .unwrap();
        let (back, _) = restored(&folder, None);
        let state = back.store.state();
        let offset = state.meta().offset.offset.unwrap().0;
        assert!(claimed <= offset, "seed {seed}");
        for number in 1..=offset {
            assert!(
                state.location(hooks[&number]).is_some(),
                "seed {seed}: hook {number}"
            );
        }
        assert!(offset >= 19);
    }
}

/// Both, on one task.
async fn zip<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(move |cx| {
        if left.is_none()
            && let std::task::Poll::Ready(out) = a.as_mut().poll(cx)
        {
            left = Some(out);
        }
        if right.is_none()
            && let std::task::Poll::Ready(out) = b.as_mut().poll(cx)
        {
            right = Some(out);
        }
        match (left.take(), right.take()) {
            (Some(l), Some(r)) => std::task::Poll::Ready((l, r)),
            (l, r) => {
                (left, right) = (l, r);
                std::task::Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn what_was_acked_before_it_began_is_in_it_though_the_store_goes_on() {
    for seed in 0..10 {
        let (rig, folder) = (Rig::open(seed, None), MemFolder::default());
        let mut prefix = prefix(&folder, "00");
        let mut hooks = rig.put(0..100);
        for number in 0..50 {
            rig.end(hooks.remove(&number).unwrap(), DeliveryState::Delivered);
        }
        let mut run = prefix.begin(1).unwrap();
        let (source, pin) = rig
            .world
            .block_on(rig.store.backup_source())
            .unwrap()
            .unwrap();
        // Enough to use slots again, were they not pinned.
        let mut later = rig.put(1000..1300);
        for seq in std::mem::take(&mut later).into_values() {
            rig.end(seq, DeliveryState::Delivered);
        }
        for _ in 0..3 {
            rig.world.block_on(rig.store.checkpoint()).unwrap().unwrap();
            rig.put(2000..2100);
        }
        // The checkpoint itself is opened first, before newer ones push it out.
        let mut files = rig.files();
        files.0.put(
            &source.checkpoint.file,
            &rig_checkpoint(&rig, &source.checkpoint.file, seed),
        );
        match run.shard(&files, &source, &mut Free) {
            Ok(()) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        drop(pin);
        run.finish(&facts(), 2).unwrap();
        let (back, _) = restored(&folder, None);
        back.check(&hooks);
        assert!(live(&back, &hooks) == hooks.len());
    }
}

/// The checkpoint's content, from a rig that was stopped where the backup began.
fn rig_checkpoint(rig: &Rig, file: &str, seed: u64) -> Vec<u8> {
    if let Some(content) = rig.files().0.read(file) {
        return content;
    }
    let same = Rig::open(seed, None);
    let mut hooks = same.put(0..100);
    for number in 0..50 {
        same.end(hooks.remove(&number).unwrap(), DeliveryState::Delivered);
    }
    same.source();
    same.files().0.read(file).unwrap()
}

#[test]
fn backup_is_judged_sound_without_being_unpacked() {
    let (rig, folder) = (Rig::open(6, None), MemFolder::default());
    rig.put(0..300);
    rig.back_up(&mut prefix(&folder, "00")).unwrap();
    let manifest = catalog::pick(&folder, &key(), None).unwrap();
    let expect = Expect {
        store_uuid: Some(UUID),
        shard: Some(ShardId(0)),
    };
    let disk = BackupDisk::new(Rc::new(folder.clone()), &manifest.shards[0]);
    let report = block_on(offline::verify(&disk, expect, &mut |_, _| {})).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(
        report.judgement.last_kept().0,
        manifest.shards[0].durable_lsn
    );
}

#[test]
fn clean_stop_and_a_restored_store_are_backed_up_like_any_other() {
    let (rig, folder) = (Rig::open(7, None), MemFolder::default());
    let mut hooks = rig.put(0..40);
    rig.world.block_on(rig.store.close()).unwrap().unwrap();
    let number = rig.source().checkpoint_number;
    assert_eq!(
        rig.source().checkpoint_number,
        number,
        "no other one is taken"
    );
    rig.back_up(&mut prefix(&folder, "00")).unwrap();

    let (back, facts) = restored(&folder, None);
    hooks.extend(back.put(500..520));
    let mut owner = super::rig::me("22");
    owner.incarnation = facts.incarnation;
    let mut second = crate::backup::Prefix::new(Box::new(folder.clone()), key(), owner, 2);
    let mut run = second.begin(3).unwrap();
    let source = back.source();
    run.shard(&back.files(), &source, &mut Free).unwrap();
    run.finish(&facts, 4).unwrap();
    let (again, facts) = restored(&folder, None);
    assert_eq!(facts.incarnation, 3);
    again.check(&hooks);
    let rows: Vec<u32> = {
        let state = again.store.state();
        state
            .meta()
            .incarnations()
            .map(|row| row.incarnation)
            .collect()
    };
    assert_eq!(rows, [2, 3]);
    assert!(again.report.live_hooks == hooks.len() as u64);
}
