//! Rules between keys, and warnings. What is not built is checked here as if it were.

use super::*;

const DUAL: &str = "wal: { type: dual }
http: { ip: 127.0.0.1 }
intake: { type: memory, node_id: n }
backup: { enabled: true, max_age_ms: 1h, store: { type: local, root: /b }, signing_key: k }
sources: {}
";

/// The problems of the dual configuration with one text of it replaced.
fn dual(from: &str, to: &str) -> Vec<String> {
    let yaml = DUAL.replace(from, to);
    assert!(from.is_empty() || yaml != DUAL, "{from} is not in it");
    load_all_built(&yaml, &[])
        .err()
        .map(|e| e.lines())
        .unwrap_or_default()
}

#[test]
fn dual_needs_its_log_and_its_backups() {
    assert_eq!(dual("", ""), Vec::<String>::new());
    assert_eq!(
        dual("intake: { type: memory, node_id: n }", "intake: {}"),
        [
            "f:3:9: intake.type: is required: wal.type is dual",
            "f:3:9: intake.node_id: is required: wal.type is dual",
        ]
    );
    assert_eq!(
        dual(
            &DUAL[DUAL.find("backup").unwrap()..DUAL.find("sources").unwrap()],
            ""
        ),
        [
            "f:1:14: backup.enabled: is required: wal.type is dual",
            "f:1:14: backup.max_age_ms: is required: wal.type is dual",
        ]
    );
    assert_eq!(
        dual(", signing_key: k", ""),
        ["f:4:9: backup.signing_key: is required: backup.enabled is true, and a backup is signed"]
    );
    assert_eq!(
        dual("store: { type: local, root: /b },", ""),
        ["f:4:9: backup.store: is required: backup.enabled is true"]
    );
    assert_eq!(
        dual("root: /b", "s3: { bucket: b }"),
        [
            "f:4:49: backup.store.root: is required: a path",
            "f:4:64: backup.store.s3: has no meaning for type local, which takes type, root",
        ]
    );
    assert_eq!(
        dual("max_age_ms: 1h", "max_age_ms: 60s"),
        ["f:4:38: backup.max_age_ms: 60000 ms is not above backup.interval_ms (60000 ms)"]
    );
    assert_eq!(
        dual("max_age_ms: 1h", "require_fresh: true"),
        ["f:4:9: backup.max_age_ms: is required: wal.type is dual"]
    );
    let backup = DUAL.lines().nth(3).unwrap();
    let fresh = backup.replace("max_age_ms: 1h", "require_fresh: true");
    let disk = format!("{fresh}\nsources: {{}}\n");
    assert_eq!(
        load_all_built(&disk, &[]).unwrap_err().lines(),
        ["f:1:9: backup.max_age_ms: is required: backup.require_fresh is true"]
    );
    assert_eq!(
        dual("type: memory", "type: kafka"),
        ["f:3:9: intake.kafka.brokers: is required: intake.type is kafka"]
    );
    let sasl = |text: &str| {
        let kafka = format!("type: kafka, kafka: {{ brokers: 'b:1', sasl: {{ {text} }} }}");
        let found = dual("type: memory", &kafka);
        let after_place = |line: &String| line.splitn(4, ':').nth(3).unwrap().trim().to_string();
        found.iter().map(after_place).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        sasl("mechanism: plain, token_file: /t"),
        "intake.kafka.sasl.username: is required: the mechanism has a user and a password; intake.kafka.sasl.password: is required: the mechanism has a user and a password; intake.kafka.sasl.token_file: has a meaning for the mechanism oauthbearer only"
    );
    assert_eq!(
        sasl("mechanism: scram_sha_512, username: u, password: p"),
        ""
    );
    assert_eq!(
        sasl("mechanism: oauthbearer"),
        "intake.kafka.sasl.token_file: is required: oauthbearer needs a token, here or in password"
    );
    assert_eq!(
        sasl("mechanism: oauthbearer, token_file: /t, password: p"),
        "intake.kafka.sasl.token_file: stands beside password; only one of them can hold the token"
    );
    assert_eq!(sasl("mechanism: oauthbearer, password: p"), "");
    assert_eq!(dual("type: memory", "type: jetstream").len(), 2);
    assert_eq!(
        dual("node_id: n", "node_id: N"),
        [
            "f:3:34: intake.node_id: \"N\" is not a name of 1 to 64 lower-case letters, digits, ., - and _"
        ]
    );
}

