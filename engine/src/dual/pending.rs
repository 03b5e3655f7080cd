//! The carried records of one shard: what is known of each, and which are due for what.
//!
//! An entry is here from the moment one half of its record failed (or, for a hook that the log
//! lost, from when it is fed) until both halves are confirmed, and leaves no other way. Three
//! indexes: seq, id, dedupe hash. Its envelope is a copy of its own, so that one small entry never
//! keeps a whole group's buffer.
//!
//! | state | done | next |
//! |---|---|---|
//! | half local | local | republish |
//! | half log | log | write the local half |
//! | both pending | neither | write the local half, then republish |
//!
//! A *stuck* entry is past its deadline, or permanently refused by the log: its claim was given
//! up, it is counted and goes on like any other. Bounded by the ceilings that admission keeps.
//! Pure; owned by its shard.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ankusa_wal::{HookExtra, HookId, LogOffset, Seq, SinkNo, mutations};
use bytes::Bytes;

use super::claims::{Held, Hold};

/// A permanently refused record is tried again after this long.
pub const REFUSED_AGAIN_US: u64 = 60_000_000;

/// Which halves of a record are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Neither.
    BothPending,
    /// The local half.
    HalfLocal,
    /// The log half.
    HalfLog,
}

impl Done {
    /// The word for it in the admin API.
    pub fn word(self) -> &'static str {
        match self {
            Done::BothPending => "both_pending",
            Done::HalfLocal => "half_local",
            Done::HalfLog => "half_log",
        }
    }
}

/// What is kept of a record: enough for either half.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The hook's id.
    pub id: HookId,
    /// The envelope, in an allocation of its own.
    pub envelope: Bytes,
    /// Its sinks.
    pub sinks: Box<[SinkNo]>,
    /// Its dedupe hash.
    pub dedupe_hash: Option<[u8; 16]>,
    /// Whether the archive wants it.
    pub archive: bool,
    /// When its request was whole (or it was fed), microseconds of the core.
    pub first_us: u64,
    /// The head of the log as known when it was first handed over: it lies nowhere below.
    pub floor: LogOffset,
    /// What it counts against the ceiling of bytes.
    pub quota_bytes: u64,
}

impl Kept {
    /// What the store keeps beside the envelope.
    pub fn extra(&self) -> HookExtra<'_> {
        HookExtra {
            sinks: &self.sinks,
            dedupe_hash: self.dedupe_hash,
            archive: self.archive,
            log: true,
        }
    }
}

/// How its log half goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With others.
    Together,
    /// By itself: it, or one that travelled with it, was refused for good.
    Alone,
    /// It was refused by itself: again at this time.
    Refused(u64),
}

/// A carried record.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is kept of it.
    pub kept: Kept,
    local: bool,
    log: bool,
    way: Way,
    /// Being published, or written, now.
    busy: bool,
    stuck: bool,
    held: Option<Held>,
}

impl Entry {
    /// Which halves are done.
    pub fn done(&self) -> Done {
        match (self.local, self.log) {
            (true, _) => Done::HalfLocal,
            (false, true) => Done::HalfLog,
            (false, false) => Done::BothPending,
        }
    }

    /// Past its deadline, or refused for good.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// The log refused it for good, by itself; it is tried again now and then.
    pub fn is_refused(&self) -> bool {
        matches!(self.way, Way::Refused(_))
    }

    /// The claim to promote now that it is complete.
    pub fn claim(&self) -> Option<Held> {
        self.held
    }
}

/// What a half that was done led to.
#[derive(Debug)]
pub enum Progress {
    /// There is no such entry (any more).
    Unknown,
    /// The other half is missing still.
    Half,
    /// Complete: it left the set.
    Complete(Box<Entry>),
}

/// What became of a republish that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Back in line.
    No,
    /// To be tried by itself.
    RetryAlone,
    /// By itself and for good: stuck. The claim to give up, where it had not been.
    Stuck(Option<Held>),
}

