//! Drives one store at full speed with groups of a given size.
//!
//! Every group is full before it is submitted; as many are in flight as the store allows, and the
//! next one is built meanwhile, as the node does when a whole group's worth waits. The
//! hooks have no sinks, so they are finished at once and their segments can be recycled. A group
//! that is fenced ends the bench. Runs on the bench's executor.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::{Duration, Instant};

use ankusa_wal::disk::glommio::GlommioDisk;
use ankusa_wal::{
    CheckpointError, GroupBuilder, HookDraft, HookExtra, HookId, Outcome, Settled, Store,
    StoreConfig, SyncMode, Verification,
};
use anyhow::{Context as _, bail};

use super::host::BenchHost;
use crate::child::cpu_time;
use crate::device::{DeviceResult, Sync};
use crate::load::new_histogram;
use crate::measure::{device_of, flushes};

const GROUP_BYTES_MAX: usize = 1 << 20;
/// Checkpoints kept by a store: as many are needed before a slot is let go.
const CHECKPOINTS_KEPT: usize = 2;

static HEADERS: [(&[u8], &[u8]); 2] = [(b"host", b"127.0.0.1:4000"), (b"content-length", b"1024")];

enum Event {
    Settled(Settled),
    MaySubmit(bool),
    MayBegin,
}

/// A store being driven.
pub(super) struct StoreLoop {
    store: Store<GlommioDisk>,
    body: RefCell<Vec<u8>>,
    serial: Cell<u64>,
    device: Option<PathBuf>,
}

/// What a group was on average.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) bytes_per_group: usize,
    pub(super) hooks_per_group: f64,
}

impl StoreLoop {
    pub(super) async fn open(
        dir: &Path,
        depth: usize,
        sync: Sync,
        body_bytes: usize,
    ) -> anyhow::Result<StoreLoop> {
        let dir = dir.join("shard-000");
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let disk = GlommioDisk::open(&dir).with_context(|| format!("opening {}", dir.display()))?;
        let config = StoreConfig {
            store_uuid: *b"ankusa-bench-wal",
            hash_key: [7; 16],
            sync: if sync == Sync::Dsync {
                SyncMode::Dsync
            } else {
                SyncMode::Fdatasync
            },
            groups_inflight: depth,
            group_bytes_max: GROUP_BYTES_MAX,
            ..StoreConfig::default()
        };
        let (store, _report) = Store::open(disk, BenchHost::new(), config)
            .await
            .context("opening the store")?;
        Ok(StoreLoop {
            store,
            body: RefCell::new(vec![b'x'; body_bytes]),
            serial: Cell::new(0),
            device: device_of(&dir),
        })
    }

    /// Writes groups for `warmup` and `duration`; what settles in the latter is recorded.
    pub(super) async fn run(
        &self,
        group_bytes: usize,
        warmup: Duration,
        duration: Duration,
    ) -> anyhow::Result<(DeviceResult, Written)> {
        let from = Instant::now() + warmup;
        let to = from + duration;
        let mut latency = new_histogram();
        let mut groups = 0u64;
        let mut in_flight: VecDeque<Instant> = VecDeque::new();
        let mut built = None;
        let flushed = self.device.as_deref().map_or(0, flushes);
        let before = self.store.stats();
        let cpu_before = cpu_time(std::process::id())?;
        let begun = Instant::now();
        loop {
            let is_over = Instant::now() >= to;
            if built.is_none() && !is_over {
                built = self.build(group_bytes);
            }
            if in_flight.is_empty() && is_over {
                break;
            }
            let settled = match self.next_event(built.as_ref(), is_over).await {
                Event::Settled(settled) => settled,
                Event::MayBegin => continue,
                Event::MaySubmit(false) => bail!("a group was fenced before it was submitted"),
                Event::MaySubmit(true) => {
                    if let Some(group) = built.take() {
                        in_flight.push_back(Instant::now());
                        self.store.submit(group);
                    }
                    continue;
                }
            };
            if settled.outcome == Outcome::Fenced {
                bail!("group {} failed to reach the disk", settled.lsn);
            }
            let now = Instant::now();
            let started = in_flight
                .pop_front()
                .context("a group settled that was not submitted")?;
            if now >= from && now < to {
                groups += 1;
                latency.saturating_record((now - started).as_nanos() as u64);
            }
        }
        let cpu_share = (cpu_time(std::process::id())? - cpu_before).as_secs_f64()
            / begun.elapsed().as_secs_f64();
        let after = self.store.stats();
        let written_groups = (after.groups - before.groups).max(1);
        let written = Written {
            bytes_per_group: ((after.bytes - before.bytes) / written_groups) as usize,
            hooks_per_group: (after.records - before.records) as f64 / written_groups as f64,
        };
        let rate = groups as f64 / duration.as_secs_f64();
        let cpu_us = cpu_share * duration.as_secs_f64() * 1e6 / groups.max(1) as f64;
        let flushed = self
            .device
            .as_deref()
            .map_or(0, flushes)
            .saturating_sub(flushed);
        let flushes = flushed as f64 / written_groups as f64;
        Ok((
            DeviceResult {
                rate,
                latency,
                cpu_us,
                flushes,
            },
            written,
        ))
    }