#[test]
fn a_memory_log_serves_loopback_only_unless_allowed() {
    assert_eq!(
        dual("ip: 127.0.0.1", "ip: 0.0.0.0"),
        [
            "f:3:17: intake.type: memory is lost with this host, and http.ip is 0.0.0.0, which is not a loopback address; for a test set intake.memory.allow_unsafe: true",
        ]
    );
    let yaml = DUAL
        .replace("ip: 127.0.0.1", "ip: 0.0.0.0")
        .replace("node_id: n", "node_id: n, memory: { allow_unsafe: true }");
    let config = load_all_built(&yaml, &[]).unwrap().config;
    assert_eq!(config.intake.unwrap().topic, "ankusa.intake.default");
}

#[test]
fn times_of_the_log_stay_below_the_deadlines() {
    assert_eq!(
        dual("node_id: n", "node_id: n, publish_timeout_ms: 15000"),
        [
            "f:3:57: intake.publish_timeout_ms: 15000 ms is not below http.limits.request_deadline_ms (15000 ms)",
        ]
    );
    assert_eq!(
        dual("node_id: n", "node_id: n, publish_timeout_ms: 14999"),
        Vec::<String>::new()
    );
    let fleet = "node_id: n, reconcile_deadline_ms: 30000 }\ndedupe: { scope: fleet }\nfleet: { redis_url: 'redis://r'";
    assert_eq!(
        dual("node_id: n", fleet),
        [
            "f:3:60: intake.reconcile_deadline_ms: 30000 ms is not below fleet.pending_ttl_ms (30000 ms)"
        ]
    );
    assert_eq!(
        dual("node_id: n", &fleet.replace("30000", "29999")),
        Vec::<String>::new()
    );
    assert_eq!(
        dual("node_id: n", "node_id: n, reconcile_deadline_ms: 30000"),
        Vec::<String>::new(),
        "no fleet, no rule"
    );
}

#[test]
fn the_largest_record_holds_the_largest_body() {
    assert_eq!(
        dual("node_id: n", "node_id: n, max_record_bytes: 8065535"),
        [
            "f:3:55: intake.max_record_bytes: 8065535 bytes is below http.max_body_bytes + 65536 (8065536)",
        ]
    );
    assert_eq!(
        dual("node_id: n", "node_id: n, max_record_bytes: 8065536"),
        Vec::<String>::new()
    );
}

#[test]
fn a_fleet_needs_its_redis() {
    let of = |yaml: &str| {
        load_all_built(yaml, &[])
            .err()
            .map(|e| e.lines())
            .unwrap_or_default()
    };
    assert_eq!(
        of("dedupe: { scope: fleet }"),
        ["f:1:18: fleet.redis_url: is required: dedupe.scope is fleet"]
    );
    assert_eq!(
        of("dedupe: { scope: fleet }\nfleet: { redis_url: http://x }"),
        ["f:2:21: fleet.redis_url: must start with redis:// or rediss://"]
    );
}

#[test]
fn the_admin_port_off_loopback_needs_a_token() {
    check(
        "admin: { ip: 0.0.0.0 }",
        &["f:1:8: admin.token: is required: admin.ip is 0.0.0.0, which is not a loopback address"],
    );
    check("admin: { ip: '::1' }", &[]);
    check("admin: { ip: 10.0.0.1, token: abcdefghijklmnopq }", &[]);
    check(
        "admin: { token: 'a b' }",
        &[
            "f:1:17: admin.token: holds a character that cannot stand in an authorization header; use printable ASCII without spaces",
        ],
    );
}

