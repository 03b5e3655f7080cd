//! What is allowed and most likely not meant: in the keys, in secrets, in variables.
//!
//! Only a configuration without a fault gets here. A text never holds a secret. Pure; runs at boot,
//! at a reload and offline.

use std::net::Ipv4Addr;

use super::areas::{
    EgressConfig, EgressRule, IntakeConfig, IntakeType, OnVerifyFailure, SaslMechanism, SinkKind,
    SinkUrl, UrlHost, VerifyConfig,
};
use super::expand::Env;
use super::load::FILE_VARIABLE;
use super::problem::Place;
use super::values::Values;
use super::{Config, Secret, Warning, suggest, table};
use crate::{cpus, egress};

/// A signing secret below this can be guessed.
const SECRET_BYTES_GOOD: usize = 16;

/// Variables of ours that are no keys: where the file is, and in a build for drills those that
/// break it on purpose, whose names no other build has.
const PROCESS_VARIABLES: &[&str] = &[
    FILE_VARIABLE,
    #[cfg(feature = "mutations")]
    "ANKUSA_FAILPOINT",
    #[cfg(feature = "mutations")]
    "ANKUSA_MUTATION",
    #[cfg(feature = "mutations")]
    "ANKUSA_SYNC_DELAY_MS",
];

/// What is allowed and most likely not meant.
pub(super) fn warnings(c: &Config, values: &Values, env: &Env) -> Vec<Warning> {
    let mut out = Vec::new();
    let mut warn = |path: String, text: String| {
        let place = values.place(&path);
        out.push(Warning { path, place, text });
    };
    secret_warnings(c, values, &mut warn);
    if c.sources.is_empty() {
        warn(
            "sources".into(),
            "there is no source: every hook is answered 404".into(),
        );
    }
    if let Some(text) = cpus::oddness(&c.node.cores, &cpus::allowed()) {
        warn("node.cores".into(), text);
    }
    if c.admin.token.as_ref().is_some_and(|t| t.len() < 16) {
        warn("admin.token".into(), "is shorter than 16 characters".into());
    }
    if c.wal.allow_unsafe_filesystem {
        warn(
            "wal.allow_unsafe_filesystem".into(),
            "a 2xx is worth what the file system of node.data_dir is worth".into(),
        );
    }
    match &c.intake {
        Some(intake) => dual_warnings(c, intake, &mut warn),
        None if values.present("intake") => warn(
            "intake".into(),
            "has no effect: wal.type is not dual".into(),
        ),
        None => {}
    }
    for source in &c.sources {
        if source.verify == VerifyConfig::None && !c.http.ip.is_loopback() {
            warn(
                format!("sources.{}.verify", source.name),
                "anyone who reaches the listener can send hooks here".into(),
            );
        }
        if source.verify == VerifyConfig::None
            && source.on_verify_failure != OnVerifyFailure::Reject
        {
            warn(
                format!("sources.{}.on_verify_failure", source.name),
                "has no effect: nothing is verified".into(),
            );
        }
        for (i, sink) in source.sinks.iter().enumerate() {
            let SinkKind::Http(http) = &sink.kind else {
                continue;
            };
            if let Some(text) = closed(&http.url, &c.egress) {
                warn(format!("sources.{}.sinks[{i}].url", source.name), text);
            }
        }
    }
    for (path, place, given) in &values.published {
        out.push(Warning {
            path: path.clone(),
            place: place.clone(),
            text: format!(
                "{given} is its default, and a secret that stands in a file is none; for an entry of a list that may be absent write ${{NAME:-}}"
            ),
        });
    }
    variable_warnings(env, &mut out);
    out
}

/// Secrets that can be guessed. Signatures are judged by the key's bytes, decoded.
fn secret_warnings(c: &Config, values: &Values, warn: &mut impl FnMut(String, String)) {
    let mut judge = |path: String, secrets: &[Secret]| {
        let short = secrets.iter().any(|s| s.len() < SECRET_BYTES_GOOD);
        if short && !values.published.iter().any(|(p, _, _)| *p == path) {
            let which = if secrets.len() > 1 {
                "one of them "
            } else {
                ""
            };
            warn(
                path,
                format!("{which}is shorter than {SECRET_BYTES_GOOD} bytes"),
            );
        }
    };
    for source in &c.sources {
        let path = format!("sources.{}", source.name);
        judge(format!("{path}.verify.secret"), source.verify.secrets());
        for (i, sink) in source.sinks.iter().enumerate() {
            if let SinkKind::Http(http) = &sink.kind {
                judge(format!("{path}.sinks[{i}].secret"), &http.secrets);
            }
        }
    }
    judge("backup.signing_key".into(), c.backup.signing_key.as_slice());
}

