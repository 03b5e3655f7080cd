//! Rules between keys.
//!
//! A rule is silent while one of its keys is faulty by itself. Pure; runs at boot, at a reload and
//! offline.

use std::net::IpAddr;

use super::Config;
use super::areas::{DedupeScope, IntakeType, KafkaConfig, SaslMechanism, WalType};
use super::problem::{Fault, Place};
use super::values::Values;

/// What a hook takes beside its body and head, at most.
const ENVELOPE_BYTES: u64 = 65_536;

struct Rules<'a> {
    values: &'a Values,
}

impl Rules<'_> {
    /// `keys[0]` is the one to blame; where it is not there, the first that is gives the place.
    fn check(&self, keys: &[&str], good: bool, why: impl FnOnce() -> String) {
        if !good && !keys.iter().any(|key| self.values.faulty(key)) {
            self.values
                .fault(keys[0].to_string(), self.place(keys), Fault::Rule(why()));
        }
    }

    /// The line of the key that asks for it is where a missing key belongs.
    fn required(&self, key: &str, there: bool, asking: &str, why: &str) {
        if !there && !self.values.faulty(key) && !self.values.faulty(asking) {
            let place = self.place(&[key, asking]);
            self.values
                .fault(key.to_string(), place, Fault::Missing(format!(": {why}")));
        }
    }

    fn place(&self, keys: &[&str]) -> Place {
        let places = keys.iter().map(|key| self.values.place(key));
        places
            .into_iter()
            .find(|place| *place != Place::Default)
            .unwrap_or(Place::Default)
    }
}

/// Checks every rule.
pub(super) fn check(c: &Config, values: &Values) {
    let r = Rules { values };
    listeners(c, &r);
    taken_paths(c, &r);
    sizes(c, &r);
    dispatch(c, &r);
    if c.dedupe.scope == DedupeScope::Fleet {
        r.required(
            "fleet.redis_url",
            c.dedupe.redis_url.is_some(),
            "dedupe.scope",
            "dedupe.scope is fleet",
        );
    }
    if c.wal.kind == WalType::Dual {
        dual(c, &r);
    }
    if c.backup.enabled {
        r.required(
            "backup.store",
            c.backup.store.is_some(),
            "backup.enabled",
            "backup.enabled is true",
        );
        r.required(
            "backup.signing_key",
            c.backup.signing_key.is_some(),
            "backup.enabled",
            "backup.enabled is true, and a backup is signed",
        );
    }
    if c.backup.require_fresh {
        r.required(
            "backup.max_age_ms",
            c.backup.max_age_ms.is_some(),
            "backup.require_fresh",
            "backup.require_fresh is true",
        );
    }
    if let Some(age) = c.backup.max_age_ms {
        let interval = c.backup.interval_ms;
        r.check(
            &["backup.max_age_ms", "backup.interval_ms"],
            age > interval,
            || format!("{age} ms is not above backup.interval_ms ({interval} ms)"),
        );
    }
    let sinks: usize = c.sources.iter().map(|s| s.sinks.len()).sum();
    r.check(&["sources"], sinks <= 60_000, || {
        format!("{sinks} sinks in all; allowed: at most 60000")
    });
}

fn listeners(c: &Config, r: &Rules<'_>) {
    r.check(
        &["admin.port", "http.port", "admin.ip", "http.ip"],
        c.admin.port != c.http.port || !overlap(c.admin.ip, c.http.ip),
        || format!("{} is the port of http.port as well", c.admin.port),
    );
    r.check(
        &["admin.token", "admin.ip"],
        c.admin.token.is_some() || c.admin.ip.is_loopback(),
        || {
            format!(
                "is required: admin.ip is {}, which is not a loopback address",
                c.admin.ip
            )
        },
    );
    if let Some(token) = &c.admin.token {
        let good = token.expose().iter().all(|b| (b'!'..=b'~').contains(b));
        r.check(&["admin.token"], good, || "holds a character that cannot stand in an authorization header; use printable ASCII without spaces".into());
    }
}

/// Without a prefix a source has the paths right under the root, where two are taken.
fn taken_paths(c: &Config, r: &Rules<'_>) {
    for source in c.sources.iter().filter(|_| c.http.prefix.is_empty()) {
        let taken = matches!(source.name.as_str(), "health" | "ready");
        let key = format!("sources.{}", source.name);
        r.check(&[&key, "http.prefix"], !taken, || {
            format!(
                "http.prefix is / and /{} is asked by balancers; give the source another name",
                source.name
            )
        });
    }
}

fn overlap(a: IpAddr, b: IpAddr) -> bool {
    a == b || a.is_unspecified() || b.is_unspecified()
}

fn sizes(c: &Config, r: &Rules<'_>) {
    let segment = c.wal.segment_bytes;
    r.check(&["wal.segment_bytes"], segment.is_multiple_of(4096), || {
        format!("{segment} is not a multiple of 4096")
    });
    let largest = c.http.max_body_bytes + c.http.limits.head_bytes + ENVELOPE_BYTES;
    r.check(&["wal.segment_bytes", "http.max_body_bytes", "http.limits.head_bytes"], segment > largest, || {
        format!("{segment} bytes cannot hold the largest hook: http.max_body_bytes + http.limits.head_bytes + 65536 is {largest}")
    });
    let group = c.wal.group_max_bytes;
    r.check(
        &["wal.group_max_bytes", "wal.segment_bytes"],
        group <= segment / 2,
        || format!("{group} bytes is more than half of wal.segment_bytes ({segment})"),
    );
    for (key, max) in [
        ("queue.max_bytes", c.queue.max_bytes),
        ("dispatch.max_inflight_bytes", c.dispatch.max_inflight_bytes),
    ] {
        r.check(&[key, "http.max_body_bytes", "http.limits.head_bytes"], max >= largest, || {
            format!("{max} bytes cannot hold the largest hook: http.max_body_bytes + http.limits.head_bytes + 65536 is {largest}")
        });
    }
}