#[test]
fn the_two_listeners_do_not_meet() {
    check(
        "http: { port: 4002 }",
        &["f:1:15: admin.port: 4002 is the port of http.port as well"],
    );
    check("http: { port: 4002, ip: 10.0.0.1 }", &[]);
}

#[test]
fn a_hook_fits_wherever_it_must_lie() {
    check(
        "http: { max_body_bytes: 1MiB }\nwal: { segment_bytes: 1MiB, group_max_bytes: 512KiB }\nqueue: { max_bytes: 1MiB }\ndispatch: { max_inflight_bytes: 1MiB }",
        &[
            "f:2:23: wal.segment_bytes: 1048576 bytes cannot hold the largest hook: http.max_body_bytes + http.limits.head_bytes + 65536 is 1146880",
            "f:3:21: queue.max_bytes: 1048576 bytes cannot hold the largest hook: http.max_body_bytes + http.limits.head_bytes + 65536 is 1146880",
            "f:4:33: dispatch.max_inflight_bytes: 1048576 bytes cannot hold the largest hook: http.max_body_bytes + http.limits.head_bytes + 65536 is 1146880",
        ],
    );
    check(
        "http: { max_body_bytes: 1000 }\nwal: { segment_bytes: 1052673 }",
        &["f:2:23: wal.segment_bytes: 1052673 is not a multiple of 4096"],
    );
    check(
        "wal: { segment_bytes: 16MiB, group_max_bytes: 9MiB }",
        &[
            "f:1:47: wal.group_max_bytes: 9437184 bytes is more than half of wal.segment_bytes (16777216)",
        ],
    );
}

#[test]
fn waits_grow_and_do_not_shrink() {
    check(
        "dispatch: { breaker_open_ms: 2s, breaker_max_open_ms: 1s, retry: { base_ms: 2s, max_ms: 1s } }",
        &[
            "f:1:55: dispatch.breaker_max_open_ms: 1000 ms is below dispatch.breaker_open_ms (2000 ms)",
            "f:1:89: dispatch.retry.max_ms: 1000 ms is below dispatch.retry.base_ms (2000 ms)",
        ],
    );
    check(
        "sources: { a: { verify: { type: none }, retry: { base_ms: 10m }, sinks: [ { type: log } ] } }",
        &["f:1:48: sources.a.retry.max_ms: 300000 ms is below sources.a.retry.base_ms (600000 ms)"],
    );
}

#[test]
fn a_key_is_remembered_for_twice_the_tolerance() {
    let of = |ttl: u32| {
        problems(
            &format!(
                "sources: {{ a: {{ verify: {{ type: stripe, secret: x }}, dedupe: {{ preset: stripe, ttl_seconds: {ttl} }}, sinks: [ {{ type: log }} ] }} }}"
            ),
            &[],
        )
    };
    assert_eq!(of(600), Vec::<String>::new());
    assert_eq!(
        of(599),
        [
            "f:1:93: sources.a.dedupe.ttl_seconds: 599 s is less than twice verify.tolerance_seconds (300 s): a request could be sent again after its key is forgotten; allowed: 600 s or more"
        ]
    );
}

#[test]
fn a_described_signature_holds_together() {
    let of = |more: &str| {
        problems(&format!("sources: {{ a: {{ verify: {{ type: hmac, secret: x, signature_header: s, {more} }}, sinks: [ {{ type: log }} ] }} }}"), &[])
        .iter().map(|l| l.split_once("verify.").unwrap().1.to_string()).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        of("signed: '{ts}.{body}'"),
        "signed: holds {ts}, which needs timestamp_header, or parse: csv_pairs"
    );
    assert_eq!(of("signed: '{ts}.{body}', timestamp_header: t"), "");
    assert_eq!(of("signed: '{ts}.{body}', parse: csv_pairs"), "");
    assert_eq!(
        of("timestamp_header: t"),
        "timestamp_header: the timestamp is not part of what is signed, so anyone could change it; put {ts} into signed"
    );
    assert_eq!(
        of("tolerance_seconds: 3"),
        "tolerance_seconds: needs timestamp_header, or parse: csv_pairs"
    );
    assert_eq!(
        of("version: v1"),
        "version: has no meaning for parse whole; it belongs to space_versions"
    );
    assert_eq!(
        of("signed: '{ts}'"),
        "signed: \"{ts}\" is not a template of {body}, {ts}, {header:NAME} and plain text: without {body} the signature would not cover the body"
    );
    assert_eq!(
        of("signed: '{boddy}'"),
        "signed: \"{boddy}\" is not a template of {body}, {ts}, {header:NAME} and plain text: what stands in braces must be body, ts or header:NAME"
    );
}

