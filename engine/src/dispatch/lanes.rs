//! Lanes and tenants: who waits, who may start, and whose turn it is.
//!
//! A lane is one sink's queue on this core; the sink's number names it, and a sink belongs to one
//! tenant. Turns go round in two rings: tenants, and within a tenant its lanes; each turn is worth
//! a quantum of bytes (a row costs its bytes plus a fixed part, so that the count weighs too).
//! A lane or tenant that may not start anything (empty, paused, breaker, window) is on no ring:
//! it costs nothing to the others' turns.
//!
//! Invariants: a lane is on its tenant's ring exactly when it has ready rows and may start one;
//! a tenant is on the ring exactly when it is within its share and has such a lane.
//! Runs on the shard's core.

use ankusa_wal::SinkNo;

use super::backoff::RetryPolicy;
use super::breaker::Breaker;
use super::links::{Fifo, Links};

/// What a turn is worth, in bytes.
pub(super) const QUANTUM: i64 = 256 * 1024;
/// What a row costs beside its bytes.
pub(super) const ROW_COST: i64 = 4096;

/// The number of a tenant on this core: dense, given out by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantNo(pub u32);

/// Today's settings of a sink, as the scheduler sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// Whose sink it is.
    pub tenant: TenantNo,
    /// Rows in flight at once.
    pub concurrency: u32,
    /// Retry settings.
    pub retry: RetryPolicy,
    /// Its rows wait.
    pub paused: bool,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Rows exist, nobody has said yet what the sink is: they wait.
    Unknown,
    /// The sink is configured.
    Live(LaneConfig),
    /// The sink is no longer configured: its rows become dead letters.
    Gone,
}

/// In flight, of a lane, a tenant or the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Rows.
    pub rows: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Load {
    pub(super) fn add(&mut self, bytes: u32) {
        self.rows += 1;
        self.bytes += u64::from(bytes);
    }

    pub(super) fn remove(&mut self, bytes: u32) {
        assert!(
            self.rows > 0 && self.bytes >= u64::from(bytes),
            "more ended than started"
        );
        self.rows -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// One more row of `bytes` stays within the limits; the first one always does.
    pub(super) fn has_room(&self, bytes: u32, rows_max: u32, bytes_max: u64) -> bool {
        self.rows == 0 || (self.rows < rows_max && self.bytes + u64::from(bytes) <= bytes_max)
    }
}

/// One sink's queue.
pub(super) struct Lane {
    pub(super) state: LaneState,
    /// Whose it is, also when the sink is gone.
    tenant: TenantNo,
    pub(super) breaker: Breaker,
    pub(super) ready: Fifo,
    pub(super) inflight: Load,
    pub(super) deficit: i64,
    /// Its head did not fit its share of the bytes: waits for one of its own to end.
    pub(super) full: bool,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            state: LaneState::Unknown,
            tenant: TenantNo::default(),
            breaker: Breaker::new(),
            ready: Fifo::default(),
            inflight: Load::default(),
            deficit: 0,
            full: false,
        }
    }

    pub(super) fn tenant(&self) -> TenantNo {
        self.tenant
    }

    pub(super) fn retry(&self) -> RetryPolicy {
        match self.state {
            LaneState::Live(config) => config.retry,
            LaneState::Unknown | LaneState::Gone => RetryPolicy::default(),
        }
    }

    /// Its rows wait until somebody says otherwise.
    pub(super) fn is_held(&self) -> bool {
        match self.state {
            LaneState::Unknown => true,
            LaneState::Live(config) => config.paused,
            LaneState::Gone => false,
        }
    }

    fn may_start(&self) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        match self.state {
            LaneState::Unknown => false,
            LaneState::Live(config) => {
                !config.paused
                    && !self.full
                    && self.breaker.admits(self.inflight.rows, config.concurrency)
            }
            LaneState::Gone => true,
        }
    }
}

/// One tenant's lanes.
#[derive(Default)]
pub(super) struct Tenant {
    ring: Fifo,
    pub(super) inflight: Load,
    deficit: i64,
    live_lanes_count: u32,
    /// At its share of the window: waits for one of its own to end.
    pub(super) full: bool,
}

/// Every lane and tenant of the core, and the two rings.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    lane_links: Links,
    tenants: Vec<Tenant>,
    tenant_links: Links,
    ring: Fifo,
    live_lanes_count: u32,
    live_tenants_count: u32,
}

impl Lanes {
    pub(super) fn get(&self, lane: SinkNo) -> Option<&Lane> {
        self.lanes.get(usize::from(lane.0))
    }

    /// The lane, made on first use.
    pub(super) fn get_mut(&mut self, lane: SinkNo) -> &mut Lane {
        let at = usize::from(lane.0);
        while self.lanes.len() <= at {
            self.lanes.push(Lane::new());
        }
        &mut self.lanes[at]
    }

