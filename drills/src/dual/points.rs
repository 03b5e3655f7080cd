//! The points of the dual commit, of recovery, backups and restores at which the drill lets the
//! process kill itself, and how it gets there.
//!
//! As in [`crate::kill::points`]: a point that is in the code and in neither table fails a test, one
//! that is not come to fails the drill.

/// What brings a process to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Hooks coming in.
    Load,
    /// Hooks coming in while the log refuses for a moment.
    Refused,
    /// Hooks coming in, and a backup asked for several times.
    Backup,
    /// A boot on what is there.
    Boot,
    /// A boot without a data directory: the log alone.
    Lost,
    /// `ankusa restore` into an empty data directory.
    Restore,
    /// `ankusa recover` on a store that was just restored.
    Recover,
    /// A log that is made anew under a node that serves. The last: what was in it is gone.
    Anew,
}

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct DualPoint {
    /// Its name in the code.
    pub name: &'static str,
    /// What brings the process there.
    pub way: Way,
    /// It may die there the first time or up to this one.
    pub count_max: u64,
}

const fn at(name: &'static str, way: Way, count_max: u64) -> DualPoint {
    DualPoint {
        name,
        way,
        count_max,
    }
}

/// All of them; a name may be come to in several ways.
pub const POINTS: &[DualPoint] = &[
    // A group's log half.
    at("dual.published", Way::Load, 300),
    at("dual.answered", Way::Load, 300),
    at("dual.marks_due", Way::Load, 3),
    // A record with one half.
    at("dual.carried", Way::Refused, 3),
    at("dual.republished", Way::Refused, 2),
    at("dual.completed", Way::Refused, 3),
    // Recovery, at a boot and offline.
    at("recover.identified", Way::Boot, 1),
    at("recover.verified", Way::Boot, 1),
    at("recover.stamped", Way::Boot, 1),
    at("recover.replayed", Way::Boot, 1),
    at("recover.ended", Way::Boot, 1),
    at("recover.republished", Way::Boot, 1),
    at("recover.done", Way::Boot, 1),
    at("recover.stamped", Way::Lost, 1),
    at("recover.read", Way::Lost, 3),
    at("recover.applied", Way::Lost, 3),
    at("recover.ended", Way::Lost, 1),
    at("recover.republished", Way::Lost, 1),
    at("recover.identified", Way::Recover, 1),
    at("recover.stamped", Way::Recover, 1),
    at("recover.read", Way::Recover, 1),
    at("recover.applied", Way::Recover, 1),
    at("recover.ended", Way::Recover, 1),
    at("recover.done", Way::Recover, 1),
    // A backup.
    at("backup.pinned", Way::Backup, 2),
    at("backup.object_written", Way::Backup, 3),
    at("backup.object_named", Way::Backup, 3),
    at("backup.manifest_written", Way::Backup, 2),
    at("backup.manifest_named", Way::Backup, 2),
    at("backup.manifests_removed", Way::Backup, 2),
    at("backup.pruned", Way::Backup, 2),
    // A restore.
    at("restore.begun", Way::Restore, 1),
    at("restore.file_written", Way::Restore, 2),
    at("restore.unpacked", Way::Restore, 1),
    at("restore.shard_stamped", Way::Restore, 2),
    at("restore.facts_written", Way::Restore, 1),
    at("restore.finished", Way::Restore, 1),
    // The log is another one.
    at("dual.log_forgotten", Way::Anew, 2),
    at("dual.published_again", Way::Anew, 2),
];