/// The carried records of a shard.
#[derive(Debug, Default)]
pub struct PendingSet {
    entries: BTreeMap<Seq, Entry>,
    by_id: HashMap<HookId, Seq, foldhash::fast::RandomState>,
    by_key: HashMap<[u8; 16], Seq, foldhash::fast::RandomState>,
    /// Local half done, log half to be published with others, alone, or again at a time.
    due_together: BTreeSet<Seq>,
    due_alone: BTreeSet<Seq>,
    due_refused: BTreeSet<(u64, Seq)>,
    /// Local half to be written.
    due_local: BTreeSet<Seq>,
    /// Not durable here, with what caps the offset.
    local_missing: BTreeMap<Seq, LogOffset>,
    /// Not confirmed in the log.
    unconfirmed: BTreeSet<Seq>,
    unconfirmed_stuck: BTreeSet<Seq>,
    /// By age: those that may still become stuck, and all.
    hopeful: BTreeSet<(u64, Seq)>,
    ages: BTreeSet<(u64, Seq)>,
    quota_bytes: u64,
}

impl PendingSet {
    /// Carries a record. One that is carried already keeps its entry, with what both know to be
    /// done; then false.
    pub fn carry(&mut self, seq: Seq, kept: Kept, local: bool, log: bool) -> bool {
        assert!(!(local && log), "a complete record is not carried");
        if let Some(entry) = self.entries.get_mut(&seq) {
            assert_eq!(entry.kept.id, kept.id, "two hooks with one seq");
            return false;
        }
        self.by_id.insert(kept.id, seq);
        if let Some(hash) = kept.dedupe_hash {
            self.by_key.insert(hash, seq);
        }
        self.hopeful.insert((kept.first_us, seq));
        self.ages.insert((kept.first_us, seq));
        self.quota_bytes += kept.quota_bytes;
        if !local {
            self.local_missing.insert(seq, kept.floor);
        }
        if !log {
            self.unconfirmed.insert(seq);
        }
        let entry = Entry {
            kept,
            local,
            log,
            way: Way::Together,
            busy: false,
            stuck: false,
            held: None,
        };
        self.entries.insert(seq, entry);
        self.line_up(seq);
        true
    }

    /// Puts an entry that is not busy where it is due.
    fn line_up(&mut self, seq: Seq) {
        let Some(entry) = self.entries.get(&seq) else {
            return;
        };
        match (entry.local, entry.way) {
            (false, _) => self.due_local.insert(seq),
            (true, Way::Together) => self.due_together.insert(seq),
            (true, Way::Alone) => self.due_alone.insert(seq),
            (true, Way::Refused(again_us)) => self.due_refused.insert((again_us, seq)),
        };
    }

    fn leave_line(&mut self, seq: Seq, way: Way) {
        self.due_local.remove(&seq);
        match way {
            Way::Together => self.due_together.remove(&seq),
            Way::Alone => self.due_alone.remove(&seq),
            Way::Refused(again_us) => self.due_refused.remove(&(again_us, seq)),
        };
    }

    /// The claim of a carried hook is kept with it.
    pub fn hold(&mut self, id: HookId, held: Held) -> Hold {
        let entry = self.by_id.get(&id).and_then(|s| self.entries.get_mut(s));
        match entry {
            Some(entry) => {
                entry.held = Some(held);
                Hold::Held
            }
            None => Hold::Completed,
        }
    }

