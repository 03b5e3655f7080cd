//! Each kind of fault: its exact text, its line and column.

use super::*;

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    check(
        "http:\n  prot: 4000\n  port: 70000\nwal: { groups_inflight: 5, sync: fsync }\nlog: loud\n",
        &[
            "f:2:3: http.prot: unknown key; did you mean port?",
            "f:3:9: http.port: 70000 is out of range; allowed: 1 to 65535",
            "f:4:25: wal.groups_inflight: 5 is out of range; allowed: 1 to 4 groups",
            "f:4:34: wal.sync: \"fsync\" is not one of fdatasync, dsync; fdatasync is what is meant",
            "f:5:6: log: must be a map of keys, not a single value",
        ],
    );
}

#[test]
fn ranges_are_told_with_their_units() {
    check(
        "wal: { segment_bytes: 1, stall_ms: 1 }",
        &[
            "f:1:23: wal.segment_bytes: 1 is out of range; allowed: 1048576 to 4294967296 bytes (1 MiB to 4 GiB)",
            "f:1:36: wal.stall_ms: 1 is out of range; allowed: 100 to 600000 ms (100 ms to 10 m)",
        ],
    );
    check(
        "http: { max_body_bytes: 8 mb }",
        &[
            "f:1:25: http.max_body_bytes: \"8 mb\" is not a whole number of bytes (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
        ],
    );
    check(
        "http: { limits: { idle_timeout_ms: 5 minutes } }",
        &[
            "f:1:36: http.limits.idle_timeout_ms: \"5 minutes\" is not a whole number of milliseconds (units: ms, s, m, h, d)",
        ],
    );
    check(
        "node: { shards: 0 }",
        &["f:1:17: node.shards: 0 is out of range; allowed: 1 to 1024 shards"],
    );
}

#[test]
fn unknown_keys_get_the_nearest_known_one_or_the_name_it_has_here() {
    check(
        "wal: { segmnt_bytes: 1 }",
        &["f:1:8: wal.segmnt_bytes: unknown key; did you mean segment_bytes?"],
    );
    check(
        "wal: { max_body_bytes: 1 }",
        &["f:1:8: wal.max_body_bytes: unknown key; did you mean http.max_body_bytes?"],
    );
    check(
        "queue: { zzz: 1 }",
        &["f:1:10: queue.zzz: unknown key; known here: max_records, max_bytes"],
    );
    check(
        "node: { roles: [edge] }",
        &["f:1:9: node.roles: unknown key; every node has every role here; remove it"],
    );
    check(
        "sources: { a: { verifier: x, verify: { type: none }, sinks: [ { type: log } ] } }",
        &["f:1:17: sources.a.verifier: unknown key; here it is sources.<name>.verify"],
    );
    check("? [a]\n: b\n", &["f:1:3: a key must be a plain text"]);
}

#[test]
fn duplicate_keys_name_both_lines() {
    check(
        "http: { port: 1 }\nqueue: {}\nhttp: { port: 2 }\n",
        &["f:3:1: http: stands twice; the first is in line 1"],
    );
    check(
        "sources:\n  a: { verify: { type: none }, sinks: [ { type: log } ] }\n  a: {}\n",
        &["f:3:3: sources.a: stands twice; the first is in line 2"],
    );
    check(
        "sources:\n  a:\n    verify: { type: none, type: stripe }\n    sinks: [ { type: log } ]\n",
        &["f:3:27: sources.a.verify.type: stands twice; the first is in line 3"],
    );
}

#[test]
fn a_source_needs_a_verifier_and_a_sink() {
    check(
        "sources:\n  a: {}\n  b: { verify: { type: none }, sinks: [] }\n  c: { verify: {}, sinks: [ {} ] }\n",
        &[
            "f:2:6: sources.a.verify: is required: a map",
            "f:2:6: sources.a.sinks: is required: a list",
            "f:3:39: sources.b.sinks: has 0 entries; allowed: 1 to 64",
            "f:4:16: sources.c.verify.type: is required: one of none, stripe, github, standard_webhooks, shopify, slack, hmac, ed25519, bearer, basic",
            "f:4:29: sources.c.sinks[0].type: is required: one of http, file, log, kafka, jetstream",
        ],
    );
}