#[test]
fn http_sinks_are_signed_unless_said_otherwise() {
    let of = |more: &str| {
        problems(&format!("sources: {{ a: {{ verify: {{ type: none }}, sinks: [ {{ type: http, {more} }} ] }} }}"), &[])
        .iter().map(|l| l.split_once("sinks[0].").unwrap().1.to_string()).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        of("url: 'https://a'"),
        "secret: is required: deliveries are signed; for a sink that takes unsigned ones set allow_unsigned: true"
    );
    assert_eq!(of("url: 'https://a', allow_unsigned: true"), "");
    assert_eq!(
        of("url: 'https://a', secret: '*'"),
        "secret: is not a usable secret: wanted is base64, with whsec_ before it or without"
    );
    assert_eq!(
        of("url: 'https://a', secret: c2VjcmV0, timeout_ms: 31s"),
        "timeout_ms: 31000 ms is more than dispatch.attempt_timeout_ms (30000 ms), which would end the attempt first"
    );
    assert_eq!(
        of(
            "url: 'https://a', secret: c2VjcmV0, headers: { Host: x, 'a b': y, X: 1, x: 2, Webhook-Id: 3 }"
        ),
        "headers.Host: \"Host\" is not a header that a sink may add: the delivery sets it itself; headers.a b: \"a b\" is not a header that a sink may add: a header name is letters, digits and !#$%&'*+.^_`|~-; headers.x: stands twice; header names have no case; headers.Webhook-Id: \"Webhook-Id\" is not a header that a sink may add: the delivery sets it itself"
    );
}

#[test]
fn a_rule_is_silent_while_one_of_its_keys_is_faulty() {
    check(
        "http: { port: 4002x }\nadmin: { port: 4000 }",
        &["f:1:15: http.port: \"4002x\" is not a whole number"],
    );
}

