//! The scheduler: same seed, same run; a crash drops; a deadlock is told.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::{SimRng, SimWorld, Stuck};
use crate::host::{Host, TaskClass};

/// Three tasks that sleep and yield; the order of their steps.
fn trace(world: &SimWorld) -> Vec<(u64, u32)> {
    let steps = Rc::new(RefCell::new(Vec::new()));
    let host = world.host();
    for name in 0..3 {
        let (steps, task_host) = (Rc::clone(&steps), Rc::clone(&host));
        host.spawn(
            TaskClass::Commit,
            Box::pin(async move {
                for _ in 0..10 {
                    steps.borrow_mut().push((task_host.mono_us(), name));
                    if task_host.random().is_multiple_of(2) {
                        task_host.yield_now().await;
                    } else {
                        task_host
                            .sleep(Duration::from_micros(task_host.random() % 50))
                            .await;
                    }
                }
            }),
        );
    }
    assert_eq!(world.run_until_idle(), Ok(0));
    steps.take()
}

#[test]
fn same_seed_same_run() {
    assert_eq!(trace(&SimWorld::new(7)), trace(&SimWorld::new(7)));
    assert_ne!(trace(&SimWorld::new(7)), trace(&SimWorld::new(8)));
}

#[test]
fn sleeps_end_in_order_of_time() {
    let world = SimWorld::new(1);
    let order = Rc::new(RefCell::new(Vec::new()));
    for us in [300, 100, 200] {
        let (inner, order) = (world.clone(), Rc::clone(&order));
        world.spawn(async move {
            inner.sleep_us(us).await;
            order.borrow_mut().push((us, inner.now_us()));
        });
    }
    assert_eq!(world.run_until_idle(), Ok(0));
    assert_eq!(order.take(), [(100, 100), (200, 200), (300, 300)]);
}

#[test]
fn waiting_for_nothing_is_a_deadlock() {
    let world = SimWorld::new(3);
    let waits = world.block_on(std::future::pending::<()>());
    assert_eq!(
        waits,
        Err(Stuck::Deadlock {
            seed: 3,
            blocked: 1
        })
    );
    world.spawn(std::future::pending());
    assert_eq!(world.run_until_idle(), Ok(1));
    assert_eq!(
        world.run_until(|| false),
        Err(Stuck::Deadlock {
            seed: 3,
            blocked: 1
        })
    );
}

struct OnDrop(Rc<Cell<u32>>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn killing_a_process_drops_its_tasks_and_no_others() {
    let world = SimWorld::new(1);
    let (dies, lives) = (world.host(), world.host());
    let dropped = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    for host in [&dies, &lives] {
        let (guard, inner, done) = (
            OnDrop(Rc::clone(&dropped)),
            Rc::clone(host),
            Rc::clone(&done),
        );
        host.spawn(
            TaskClass::Commit,
            Box::pin(async move {
                inner.sleep(Duration::from_millis(5)).await;
                done.set(done.get() + 1);
                drop(guard);
            }),
        );
    }
    world.run_for(Duration::from_millis(1));
    world.kill(&dies);
    assert_eq!((dropped.get(), done.get()), (1, 0));
    dies.spawn(
        TaskClass::Commit,
        Box::pin(async { panic!("a dead process runs nothing") }),
    );
    assert_eq!(world.run_until_idle(), Ok(0));
    assert_eq!((dropped.get(), done.get()), (2, 1));
}

#[test]
fn a_task_may_crash_the_world_it_runs_in() {
    let world = SimWorld::new(1);
    let inner = world.clone();
    world.spawn(std::future::pending());
    world.spawn(async move { inner.crash() });
    assert_eq!(world.run_until_idle(), Ok(0));
    assert_eq!(world.block_on(async { 5 }), Ok(5));
}

#[test]
fn draws_stay_in_bounds() {
    let mut rng = SimRng::new(1);
    for _ in 0..1000 {
        assert!(rng.below(7) < 7);
        assert!((3..=5).contains(&rng.between(3, 5)));
        assert!(!rng.chance(0) && rng.chance(10_000));
    }
    assert_eq!(rng.below(0), 0);
}
