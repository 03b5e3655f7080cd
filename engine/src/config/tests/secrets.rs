//! No secret is ever seen: a canary in every hidden key, and nothing that prints shows it.

use serde_json::json;

use super::super::key::{Key, Kind};
use super::super::table::rows;
use super::*;

/// Valid base64, so that it is a usable secret everywhere.
const CANARY: &str = "CANARYCANARYCANARYCANARY";

/// A configuration with the canary in every hidden key; `extra` spoils it or not.
fn everything(extra: &str) -> String {
    let secret = json!(CANARY);
    format!(
        "admin: {{ token: {secret} }}
wal: {{ type: dual {extra} }}
dedupe: {{ scope: fleet }}
fleet: {{ redis_url: 'redis://:{CANARY}@host/0' }}
intake:
  type: kafka
  node_id: n
  kafka: {{ brokers: 'b:9092', ssl: true, sasl: {{ mechanism: plain, username: u, password: {secret} }} }}
  jetstream: {{ credentials: {secret} }}
backup:
  enabled: true
  max_age_ms: 1h
  signing_key: {secret}
  store: {{ type: s3, s3: {{ bucket: b, region: r, access_key_id: {secret}, secret_access_key: {secret} }} }}
  secondary: {{ type: s3, s3: {{ bucket: b, region: r, access_key_id: {secret}, secret_access_key: {secret} }} }}
storage: {{ s3: {{ secret_access_key: {secret} }} }}
archive: {{ key: {secret} }}
quarantine: {{ key: {secret} }}
rate_limits: {{ key: {secret} }}
sources:
  a:
    verify: {{ type: stripe, secret: [{secret}, {secret}] }}
    sinks:
      - {{ type: http, url: 'https://h/{CANARY}?t={CANARY}', headers: {{ authorization: {secret} }}, secret: {secret} }}
      - {{ type: kafka, brokers: ['b:1'], topic: t, sasl: {{ mechanism: plain, username: u, password: {secret} }} }}
  b: {{ verify: {{ type: basic, username: u, password: {secret} }}, sinks: [ {{ type: log }} ] }}
  c: {{ verify: {{ type: standard_webhooks, secret: {secret} }}, sinks: [ {{ type: log }} ] }}
"
    )
}

#[test]
fn a_canary_in_every_hidden_key_is_never_printed() {
    let yaml = everything("");
    let loaded = load_all_built(&yaml, &[]).unwrap_or_else(|e| panic!("{e}"));
    // Every hidden key is there, so nothing below is vacuous.
    for key in rows().filter(|k| k.hidden() && !matches!(k.kind, Kind::Opaque)) {
        let concrete = key.path.replace(".#", "[").replace('*', "");
        let name = concrete.rsplit('.').next().unwrap();
        assert!(
            yaml.contains(&format!("{name}:")),
            "{} is not in the document",
            key.path
        );
    }
    let config = &loaded.config;
    let printed = [
        config.to_yaml(),
        config.to_json().to_string(),
        format!("{loaded:?}"),
        format!("{loaded:#?}"),
        format!("{:?}", config.effective),
        loaded.summary_json().to_string(),
        loaded.warning_lines().join("\n"),
        format!("{:?}", Config::diff(config, &Config::tryout())),
    ];
    for text in printed {
        assert!(!text.contains("CANARY"), "{text}");
        // Nor in the forms that Debug of bytes would give it.
        assert!(!text.contains("67, 65, 78, 65, 82, 89"), "{text}");
    }
    assert!(
        config.to_yaml().matches(REDACTED).count() >= 14,
        "{}",
        config.to_yaml()
    );
}

