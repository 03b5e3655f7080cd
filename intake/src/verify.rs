//! The rules a topic's settings must meet, apart from how they are asked for.
//!
//! Every finding is reported at once, each with the setting, what it is, what it must be and the
//! command that sets it. A finding refuses; a warning is only said. Pure.

use std::fmt;

/// What the configuration needs of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// `backup.max_age_ms`: retention must be at least twice this.
    pub backup_max_age_ms: u64,
    /// `intake.max_record_bytes`.
    pub max_record_bytes: u64,
}

/// One setting that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The setting's name, as the log knows it.
    pub setting: &'static str,
    /// What it is.
    pub is: String,
    /// What it must be.
    pub must_be: String,
    /// The command that sets it.
    pub command: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            setting,
            is,
            must_be,
            command,
        } = self;
        write!(f, "{setting} is {is}, must be {must_be}: {command}")
    }
}

/// What the log is and whether it will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// What tells this log from another one of the same name (Kafka: the topic id).
    pub identity: String,
    /// How many partitions it has.
    pub partitions: u32,
    /// Copies of each record, the least over the partitions.
    pub replicas: u32,
    /// `min.insync.replicas`.
    pub min_insync: u32,
    /// What keeps the node from being ready.
    pub findings: Vec<Finding>,
    /// What is only said.
    pub warnings: Vec<Finding>,
}

/// A topic as the brokers describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicFacts {
    /// Topic name.
    pub topic: String,
    /// Topic id.
    pub identity: String,
    /// Number of partitions.
    pub partitions: u32,
    /// The least replication factor over the partitions.
    pub replicas: u32,
    /// `min.insync.replicas`.
    pub min_insync: Option<String>,
    /// `unclean.leader.election.enable`.
    pub unclean: Option<String>,
    /// `retention.ms`.
    pub retention_ms: Option<String>,
    /// `retention.bytes`.
    pub retention_bytes: Option<String>,
    /// `max.message.bytes`.
    pub max_message_bytes: Option<String>,
    /// `cleanup.policy`.
    pub cleanup_policy: Option<String>,
    /// `message.timestamp.type`.
    pub timestamp_type: Option<String>,
}

impl TopicFacts {
    /// Holds the facts against what is expected.
    pub fn judge(&self, expected: Expected) -> Verified {
        let mut findings = Vec::new();
        let mut warnings = Vec::new();
        let topic = &self.topic;
        let alter = |setting: &str, value: &str| {
            format!(
                "kafka-configs.sh --bootstrap-server BROKER --alter --entity-type topics \
                 --entity-name {topic} --add-config {setting}={value}"
            )
        };
        if self.replicas < 3 {
            findings.push(Finding {
                setting: "replication factor",
                is: self.replicas.to_string(),
                must_be: "at least 3".into(),
                command: format!(
                    "kafka-reassign-partitions.sh --bootstrap-server BROKER --execute \
                     --reassignment-json-file FILE (three replicas for each partition of {topic})"
                ),
            });
        }
        let wanted_retention = expected.backup_max_age_ms.saturating_mul(2);
        let wanted_bytes = expected.max_record_bytes;
        let at_least = |value: &str, least: u64| {
            value
                .parse::<i64>()
                .is_ok_and(|v| v < 0 || v as u64 >= least)
        };
        let not_below = |value: &str, least: u64| value.parse::<u64>().is_ok_and(|v| v >= least);
        let mut rule = |setting: &'static str,
                        value: &Option<String>,
                        ok: &dyn Fn(&str) -> bool,
                        must_be: String,
                        set: &str| {
            if !value.as_deref().is_some_and(ok) {
                findings.push(Finding {
                    setting,
                    is: value.clone().unwrap_or_else(|| "not told".into()),
                    must_be,
                    command: alter(setting, set),
                });
            }
        };
        rule(
            "min.insync.replicas",
            &self.min_insync,
            &|v| not_below(v, 2),
            "at least 2".into(),
            "2",
        );
        rule(
            "unclean.leader.election.enable",
            &self.unclean,
            &|v| v == "false",
            "false".into(),
            "false",
        );
        rule(
            "retention.ms",
            &self.retention_ms,
            &|v| at_least(v, wanted_retention),
            format!("at least {wanted_retention} (twice backup.max_age_ms) or -1"),
            &wanted_retention.to_string(),
        );
        rule(
            "max.message.bytes",
            &self.max_message_bytes,
            &|v| not_below(v, wanted_bytes),
            format!("at least {wanted_bytes} (intake.max_record_bytes)"),
            &wanted_bytes.to_string(),
        );
        rule(
            "cleanup.policy",
            &self.cleanup_policy,
            &|v| v == "delete",
            "delete (compaction removes hooks: they share one key)".into(),
            "delete",
        );
        if self
            .retention_bytes
            .as_deref()
            .is_none_or(|v| !v.starts_with('-'))
        {
            warnings.push(Finding {
                setting: "retention.bytes",
                is: self
                    .retention_bytes
                    .clone()
                    .unwrap_or_else(|| "not told".into()),
                must_be: "-1, or enough for retention.ms at the node's rate".into(),
                command: alter("retention.bytes", "-1"),
            });
        }
        if self.timestamp_type.as_deref() != Some("LogAppendTime") {
            warnings.push(Finding {
                setting: "message.timestamp.type",
                is: self
                    .timestamp_type
                    .clone()
                    .unwrap_or_else(|| "not told".into()),
                must_be: "LogAppendTime (else retention follows the node's clock)".into(),
                command: alter("message.timestamp.type", "LogAppendTime"),
            });
        }
        Verified {
            identity: self.identity.clone(),
            partitions: self.partitions,
            replicas: self.replicas,
            min_insync: self
                .min_insync
                .as_deref()
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
            findings,
            warnings,
        }
    }
}

#[cfg(test)]
mod tests;
