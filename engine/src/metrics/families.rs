//! Every family: its name, kind, labels and help, in one table.
//!
//! Names and label sets are a promise to dashboards and alert rules: changing one is a breaking
//! change. Cells hold whole numbers; the table says what one of them is worth in the unit the
//! name promises (seconds are kept as microseconds or milliseconds). Pure.

use ankusa_net::http1::Doubt;

use super::histogram::BUCKETS_COUNT;

/// What a cell is worth in the unit of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// One.
    Whole,
    /// A thousandth (milliseconds of a family in seconds, per mille of a ratio).
    Milli,
    /// A millionth (microseconds of a family in seconds).
    Micro,
}

/// How the cores' cells become one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sum, only rising.
    Counter,
    /// The sum of what each core sets.
    GaugeSum(Scale),
    /// The largest of what each core sets.
    GaugeMax(Scale),
    /// One series per core.
    GaugePerCore(Scale),
    /// One rising series per core.
    CounterPerCore,
    /// Buckets added up.
    Histogram(Scale),
}

/// One label of a family.
#[derive(Clone, Copy, Debug)]
pub enum LabelSet {
    /// A name and its fixed values.
    Words(&'static str, &'static [&'static str]),
    /// `source_id`.
    Sources,
    /// `sink`.
    Sinks,
}

impl LabelSet {
    pub(super) fn name(&self) -> &'static str {
        match self {
            LabelSet::Words(name, _) => name,
            LabelSet::Sources => "source_id",
            LabelSet::Sinks => "sink",
        }
    }

    fn count(&self, sources: usize, sinks: usize) -> usize {
        match self {
            LabelSet::Words(_, words) => words.len(),
            LabelSet::Sources => sources,
            LabelSet::Sinks => sinks,
        }
    }
}

/// One family.
#[derive(Debug)]
pub struct Family {
    /// Name, with its unit.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Labels, outermost first.
    pub labels: &'static [LabelSet],
    /// Exists only when there is an intake.
    pub only_with_intake: bool,
    /// Help text.
    pub help: &'static str,
}

impl Family {
    pub(super) fn series_count(&self, sources: usize, sinks: usize) -> usize {
        self.labels
            .iter()
            .map(|label| label.count(sources, sinks))
            .product()
    }

    /// Cells of one series: a histogram has its buckets and the sum.
    pub(super) fn cells_each(&self) -> usize {
        match self.kind {
            Kind::Histogram(_) => BUCKETS_COUNT + 1,
            _ => 1,
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $name { $($variant),* }
        impl $name {
            /// The label values, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The label value.
            pub fn word(self) -> &'static str { Self::WORDS[self as usize] }
            /// The variant with this label value.
            pub fn from_word(word: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|variant| variant.word() == word)
            }
        }
    };
}

words! {
    /// What became of a request that found its source.
    IngestOutcome {
        Committed = "committed", Duplicate = "duplicate", Quarantined = "quarantined",
        Rejected = "rejected", RateLimited = "rate_limited",
        QuarantineRateLimited = "quarantine_rate_limited", QuarantineFull = "quarantine_full",
        Overload = "overload", StoreUnavailable = "store_unavailable", StoreFull = "store_full",
        IntakeUnavailable = "intake_unavailable", IntakePending = "intake_pending",
        DedupePending = "dedupe_pending",
    }
}
words! {
    /// Why a request was refused before its source judged it.
    RefusedReason {
        UnknownSource = "unknown_source", NotFound = "not_found",
        MethodNotAllowed = "method_not_allowed", PayloadTooLarge = "payload_too_large",
        HeadersTooLarge = "headers_too_large", InvalidHeader = "invalid_header",
        MalformedRequest = "malformed_request", BodyReadFailed = "body_read_failed",
        RequestTimeout = "request_timeout", TooManyConnections = "too_many_connections",
        Overload = "overload",
    }
}
words! {
    /// How a delivery attempt ended.
    DeliveryResult {
        Delivered = "delivered", Retry = "retry", Permanent = "permanent",
    }
}
words! {
    /// How a backup ended.
    BackupResult { Ok = "ok", Failed = "failed" }
}
words! {
    /// How a publish to the intake log ended.
    PublishOutcome {
        Ok = "ok", Unavailable = "unavailable", Throttled = "throttled",
        Permanent = "permanent", NotFound = "not_found",
    }
}
words! {
    /// The class of a failed publish.
    IntakeClass {
        Unavailable = "unavailable", Throttled = "throttled", Permanent = "permanent",
        NotFound = "not_found",
    }
}
words! {
    /// The half that was completed.
    Half { Local = "local", Log = "log" }
}
words! {
    /// Why the intake refused a hook.
    IntakeRefusal {
        Breaker = "breaker", Backlog = "backlog", PendingDedupe = "pending_dedupe",
        RecordTooLarge = "record_too_large",
    }
}
words! {
    /// What became of a replayed record.
    ReplayResult {
        Applied = "applied", Present = "present", Collision = "collision",
        Unroutable = "unroutable", SkippedUnknown = "skipped_unknown",
    }
}

macro_rules! families {
    ($($variant:ident $name:literal $kind:expr, [$($label:expr),*], $intake:literal, $help:literal;)*) => {
        /// Names a family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Metric { $($variant),* }

        impl Metric {
            /// Every family, in the order of the exposition.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant),*];

            /// The family.
            pub fn family(self) -> &'static Family {
                const FAMILIES: &[Family] = &[$(Family {
                    name: $name, kind: $kind, labels: &[$($label),*],
                    only_with_intake: $intake, help: $help,
                }),*];
                &FAMILIES[self as usize]
            }
        }
    };
}