#[test]
fn no_error_holds_the_canary() {
    let spoils = [
        everything(", sync: x"),
        everything("").replace(CANARY, "CANARY*"),
        everything("").replace("redis://", "CANARY"),
        everything("").replace("https://h", "ftp://h"),
        everything("").replace("type: http, url: '", "type: http, url: 'CANARY"),
        everything("")
            .replace("authorization: ", "authorization: [")
            .replace(
                ", secret: \"CANARYCANARYCANARYCANARY\" }\n      - { type: kafka",
                "] }\n      - { type: kafka",
            ),
        everything("").replace("token: \"", "token: \"ü"),
        everything("").replace("token: \"", "token: \"${CANARY_UNSET}"),
        everything("").replace("signing_key: ", "signing_key: [["),
        everything("").replace("password: \"CANARY", "password: \t\"CANARY\u{1}"),
    ];
    for yaml in spoils {
        for built in [&[], NOT_BUILT] {
            let error = build(
                yaml.as_bytes(),
                Origin::File("f".into()),
                &Env::default(),
                built,
            )
            .err();
            let Some(error) = error else {
                panic!("accepted:\n{yaml}")
            };
            for text in [
                error.to_string(),
                format!("{error:?}"),
                error.to_json().to_string(),
            ] {
                // The name of a variable is not a secret.
                assert!(
                    !text.replace("CANARY_UNSET", "").contains("CANARY"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn a_variable_that_holds_a_secret_is_named_and_not_shown() {
    let yaml = "http: { port: '${S}', prefix: '${S}' }\nwal: { type: '${S}' }\negress: { allow: '${S}' }\n";
    let text = load_text(yaml, &[("S", "CANARY CANARY")])
        .unwrap_err()
        .to_string();
    assert!(
        !text.contains("CANARY") && text.contains("the value of \"${S}\""),
        "{text}"
    );
    let text = load_text(
        "admin: { ip: 0.0.0.0 }",
        &[("ANKUSA_ADMIN_TOKEN", "CANARY CANARY")],
    )
    .unwrap_err()
    .to_string();
    assert!(
        text.contains("ANKUSA_ADMIN_TOKEN: admin.token: ") && !text.contains("CANARY"),
        "{text}"
    );
}

#[test]
fn a_secret_prints_as_redacted() {
    let secret = Secret::from("CANARY");
    assert_eq!(
        (format!("{secret}"), format!("{secret:?}")),
        (REDACTED.to_string(), REDACTED.to_string())
    );
    assert_eq!(
        (secret.expose_str(), secret.len(), secret.is_empty()),
        ("CANARY", 6, false)
    );
}

#[test]
fn keys_that_sound_secret_are_hidden() {
    for key in rows() {
        let sounds = [
            "secret",
            "password",
            "token",
            "credential",
            "signing_key",
            "redis_url",
            "access_key",
        ];
        let plain: &[&str] = &[
            "sources.*.verify.secret_decode",
            "intake.kafka.sasl.token_file",
        ];
        if sounds.iter().any(|s| key.name().contains(s)) && !plain.contains(&key.path) {
            assert!(Key::hidden(key), "{}", key.path);
        }
    }
}

/// A published example held `${STRIPE_WHSEC_OLD:-whsec_none}` as a second secret: where the
/// variable was not set, whoever had read the example could sign.
#[test]
fn an_optional_secret_of_a_list_is_left_out_and_a_published_one_is_a_warning() {
    let of = |secret: &str| {
        let yaml = format!(
            "http: {{ ip: 127.0.0.1 }}\nsources: {{ a: {{ verify: {{ type: stripe, secret: {secret} }}, sinks: [ {{ type: log }} ] }} }}"
        );
        let loaded = load_text(&yaml, &[("SET", "CANARYCANARYCANARY"), ("EMPTY", "")]);
        let loaded = loaded.unwrap_or_else(|e| panic!("{e}"));
        let secrets = loaded.config.sources[0].verify.secrets().to_vec();
        (secrets, loaded.warning_lines())
    };
    let one = vec![Secret::from("CANARYCANARYCANARY")];
    for list in [
        "['${SET}', '${OLD:-}']",
        "['${OLD:-}', '${EMPTY:-}', '${SET}']",
        "['${SET:-whsec_none}', '${OLD:-}']",
    ] {
        assert_eq!(of(list), (one.clone(), vec![]), "{list}");
    }
    let (secrets, warnings) = of("['${SET}', '${OLD:-whsec_none}']");
    assert_eq!(secrets.len(), 2);
    assert_eq!(
        warnings,
        [
            "f:2:49: sources.a.verify.secret: the value of \"${OLD:-whsec_none}\" is its default, and a secret that stands in a file is none; for an entry of a list that may be absent write ${NAME:-}"
        ]
    );
    assert_eq!(
        of("['${SET}', short]").1,
        ["f:2:49: sources.a.verify.secret: one of them is shorter than 16 bytes"]
    );
    assert_eq!(
        of("15-bytes-of-key").1,
        ["f:2:49: sources.a.verify.secret: is shorter than 16 bytes"]
    );
    assert_eq!(of("16-bytes-of-key!").1, Vec::<String>::new());
}

#[test]
fn a_short_secret_of_a_sink_is_a_warning_by_its_decoded_bytes() {
    // 15 bytes: the text is longer than 16.
    let yaml = "sources: { a: { verify: { type: none }, sinks: [ { type: http, url: 'https://h.example', secret: whsec_MTUtYnl0ZXMtb2Yta2V5 } ] } }";
    let lines = load_text(yaml, &[]).map(|l| l.warning_lines());
    let lines = lines.unwrap_or_else(|e| panic!("{e}"));
    assert!(
        lines
            .iter()
            .any(|l| l.ends_with("sources.a.sinks[0].secret: is shorter than 16 bytes")),
        "{lines:?}"
    );
}
