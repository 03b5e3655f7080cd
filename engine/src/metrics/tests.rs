//! Facts about buckets, merging and the exposition.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::families::Kind;
use super::histogram::{BUCKETS_COUNT, bucket_of, upper_bound};
use super::*;

fn registry(with_intake: bool) -> Arc<Registry> {
    Registry::new(MetricsConfig {
        cores: 2,
        sources: vec!["payments".into(), "git\"hub".into()],
        sinks: vec!["payments/app".into()],
        with_intake,
    })
}

fn sample(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(series)
            .is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn every_value_falls_in_the_bucket_whose_bounds_hold_it() {
    let mut values: Vec<u64> = (0..5_000).collect();
    for bits in 4..64 {
        let power = 1u64 << bits;
        values.extend([power - 1, power, power + 1, power + power / 3]);
    }
    values.push(u64::MAX);
    for value in values {
        let bucket = bucket_of(value);
        assert!(
            upper_bound(bucket).is_none_or(|bound| value <= bound),
            "{value} in {bucket}"
        );
        if bucket > 0 {
            assert!(
                upper_bound(bucket - 1).unwrap() < value,
                "{value} in {bucket}"
            );
        }
    }
}

#[test]
fn bounds_rise_by_at_most_a_quarter() {
    for bucket in 1..BUCKETS_COUNT - 1 {
        let (low, high) = (
            upper_bound(bucket - 1).unwrap(),
            upper_bound(bucket).unwrap(),
        );
        assert!(high > low && (high - low) * 4 <= low, "{low} to {high}");
    }
    assert_eq!(upper_bound(BUCKETS_COUNT - 2), Some(1 << 27));
    assert_eq!(upper_bound(BUCKETS_COUNT - 1), None);
}

#[test]
fn scrape_adds_up_the_cores() {
    let registry = registry(false);
    let (a, b) = (registry.core(0).unwrap(), registry.core(1).unwrap());
    let payments = registry.source("payments");
    a.ingest_request(payments, IngestOutcome::Committed);
    b.ingest_request(payments, IngestOutcome::Committed);
    b.ingest_request(
        registry.source("made over the api"),
        IngestOutcome::Duplicate,
    );
    a.delivery(registry.sink("payments/app"), DeliveryResult::Retry);
    a.set(Metric::QueuePending, 3);
    b.set(Metric::QueuePending, 4);
    a.set(Metric::OldestDueAge, 1_500);
    b.set(Metric::OldestDueAge, 250);
    a.set(Metric::CoreQueueDepth, 9);
    registry.node_add(Metric::BackupRuns, BackupResult::Failed as usize, 2);
    let text = registry.render();
    for (series, value) in [
        (
            "ankusa_ingest_requests_total{source_id=\"payments\",outcome=\"committed\"}",
            2.0,
        ),
        (
            "ankusa_ingest_requests_total{source_id=\"other\",outcome=\"duplicate\"}",
            1.0,
        ),
        (
            "ankusa_ingest_requests_total{source_id=\"git\\\"hub\",outcome=\"overload\"}",
            0.0,
        ),
        (
            "ankusa_dispatch_deliveries_total{result=\"retry\",sink=\"payments/app\"}",
            1.0,
        ),
        ("ankusa_queue_pending", 7.0),
        ("ankusa_dispatch_oldest_due_age_seconds", 1.5),
        ("ankusa_core_queue_depth{core=\"0\"}", 9.0),
        ("ankusa_core_queue_depth{core=\"1\"}", 0.0),
        ("ankusa_backup_runs_total{result=\"failed\"}", 2.0),
    ] {
        assert_eq!(sample(&text, series), Some(value), "{series}\n{text}");
    }
}

#[test]
fn histogram_shows_cumulative_buckets_sum_and_count() {
    let registry = registry(true);
    let core = registry.core(0).unwrap();
    for us in [5, 1_000, 1_000_000, u64::from(u32::MAX)] {
        core.observe(Metric::WalSyncDuration, us);
    }
    core.publish(PublishOutcome::Throttled, 20);
    let text = registry.render();
    let name = "ankusa_wal_sync_duration_seconds";
    assert_eq!(
        sample(&text, &format!("{name}_bucket{{le=\"0.000016\"}}")),
        Some(1.0)
    );
    assert_eq!(
        sample(&text, &format!("{name}_bucket{{le=\"0.001024\"}}")),
        Some(2.0)
    );
    assert_eq!(
        sample(&text, &format!("{name}_bucket{{le=\"134.217728\"}}")),
        Some(3.0)
    );
    assert_eq!(
        sample(&text, &format!("{name}_bucket{{le=\"+Inf\"}}")),
        Some(4.0)
    );
    assert_eq!(sample(&text, &format!("{name}_count")), Some(4.0));
    assert_eq!(sample(&text, &format!("{name}_sum")), Some(4295.968300));
    let publish = "ankusa_intake_publish_duration_seconds_count{outcome=\"throttled\"}";
    assert_eq!(sample(&text, publish), Some(1.0));
}

#[test]
fn series_do_not_grow_with_tenants_or_traffic() {
    let registry = registry(true);
    let core = registry.core(0).unwrap();
    let before = registry.render().lines().count();
    for n in 0..10_000u64 {
        let (source, sink) = (format!("source-{n}"), format!("tenant-{n}/source/sink"));
        core.ingest_request(
            registry.source(&source),
            IngestOutcome::ALL[(n % 13) as usize],
        );
        core.delivery(registry.sink(&sink), DeliveryResult::Delivered);
        core.observe(Metric::IngestDuration, n * n);
        core.ingest_refused(RefusedReason::ALL[(n % 10) as usize]);
    }
    assert_eq!(registry.render().lines().count(), before);
}

#[test]
fn every_name_is_well_formed_unique_and_says_its_unit() {
    let mut seen = HashSet::new();
    for metric in Metric::ALL {
        let family = metric.family();
        assert!(seen.insert(family.name), "{} twice", family.name);
        assert!(family.name.starts_with("ankusa_"));
        assert!(
            family
                .name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        );
        let is_counter = matches!(family.kind, Kind::Counter | Kind::CounterPerCore);
        assert_eq!(
            is_counter,
            family.name.ends_with("_total"),
            "{}",
            family.name
        );
        assert_eq!(
            family.only_with_intake,
            family.name.starts_with("ankusa_intake_")
        );
    }
}

/// The names that dashboards and alert rules rely on.
#[test]
fn promised_families_are_all_there_with_their_labels() {
    let text = registry(true).render();
    for (name, labels) in [
        ("ankusa_ingest_requests_total", "source_id,outcome"),
        ("ankusa_ingest_duration_seconds", ""),
        ("ankusa_ingest_refused_total", "reason"),
        ("ankusa_verify_failures_total", ""),
        ("ankusa_wal_commit_duration_seconds", ""),
        ("ankusa_wal_sync_duration_seconds", ""),
        ("ankusa_wal_commit_batch_size", ""),
        ("ankusa_load_shed_total", ""),
        ("ankusa_dispatch_deliveries_total", "result,sink"),
        ("ankusa_dispatch_dead_lettered_total", ""),
        ("ankusa_dispatch_breaker_transitions_total", ""),
        ("ankusa_backup_runs_total", "result"),
        ("ankusa_backup_age_seconds", ""),
        ("ankusa_intake_publish_duration_seconds", "outcome"),
        ("ankusa_intake_failures_total", "class"),
        ("ankusa_intake_pending_records", ""),
        ("ankusa_intake_pending_bytes", ""),
        ("ankusa_intake_reconcile_oldest_age_seconds", ""),
        ("ankusa_intake_reconcile_stuck", ""),
        ("ankusa_intake_reconciled_total", "half"),
        ("ankusa_intake_refused_total", "reason"),
        ("ankusa_intake_offset_lag_seconds", ""),
        ("ankusa_intake_ready", ""),
        ("ankusa_intake_replay_total", "result"),
        ("ankusa_intake_replay_duration_seconds", ""),
    ] {
        let metric = Metric::ALL
            .iter()
            .find(|m| m.family().name == name)
            .unwrap();
        let got: Vec<&str> = metric.family().labels.iter().map(|l| l.name()).collect();
        assert_eq!(got.join(","), labels, "{name}");
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
    }
}

#[test]
fn without_an_intake_its_families_are_absent_and_recording_them_does_nothing() {
    let registry = registry(false);
    let core = registry.core(0).unwrap();
    core.publish(PublishOutcome::Ok, 5);
    core.intake_refused(IntakeRefusal::Backlog);
    assert!(!registry.render().contains("ankusa_intake"));
}

#[test]
fn a_core_has_one_writer() {
    let registry = registry(false);
    assert!(registry.core(1).is_some());
    assert!(registry.core(1).is_none());
    assert!(registry.core(2).is_none());
}

#[test]
fn exposition_is_well_formed() {
    for line in registry(true).render().lines() {
        if line.starts_with('#') {
            assert!(line.starts_with("# HELP ankusa_") || line.starts_with("# TYPE ankusa_"));
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
    }
}

#[test]
fn gap_longer_than_the_tolerance_is_a_stall_and_the_first_beat_is_none() {
    let meter = StallMeter::new(Duration::from_millis(100), Duration::from_millis(50));
    let beats = [
        7_000_000, 7_150_000, 7_300_001, 7_300_001, 7_000_000, 7_500_000,
    ];
    let stalls: Vec<bool> = beats.iter().map(|us| meter.beat(*us)).collect();
    assert_eq!(stalls, [false, false, true, false, false, true]);
}

#[test]
fn words_lead_back_to_their_variants() {
    for reason in RefusedReason::ALL {
        assert_eq!(RefusedReason::from_word(reason.word()), Some(*reason));
    }
    assert_eq!(
        IntakeRefusal::from_word("pending_dedupe"),
        Some(IntakeRefusal::PendingDedupe)
    );
    assert_eq!(IntakeRefusal::from_word("nonsense"), None);
}

/// What dashboards and rules ask for exists.
#[test]
fn dashboard_and_alert_rules_name_families_that_exist() {
    let shipped = [
        include_str!("../../../docs/ops/dashboard.json"),
        include_str!("../../../docs/ops/alerts.yml"),
    ];
    let known: Vec<&str> = Metric::ALL.iter().map(|m| m.family().name).collect();
    let mut asked = 0;
    for text in shipped {
        for at in text.match_indices("ankusa_").map(|(at, _)| at) {
            let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            let rest = &text[at..];
            let name = rest.split(word).next().unwrap_or_default();
            let family = name.trim_end_matches("_bucket");
            assert!(known.contains(&family), "{name}");
            asked += 1;
        }
    }
    assert!(asked > 20);
}