    /// The log has the record.
    pub fn confirmed(&mut self, seq: Seq) -> Progress {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return Progress::Unknown;
        };
        entry.log = true;
        self.unconfirmed.remove(&seq);
        self.unconfirmed_stuck.remove(&seq);
        self.after_half(seq)
    }

    /// The record is durable here.
    pub fn landed(&mut self, seq: Seq) -> Progress {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return Progress::Unknown;
        };
        entry.local = true;
        entry.busy = false;
        self.local_missing.remove(&seq);
        self.after_half(seq)
    }

    fn after_half(&mut self, seq: Seq) -> Progress {
        let Some(entry) = self.entries.get(&seq) else {
            return Progress::Unknown;
        };
        let (complete, way, busy) = (entry.local && entry.log, entry.way, entry.busy);
        self.leave_line(seq, way);
        if complete {
            return match self.remove(seq) {
                Some(entry) => Progress::Complete(Box::new(entry)),
                None => Progress::Unknown,
            };
        }
        if !busy {
            self.line_up(seq);
        }
        Progress::Half
    }

    fn remove(&mut self, seq: Seq) -> Option<Entry> {
        let entry = self.entries.remove(&seq)?;
        if self.by_id.get(&entry.kept.id) == Some(&seq) {
            self.by_id.remove(&entry.kept.id);
        }
        if let Some(hash) = entry.kept.dedupe_hash
            && self.by_key.get(&hash) == Some(&seq)
        {
            self.by_key.remove(&hash);
        }
        self.hopeful.remove(&(entry.kept.first_us, seq));
        self.ages.remove(&(entry.kept.first_us, seq));
        self.quota_bytes -= entry.kept.quota_bytes;
        Some(entry)
    }

    /// A republish of it failed: for a reason of the record's own (or of one that travelled with
    /// it) where `is_permanent`, and it travelled `alone` or not. Nothing is assumed: it may have
    /// landed.
    pub fn failed(&mut self, seq: Seq, is_permanent: bool, alone: bool, now_us: u64) -> Refused {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return Refused::No;
        };
        entry.busy = false;
        let refused = match (is_permanent, alone) {
            (false, _) => Refused::No,
            (true, false) => {
                entry.way = Way::Alone;
                Refused::RetryAlone
            }
            (true, true) => {
                entry.way = Way::Refused(now_us + REFUSED_AGAIN_US);
                Refused::Stuck(self.stick(seq))
            }
        };
        if mutations::is("drop_permanent") && matches!(refused, Refused::Stuck(_)) {
            self.unconfirmed_stuck.remove(&seq);
            self.remove(seq);
        }
        self.line_up(seq);
        refused
    }

    /// Marks it stuck. The claim to give up, the first time.
    fn stick(&mut self, seq: Seq) -> Option<Held> {
        let entry = self.entries.get_mut(&seq)?;
        self.hopeful.remove(&(entry.kept.first_us, seq));
        if std::mem::replace(&mut entry.stuck, true) {
            return None;
        }
        if !entry.log {
            self.unconfirmed.remove(&seq);
            self.unconfirmed_stuck.insert(seq);
        }
        entry.held
    }

    /// Marks as stuck what is older than the deadline, so many at a time. The claims to give up, and
    /// whether there are more.
    pub fn expire(&mut self, now_us: u64, deadline_us: u64, most: usize) -> (Vec<Held>, bool) {
        let mut released = Vec::new();
        for _ in 0..most {
            let first = self.hopeful.first().copied();
            match first.filter(|(first_us, _)| now_us.saturating_sub(*first_us) >= deadline_us) {
                Some((_, seq)) => released.extend(self.stick(seq)),
                None => return (released, false),
            }
        }
        (released, true)
    }

    /// Takes what is to be published next: up to so many records and bytes together, or one that
    /// must go by itself (then true). They are busy until they are confirmed or failed.
    pub fn take_log(
        &mut self,
        now_us: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> (Vec<Seq>, bool) {
        if let Some(seq) = self.take_alone(now_us) {
            return (vec![seq], true);
        }
        let taken = self.take(self.due_together.iter(), records_max, bytes_max);
        for seq in &taken {
            self.due_together.remove(seq);
        }
        self.make_busy(&taken);
        (taken, false)
    }

    fn take_alone(&mut self, now_us: u64) -> Option<Seq> {
        let refused = self.due_refused.first().filter(|(at, _)| *at <= now_us);
        let seq = match refused.copied() {
            Some(first) => {
                self.due_refused.remove(&first);
                first.1
            }
            None => self.due_alone.pop_first()?,
        };
        self.make_busy(&[seq]);
        Some(seq)
    }

    /// Takes what is to be written here next. Busy until [`PendingSet::landed`] or
    /// [`PendingSet::put_back`].
    pub fn take_local(&mut self, records_max: usize, bytes_max: usize) -> Vec<Seq> {
        let taken = self.take(self.due_local.iter(), records_max, bytes_max);
        for seq in &taken {
            self.due_local.remove(seq);
        }
        self.make_busy(&taken);
        taken
    }

    fn take<'a>(
        &self,
        due: impl Iterator<Item = &'a Seq>,
        records_max: usize,
        bytes_max: usize,
    ) -> Vec<Seq> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for seq in due.take(records_max.max(1)) {
            let len = self.entries.get(seq).map_or(0, |e| e.kept.envelope.len());
            if !taken.is_empty() && bytes + len > bytes_max {
                break;
            }
            bytes += len;
            taken.push(*seq);
        }
        taken
    }

    fn make_busy(&mut self, seqs: &[Seq]) {
        for seq in seqs {
            if let Some(entry) = self.entries.get_mut(seq) {
                entry.busy = true;
            }
        }
    }

    /// It was not written after all.
    pub fn put_back(&mut self, seq: Seq) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.busy = false;
            self.line_up(seq);
        }
    }

    /// The log lost what it held: what it confirmed counts no more.
    pub fn log_went_back(&mut self) {
        let seqs: Vec<Seq> = self.entries.keys().copied().collect();
        for seq in seqs {
            let Some(entry) = self.entries.get_mut(&seq) else {
                continue;
            };
            if std::mem::replace(&mut entry.log, false) {
                match entry.stuck {
                    true => self.unconfirmed_stuck.insert(seq),
                    false => self.unconfirmed.insert(seq),
                };
            }
            entry.kept.floor = LogOffset(0);
            if let Some(floor) = self.local_missing.get_mut(&seq) {
                *floor = LogOffset(0);
            }
        }
    }

    /// The entry of a seq.
    pub fn get(&self, seq: Seq) -> Option<&Entry> {
        self.entries.get(&seq)
    }

    /// The entry of a hook.
    pub fn by_id(&self, id: HookId) -> Option<(Seq, &Entry)> {
        let seq = *self.by_id.get(&id)?;
        Some((seq, self.entries.get(&seq)?))
    }

    /// The newest entry with this dedupe hash.
    pub fn by_key(&self, hash: &[u8; 16]) -> Option<(Seq, &Entry)> {
        let seq = *self.by_key.get(hash)?;
        Some((seq, self.entries.get(&seq)?))
    }

    /// Claims that are held, and not given up.
    pub fn held(&self) -> impl Iterator<Item = Held> + '_ {
        self.entries
            .values()
            .filter(|e| !e.stuck)
            .filter_map(|e| e.held)
    }

    /// The lowest seq that the log has not confirmed and that is not stuck.
    pub fn lowest_unconfirmed(&self) -> Option<Seq> {
        self.unconfirmed.first().copied()
    }

    /// Stuck seqs that the log has not confirmed, ascending.
    pub fn stuck_unconfirmed(&self) -> impl Iterator<Item = Seq> + '_ {
        self.unconfirmed_stuck.iter().copied()
    }

    /// What caps the offset: the lowest floor of what is not durable here.
    pub fn floor(&self) -> Option<LogOffset> {
        // NOTE: floors rise with seqs: both are given in the order of handing over, and a log that
        // went back sets them all to 0.
        self.local_missing.values().next().copied()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stuck entries.
    pub fn stuck(&self) -> usize {
        self.entries.len() - self.hopeful.len()
    }

    /// Bytes that entries count against the ceiling.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// When the oldest entry's request was whole.
    pub fn oldest_us(&self) -> Option<u64> {
        self.ages.first().map(|(first_us, _)| *first_us)
    }

    /// Entries that a republish is due for, or out for, those refused for good not among them.
    pub fn probes(&self) -> usize {
        let refused = self.due_refused.len();
        let unpublished = self.local_missing.len();
        (self.entries.len() - refused).saturating_sub(unpublished)
    }

    /// Whether anything is due for a publish or a write now.
    pub fn is_due(&self, now_us: u64) -> bool {
        let refused = self.due_refused.first();
        !(self.due_together.is_empty() && self.due_alone.is_empty() && self.due_local.is_empty())
            || refused.is_some_and(|(at, _)| *at <= now_us)
    }
}