    /// Every lane made so far.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SinkNo, &Lane)> {
        self.lanes
            .iter()
            .enumerate()
            .map(|(at, lane)| (SinkNo(at as u16), lane))
    }

    pub(super) fn tenant_mut(&mut self, tenant: TenantNo) -> &mut Tenant {
        let at = tenant.0 as usize;
        while self.tenants.len() <= at {
            self.tenants.push(Tenant::default());
        }
        &mut self.tenants[at]
    }

    /// More than one lane, more than one tenant: then nobody may take all of a window.
    pub(super) fn is_shared(&self) -> (bool, bool) {
        (self.live_lanes_count > 1, self.live_tenants_count > 1)
    }

    /// Gives a lane another state. A sink's tenant is part of its name and does not change while
    /// anything is in flight.
    pub(super) fn set_state(&mut self, no: SinkNo, state: LaneState) {
        self.leave_ring(no);
        self.count_live(no, -1);
        let lane = self.get_mut(no);
        lane.full = false;
        lane.state = state;
        if let LaneState::Live(config) = state {
            assert!(
                lane.tenant == config.tenant || lane.inflight.rows == 0,
                "sink {no} changed its tenant while in flight"
            );
            lane.tenant = config.tenant;
        }
        let tenant = lane.tenant;
        self.tenant_mut(tenant).full = false;
        self.count_live(no, 1);
        self.refresh(no);
    }

    fn count_live(&mut self, no: SinkNo, by: i32) {
        let LaneState::Live(config) = self.get_mut(no).state else {
            return;
        };
        let tenant = self.tenant_mut(config.tenant);
        let before = tenant.live_lanes_count;
        tenant.live_lanes_count = before.saturating_add_signed(by);
        let tenants_by = i32::from(tenant.live_lanes_count > 0) - i32::from(before > 0);
        self.live_lanes_count = self.live_lanes_count.saturating_add_signed(by);
        self.live_tenants_count = self.live_tenants_count.saturating_add_signed(tenants_by);
    }

    /// Puts a lane (and its tenant) where it belongs after anything about it changed.
    pub(super) fn refresh(&mut self, no: SinkNo) {
        let lane = self.get_mut(no);
        let (may_start, tenant_no) = (lane.may_start(), lane.tenant());
        let item = u32::from(no.0);
        self.tenant_mut(tenant_no);
        let tenant = &mut self.tenants[tenant_no.0 as usize];
        if may_start && self.lane_links.is_free(item) {
            tenant.ring.push(&mut self.lane_links, item);
        }
        if !tenant.full && !tenant.ring.is_empty() && self.tenant_links.is_free(tenant_no.0) {
            self.ring.push(&mut self.tenant_links, tenant_no.0);
        }
    }

    /// The lane whose turn it is. Lanes and tenants that may not start are dropped from the rings
    /// on the way.
    pub(super) fn turn(&mut self) -> Option<SinkNo> {
        while let Some(tenant_at) = self.ring.head() {
            let tenant = &mut self.tenants[tenant_at as usize];
            if tenant.full || tenant.ring.is_empty() {
                self.ring.pop(&mut self.tenant_links);
                // What is owed stays owed; a credit does not survive having nothing to start.
                tenant.deficit = tenant.deficit.min(0);
                continue;
            }
            if tenant.deficit <= 0 {
                tenant.deficit += QUANTUM;
                self.ring.rotate(&mut self.tenant_links);
                continue;
            }
            while let Some(lane_at) = tenant.ring.head() {
                let lane = &mut self.lanes[lane_at as usize];
                if !lane.may_start() {
                    tenant.ring.pop(&mut self.lane_links);
                    lane.deficit = lane.deficit.min(0);
                } else if lane.deficit <= 0 {
                    lane.deficit += QUANTUM;
                    tenant.ring.rotate(&mut self.lane_links);
                } else {
                    return Some(SinkNo(lane_at as u16));
                }
            }
        }
        None
    }

    /// Charges a started row to the lane and its tenant.
    pub(super) fn charge(&mut self, no: SinkNo, bytes: u32) {
        let cost = ROW_COST + i64::from(bytes);
        let lane = self.get_mut(no);
        lane.deficit -= cost;
        let tenant = lane.tenant();
        self.tenant_mut(tenant).deficit -= cost;
    }

    /// Bytes of everything here.
    pub(super) fn bytes(&self) -> usize {
        self.lanes.capacity() * size_of::<Lane>()
            + self.tenants.capacity() * size_of::<Tenant>()
            + self.lane_links.bytes()
            + self.tenant_links.bytes()
    }

    /// Takes a lane off its tenant's ring, keeping the others' order.
    fn leave_ring(&mut self, no: SinkNo) {
        let item = u32::from(no.0);
        if self.lane_links.is_free(item) {
            return;
        }
        let tenant_no = self.get_mut(no).tenant();
        let Some(tenant) = self.tenants.get_mut(tenant_no.0 as usize) else {
            return;
        };
        for _ in 0..tenant.ring.count() {
            match tenant.ring.pop(&mut self.lane_links) {
                Some(other) if other != item => tenant.ring.push(&mut self.lane_links, other),
                _ => {}
            }
        }
    }
}