    /// A full group, also while as many as may be are in flight; nothing when the store takes none.
    fn build(&self, group_bytes: usize) -> Option<GroupBuilder<GlommioDisk>> {
        // Asked for in this order: what is refused at first is what `poll_ready` then waits for.
        let begun = self.store.try_begin_sized(group_bytes);
        let mut group = begun.or_else(|| self.store.try_begin_ahead(group_bytes, 0))?;
        let body = self.body.borrow();
        let mut hook_bytes = 0;
        // At least one hook, then as many as the size allows.
        while group.records() == 0
            || group.bytes() + hook_bytes <= group_bytes && group.fits(hook_bytes)
        {
            let before = group.bytes();
            let serial = self.serial.get();
            self.serial.set(serial + 1);
            group.hook(&draft(serial, &body));
            hook_bytes = group.bytes() - before;
        }
        Some(group)
    }

    /// What the store has to say next: a group settled, or, until the time is over, the built one
    /// may go or one may be begun.
    async fn next_event(&self, built: Option<&GroupBuilder<GlommioDisk>>, is_over: bool) -> Event {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(settled) = self.store.poll_settled(cx) {
                return Poll::Ready(Event::Settled(settled));
            }
            match built {
                _ if is_over => Poll::Pending,
                Some(group) => self.store.poll_submit(group, cx).map(Event::MaySubmit),
                None => self.store.poll_ready(cx).map(|()| Event::MayBegin),
            }
        })
        .await
    }

    /// Lets finished segments go; false when the store takes no checkpoints.
    pub(super) async fn recycle(&self) -> anyhow::Result<bool> {
        for _ in 0..CHECKPOINTS_KEPT {
            match self.store.checkpoint().await {
                Ok(_) => {}
                Err(CheckpointError::NotReady(_)) => return Ok(false),
                Err(e) => return Err(e).context("taking a checkpoint"),
            }
        }
        Ok(true)
    }

    pub(super) fn slots(&self) -> u32 {
        self.store.stats().slots
    }

    pub(super) async fn close(&self) -> anyhow::Result<()> {
        match self.store.close().await {
            Err(ankusa_wal::CloseError::Checkpoint(CheckpointError::NotReady(_))) => Ok(()),
            other => other.context("closing the store"),
        }
    }
}

fn draft(serial: u64, body: &[u8]) -> HookDraft<'_> {
    let mut id = [0u8; 16];
    id[6] = 0x70;
    id[8..].copy_from_slice(&serial.to_be_bytes());
    HookDraft {
        id: HookId(id),
        received_at_ms: 1_800_000_000_000,
        tenant: b"default",
        source: b"demo",
        method: b"POST",
        target: b"/webhooks/demo",
        headers: &HEADERS,
        content_type: b"application/json",
        body,
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::None,
        client: SocketAddr::V4(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40_000)),
        extra: HookExtra::default(),
    }
}