#[test]
fn what_is_most_likely_not_meant_is_a_warning() {
    let of = |yaml: &str, env: &[(&str, &str)]| {
        load_text(yaml, env)
            .unwrap_or_else(|e| panic!("{e}"))
            .warning_lines()
    };
    let sink = |url: &str, more: &str| {
        format!(
            "http: {{ ip: 127.0.0.1 }}\n{more}\nsources: {{ a: {{ verify: {{ type: none }}, sinks: [ {{ type: http, allow_unsigned: true, url: '{url}' }} ] }} }}"
        )
    };
    assert_eq!(
        of("http: {}", &[]),
        ["f: sources: there is no source: every hook is answered 404"]
    );
    assert_eq!(
        of(&sink("http://a.example/x", ""), &[]),
        [
            "f:3:91: sources.a.sinks[0].url: plain http is not allowed (egress.allow_http, egress.allow): nothing will be delivered"
        ]
    );
    assert_eq!(
        of(
            &sink("http://a.example/x", "egress: { allow_http: true }"),
            &[]
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        of(
            &sink("http://a.example/x", "egress: { allow: [a.example] }"),
            &[]
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        of(&sink("https://127.0.0.1/x", ""), &[]),
        [
            "f:3:91: sources.a.sinks[0].url: 127.0.0.1 is a loopback address, which is not allowed (egress.allow_private, egress.allow): nothing will be delivered"
        ]
    );
    assert_eq!(
        of(
            &sink("https://127.0.0.1/x", "egress: { allow: [127.0.0.0/8] }"),
            &[]
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        of(
            &sink("https://a.example", ""),
            &[
                ("ANKUSA_HTTP_PROT", "1"),
                ("ANKUSA_HTP_PORT", "1"),
                ("ANKUSA_FOO_TCP", "1"),
                // What a cluster sets for services called ankusa and ankusa-edge.
                ("ANKUSA_SERVICE_HOST", "10.0.0.1"),
                ("ANKUSA_EDGE_SERVICE_PORT_HOOKS", "4000"),
                ("ANKUSA_EDGE_PORT", "tcp://10.0.0.1:4000"),
                ("ANKUSA_EDGE_PORT_4000_TCP", "tcp://10.0.0.1:4000"),
                ("ANKUSA_PORT_4000_TCP_ADDR", "10.0.0.1"),
                ("ANKUSA_CONFIG", "f")
            ]
        ),
        [
            "ANKUSA_FOO_TCP: sets no key",
            "ANKUSA_HTP_PORT: sets no key; did you mean ANKUSA_HTTP_PORT?",
            "ANKUSA_HTTP_PROT: sets no key; did you mean ANKUSA_HTTP_PORT?",
        ]
    );
    let shared = of("node: { cores: 1024 }", &[]);
    assert!(
        shared[1].starts_with("f:1:16: node.cores: 1024 cores share the "),
        "{shared:?}"
    );
    let absent = of("node: { cores: [1023] }", &[]);
    assert!(
        absent[1].starts_with("f:1:16: node.cores: CPU 1023 is not among those"),
        "{absent:?}"
    );
    let open = "sources: { a: { verify: { type: none }, sinks: [ { type: log } ] } }";
    assert_eq!(
        of(open, &[]),
        ["f:1:25: sources.a.verify: anyone who reaches the listener can send hooks here"]
    );
}

#[test]
fn what_dual_users_most_likely_do_not_mean_is_a_warning() {
    let of = |yaml: &str| {
        load_all_built(yaml, &[])
            .unwrap_or_else(|e| panic!("{e}"))
            .warning_lines()
            .join("\n")
    };
    let dual = DUAL.replace(
        "sources: {}",
        "sources: { a: { verify: { type: none }, sinks: [ { type: log } ] } }",
    );
    let text = of(&dual.replace("node_id: n", "node_id: n, reconcile_deadline_ms: 2000"));
    for part in [
        "intake.reconcile_deadline_ms: 2000 ms is not above intake.publish_timeout_ms (2000 ms)",
        "intake.type: memory is a file on this host",
        "dedupe: is not set: the provider's repeat",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let kafka = "type: kafka, verify_topic: false, kafka: { brokers: 'b:1', sasl: { mechanism: plain, username: u, password: p } }";
    let text = of(&dual.replace("type: memory", kafka));
    for part in [
        "intake.verify_topic: nobody checks",
        "intake.kafka.sasl: sends its secret in clear text",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains("memory is a file"), "{text}");
    let text = of(&dual.replace("type: dual", "type: disk"));
    assert!(
        text.contains("intake: has no effect: wal.type is not dual"),
        "{text}"
    );
}

#[test]
fn source_that_balancers_would_meet_is_refused_without_a_prefix() {
    let yaml = |prefix: &str, name: &str| {
        format!(
            "http: {{ prefix: {prefix} }}\nsources: {{ {name}: {{ verify: {{ type: none }}, sinks: [ {{ type: log }} ] }} }}\n"
        )
    };
    for (prefix, name, good) in [
        ("/", "health", false),
        ("/", "ready", false),
        ("/", "demo", true),
        ("/webhooks", "health", true),
    ] {
        let lines = load_all_built(&yaml(prefix, name), &[])
            .err()
            .map(|e| e.lines())
            .unwrap_or_default();
        assert_eq!(lines.is_empty(), good, "{prefix} {name}: {lines:?}");
    }
}