#[test]
fn names_and_sinks_of_a_source_are_unique_and_well_formed() {
    check(
        "sources:\n  'a b': { verify: { type: strip, secret: x }, sinks: [] }\n  a.b: { sinks: [ {} ] }\n  a: { verify: { type: none }, sinks: [ { type: log }, { type: log }, { type: log, name: ü } ] }\n",
        &[
            "f:2:3: sources.a b: \"a b\" is not a name of 1 to 64 letters, digits, - and _",
            "f:2:28: sources.a b.verify.type: \"strip\" is not one of none, stripe, github, standard_webhooks, shopify, slack, hmac, ed25519, bearer, basic; did you mean stripe?",
            "f:2:55: sources.a b.sinks: has 0 entries; allowed: 1 to 64",
            "f:3:3: sources.a.b: \"a.b\" is not a name of 1 to 64 letters, digits, - and _",
            "f:3:8: sources.\"a.b\".verify: is required: a map",
            "f:3:19: sources.\"a.b\".sinks[0].type: is required: one of http, file, log, kafka, jetstream",
            "f:4:56: sources.a.sinks[1].name: the name log is already that of sinks[0]; give each sink of a source a name of its own",
            "f:4:90: sources.a.sinks[2].name: \"ü\" is not a name of 1 to 64 letters, digits, - and _",
        ],
    );
}

#[test]
fn an_unknown_verifier_is_an_error_and_never_accept_all() {
    check(
        "sources: { a: { verify: { type: strip, secret: x }, sinks: [ { type: log } ] } }",
        &[
            "f:1:33: sources.a.verify.type: \"strip\" is not one of none, stripe, github, standard_webhooks, shopify, slack, hmac, ed25519, bearer, basic; did you mean stripe?",
        ],
    );
    check(
        "sources: { a: { verify: { type: none, secret: x }, sinks: [ { type: log } ] } }",
        &["f:1:39: sources.a.verify.secret: has no meaning for type none, which takes type"],
    );
}

#[test]
fn a_word_where_a_map_with_that_type_is_wanted_gets_the_map() {
    check(
        "sources: { a: { verify: none, sinks: [ log, x ] }, b: { verify: x, sinks: [ { type: log } ] } }",
        &[
            "f:1:25: sources.a.verify: \"none\" is not a map; did you mean { type: none }?",
            "f:1:40: sources.a.sinks[0]: \"log\" is not a map; did you mean { type: log }?",
            "f:1:45: sources.a.sinks[1]: must be a map of keys, not a single value",
            "f:1:65: sources.b.verify: \"x\" is not a map",
        ],
    );
}

#[test]
fn a_missing_empty_or_undecodable_secret_is_an_error() {
    let verify = |v: &str| {
        problems(
            &format!("sources: {{ a: {{ verify: {{ {v} }}, sinks: [ {{ type: log }} ] }} }}"),
            &[("EMPTY", "")],
        )
    };
    let one = |v: &str| {
        verify(v)
            .pop()
            .unwrap_or_default()
            .split_once("secret: ")
            .map(|(_, t)| t.to_string())
            .unwrap_or_default()
    };
    assert_eq!(
        one("type: stripe"),
        "is required: a text, or a list of at most 8"
    );
    for empty in [
        "''",
        "' '",
        "~",
        "[]",
        "[a, '']",
        "[a, '${EMPTY}']",
        "['${UNSET:-}', '${EMPTY:-}']",
        "'${EMPTY}'",
        "'${UNSET:-}'",
        "[a, ~]",
    ] {
        assert_eq!(
            one(&format!("type: stripe, secret: {empty}")),
            "is empty",
            "{empty}"
        );
    }
    let undecodable = "is not a usable secret: wanted is base64, with whsec_ before it or without";
    for bad in [
        "whsec_",
        "whsec_***",
        "'not base64'",
        "[whsec_c2VjcmV0, whsec_*]",
    ] {
        assert_eq!(
            one(&format!("type: standard_webhooks, secret: {bad}")),
            undecodable,
            "{bad}"
        );
    }
    assert_eq!(
        one("type: hmac, signature_header: x, secret_decode: whsec_base64, secret: '*'"),
        undecodable
    );
    assert_eq!(
        one("type: stripe, secret: [1,2,3,4,5,6,7,8,9]"),
        "has 9 entries; allowed: 1 to 8"
    );
    assert_eq!(
        one("type: stripe, secret: { a: b }"),
        "must be a text, or a list of at most 8, not a map"
    );
    assert_eq!(
        verify("type: stripe, secret: [1,2,3,4,5,6,7,8]"),
        Vec::<String>::new()
    );
}

