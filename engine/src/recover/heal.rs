//! A shard whose acked frames are damaged, made to open again so that the log can fill it.
//!
//! The damage is named, the damaged slots are copied aside, what cannot be read is given up (as
//! `ankusa wal repair` does, which marks no lost seq as finished), and the replay then brings back
//! what the log has. What came back and what did not is said seq by seq. Offline; blocking.

use std::path::Path;

use ankusa_wal::disk::blocking::{BlockingDisk, block_on};
use ankusa_wal::offline::judge::Expect;
use ankusa_wal::offline::{RepairPlan, repair};
use ankusa_wal::state::SeqSet;
use ankusa_wal::{Damage, Seq, ShardId};

/// Most ranges that are named.
const NAMED_MAX: usize = 100;

/// A shard that was made to open again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Which.
    pub shard: ShardId,
    /// What was lost: first seq, and one past the last (the highest number: nobody knows).
    pub lost: Vec<(Seq, Seq)>,
    /// Live hooks whose bytes are gone.
    pub damaged: Vec<Seq>,
    /// Where the damaged slots are now.
    pub copies: Vec<String>,
    /// What was found, in words.
    pub found: Vec<String>,
}

/// Gives up what is damaged in the shard of this directory; `found` is why it did not open.
///
/// # Errors
/// A text for the operator; nothing was changed that a second attempt could not take up.
pub fn heal(
    dir: &Path,
    shard: ShardId,
    store_uuid: [u8; 16],
    found: &Damage,
) -> Result<Healed, String> {
    let fault = |why: &dyn std::fmt::Display| format!("shard {shard} ({}): {why}", dir.display());
    let disk = BlockingDisk::open(dir).map_err(|e| fault(&e))?;
    let expect = Expect {
        store_uuid: Some(store_uuid),
        shard: Some(shard),
    };
    let mut plan = RepairPlan::default();
    let mut agree = |shown: &RepairPlan| {
        plan = shown.clone();
        true
    };
    let report = block_on(repair(&disk, expect, &mut agree)).map_err(|e| fault(&e))?;
    // The open names the seqs of the first damage, the tools those of the others.
    let damages = std::iter::once(found).chain(&report.plan.lost);
    let mut lost: Vec<(Seq, Seq)> = damages.filter_map(|damage| damage.seqs).collect();
    lost.retain(|(first, end)| first < end);
    lost.sort_unstable();
    lost.dedup();
    let damaged: Vec<Seq> = report.plan.lost_hooks.iter().map(|hook| hook.seq).collect();
    let more = report.plan.lost.iter().filter(|d| d.lsns != found.lsns);
    let found = std::iter::once(found).chain(more);
    Ok(Healed {
        shard,
        lost,
        damaged,
        copies: report.copies,
        found: found.map(Damage::to_string).collect(),
    })
}

impl Healed {
    /// What the run watches for.
    pub fn watched(&self) -> Vec<(Seq, Seq)> {
        let damaged = self.damaged.iter().map(|seq| (*seq, seq.next()));
        self.lost.iter().copied().chain(damaged).collect()
    }

    /// What became of it, a line each.
    pub fn report(&self, came_back: &SeqSet) -> Vec<String> {
        let shard = self.shard;
        let mut lines = Vec::new();
        for found in &self.found {
            lines.push(format!("shard {shard}: was damaged: {found}"));
        }
        for copy in &self.copies {
            lines.push(format!("shard {shard}: as it was before: {copy}"));
        }
        for (first, end) in self.watched() {
            let (back, missing) = within(came_back, first, end);
            lines.push(format!(
                "shard {shard}: of seqs {}, came back from the log: {}",
                range(first, end),
                ranges(&back)
            ));
            if end == Seq(u64::MAX) {
                lines.push(format!(
                    "shard {shard}: where the lost seqs end is not known; what the log does not \
                     have of seqs {first} and up is lost"
                ));
            } else if !missing.is_empty() {
                lines.push(format!(
                    "shard {shard}: not in the log: seqs {} (lost, finished before, or never \
                     handed out)",
                    ranges(&missing)
                ));
            }
        }
        lines
    }
}

type Ranges = Vec<(Seq, Seq)>;

/// The parts of `first..end` that are in the set, and those that are not; both ends included.
fn within(set: &SeqSet, first: Seq, end: Seq) -> (Ranges, Ranges) {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    let mut at = first;
    while at < end {
        let next = set.next_range(at).filter(|(from, _)| *from < end);
        let Some((from, to)) = next else {
            outside.push((at, Seq(end.0 - 1)));
            break;
        };
        if at < from {
            outside.push((at, Seq(from.0 - 1)));
        }
        let to = to.min(Seq(end.0 - 1));
        inside.push((from, to));
        at = to.next();
    }
    (inside, outside)
}

fn range(first: Seq, end: Seq) -> String {
    match end {
        Seq(u64::MAX) => format!("{first} and up"),
        _ => ranges(&[(first, Seq(end.0 - 1))]),
    }
}

fn ranges(ranges: &[(Seq, Seq)]) -> String {
    if ranges.is_empty() {
        return "none".into();
    }
    let one = |(first, last): &(Seq, Seq)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    let mut text: Vec<String> = ranges.iter().take(NAMED_MAX).map(one).collect();
    if ranges.len() > NAMED_MAX {
        text.push(format!("and {} more ranges", ranges.len() - NAMED_MAX));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_and_what_did_not_is_named_seq_by_seq() {
        let mut back = SeqSet::new();
        for seq in [5, 6, 9, 40] {
            back.insert(Seq(seq));
        }
        let healed = Healed {
            lost: vec![(Seq(4), Seq(11))],
            damaged: vec![Seq(40)],
            ..Healed::default()
        };
        let lines = healed.report(&back);
        assert_eq!(
            lines,
            [
                "shard 0: of seqs 4 to 10, came back from the log: 5 to 6, 9",
                "shard 0: not in the log: seqs 4, 7 to 8, 10 (lost, finished before, or never \
                 handed out)",
                "shard 0: of seqs 40, came back from the log: 40",
            ]
        );
        let open = Healed {
            lost: vec![(Seq(39), Seq(u64::MAX))],
            ..Healed::default()
        };
        let lines = open.report(&back);
        assert_eq!(
            lines[0],
            "shard 0: of seqs 39 and up, came back from the log: 40"
        );
        assert!(lines[1].contains("39 and up is lost"), "{}", lines[1]);
    }
}