use Kind::{Counter, CounterPerCore, GaugeMax, GaugePerCore, GaugeSum, Histogram};
use LabelSet::{Sinks, Sources, Words};
use Scale::{Micro, Milli, Whole};

families! {
    IngestRequests "ankusa_ingest_requests_total" Counter, [Sources, Words("outcome", IngestOutcome::WORDS)], false,
        "Requests that found their source, by what became of them.";
    IngestDuration "ankusa_ingest_duration_seconds" Histogram(Micro), [], false,
        "From the head of a request to its answer.";
    IngestRefused "ankusa_ingest_refused_total" Counter, [Words("reason", RefusedReason::WORDS)], false,
        "Requests refused before a source judged them.";
    IngestMalformed "ankusa_ingest_malformed_total" Counter, [Words("reason", Doubt::WORDS)], false,
        "Requests refused as malformed, by what of them is in doubt.";
    VerifyFailures "ankusa_verify_failures_total" Counter, [], false,
        "Requests whose signature did not verify.";
    LoadShed "ankusa_load_shed_total" Counter, [], false,
        "Requests refused because too much was waiting.";
    WalCommitDuration "ankusa_wal_commit_duration_seconds" Histogram(Micro), [], false,
        "From the queueing of a hook to its answer, once its group is durable.";
    WalSyncDuration "ankusa_wal_sync_duration_seconds" Histogram(Micro), [], false,
        "Write and sync of a group.";
    WalCommitBatchSize "ankusa_wal_commit_batch_size" Histogram(Whole), [], false,
        "Records in a group.";
    WalFences "ankusa_wal_fences_total" Counter, [], false,
        "Failed writes or syncs that started a new segment.";
    WalReadFailures "ankusa_wal_read_failures_total" Counter, [], false,
        "Live hooks that could not be read when they were to be moved; each counts once a minute.";
    DispatchDeliveries "ankusa_dispatch_deliveries_total" Counter, [Words("result", DeliveryResult::WORDS), Sinks], false,
        "Delivery attempts, by how they ended.";
    DispatchAttemptDuration "ankusa_dispatch_attempt_duration_seconds" Histogram(Micro), [], false,
        "One delivery attempt, reading the hook included.";
    DispatchDeadLettered "ankusa_dispatch_dead_lettered_total" Counter, [], false,
        "Deliveries given up on.";
    DispatchBreakerTransitions "ankusa_dispatch_breaker_transitions_total" Counter, [], false,
        "Changes of state of the sinks' breakers.";
    DispatchReadFailures "ankusa_dispatch_read_failures_total" Counter, [], false,
        "Hooks that could not be read for delivery; they stay due.";
    DispatchBreakersOpen "ankusa_dispatch_breakers_open" GaugeSum(Whole), [], false,
        "Sinks whose breaker is not closed, counted per core.";
    DispatchPausedSinks "ankusa_dispatch_paused_sinks" GaugeMax(Whole), [], false,
        "Sinks that are paused.";
    DispatchPausedHooks "ankusa_dispatch_paused_hooks" GaugeSum(Whole), [], false,
        "Deliveries that wait for a paused sink.";
    QueuePending "ankusa_queue_pending" GaugeSum(Whole), [], false,
        "Deliveries that could start now.";
    QueueScheduled "ankusa_queue_scheduled" GaugeSum(Whole), [], false,
        "Deliveries waiting for their next attempt.";
    QueueInflight "ankusa_queue_inflight" GaugeSum(Whole), [], false,
        "Deliveries under way.";
    QueueInflightBytes "ankusa_queue_inflight_bytes" GaugeSum(Whole), [], false,
        "Bytes of the deliveries under way.";
    QueueDead "ankusa_queue_dead" GaugeSum(Whole), [], false,
        "Dead letters.";
    OldestDueAge "ankusa_dispatch_oldest_due_age_seconds" GaugeMax(Milli), [], false,
        "How long the oldest delivery that could start has been due.";
    StoreHooks "ankusa_store_hooks" GaugeSum(Whole), [], false,
        "Live hooks.";
    StoreDeliveries "ankusa_store_deliveries" GaugeSum(Whole), [], false,
        "Unfinished deliveries.";
    StoreDiskBytes "ankusa_store_disk_bytes" GaugeSum(Whole), [], false,
        "Bytes of the store's files.";
    StoreLiveBytes "ankusa_store_live_bytes" GaugeSum(Whole), [], false,
        "Bytes of the records of live hooks.";
    StoreFreeBytes "ankusa_store_free_bytes" GaugeMax(Whole), [], false,
        "Free bytes of the store's file system.";
    StoreSlots "ankusa_store_slots" GaugeSum(Whole), [], false,
        "Segment slots.";
    StoreSlotsSpare "ankusa_store_slots_spare" GaugeSum(Whole), [], false,
        "Segment slots ready for use.";
    StoreAppendedBytes "ankusa_store_appended_bytes_total" Counter, [], false,
        "Bytes appended, padding included.";
    CommitQueue "ankusa_commit_queue_records" GaugeSum(Whole), [], false,
        "Hooks waiting for a group.";
    CommitQueueBytes "ankusa_commit_queue_bytes" GaugeSum(Whole), [], false,
        "Bytes of the hooks waiting for a group.";
    DedupeKeys "ankusa_dedupe_keys" GaugeSum(Whole), [], false,
        "Dedupe keys kept.";
    DedupeEvicted "ankusa_dedupe_evicted_total" Counter, [], false,
        "Dedupe keys dropped before their time.";
    DedupeMismatches "ankusa_dedupe_mismatches_total" Counter, [], false,
        "Duplicates whose body was another one.";
    QuarantineHooks "ankusa_quarantine_hooks" GaugeSum(Whole), [], false,
        "Hooks in quarantine.";
    QuarantineBytes "ankusa_quarantine_bytes" GaugeSum(Whole), [], false,
        "Bytes of the hooks in quarantine.";
    BackupRuns "ankusa_backup_runs_total" Counter, [Words("result", BackupResult::WORDS)], false,
        "Backups, by how they ended.";
    BackupAge "ankusa_backup_age_seconds" GaugeMax(Milli), [], false,
        "Age of the newest backup.";
    LogLinesDropped "ankusa_log_lines_dropped_total" Counter, [], false,
        "Log lines dropped because nobody took them.";
    ProcessResidentMemory "ankusa_process_resident_memory_bytes" GaugeMax(Whole), [], false,
        "Resident memory of the process.";
    ProcessOpenFds "ankusa_process_open_fds" GaugeMax(Whole), [], false,
        "Open file descriptors of the process.";
    CoreQueueDepth "ankusa_core_queue_depth" GaugePerCore(Whole), [], false,
        "Requests waiting on the core.";
    CoreStalls "ankusa_core_reactor_stalls_total" CounterPerCore, [], false,
        "Times the core did not come round for too long.";
    CoreBusy "ankusa_core_busy_ratio" GaugePerCore(Milli), [], false,
        "Share of the time that the core was busy.";
    CoreConnections "ankusa_core_connections" GaugePerCore(Whole), [], false,
        "Open ingest connections of the core.";

    IntakePublishDuration "ankusa_intake_publish_duration_seconds" Histogram(Micro), [Words("outcome", PublishOutcome::WORDS)], true,
        "Publish of a record to the intake log.";
    IntakeFailures "ankusa_intake_failures_total" Counter, [Words("class", IntakeClass::WORDS)], true,
        "Failed publishes.";
    IntakePendingRecords "ankusa_intake_pending_records" GaugeSum(Whole), [], true,
        "Records not yet confirmed in both places.";
    IntakePendingBytes "ankusa_intake_pending_bytes" GaugeSum(Whole), [], true,
        "Bytes of these records.";
    IntakeReconcileOldestAge "ankusa_intake_reconcile_oldest_age_seconds" GaugeMax(Milli), [], true,
        "Age of the oldest record that the reconciler holds.";
    IntakeReconcileStuck "ankusa_intake_reconcile_stuck" GaugeSum(Whole), [], true,
        "Records that were not completed within their deadline.";
    IntakeReconciled "ankusa_intake_reconciled_total" Counter, [Words("half", Half::WORDS)], true,
        "Missing halves that were completed.";
    IntakeRefused "ankusa_intake_refused_total" Counter, [Words("reason", IntakeRefusal::WORDS)], true,
        "Hooks refused because of the intake.";
    IntakeOffsetLag "ankusa_intake_offset_lag_seconds" GaugeMax(Milli), [], true,
        "Age of the oldest record of this node above the offset; 0 when idle.";
    IntakeReady "ankusa_intake_ready" GaugeMax(Whole), [], true,
        "1 while the intake log answers and its topic is as it must be.";
    IntakeCertificateEnd "ankusa_intake_certificate_end_timestamp_seconds" GaugeMax(Whole), [], true,
        "When the first of the intake client's certificates ends, in seconds since 1970; 0 without one.";
    IntakeReplay "ankusa_intake_replay_total" Counter, [Words("result", ReplayResult::WORDS)], true,
        "Records replayed from the intake log.";
    IntakeReplayDuration "ankusa_intake_replay_duration_seconds" Histogram(Micro), [], true,
        "One boot replay.";
}
