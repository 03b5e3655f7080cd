//! Negative controls: each promise broken on purpose, which the simulation must notice.
//!
//! The comparison with the medium is left out here: what is to be shown is that the client's
//! ledger and the sinks', after deaths and recoveries, are enough. Only with the feature
//! `mutations`.

#[cfg(feature = "mutations")]
use super::run::{Plan, run_seed};

/// The mutations that the simulation must notice, and in how many seeds at most.
pub const CONTROLS: [(&str, u64); 13] = [
    ("ack_before_write", 50),
    ("ack_before_sync", 100),
    ("undo_at_mark", 100),
    ("skip_sync", 100),
    ("trust_above_mark", 2_000),
    ("retry_failed_sync", 200),
    ("recycle_early", 500),
    ("checkpoint_named_early", 2_000),
    ("checkpoint_rename_without_sync", 500),
    ("skip_frame_crc", 2_000),
    ("skip_sync_of_two", 2_000),
    ("move_before_durable", 2_000),
    ("refuse_torn_tail", 2_000),
];

/// The same with the intake log: promises of the dual commit.
pub const DUAL_CONTROLS: [(&str, u64); 7] = [
    ("ack_before_confirm", 200),
    ("watermark_from_unconfirmed", 500),
    ("promote_on_one_half", 500),
    ("release_on_half_failure", 200),
    ("drop_permanent", 500),
    ("replay_trusts_order", 200),
    ("replay_finished_as_new", 100),
];

/// How one control ended.
#[derive(Clone, Debug)]
pub struct Control {
    /// The mutation.
    pub name: &'static str,
    /// Seeds run until it was noticed; `None`: it was not.
    pub caught_after: Option<u64>,
    /// The seed, and what was noticed.
    pub how: String,
}

/// Runs seeds from `from` on with a mutation until one notices it, at most `seeds_max`.
#[cfg(feature = "mutations")]
pub fn control(name: &'static str, from: u64, seeds_max: u64, dual: bool) -> Control {
    for at in 0..seeds_max {
        let seed = from + at;
        ankusa_wal::mutations::set(Some(name));
        let report = run_seed(&Plan {
            probes: false,
            dual,
            ..Plan::of(seed)
        });
        ankusa_wal::mutations::set(None);
        if let Some(first) = report.violations.first() {
            return Control {
                name,
                caught_after: Some(at + 1),
                how: format!("seed {seed}: {first}"),
            };
        }
    }
    Control {
        name,
        caught_after: None,
        how: format!("not noticed in {seeds_max} seeds"),
    }
}
