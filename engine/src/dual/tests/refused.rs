//! The breaker as providers see it.

#![allow(clippy::unwrap_used)]

use ankusa_intake::{Class, PermanentAbout, Readiness};

use super::rig::{Rig, UNAVAILABLE, rig_with, settings};
use super::script::Mode;
use crate::dual::{BreakerState, DualSettings};

fn three() -> Rig {
    rig_with(DualSettings {
        breaker_failures: 3,
        ..settings()
    })
    .serve()
}

#[test]
fn the_breaker_opens_refuses_before_anything_is_written_and_closes_on_the_republishs_confirm() {
    let rig = three();
    rig.log_down();
    let mut sent = 0;
    while rig.node.breaker() == BreakerState::Closed {
        assert_eq!(rig.posted(&format!("k{sent}")).answered().status, 503);
        sent += 1;
        assert!(sent < 5, "three failed attempts in a row");
    }
    let hooks = rig.shard.store.next_seq();
    let refused = rig.posted("x");
    assert_eq!(refused.told(), (503, "intake_unavailable".into()));
    assert_eq!(rig.shard.store.next_seq(), hooks, "no seq was handed out");
    rig.run_ms(10_000);
    // While the log is down the breaker never lets a hook in: what is carried probes it.
    assert_eq!(rig.posted("y").told().1, "intake_unavailable");
    assert_eq!(rig.shard.store.next_seq(), hooks);
    rig.log_up();
    rig.run_ms(1_100);
    assert_eq!(rig.node.breaker(), BreakerState::Closed);
    assert_eq!(rig.posted("x").answered().status, 201);
    for n in 0..sent {
        assert!(rig.posted(&format!("k{n}")).answered().duplicate);
    }
}

#[test]
fn with_nothing_carried_one_group_is_let_in_and_its_confirm_closes_the_breaker() {
    let rig = three();
    rig.node.set_readiness(Readiness::NoLeader);
    assert_eq!(rig.node.breaker(), BreakerState::Open);
    rig.run_ms(5_000);
    assert_eq!(
        rig.node.breaker(),
        BreakerState::Open,
        "not before the adapter says that it is there"
    );
    rig.node.set_readiness(Readiness::Up);
    rig.run_ms(50);
    assert_eq!(rig.node.breaker(), BreakerState::HalfOpen);
    rig.script.set(Mode::Silent);
    let probe = rig.post("a");
    rig.run_ms(10);
    assert!(probe.is_open());
    assert_eq!(rig.posted("b").told().1, "intake_unavailable", "one only");
    rig.script.let_go();
    rig.until(|| !probe.is_open());
    assert_eq!(probe.answered().status, 201);
    assert_eq!(rig.node.breaker(), BreakerState::Closed);
}

#[test]
fn a_probe_that_fails_reopens_it_and_its_hook_is_carried_like_any_other() {
    let rig = three();
    rig.node.set_readiness(Readiness::NoLeader);
    rig.node.set_readiness(Readiness::Up);
    rig.run_ms(1_100);
    rig.log_down();
    let probe = rig.posted("a");
    assert_eq!(probe.told(), (503, "intake_unavailable".into()));
    assert_eq!(rig.node.breaker(), BreakerState::Open);
    assert_eq!(rig.log().facts().carried, 1);
    rig.log_up();
    rig.run_ms(2_000);
    assert!(rig.posted("a").answered().duplicate);
}

#[test]
fn a_down_log_never_degrades_to_disk_only() {
    for mode in [
        Mode::Fail(UNAVAILABLE, 1),
        Mode::LandAndFail(UNAVAILABLE, 1),
        Mode::Lost,
        Mode::Fail(Class::NotFound, 1),
        Mode::Fail(Class::Permanent(PermanentAbout::Access), 1),
    ] {
        let rig = three();
        rig.script.set(mode);
        let mut sent = Vec::new();
        for n in 0..40 {
            sent.push(rig.post(&format!("k{}", n % 7)));
            rig.run_ms(1_000);
        }
        let told: Vec<u16> = sent.iter().map(|s| s.answered().status).collect();
        assert!(
            told.iter().all(|status| *status == 503),
            "{mode:?}: {told:?}"
        );
        assert_ne!(rig.node.breaker(), BreakerState::Closed, "{mode:?}");
    }
}

#[test]
fn a_refusal_of_access_opens_the_breaker_at_once_and_claims_are_kept_until_the_deadline() {
    let rig = three();
    let denied = Class::Permanent(PermanentAbout::Access);
    rig.script.set(Mode::Fail(denied, 1));
    assert_eq!(rig.posted("a").told().1, "intake_unavailable");
    assert_eq!(rig.node.breaker(), BreakerState::Open);
    rig.run_ms(10_000);
    assert_eq!(rig.node.pending().stuck, 0);
    assert_eq!(rig.posted("a").told().1, "intake_pending");
    rig.log_up();
    rig.run_ms(2_000);
    assert!(rig.posted("a").answered().duplicate);
}
