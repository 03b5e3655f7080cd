//! What all cores know of the intake log: the breaker, whether it answers, how far it reaches.
//!
//! Atomics only on the request path; the one lock is for the identity, which is read when the log
//! went back. Written by the core that keeps the log's affairs (readiness, bounds, verdict) and, for
//! the breaker, by every core. Runs on shard cores; may be asked from anywhere.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ankusa_intake::Readiness;
use ankusa_wal::{IntakeIdentity, LogOffset};

use super::breaker::{Breaker, BreakerState, Event};
use super::quota::Ceilings;
use crate::config::Config;

/// What the heart is told of `intake.*` and `wal.*`.
#[derive(Clone, Copy, Debug)]
pub struct DualSettings {
    /// Longest time of one attempt.
    pub publish_timeout_us: u64,
    /// How long a half may be missing before its claim is given up, from the claim.
    pub reconcile_deadline_us: u64,
    /// Failed attempts in a row that open the breaker.
    pub breaker_failures: u16,
    /// Between two probes of an open breaker.
    pub probe_us: u64,
    /// Between two writes of the marks when nothing else is written.
    pub offset_flush_us: u64,
    /// Records of the node not confirmed in both places.
    pub pending_max_records: u64,
    /// Bytes of them.
    pub pending_max_bytes: u64,
    /// The largest encoded record.
    pub max_record_bytes: usize,
    /// Bytes of one group, and of one republish.
    pub group_bytes_max: usize,
}

impl DualSettings {
    /// Those of a configuration with an intake; `None` without.
    pub fn of(config: &Config) -> Option<DualSettings> {
        let intake = config.intake.as_ref()?;
        Some(DualSettings {
            publish_timeout_us: intake.publish_timeout_ms * 1000,
            reconcile_deadline_us: intake.reconcile_deadline_ms * 1000,
            breaker_failures: u16::try_from(intake.breaker_failures).unwrap_or(u16::MAX),
            probe_us: intake.probe_ms * 1000,
            offset_flush_us: intake.offset_flush_ms * 1000,
            pending_max_records: intake.pending_max_records,
            pending_max_bytes: intake.pending_max_bytes,
            max_record_bytes: usize::try_from(intake.max_record_bytes).unwrap_or(usize::MAX),
            group_bytes_max: config.wal.group_max_bytes as usize,
        })
    }
}

/// Records not confirmed in both places, summed over cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingSums {
    /// Records, those in flight included.
    pub records: u64,
    /// Their bytes, as they count against the ceiling.
    pub bytes: u64,
    /// Of them carried: one half was issued and one failed.
    pub carried: u64,
    /// Of the carried, past their deadline or refused for good.
    pub stuck: u64,
    /// Age of the oldest carried one, milliseconds.
    pub oldest_ms: u64,
}

/// One core's part of the sums.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    records: AtomicU64,
    bytes: AtomicU64,
    carried: AtomicU64,
    stuck: AtomicU64,
    oldest_ms: AtomicU64,
    /// Carried records that the reconciler will publish: they are the breaker's probe.
    probes: AtomicU64,
}

/// No head is known.
const UNKNOWN: u64 = u64::MAX;

/// What the node knows of its intake log.
#[derive(Debug)]
pub struct NodeLog {
    settings: DualSettings,
    breaker: AtomicU64,
    readiness: AtomicU8,
    is_verified: AtomicBool,
    head: AtomicU64,
    epoch: AtomicU64,
    identity: Mutex<Option<IntakeIdentity>>,
    /// Somebody asks for the identity after the log was seen to have gone back.
    is_asked_for: AtomicBool,
    /// It was seen, and has not been asked yet which log this is.
    is_unsure: AtomicBool,
    pub(super) ceilings: Ceilings,
    slots: Box<[Slot]>,
}

impl NodeLog {
    /// Of a node with so many cores, before anything is known.
    pub fn new(settings: DualSettings, cores: usize) -> Arc<NodeLog> {
        Arc::new(NodeLog {
            settings,
            breaker: AtomicU64::new(Breaker::CLOSED.pack()),
            readiness: AtomicU8::new(Readiness::Unknown as u8),
            is_verified: AtomicBool::new(false),
            head: AtomicU64::new(UNKNOWN),
            epoch: AtomicU64::new(0),
            identity: Mutex::new(None),
            is_asked_for: AtomicBool::new(false),
            is_unsure: AtomicBool::new(false),
            ceilings: Ceilings::new(settings.pending_max_records, settings.pending_max_bytes),
            slots: (0..cores.max(1)).map(|_| Slot::default()).collect(),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &DualSettings {
        &self.settings
    }

    /// What the adapter says about itself, about once a second. One that is not ready opens the
    /// breaker.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.readiness.store(readiness as u8, Ordering::Release);
        if !matches!(readiness, Readiness::Up | Readiness::Unknown) {
            self.breaker_on(Event::NotReady);
        }
    }

    /// True when the adapter said so last, or was not asked yet.
    pub fn may_answer(&self) -> bool {
        let readiness = self.readiness.load(Ordering::Acquire);
        readiness == Readiness::Up as u8 || readiness == Readiness::Unknown as u8
    }

    /// True when the adapter said last that the log answers.
    pub fn is_up(&self) -> bool {
        self.readiness.load(Ordering::Acquire) == Readiness::Up as u8
    }

    /// Whether the topic's settings were found good, or need not be.
    pub fn set_verified(&self, is_verified: bool) {
        self.is_verified.store(is_verified, Ordering::Release);
    }

    /// Whether they were.
    pub fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Acquire)
    }

