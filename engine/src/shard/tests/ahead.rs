//! Groups that are built before their turn, and bodies that are copied in steps.

#![allow(clippy::unwrap_used)]

use super::*;

/// Two groups in flight that do not end, and hooks that wait behind them.
fn wait_behind_two(rig: &Rig) -> (Vec<Rc<Post>>, Vec<Rc<Post>>) {
    let mut flying = vec![rig.post(1)];
    rig.run_ms(20);
    flying.push(rig.post(2));
    rig.run_ms(20);
    let before = rig.shard.store.next_seq();
    let waiting: Vec<_> = (3..8).map(|n| rig.post_of(n, 5_000)).collect();
    rig.run_ms(20);
    assert!(rig.shard.store.next_seq() > before, "the next one is built");
    assert!((1..3).all(|n| rig.is_live(n)));
    assert!(!(3..8).any(|n| rig.is_live(n)), "and not applied");
    (flying, waiting)
}

#[test]
fn a_group_built_ahead_goes_when_there_is_room_and_takes_what_came_meanwhile() {
    let rig = rig();
    rig.run_ms(500);
    rig.syncs_meet(&[Fault::Hang, Fault::Hang]);
    let (flying, mut posts) = wait_behind_two(&rig);
    posts.push(rig.post(8));
    rig.run_ms(20);
    assert_eq!(rig.shard.commit.depth().0, 0, "nothing is left waiting");
    rig.disk.release_hangs();
    rig.world.run_until(|| rig.is_live(3)).unwrap();
    assert!((3..=8).all(|n| rig.is_live(n)), "as one group");
    rig.world.block_on(rig.shard.commit.drain()).unwrap();
    for post in flying.iter().chain(&posts) {
        assert_eq!(rig.verdict(post), Some(Verdict::Committed));
    }
    rig.run_ms(300);
    assert_eq!(rig.given.0.borrow().len(), 8);
}

#[test]
fn a_fence_refuses_the_hooks_of_a_group_built_ahead_and_leaves_nothing_of_them() {
    let rig = rig();
    rig.run_ms(500);
    let done = |kind| rig.disk.log().iter().filter(|op| op.kind == kind).count() as u64;
    let (writes, syncs) = (done(OpKind::Write), done(OpKind::SyncData));
    // The second group fails, late, while the first is in flight.
    let plan = FaultPlan::none()
        .nth(OpKind::SyncData, syncs, Fault::Hang)
        .nth(OpKind::Write, writes + 1, Fault::Delay(200_000))
        .nth(
            OpKind::SyncData,
            syncs + 1,
            Fault::Error(libc::EIO, Fate::Kept),
        );
    rig.disk.set_faults(plan);
    let (_, posts) = wait_behind_two(&rig);
    rig.world
        .run_until(|| posts.iter().all(|post| post.settled.get().is_some()))
        .unwrap();
    rig.disk.release_hangs();
    rig.run_ms(2_000);
    for post in &posts {
        let (_, verdict, remains) = post.settled.get().unwrap();
        assert_eq!(
            (verdict, remains),
            (Verdict::StoreUnavailable, Remains::Nothing)
        );
    }
    assert!(!(3..8).any(|n| rig.is_live(n)));
    let retry = rig.post(9);
    rig.run_ms(300);
    assert_eq!(rig.verdict(&retry), Some(Verdict::Committed), "it goes on");
    let given = rig.given.0.borrow();
    assert!(!given.iter().any(|id| (3..8).contains(&id.0[0])));
}

#[test]
fn large_bodies_are_copied_in_steps_and_stored_as_they_are() {
    let world = SimWorld::new(2).in_order();
    let disk = SimDisk::new(&world, SimDiskConfig::new(2));
    let rig = rig_of(world, disk, 8 << 20);
    rig.run_ms(500);
    let sizes = [300 << 10, 100, 400 << 10, 262_145];
    let posts: Vec<_> = (1u8..)
        .zip(sizes)
        .map(|(n, bytes)| rig.post_of(n, bytes))
        .collect();
    rig.world.block_on(rig.shard.commit.drain()).unwrap();
    for post in &posts {
        let (seq, verdict, _) = post.settled.get().unwrap();
        assert_eq!(verdict, Verdict::Committed);
        let state = rig.shard.store.state();
        let is_here = state.slot_of_seq(seq).is_some() || state.finished().contains(seq);
        assert!(is_here);
        drop(state);
    }
    rig.run_ms(500);
    assert_eq!(rig.given.0.borrow().len(), 4, "each read back whole");
}
