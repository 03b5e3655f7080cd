//! The configuration: the table, every fault with its text and place, what is hidden.
#![allow(clippy::unwrap_used)]

mod faults;
mod parts;
mod rules;
mod secrets;
mod table;

use super::load::build;
use super::not_built::NOT_BUILT;
use super::*;

/// The lines of every problem, without the name of the file.
fn problems(yaml: &str, env: &[(&str, &str)]) -> Vec<String> {
    match load_text(yaml, env) {
        Ok(_) => Vec::new(),
        Err(error) => error.lines(),
    }
}

fn load_text(yaml: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    build(
        yaml.as_bytes(),
        Origin::File("f".into()),
        &Env::of(env),
        NOT_BUILT,
    )
}

/// As if everything were built.
fn load_all_built(yaml: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    build(
        yaml.as_bytes(),
        Origin::File("f".into()),
        &Env::of(env),
        &[],
    )
}

fn check(yaml: &str, expected: &[&str]) {
    assert_eq!(problems(yaml, &[]), expected, "\n{yaml}");
}

const EXAMPLE: &str = include_str!("../../../docs/examples/ankusa.yml");
const EXAMPLE_ENV: &[(&str, &str)] = &[
    ("ADMIN_TOKEN", "a-token-of-some-length"),
    ("STRIPE_WHSEC", "whsec_one_and_more"),
    ("SINK_WHSEC", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0"),
    ("GITHUB_SECRET", "two-and-16-bytes-of-it"),
    ("METER_SECRET", "three-and-16-bytes-of-it"),
];

#[test]
fn tryout_listens_on_loopback_only() {
    let config = Config::tryout();
    assert!(config.http.ip.is_loopback() && config.admin.ip.is_loopback());
    assert_eq!(config.sources.len(), 1);
    assert_eq!(config.sources[0].verify, VerifyConfig::None);
    assert_eq!(
        config.sources[0].sinks[0].kind,
        SinkKind::File {
            path: "./delivered.ndjson".into()
        }
    );
    assert_eq!(config.node.data_dir, std::path::PathBuf::from("./data"));
}

#[test]
fn the_dual_example_is_accepted_with_brokers_and_without() {
    let text = include_str!("../../../docs/examples/dual.yml");
    let kind = |env: &[(&str, &str)]| {
        let config = load_text(text, env)
            .unwrap_or_else(|e| panic!("{e}"))
            .config;
        (config.wal.kind, config.intake.unwrap().kind)
    };
    assert_eq!(
        kind(&[("ANKUSA_INTAKE_TYPE", "memory")]),
        (WalType::Dual, IntakeType::Memory)
    );
    #[cfg(feature = "kafka")]
    assert_eq!(kind(&[]), (WalType::Dual, IntakeType::Kafka));
}

#[test]
fn the_example_is_accepted_and_read() {
    let loaded = load_text(EXAMPLE, EXAMPLE_ENV).unwrap();
    assert_eq!(loaded.warnings, []);
    let c = loaded.config;
    assert_eq!(
        (c.http.max_body_bytes, c.http.limits.idle_timeout_ms),
        (8_000_000, 75_000)
    );
    let names: Vec<_> = c.sources.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["payments", "code", "meters"]);
    // Stripe's secrets are used as they are; those of Standard Webhooks are decoded.
    let VerifyConfig::Stripe {
        secrets,
        tolerance_seconds,
    } = &c.sources[0].verify
    else {
        panic!()
    };
    assert_eq!(secrets.len(), 1, "STRIPE_WHSEC_OLD is not set");
    assert_eq!(
        (secrets[0].expose(), *tolerance_seconds),
        (b"whsec_one_and_more".as_slice(), 300)
    );
    let SinkKind::Http(http) = &c.sources[0].sinks[0].kind else {
        panic!()
    };
    assert_eq!(http.secrets[0].expose(), b"secretsecretsecret");
    assert_eq!(
        (http.url.authority(), http.timeout_ms),
        ("app.example".to_string(), 5000)
    );
    assert_eq!(
        c.sources[1].retry,
        RetryConfig {
            max_attempts: 20,
            ..c.dispatch.retry.clone()
        }
    );
    assert_eq!(
        c.sources[1].dedupe.as_ref().unwrap().ttl_seconds,
        7 * 86_400
    );
    let VerifyConfig::Hmac { scheme, hash, .. } = &c.sources[2].verify else {
        panic!()
    };
    assert_eq!(
        (*hash, scheme.tolerance_seconds),
        (HmacHash::Sha512, Some(300))
    );
    assert_eq!(
        scheme.signed,
        [
            SignedPart::Timestamp,
            SignedPart::Literal(".".into()),
            SignedPart::Body
        ]
    );
    assert_eq!(
        c.sources[2].dedupe.as_ref().unwrap().key,
        DedupeKeyFrom::Json(vec!["reading".into(), "id".into()])
    );
}

