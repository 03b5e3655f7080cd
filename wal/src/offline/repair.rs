//! `wal repair`: gives up what is damaged, so that the rest opens, and says exactly what is lost.
//!
//! What it does, from the least to the most: a header that is gone is built again from the frames
//! of its slot (nothing is lost); damaged frames are replaced at their place by frames that hold
//! nothing; the LSNs of a segment that is gone are given up in the header of the next one. Every
//! other byte stays where it is, so what a checkpoint points at stays valid. Live hooks that a
//! checkpoint points at and that cannot be read are given up one by one, in a segment of its own
//! behind the log, and their dedupe rows with them. Lost seqs are not marked as finished: in dual
//! mode a recovery still brings them back from the intake log.
//!
//! Order: the plan is made in memory and shown; only when it is agreed to, each slot that it
//! touches is copied aside, then replaced by a repaired copy, in one rename; the segment that gives
//! hooks up comes last. A repair that is cut short leaves each slot as it was or repaired, and can
//! be run again.
//!
//! Offline; the only tool that writes.

mod absent;
mod give_up;
mod plan;
mod write;

use std::fmt;

use serde_json::{Value, json};

use super::OfflineError;
use super::judge::Expect;
use super::lost::LostHook;
use super::verify::{VerifyReport, damage_json, verify};
use crate::disk::Disk;
use crate::error::Damage;

pub(crate) use plan::make_plan;

/// Most hooks that the text of a plan names.
const HOOKS_SHOWN: usize = 1_000;

/// What a repair would do.
#[derive(Clone, Debug, Default)]
pub struct RepairPlan {
    /// What is lost by it: hooks with these seqs, and other records of these LSNs (delivery
    /// states, which means that a hook may be delivered once more).
    pub lost: Vec<Damage>,
    /// Live hooks that cannot be read and are given up, by seq. Their dedupe rows go too: a
    /// sender's repeat is stored as new.
    pub lost_hooks: Vec<LostHook>,
    /// Every step, in words.
    pub steps: Vec<String>,
    /// Slots replaced by a repaired copy: name and new content.
    pub(crate) replace: Vec<(String, Vec<u8>)>,
    /// Files moved out of the way, because they are not of this store.
    pub(crate) aside: Vec<String>,
}

impl fmt::Display for RepairPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "- {step}")?;
        }
        if self.lost.is_empty() && self.lost_hooks.is_empty() {
            return f.write_str("nothing is lost");
        }
        write!(
            f,
            "LOST for good (unless `ankusa recover` finds it in the intake log):"
        )?;
        for damage in &self.lost {
            write!(f, "\n- {damage}")?;
        }
        for hook in self.lost_hooks.iter().take(HOOKS_SHOWN) {
            write!(f, "\n- the hook of {hook}")?;
        }
        if let Some(more) = self.lost_hooks.len().checked_sub(HOOKS_SHOWN + 1) {
            write!(f, "\n- and {} hooks more: --json names all", more + 1)?;
        }
        Ok(())
    }
}

/// What a repair did.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// The plan that was carried out.
    pub plan: RepairPlan,
    /// The copies of what was there before.
    pub copies: Vec<String>,
    /// What a verification says afterwards.
    pub after: VerifyReport,
}

impl RepairReport {
    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "steps": self.plan.steps,
            "lost": self.plan.lost.iter().map(damage_json).collect::<Vec<_>>(),
            "lost_hooks": self.plan.lost_hooks.iter().map(LostHook::to_json).collect::<Vec<_>>(),
            "copies": self.copies,
            "after": self.after.to_json(),
        })
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        for copy in &self.copies {
            writeln!(f, "as it was before: {copy}")?;
        }
        write!(f, "{}", self.after)
    }
}

/// Makes a plan, shows it to `agree`, and carries it out when that answers true. A sound shard
/// has an empty plan, which is not shown.
pub async fn repair<D: Disk>(
    disk: &D,
    expect: Expect,
    agree: &mut dyn FnMut(&RepairPlan) -> bool,
) -> Result<RepairReport, OfflineError> {
    let plan = make_plan(disk, expect).await?;
    let mut copies = Vec::new();
    if !plan.steps.is_empty() {
        if !agree(&plan) {
            return Err(OfflineError::Declined);
        }
        write::carry_out(disk, &plan, &mut copies).await?;
    }
    let after = verify(disk, expect, &mut |_, _| {}).await?;
    Ok(RepairReport {
        plan,
        copies,
        after,
    })
}