fn dispatch(c: &Config, r: &Rules<'_>) {
    let (open, max) = (c.dispatch.breaker_open_ms, c.dispatch.breaker_max_open_ms);
    r.check(
        &["dispatch.breaker_max_open_ms", "dispatch.breaker_open_ms"],
        max >= open,
        || format!("{max} ms is below dispatch.breaker_open_ms ({open} ms)"),
    );
    let retry = |path: String, base: u64, max: u64| {
        let base_key = format!("{path}.base_ms");
        r.check(&[&format!("{path}.max_ms"), &base_key], max >= base, || {
            format!("{max} ms is below {base_key} ({base} ms)")
        });
    };
    retry(
        "dispatch.retry".into(),
        c.dispatch.retry.base_ms,
        c.dispatch.retry.max_ms,
    );
    if r.values.faulty("dispatch.retry") || c.dispatch.retry.max_ms < c.dispatch.retry.base_ms {
        return;
    }
    for source in &c.sources {
        retry(
            format!("sources.{}.retry", source.name),
            source.retry.base_ms,
            source.retry.max_ms,
        );
    }
}

fn dual(c: &Config, r: &Rules<'_>) {
    r.required(
        "backup.enabled",
        c.backup.enabled,
        "wal.type",
        "wal.type is dual",
    );
    r.required(
        "backup.max_age_ms",
        c.backup.max_age_ms.is_some(),
        "wal.type",
        "wal.type is dual",
    );
    let found = |key: &str| r.values.found.contains_key(key);
    r.required(
        "intake.type",
        found("intake.type"),
        "wal.type",
        "wal.type is dual",
    );
    r.required(
        "intake.node_id",
        found("intake.node_id"),
        "wal.type",
        "wal.type is dual",
    );
    let Some(intake) = &c.intake else { return };
    if found("intake.type") {
        match intake.kind {
            IntakeType::Kafka => kafka(&intake.kafka, r),
            IntakeType::Jetstream => {
                r.required("intake.jetstream.url", !intake.jetstream.url.is_empty(), "intake.type", "intake.type is jetstream");
                r.required("intake.jetstream.stream", !intake.jetstream.stream.is_empty(), "intake.type", "intake.type is jetstream");
            }
            IntakeType::Memory => r.check(&["intake.type", "http.ip", "intake.memory"], c.http.ip.is_loopback() || intake.memory_allow_unsafe, || {
                format!("memory is lost with this host, and http.ip is {}, which is not a loopback address; for a test set intake.memory.allow_unsafe: true", c.http.ip)
            }),
        }
    }
    let (publish, deadline) = (intake.publish_timeout_ms, c.http.limits.request_deadline_ms);
    r.check(
        &[
            "intake.publish_timeout_ms",
            "http.limits.request_deadline_ms",
        ],
        publish < deadline,
        || format!("{publish} ms is not below http.limits.request_deadline_ms ({deadline} ms)"),
    );
    let (reconcile, ttl) = (intake.reconcile_deadline_ms, c.dedupe.pending_ttl_ms);
    r.check(
        &[
            "intake.reconcile_deadline_ms",
            "fleet.pending_ttl_ms",
            "dedupe.scope",
        ],
        c.dedupe.scope == DedupeScope::Node || reconcile < ttl,
        || format!("{reconcile} ms is not below fleet.pending_ttl_ms ({ttl} ms)"),
    );
    let (record, least) = (
        intake.max_record_bytes,
        c.http.max_body_bytes + ENVELOPE_BYTES,
    );
    r.check(
        &["intake.max_record_bytes", "http.max_body_bytes"],
        record >= least,
        || format!("{record} bytes is below http.max_body_bytes + 65536 ({least})"),
    );
    r.check(
        &["intake.pending.max_bytes", "intake.max_record_bytes"],
        intake.pending_max_bytes >= record,
        || {
            format!(
                "{} bytes is below intake.max_record_bytes ({record})",
                intake.pending_max_bytes
            )
        },
    );
}

fn kafka(kafka: &KafkaConfig, r: &Rules<'_>) {
    r.required(
        "intake.kafka.brokers",
        !kafka.brokers.is_empty(),
        "intake.type",
        "intake.type is kafka",
    );
    let Some(sasl) = &kafka.sasl else { return };
    let mechanism = "intake.kafka.sasl.mechanism";
    let (password, file) = (sasl.password.is_some(), sasl.token_file.is_some());
    if sasl.mechanism == SaslMechanism::Oauthbearer {
        r.required(
            "intake.kafka.sasl.token_file",
            password || file,
            mechanism,
            "oauthbearer needs a token, here or in password",
        );
        r.check(
            &["intake.kafka.sasl.token_file", "intake.kafka.sasl.password"],
            !(password && file),
            || "stands beside password; only one of them can hold the token".into(),
        );
        return;
    }
    let why = "the mechanism has a user and a password";
    r.required(
        "intake.kafka.sasl.username",
        !sasl.username.is_empty(),
        mechanism,
        why,
    );
    r.required("intake.kafka.sasl.password", password, mechanism, why);
    r.check(&["intake.kafka.sasl.token_file"], !file, || {
        "has a meaning for the mechanism oauthbearer only".into()
    });
}
