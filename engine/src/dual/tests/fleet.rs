//! Claims kept for a fleet: a double of the shared store, whose pending claims expire.

#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use ankusa_wal::disk::sim::{SimDisk, SimDiskConfig};
use ankusa_wal::hook::{HookDraft, HookExtra, Verification};
use ankusa_wal::sim::SimWorld;
use ankusa_wal::{HookId, Seq, SinkNo};

use super::rig::{Rig, settings};
use super::script::Script;
use crate::claims::{Claim, KeyHash};
use crate::commit::driver::LogHalf;
use crate::commit::{Item, Remains, Verdict};
use crate::dual::{ClaimStore, Held, Hold};

const TTL_US: u64 = 30_000_000;
const KEY: KeyHash = KeyHash([4; 16]);

#[derive(Clone, Copy)]
struct Row {
    id: HookId,
    expires_us: u64,
    promoted: bool,
}

/// What another node of the fleet is told.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Granted,
    /// 409 `dedupe_pending`.
    Pending,
    Duplicate(HookId),
}

struct Fleet {
    world: SimWorld,
    rows: RefCell<HashMap<KeyHash, Row>>,
    renewed: Cell<u32>,
}

impl Fleet {
    fn claim(&self, id: HookId) -> Asked {
        let now_us = self.world.now_us();
        let mut rows = self.rows.borrow_mut();
        match rows.get(&KEY) {
            Some(row) if row.promoted => Asked::Duplicate(row.id),
            Some(row) if row.expires_us > now_us => Asked::Pending,
            _ => {
                let row = Row {
                    id,
                    expires_us: now_us + TTL_US,
                    promoted: false,
                };
                rows.insert(KEY, row);
                Asked::Granted
            }
        }
    }
}

impl ClaimStore for Fleet {
    fn carry(&self, _claim: Claim) {}

    fn renew(&self, claim: Claim) {
        let expires_us = self.world.now_us() + TTL_US;
        if let Some(row) = self.rows.borrow_mut().get_mut(&claim.key)
            && row.id == claim.id
        {
            row.expires_us = expires_us;
            self.renewed.set(self.renewed.get() + 1);
        }
    }

    fn promote(&self, claim: Claim, _expiry_s: u32, _now_s: u32) {
        let mut rows = self.rows.borrow_mut();
        if rows.get(&claim.key).is_none_or(|row| row.id == claim.id) {
            let row = Row {
                id: claim.id,
                expires_us: 0,
                promoted: true,
            };
            rows.insert(claim.key, row);
        }
    }

    fn give_up(&self, claim: Claim, _now_s: u32) {
        let mut rows = self.rows.borrow_mut();
        if rows.get(&claim.key).is_some_and(|row| row.id == claim.id) {
            rows.remove(&claim.key);
        }
    }
}

/// A hook whose claim the fleet granted.
struct Post {
    id: HookId,
    sink: SinkNo,
    fleet: Rc<Fleet>,
    log: Rc<dyn LogHalf>,
    settled: Cell<Option<(Seq, Verdict)>>,
}