#[test]
fn what_is_not_built_is_refused_in_plain_words() {
    check(
        "wal: { type: none }\ndedupe: { scope: fleet }\nfleet: { redis_url: 'redis://x' }\nintake: { type: jetstream }\nbackup:\n  store: { type: s3, s3: { bucket: b, region: r } }\n  secondary: { type: local, root: /b }\nstorage: { type: s3 }\nquarantine: { burst: 1 }\nrate_limits: {}\nhttp: { tls: { cert: a, key: b } }\n",
        &[
            "f:1:14: wal.type: none is not in this version yet; disk and dual are",
            "f:2:18: dedupe.scope: fleet is not in this version yet; node is",
            "f:3:8: fleet: claims of a fleet are not in this version yet",
            "f:4:17: intake.type: jetstream is not in this version yet; kafka and memory are",
            "f:6:18: backup.store.type: s3 is not in this version yet; local is",
            "f:7:14: backup.secondary: a second place for backups is not in this version yet",
            "f:8:10: storage: the archive is not in this version yet",
            "f:9:13: quarantine: the quarantine pen is not in this version yet",
            "f:10:14: rate_limits: rate limits are not in this version yet",
            "f:11:14: http.tls: TLS on the ingest port is not in this version yet; put a proxy in front",
        ],
    );
    check(
        "sources: { a: { verify: { type: none }, on_verify_failure: quarantine, sinks: [ { type: kafka, brokers: 3 }, { type: jetstream } ] } }",
        &[
            "f:1:60: sources.a.on_verify_failure: quarantine is not in this version yet; reject and accept_flag are",
            "f:1:89: sources.a.sinks[0].type: the sink kafka is not in this version yet; http, file and log are",
            "f:1:118: sources.a.sinks[1].type: the sink jetstream is not in this version yet; http, file and log are",
        ],
    );
    assert_eq!(
        problems(
            "sources: {}",
            &[
                ("ANKUSA_WAL_TYPE", "none"),
                ("ANKUSA_INTAKE_JETSTREAM_STREAM", "x")
            ]
        ),
        [
            "ANKUSA_INTAKE_JETSTREAM_STREAM: intake.jetstream.stream: jetstream is not in this version yet; kafka and memory are",
            "ANKUSA_WAL_TYPE: wal.type: none is not in this version yet; disk and dual are",
        ]
    );
    check(
        "wal: { type: disk }\nbackup: { enabled: true, store: { type: local, root: /b }, signing_key: k }\ndedupe: { scope: node }\n",
        &[],
    );
}

#[test]
fn a_text_that_is_not_yaml_is_refused_with_its_place() {
    check(
        "",
        &["f: the file is empty; `ankusa print-config` shows what may stand in it"],
    );
    check(
        "# only a remark\n",
        &["f: the file is empty; `ankusa print-config` shows what may stand in it"],
    );
    check(
        "http:\n\tport: 1\n",
        &["f:2:1: a tab cannot indent YAML; use spaces"],
    );
    check("a: [1\n", &["f:1:4: not YAML: unclosed bracket '['"]);
    check("- a\n", &["f:1:1: must be a map of keys, not a list"]);
    check(
        "http: {}\n---\nhttp: {}\n",
        &["f:2:1: a second document starts here; the file must hold one"],
    );
    check(
        "http: !mine { port: 1 }\n",
        &["f:1:13: the tag !mine has no meaning here"],
    );
    check(
        "a: &x { port: 1 }\nhttp: { <<: *x }\n",
        &["f:2:9: merge keys (<<) are not supported; repeat the keys"],
    );
    let bytes = b"http: { port: 1 }\nlog: \xff\n";
    let error = build(bytes, Origin::File("f".into()), &Env::default(), NOT_BUILT).unwrap_err();
    assert_eq!(error.lines(), ["f:2:6: the file is not UTF-8 here"]);
}

