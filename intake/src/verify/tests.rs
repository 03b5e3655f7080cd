//! Each bad setting is found, alone and with all others.
#![allow(clippy::unwrap_used)]

use super::*;

const EXPECTED: Expected = Expected {
    backup_max_age_ms: 3_600_000,
    max_record_bytes: 10_000_000,
};

fn good() -> TopicFacts {
    let some = |v: &str| Some(v.to_owned());
    TopicFacts {
        topic: "t".into(),
        identity: "id".into(),
        partitions: 8,
        replicas: 3,
        min_insync: some("2"),
        unclean: some("false"),
        retention_ms: some("7200000"),
        retention_bytes: some("-1"),
        max_message_bytes: some("10000000"),
        cleanup_policy: some("delete"),
        timestamp_type: some("LogAppendTime"),
    }
}

#[test]
fn a_topic_as_documented_has_no_finding() {
    let verified = good().judge(EXPECTED);
    assert_eq!((verified.findings, verified.warnings), (vec![], vec![]));
    let endless = TopicFacts {
        retention_ms: Some("-1".into()),
        ..good()
    };
    assert_eq!(endless.judge(EXPECTED).findings, vec![]);
}

#[test]
fn each_bad_setting_is_named_with_what_it_must_be_and_the_command() {
    let bad = |v: &str| Some(v.to_owned());
    let cases = [
        (
            "replication factor",
            TopicFacts {
                replicas: 2,
                ..good()
            },
        ),
        (
            "min.insync.replicas",
            TopicFacts {
                min_insync: bad("1"),
                ..good()
            },
        ),
        (
            "min.insync.replicas",
            TopicFacts {
                min_insync: None,
                ..good()
            },
        ),
        (
            "unclean.leader.election.enable",
            TopicFacts {
                unclean: bad("true"),
                ..good()
            },
        ),
        (
            "retention.ms",
            TopicFacts {
                retention_ms: bad("7199999"),
                ..good()
            },
        ),
        (
            "max.message.bytes",
            TopicFacts {
                max_message_bytes: bad("9999999"),
                ..good()
            },
        ),
        (
            "cleanup.policy",
            TopicFacts {
                cleanup_policy: bad("compact"),
                ..good()
            },
        ),
        (
            "cleanup.policy",
            TopicFacts {
                cleanup_policy: bad("compact,delete"),
                ..good()
            },
        ),
    ];
    for (setting, facts) in cases {
        let findings = facts.judge(EXPECTED).findings;
        let names: Vec<_> = findings.iter().map(|f| f.setting).collect();
        assert_eq!(names, [setting]);
        assert!(findings[0].command.contains(" t"), "{}", findings[0]);
    }
}

#[test]
fn all_bad_settings_are_found_at_once() {
    let facts = TopicFacts {
        topic: "t".into(),
        ..TopicFacts::default()
    };
    let verified = facts.judge(EXPECTED);
    assert_eq!((verified.findings.len(), verified.warnings.len()), (6, 2));
}