/// Variables that look like ours and set nothing.
fn variable_warnings(env: &Env, out: &mut Vec<Warning>) {
    let variables: Vec<String> = table::rows().filter_map(|k| k.variable()).collect();
    for name in env.names().filter(|n| n.starts_with("ANKUSA_")) {
        let known = PROCESS_VARIABLES.contains(&name) || variables.iter().any(|v| v == name);
        if known || from_cluster(name, env) {
            continue;
        }
        let near = suggest::nearest(name, variables.iter().map(String::as_str));
        let hint = near.map_or(String::new(), |n| format!("; did you mean {n}?"));
        out.push(Warning {
            path: String::new(),
            place: Place::Env(name.into()),
            text: format!("sets no key{hint}"),
        });
    }
}

fn dual_warnings(c: &Config, intake: &IntakeConfig, warn: &mut impl FnMut(String, String)) {
    if !intake.verify_topic {
        warn(
            "intake.verify_topic".into(),
            "nobody checks that the topic keeps what it confirms".into(),
        );
    }
    let (reconcile, publish) = (intake.reconcile_deadline_ms, intake.publish_timeout_ms);
    if reconcile <= publish {
        warn(
            "intake.reconcile_deadline_ms".into(),
            format!(
                "{reconcile} ms is not above intake.publish_timeout_ms ({publish} ms): a hook whose publish times out gives its claim up at once"
            ),
        );
    }
    let sasl = intake.kafka.sasl.as_ref();
    let plain = sasl.is_some_and(|s| {
        matches!(
            s.mechanism,
            SaslMechanism::Plain | SaslMechanism::Oauthbearer
        )
    });
    if intake.kind == IntakeType::Kafka && plain && intake.kafka.ssl.is_none() {
        warn(
            "intake.kafka.sasl".into(),
            "sends its secret in clear text: intake.kafka.ssl is not on".into(),
        );
    }
    if intake.kind == IntakeType::Memory {
        warn(
            "intake.type".into(),
            "memory is a file on this host: a lost host loses both halves".into(),
        );
    }
    for source in c.sources.iter().filter(|s| s.dedupe.is_none()) {
        warn(
            format!("sources.{}.dedupe", source.name),
            "is not set: the provider's repeat of a hook that was answered 503 is stored as another hook".into(),
        );
    }
}

/// Variables that a cluster sets for a service called `ankusa` or `ankusa-…`:
/// `…_SERVICE_HOST`, `…_SERVICE_PORT` and `…_SERVICE_PORT_<name>`, `…_PORT` with the address of the
/// service, and `…_PORT_<number>_TCP` with what may follow it.
fn from_cluster(name: &str, env: &Env) -> bool {
    let numbered = |rest: &str| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        ["_TCP", "_UDP", "_SCTP"].iter().any(|kind| {
            let rest = rest.strip_prefix(kind);
            rest.is_some_and(|r| matches!(r, "" | "_PROTO" | "_PORT" | "_ADDR"))
        })
    };
    let address = || {
        let value = env.get(name).and_then(Result::ok).unwrap_or_default();
        ["tcp://", "udp://", "sctp://"]
            .iter()
            .any(|scheme| value.starts_with(scheme))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && address())
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| numbered(rest))
}

/// Why a sink can never be reached, as far as its URL shows. Where its name leads is seen only at
/// the delivery.
fn closed(url: &SinkUrl, egress: &EgressConfig) -> Option<String> {
    let has_block = egress
        .allow
        .iter()
        .any(|r| matches!(r, EgressRule::Cidr(_)));
    let address = match &url.host {
        UrlHost::Ip(ip) => *ip,
        // A name may resolve into a block, and then plain http is allowed too.
        UrlHost::Name(_) if has_block => return None,
        UrlHost::Name(name) if name == "localhost" => Ipv4Addr::LOCALHOST.into(),
        // Any public address: only the scheme is judged.
        UrlHost::Name(_) => Ipv4Addr::new(1, 1, 1, 1).into(),
    };
    let refusal = egress::decide(egress, url.https, &url.host, address).err()?;
    Some(format!("{refusal}: nothing will be delivered"))
}
