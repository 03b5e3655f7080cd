//! The commands of the live dual drills: run, print, judge.

use std::path::Path;
use std::time::Instant;

use ankusa_drills::dual::kill::{self, Control, DualPlan};
use anyhow::Result;

/// `kill --dual`.
pub fn kill(plan: &DualPlan, with_controls: bool, dir: &Path) -> Result<bool> {
    let began = Instant::now();
    let report = kill::run(plan)?;
    let ((load, boot, restore), (backup, alone)) = (report.kills, report.losses);
    println!(
        "kill --dual: {load} kills under load, {boot} during boots, {restore} during restores; \
         {backup} hosts lost with a backup, {alone} without; {} keyed hooks sent again",
        report.again
    );
    println!("kill --dual: {} deaths at named points", report.named);
    for missed in &report.missed {
        println!("kill --dual: MISSED {missed}");
    }
    let (records, hooks) = report.records;
    println!(
        "kill --dual: the log has {records} records of {hooks} hooks; acked and not in it: {}",
        report.not_in_log
    );
    println!("kill --dual: {}", report.verdict);
    for example in &report.verdict.examples {
        println!("kill --dual:   {example}");
    }
    let mut holds = report.holds();
    if with_controls {
        for (name, which) in [
            ("the promise kept", Control::Kept),
            ("ack_before_confirm", Control::AckBeforeConfirm),
            ("wal.type: disk", Control::Disk),
        ] {
            let control = DualPlan {
                dir: dir.join(format!("{which:?}")),
                ..plan.clone()
            };
            let verdict = kill::control(&control, which)?;
            let is_kept = which == Control::Kept;
            let word = match (is_kept, verdict.missing > 0) {
                (true, false) => "holds",
                (true, true) => "BROKEN",
                (false, true) => "caught",
                (false, false) => "MISSED",
            };
            holds &= is_kept != (verdict.missing > 0);
            println!("kill --dual: host lost under a silent log, {name}: {word}: {verdict}");
        }
    }
    println!("kill --dual: {} s", began.elapsed().as_secs());
    Ok(holds)
}