#[test]
fn a_file_cannot_grow_beyond_its_bounds() {
    let big = format!("# {}\nhttp: {{}}\n", "x".repeat(1 << 20));
    assert_eq!(
        problems(&big, &[]),
        [format!(
            "f: the file has {} bytes; allowed: at most 1048576 (1 MiB)",
            big.len()
        )]
    );
    // Each line doubles the one before it.
    let mut bomb = "a0: &a0 [x, x]\n".to_string();
    for i in 1..40 {
        bomb += &format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1);
    }
    assert!(
        problems(&bomb, &[])[0].ends_with("more than 100000 values, copies of aliases included")
    );
    assert!(
        problems(&("[".repeat(40) + &"]".repeat(40)), &[])[0]
            .contains("nested deeper than 32 levels")
    );
    assert_eq!(
        problems(&"[".repeat(100_000), &[]),
        ["f:1:256: not YAML: recursion limit exceeded"]
    );
    assert_eq!(
        problems("a: &x [*x]\n", &[]),
        ["f:1:8: an alias inside of what it names"]
    );
    check(
        "http: *nothing\n",
        &["f:1:7: not YAML: while parsing node, found unknown anchor"],
    );
}

#[test]
fn an_alias_is_a_copy() {
    let yaml = "sources:\n  a: &a { verify: { type: none }, sinks: [ { type: log } ] }\n  b: *a\n";
    assert_eq!(load_text(yaml, &[]).unwrap().config.sources[1].name, "b");
}

#[test]
fn wrong_types_say_what_is_wanted() {
    check(
        "http: { port: [1] }\negress: { allow: { a: b } }\nsources: [ a ]\nnode: { cores: [0, 0], data_dir: ~ }\n",
        &[
            "f:1:15: http.port: must be a whole number, not a list",
            "f:2:18: egress.allow: must be an address block such as 10.1.0.0/16, or a host name, not a map",
            "f:3:10: sources: must be a map of keys, not a list",
            "f:4:16: node.cores: names CPU 0 twice",
            "f:4:34: node.data_dir: has no value; remove the line, or give it a path",
        ],
    );
}

#[test]
fn a_fault_in_a_variable_names_the_variable() {
    assert_eq!(
        problems(
            "sources: {}",
            &[
                ("ANKUSA_HTTP_PORT", "0"),
                ("ANKUSA_HTTP_IP", "x"),
                ("ANKUSA_ADMIN_PORT", "tcp://10.0.0.1:4002")
            ]
        ),
        [
            "ANKUSA_ADMIN_PORT: admin.port: holds the address of a service that the cluster put there; turn service links off, or rename the service",
            "ANKUSA_HTTP_IP: http.ip: \"x\" is not an IP address, such as 127.0.0.1 or ::",
            "ANKUSA_HTTP_PORT: http.port: 0 is out of range; allowed: 1 to 65535",
        ]
    );
}

#[test]
fn expansion_faults_say_which_variable_or_file() {
    let port = |text: &str| {
        problems(
            &format!("http: {{ port: \"{text}\" }}"),
            &[("WORD", "abc"), ("N", "99999999")],
        )
        .join("\n")
    };
    assert_eq!(
        port("${NOPE}"),
        "f:1:15: http.port: the environment variable NOPE is not set"
    );
    assert_eq!(
        port("${WORD}"),
        "f:1:15: http.port: the value of \"${WORD}\" is not a whole number"
    );
    assert_eq!(
        port("${N}"),
        "f:1:15: http.port: the value of \"${N}\" is out of range; allowed: 1 to 65535"
    );
    assert_eq!(
        port("${file:rel}"),
        "f:1:15: http.port: the path of ${file:rel} must be absolute"
    );
    assert_eq!(
        port("${file:/does/not/exist}"),
        "f:1:15: http.port: cannot read /does/not/exist: No such file or directory (os error 2)"
    );
    assert_eq!(
        port("${4X}"),
        "f:1:15: http.port: \"${4X}\" is none of ${VAR}, ${VAR:-default}, ${file:/absolute/path}"
    );
    assert_eq!(
        port("${N"),
        "f:1:15: http.port: a ${ without its }; write $${ for a plain one"
    );
    assert_eq!(port("${NOPE:-80}"), "");
}
