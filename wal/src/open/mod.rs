//! Opening a shard: what is kept, what is cut, what is refused.
//!
//! - Survey the slots and their headers.
//! - Follow the chain of headers and cuts from the newest checkpoint ([`scan`]).
//! - D = the highest LSN that anything intact claims durable.
//! - Every piece of the log is judged by one table ([`decide`]).
//! - Frames kept above D are written again into the new segment and synced before the header
//!   that cuts in front of them ([`start`]): until that header is durable the old tail stands,
//!   so that a crash loop in here never shortens the log.
//! - Every open starts a new segment and leaps `next_seq`.
//!
//! Runs at boot on the shard core; the scan also offline.

pub mod decide;

pub(crate) mod survey;

mod load;

pub(crate) mod reader;

pub(crate) mod fold;

pub(crate) mod scan;

mod start;

#[cfg(test)]
mod tests;

use std::rc::Rc;

use crate::config::StoreConfig;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::error::OpenError;
use crate::host::Host;
use crate::ids::Seq;
use crate::mutations;
use crate::state::State;
use crate::store::{Inner, OpenReport};

use scan::StartAt;

/// Smallest segment: tests use it.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

fn check(config: &StoreConfig) -> Result<(), OpenError> {
    let block = BLOCK_BYTES as u64;
    let rules = [
        (
            config.segment_bytes >= SEGMENT_BYTES_MIN
                && config.segment_bytes.is_multiple_of(block)
                && config.segment_bytes <= 4 << 30,
            "segment_bytes",
            "a multiple of 4096 from 64 KiB to 4 GiB",
        ),
        (
            (1..=4).contains(&config.groups_inflight),
            "groups_inflight",
            "1 to 4",
        ),
        (
            config.group_bytes_max >= 2 * BLOCK_BYTES
                && config.group_bytes_max <= crate::disk::IO_BYTES_MAX,
            "group_bytes_max",
            "8 KiB to 1 MiB",
        ),
        (
            config.group_records_max >= 1,
            "group_records_max",
            "at least 1",
        ),
    ];
    match rules.into_iter().find(|(holds, ..)| !holds) {
        Some((_, name, why)) => Err(OpenError::Setting { name, why }),
        None => Ok(()),
    }
}

/// Opens the shard in `disk`'s directory.
pub(crate) async fn open<D: Disk>(
    disk: D,
    host: Rc<dyn Host>,
    config: StoreConfig,
) -> Result<(Inner<D>, OpenReport), OpenError> {
    check(&config)?;
    survey::remove_half_made(&disk).await?;
    let slots = survey::survey(&disk, &config).await?;
    mutations::point("open.surveyed");
    // IMPORTANT: a process that died between a rename and the sync of the directory left a name
    // that may not be durable. What is written from here on must not rest on such a name.
    disk.sync_dir().await.map_err(|source| OpenError::Io {
        doing: "syncing the directory",
        source,
    })?;
    let is_fresh = slots.iter().all(|slot| slot.header().is_none());
    let mut loaded = load::newest(&disk, &host, &config, &slots).await?;
    mutations::point("open.loaded");
    let from = StartAt {
        state: loaded
            .state
            .take()
            .unwrap_or_else(|| State::new(host.random())),
        lsn: loaded.start_lsn,
        claimed: loaded.claimed,
        oldest_lsn: loaded.oldest_lsn,
        needed: loaded.needed.clone(),
    };
    let scanned = scan::scan(&disk, &host, &config, &slots, from).await?;
    mutations::point("open.scanned");
    let mut report = OpenReport {
        fresh: is_fresh && loaded.number.is_none(),
        durable_claimed: scanned.claimed,
        last_lsn: scanned.last_lsn,
        frames_rewritten: scanned.unproven.len() as u64,
        frames_dropped: scanned.frames_dropped,
        frames_scanned: scanned.frames_scanned,
        segments_scanned: scanned.chain.len(),
        checkpoint: loaded.number,
        checkpoints_bad: loaded.bad.len() as u32,
        bytes_scanned: scanned.bytes_scanned,
        ..OpenReport::default()
    };
    let inner = start::start(disk, host, config, slots, scanned, loaded).await?;
    report.live_hooks = inner.state.borrow().live_hooks();
    report.next_seq = inner.next_seq();
    tell_tail(&inner.config, &report);
    Ok((inner, report))
}

/// The state of the shard in `disk`'s directory and the first seq that an open would hand out,
/// without writing anything: for a dry run over a store at rest. Refuses what an open refuses.
pub async fn read_only<D: Disk>(
    disk: &D,
    host: &Rc<dyn Host>,
    config: &StoreConfig,
) -> Result<(State, Seq), OpenError> {
    check(config)?;
    let slots = survey::survey(disk, config).await?;
    let mut loaded = load::newest(disk, host, config, &slots).await?;
    let from = StartAt {
        state: loaded
            .state
            .take()
            .unwrap_or_else(|| State::new(host.random())),
        lsn: loaded.start_lsn,
        claimed: loaded.claimed,
        oldest_lsn: loaded.oldest_lsn,
        needed: loaded.needed,
    };
    let scanned = scan::scan(disk, host, config, &slots, from).await?;
    let next_seq = start::first_seq(&scanned);
    Ok((scanned.state, next_seq))
}

/// Says what became of the frames that nothing claims. Those kept may well have been acked; those
/// dropped lay behind a torn one, so that they never were.
fn tell_tail(config: &StoreConfig, report: &OpenReport) {
    let (shard, claimed) = (config.shard, report.durable_claimed);
    let (kept, dropped) = (report.frames_rewritten, report.frames_dropped);
    if dropped > 0 {
        tracing::warn!(
            %shard, %claimed,
            "{kept} frames above the proven mark kept and written again, {dropped} dropped (never acked)"
        );
    } else if kept > 0 {
        tracing::info!(
            %shard, %claimed,
            "{kept} frames above the proven mark kept and written again, none dropped"
        );
    }
}
