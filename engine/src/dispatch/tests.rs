//! Facts about dispatch's decisions, each part alone and the scheduler against a naive model.
#![allow(clippy::unwrap_used)]

mod driving;
mod fairness;
mod model;
mod parts;
mod stored;

use std::cell::RefCell;
use std::collections::HashMap;

use ankusa_wal::SinkNo;

use super::{LaneConfig, LaneState, RetryPolicy, RowFacts, RowId, Rows, TenantNo};

/// A store that knows what it was told.
#[derive(Default)]
pub(super) struct Table(pub(super) RefCell<HashMap<u32, RowFacts>>);

impl Table {
    pub(super) fn put(&self, row: u32, sink: u16, bytes: u32) {
        let facts = RowFacts {
            sink: SinkNo(sink),
            bytes,
            attempts: 0,
        };
        self.0.borrow_mut().insert(row, facts);
    }
}

impl Rows for Table {
    fn facts(&self, row: RowId) -> Option<RowFacts> {
        self.0.borrow().get(&row.0).copied()
    }
}

pub(super) fn live(tenant: u32) -> LaneState {
    LaneState::Live(LaneConfig {
        tenant: TenantNo(tenant),
        concurrency: 32,
        retry: RetryPolicy::default(),
        paused: false,
    })
}