impl Item for Post {
    fn draft(&self, f: &mut dyn FnMut(&HookDraft<'_>)) {
        let headers: [(&[u8], &[u8]); 0] = [];
        f(&HookDraft {
            id: self.id,
            received_at_ms: 1,
            tenant: b"default",
            source: b"keyed",
            method: b"POST",
            target: b"/",
            headers: &headers,
            content_type: b"",
            body: b"body",
            dedupe_key: Some(b"k"),
            dedupe_ttl_s: 60,
            verification: Verification::None,
            client: ([127, 0, 0, 1], 1).into(),
            extra: HookExtra {
                sinks: &[self.sink],
                dedupe_hash: Some(KEY.0),
                archive: false,
                log: true,
            },
        });
    }
    fn record_bytes(&self) -> usize {
        400
    }
    fn settle(&self, seq: Seq, verdict: Verdict, remains: Remains) {
        let claim = Claim {
            key: KEY,
            id: self.id,
        };
        let held = Held {
            claim,
            expiry_s: 60,
        };
        match remains {
            Remains::Complete => self.fleet.promote(claim, 60, 0),
            Remains::Nothing | Remains::Undone => self.fleet.give_up(claim, 0),
            Remains::Carried { .. } => {
                if self.log.hold(self.id, held) == Hold::Completed {
                    self.fleet.promote(claim, 60, 0);
                }
            }
        }
        assert!(self.settled.replace(Some((seq, verdict))).is_none());
    }
    fn cut(&self) {}
    fn abandon(&self, _verdict: Verdict) {}
}

struct FleetRig {
    rig: Rig,
    fleet: Rc<Fleet>,
}

fn fleet_rig() -> FleetRig {
    let world = SimWorld::new(1).in_order();
    let fleet = Rc::new(Fleet {
        world: world.clone(),
        rows: RefCell::default(),
        renewed: Cell::new(0),
    });
    let disk = SimDisk::new(&world, SimDiskConfig::new(1));
    let script = Script::new(&world);
    let claims = Rc::clone(&fleet) as Rc<dyn ClaimStore>;
    let rig = Rig::boot_with(world, disk, script, settings(), Some(claims)).serve();
    FleetRig { rig, fleet }
}

impl FleetRig {
    /// Takes the claim and commits; what the provider is told.
    fn post(&self, n: u8) -> Verdict {
        let id = HookId([n; 16]);
        assert_eq!(self.fleet.claim(id), Asked::Granted);
        let post = Rc::new(Post {
            id,
            sink: self.rig.sink(),
            fleet: Rc::clone(&self.fleet),
            log: Rc::clone(self.rig.log()) as Rc<dyn LogHalf>,
            settled: Cell::new(None),
        });
        let now_us = self.rig.world.now_us();
        let item = Rc::clone(&post) as Rc<dyn Item>;
        self.rig.shard.commit.submit(item, now_us).unwrap();
        self.rig.until(|| post.settled.get().is_some());
        post.settled.get().unwrap().1
    }
}

const OTHER: HookId = HookId([99; 16]);

#[test]
fn fleet_publish_fails_after_the_local_commit_the_claim_is_pending_until_the_republish() {
    let f = fleet_rig();
    f.rig.log_down();
    assert_eq!(f.post(1), Verdict::IntakeUnavailable);
    f.rig.run_ms(10_000);
    assert_eq!(f.fleet.claim(OTHER), Asked::Pending);
    assert!(f.fleet.renewed.get() > 0);
    f.rig.log_up();
    f.rig.run_ms(2_000);
    assert_eq!(f.fleet.claim(OTHER), Asked::Duplicate(HookId([1; 16])));
    assert_eq!(f.rig.delivered(), [HookId([1; 16])]);
    assert_eq!(f.rig.logged(), [HookId([1; 16])]);
}

#[test]
fn fleet_local_commit_fails_after_the_publish_the_claim_is_pending_until_the_local_write() {
    let f = fleet_rig();
    f.rig.next_sync_fails();
    assert_eq!(f.post(1), Verdict::StoreUnavailable);
    assert_eq!(f.fleet.claim(OTHER), Asked::Pending);
    f.rig.run_ms(5_000);
    assert_eq!(f.fleet.claim(OTHER), Asked::Duplicate(HookId([1; 16])));
    assert_eq!(f.rig.delivered(), [HookId([1; 16])]);
}

#[test]
fn fleet_both_halves_fail_the_claim_is_held_until_both_are_done() {
    let f = fleet_rig();
    f.rig.log_down();
    f.rig.next_sync_fails();
    assert_eq!(f.post(1), Verdict::StoreUnavailable);
    f.rig.run_ms(5_000);
    assert_eq!(f.rig.delivered(), [HookId([1; 16])], "local first");
    assert_eq!(f.fleet.claim(OTHER), Asked::Pending);
    f.rig.log_up();
    f.rig.run_ms(2_000);
    assert_eq!(f.fleet.claim(OTHER), Asked::Duplicate(HookId([1; 16])));
}

#[test]
fn fleet_a_stuck_records_claim_is_released_and_its_late_completion_overwrites_no_other() {
    let f = fleet_rig();
    f.rig.log_down();
    f.post(1);
    f.rig.run_ms(19_000);
    assert_eq!(f.fleet.claim(OTHER), Asked::Pending);
    f.rig.run_ms(1_100);
    let renewed = f.fleet.renewed.get();
    assert_eq!(
        f.fleet.claim(OTHER),
        Asked::Granted,
        "another node has it now"
    );
    f.rig.log_up();
    f.rig.run_ms(10_000);
    assert_eq!(f.rig.log().facts().carried, 0);
    assert_eq!(
        f.fleet.renewed.get(),
        renewed,
        "a claim given up is not renewed"
    );
    let row = f.fleet.rows.borrow()[&KEY];
    assert_eq!((row.id, row.promoted), (OTHER, false));
}