    /// The position that the log's next record takes, at least; none before it was asked.
    pub fn head(&self) -> Option<LogOffset> {
        match self.head.load(Ordering::Acquire) {
            UNKNOWN => None,
            head => Some(LogOffset(head)),
        }
    }

    /// The head as the log says it, asked while [`NodeLog::epoch`] was `epoch`; one caller. A head
    /// below what was known means that the log lost what it held: false, and the epoch has risen.
    pub fn note_head(&self, head: u64, epoch: u64) -> bool {
        if epoch != self.epoch() {
            // Asked before the log was seen to have gone back: nobody knows which log this was.
            return true;
        }
        let known = self.head.load(Ordering::Acquire);
        if known != UNKNOWN && head < known {
            self.log_went_back(None, epoch);
            return false;
        }
        self.head.store(head, Ordering::Release);
        if epoch != self.epoch() {
            // Another core saw it go back meanwhile.
            self.head.store(UNKNOWN, Ordering::Release);
        }
        true
    }

    /// How often the log was seen to have lost what it held.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The log lost what it held, or is another one (then its identity, as the shards are to stamp
    /// it). Every shard forgets its offset and watermark and publishes what it holds again. Noted
    /// once however many saw it: `epoch` is the one they saw it in.
    pub fn log_went_back(&self, identity: Option<IntakeIdentity>, epoch: u64) {
        let is_known = identity.is_some();
        if let Some(identity) = identity {
            *self.lock_identity() = Some(identity);
            self.is_unsure.store(false, Ordering::Release);
        }
        if !is_known && epoch == self.epoch() && self.is_asked_for.load(Ordering::Acquire) {
            // Before the epoch rises: whoever sees that waits for the answer.
            self.is_unsure.store(true, Ordering::Release);
        }
        let next = epoch.wrapping_add(1);
        let raised = self
            .epoch
            .compare_exchange(epoch, next, Ordering::AcqRel, Ordering::Acquire);
        if raised.is_ok() {
            self.head.store(UNKNOWN, Ordering::Release);
            tracing::error!(
                "the intake log lost what it held; everything in the store is published to it again"
            );
        }
    }

    /// From now on the caller asks for the log's identity whenever [`NodeLog::is_unsure`].
    pub fn will_ask(&self) {
        self.is_asked_for.store(true, Ordering::Release);
    }

    /// The log lost what it held, and it is not known yet whether it is the same log. Publishing
    /// everything again waits for the answer: another log would be noticed once more by its
    /// identity, and everything published to it a second time.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure.load(Ordering::Acquire)
    }

    /// It is the same log, or nobody says.
    pub fn is_sure(&self) {
        self.is_unsure.store(false, Ordering::Release);
    }

    /// The identity to stamp, where the log became another one.
    pub fn identity(&self) -> Option<IntakeIdentity> {
        self.lock_identity().clone()
    }

    fn lock_identity(&self) -> std::sync::MutexGuard<'_, Option<IntakeIdentity>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the breaker stands.
    pub fn breaker(&self) -> BreakerState {
        self.breaker_value().state
    }

    pub(super) fn breaker_value(&self) -> Breaker {
        Breaker::unpack(self.breaker.load(Ordering::Acquire))
    }

    /// True when this call changed how the breaker stands.
    pub(super) fn breaker_on(&self, event: Event) -> bool {
        let mut before = self.breaker_value();
        loop {
            let after = before.on(event, self.settings.breaker_failures);
            if after == before {
                return false;
            }
            let swapped = self.breaker.compare_exchange(
                before.pack(),
                after.pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swapped {
                Ok(_) => {
                    tell(before.state, after.state);
                    return before.state != after.state;
                }
                Err(now) => before = Breaker::unpack(now),
            }
        }
    }

    /// Records not confirmed in both places, as of a moment ago.
    pub fn pending(&self) -> PendingSums {
        let mut sums = PendingSums::default();
        for slot in &self.slots {
            let of = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
            sums.records += of(&slot.records);
            sums.bytes += of(&slot.bytes);
            sums.carried += of(&slot.carried);
            sums.stuck += of(&slot.stuck);
            sums.oldest_ms = sums.oldest_ms.max(of(&slot.oldest_ms));
        }
        sums
    }

    pub(super) fn set_pending(&self, core: usize, sums: &PendingSums, probes: u64) {
        if let Some(slot) = self.slots.get(core) {
            slot.records.store(sums.records, Ordering::Relaxed);
            slot.bytes.store(sums.bytes, Ordering::Relaxed);
            slot.carried.store(sums.carried, Ordering::Relaxed);
            slot.stuck.store(sums.stuck, Ordering::Relaxed);
            slot.oldest_ms.store(sums.oldest_ms, Ordering::Relaxed);
            slot.probes.store(probes, Ordering::Relaxed);
        }
    }

    /// Whether a republish somewhere on the node will probe a half open breaker.
    pub(super) fn has_probes(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| slot.probes.load(Ordering::Relaxed) > 0)
    }
}

fn tell(before: BreakerState, after: BreakerState) {
    match (before, after) {
        (BreakerState::Closed, BreakerState::Open) => {
            tracing::warn!("the intake log does not confirm: hooks are refused until it does");
        }
        (BreakerState::Closed, _) => {}
        (_, BreakerState::Closed) => tracing::info!("the intake log confirms again"),
        _ => {}
    }
}