#[test]
fn a_variable_wins_over_the_file_and_says_so() {
    let loaded = load_text(
        "http: { port: 1 }\nsources: {}\n",
        &[
            ("ANKUSA_HTTP_PORT", "2"),
            ("ANKUSA_EGRESS_ALLOW", "10.0.0.0/8, a.b"),
        ],
    )
    .unwrap();
    assert_eq!(loaded.config.http.port, 2);
    assert_eq!(loaded.config.egress.allow.len(), 2);
    let entry = loaded
        .config
        .effective
        .iter()
        .find(|e| e.path == "http.port")
        .unwrap();
    assert_eq!(entry.place, Place::Env("ANKUSA_HTTP_PORT".into()));
    assert!(
        loaded
            .config
            .to_yaml()
            .contains("port: 2 # variable ANKUSA_HTTP_PORT\n")
    );
}

#[test]
fn variables_work_on_the_tryout() {
    let loaded = load(
        None,
        &Env::of(&[("ANKUSA_DATA_DIR", "/x"), ("ANKUSA_NODE_DATA_DIR", "/y")]),
    )
    .unwrap();
    assert_eq!(loaded.config.node.data_dir, std::path::PathBuf::from("/y"));
}

#[test]
fn printed_yaml_loads_again_with_the_same_values() {
    let first = load_text(EXAMPLE, EXAMPLE_ENV).unwrap().config;
    // Hidden values are hidden: only a configuration without any can come back.
    let yaml = "sources: { a: { verify: { type: none }, sinks: [ { type: log }, { type: file, path: x } ] } }";
    let again = load_text(&load_text(yaml, &[]).unwrap().config.to_yaml(), &[])
        .unwrap()
        .config;
    let values = |c: &Config| {
        c.effective
            .iter()
            .map(|e| (e.path.clone(), e.value.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        values(&again),
        values(&load_text(yaml, &[]).unwrap().config)
    );
    assert!(
        first
            .to_yaml()
            .contains("secret: \"[REDACTED]\" # line 54\n"),
        "{}",
        first.to_yaml()
    );
}

#[test]
fn what_a_reload_takes_over_is_told_from_what_it_cannot() {
    let load = |yaml: &str| load_text(yaml, &[]).unwrap().config;
    let old = load(
        "http: { port: 1, max_body_bytes: 5, limits: { connections: 5 } }\nsources: { a: { verify: { type: github, secret: one }, sinks: [ { type: log } ] } }",
    );
    let new = load(
        "http: { port: 2, max_body_bytes: 6, limits: { connections: 6 } }\nsources: { a: { verify: { type: github, secret: two }, sinks: [ { type: log }, { type: log, name: b } ] } }",
    );
    let diff = Config::diff(&old, &new);
    assert_eq!(diff.restart, ["http.port", "http.limits.connections"]);
    assert!(diff.live.contains(&"http.max_body_bytes".to_string()));
    assert!(
        diff.live.contains(&"sources.a.verify.secret".to_string()),
        "a new secret is a change: {diff:?}"
    );
    assert!(diff.live.contains(&"sources.a.sinks[1].type".to_string()));
    assert!(!diff.live.contains(&"sources.a.sinks[0].type".to_string()));
    assert!(Config::diff(&old, &old.clone()).is_empty());
    let gone = load("http: { port: 1, limits: { connections: 5 } }\nsources: {}");
    assert!(
        Config::diff(&old, &gone)
            .live
            .contains(&"sources.a.verify.type".to_string())
    );
}

#[test]
fn cpus_are_a_number_or_a_list_of_them() {
    let cores = |text: &str| {
        load_text(&format!("node: {{ cores: {text} }}"), &[])
            .unwrap()
            .config
            .node
            .cores
    };
    assert_eq!(cores("all"), Cores::All);
    assert_eq!(cores("3"), Cores::Count(3));
    assert_eq!(
        cores("[3]"),
        Cores::List(vec![3]),
        "a list of one is not a number of three"
    );
    assert_eq!(cores("[0, 2]"), Cores::List(vec![0, 2]));
    check(
        "node: { cores: 0 }",
        &["f:1:16: node.cores: 0 is out of range; allowed: 1 to 1024 CPUs"],
    );
    check(
        "node: { cores: [] }",
        &["f:1:16: node.cores: has 0 entries; allowed: 1 or more"],
    );
    let by_variable = |text: &str| {
        load_text("sources: {}", &[("ANKUSA_NODE_CORES", text)])
            .unwrap()
            .config
            .node
            .cores
    };
    assert_eq!(
        (by_variable("2"), by_variable("0,1")),
        (Cores::Count(2), Cores::List(vec![0, 1]))
    );
}
