//! The newest valid checkpoint, and what must be there for it.
//!
//! A bad one is passed over for the older, at the price of a longer scan. A segment or slot that
//! a valid one lists and that is not there is damage: it held live hooks.

use std::rc::Rc;

use crate::checkpoint::{self, CHECKPOINTS_KEPT, GenerationRef, LoadError, SegmentNeed};
use crate::config::StoreConfig;
use crate::disk::Disk;
use crate::error::{Damage, OpenError};
use crate::host::Host;
use crate::ids::Lsn;
use crate::open::decide::{Before, Decision, Piece, Place, decide};
use crate::open::survey::{FoundSlot, io_error};
use crate::relocate::Needs;
use crate::slots::SlotNo;
use crate::state::State;

/// What a checkpoint gave; empty when there is none.
#[derive(Default)]
pub(crate) struct FromCheckpoint {
    pub(crate) state: Option<State>,
    pub(crate) number: Option<u64>,
    pub(crate) start_lsn: Lsn,
    pub(crate) claimed: Lsn,
    /// Segments that the named checkpoints need, the newest's first.
    pub(crate) needed: Vec<SegmentNeed>,
    /// Where the oldest of them starts.
    pub(crate) oldest_lsn: Lsn,
    pub(crate) generations: Vec<GenerationRef>,
    /// What the named checkpoints need, newest first.
    pub(crate) kept: Vec<Needs>,
    pub(crate) next_number: u64,
    /// Damaged ones passed over.
    pub(crate) bad: Vec<u64>,
}

/// Loads the newest valid checkpoint.
pub(crate) async fn newest<D: Disk>(
    disk: &D,
    host: &Rc<dyn Host>,
    config: &StoreConfig,
    slots: &[FoundSlot],
) -> Result<FromCheckpoint, OpenError> {
    let entries = disk.list().await.map_err(io_error("listing checkpoints"))?;
    let mut numbers: Vec<u64> = entries
        .iter()
        .filter_map(|entry| checkpoint::parse_name(&entry.name))
        .collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let mut from = FromCheckpoint {
        next_number: numbers.first().map_or(1, |newest| newest + 1),
        ..FromCheckpoint::default()
    };
    for number in numbers {
        if from.state.is_some() {
            // The older one: only what it keeps from being used again.
            if from.kept.len() < CHECKPOINTS_KEPT
                && let Ok((start, end)) = checkpoint::read_manifest(disk, number).await
            {
                from.kept.push(Needs::of(start.start_lsn, &end));
                from.oldest_lsn = from.oldest_lsn.min(start.start_lsn);
                from.needed.extend(end.segments);
            }
            continue;
        }
        let uuid = config.store_uuid;
        match checkpoint::load(disk, &**host, number, config.shard, uuid).await {
            Ok(loaded) => {
                check_listed(&loaded.end.segments, &loaded.end.slots, slots)?;
                from.kept
                    .push(Needs::of(loaded.start.start_lsn, &loaded.end));
                from.state = Some(loaded.state);
                from.number = Some(number);
                from.start_lsn = loaded.start.start_lsn;
                from.oldest_lsn = from.start_lsn;
                from.claimed = loaded.start.start_lsn.max(loaded.end.end_lsn);
                from.needed = loaded.end.segments;
                from.generations = loaded.end.generations;
            }
            Err(error) => {
                tracing::error!(shard = %config.shard, number, %error, "checkpoint passed over");
                from.bad.push(number);
                if let LoadError::Io { source, .. } = error {
                    return Err(OpenError::Io {
                        doing: "reading a checkpoint",
                        source,
                    });
                }
            }
        }
    }
    Ok(from)
}

/// Every segment and slot that a checkpoint lists is there.
fn check_listed(
    segments: &[SegmentNeed],
    listed: &[u32],
    slots: &[FoundSlot],
) -> Result<(), OpenError> {
    let (decision, label) = decide(Piece::Missing, Place::Claimed, Before::Whole);
    debug_assert_eq!(decision, Decision::RefuseDamaged);
    for need in segments {
        let found = slots.iter().filter_map(FoundSlot::header);
        let is_there = found
            .filter(|header| header.segment == need.segment)
            .any(|header| header.salt == need.salt);
        // The one being written when the checkpoint was taken may be left behind empty.
        if !is_there && (need.has_live || need.has_tail && need.end > 4096) {
            return Err(OpenError::Damaged(Damage {
                what: "a segment that the checkpoint needs is absent or another's",
                file: Some(SlotNo(need.slot).file_name()),
                segment: Some(need.segment),
                offset: 0,
                lsns: None,
                seqs: None,
            }));
        }
    }
    for no in listed {
        if !slots.iter().any(|slot| slot.no.0 == *no) {
            return Err(OpenError::Damaged(Damage {
                what: label,
                file: Some(SlotNo(*no).file_name()),
                segment: None,
                offset: 0,
                lsns: None,
                seqs: None,
            }));
        }
    }
    Ok(())
}
