#![allow(clippy::unwrap_used)]
use super::*;
use crate::node::core::body_bytes_held_max;

fn loaded(more: &str) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yml");
    let text = format!(
        "{more}\nsources:\n  demo:\n    verify: {{ type: none }}\n    sinks: [ {{ type: log }} ]\n"
    );
    std::fs::write(&file, text).unwrap();
    config::load(Some(&file), &Env::default()).unwrap()
}

fn check(old: &str, new: &str) -> (Config, Next) {
    let old = loaded(old).config;
    let next = next(&old, loaded(new), body_bytes_held_max(&old, 1));
    (old, next)
}

#[test]
fn what_a_reload_takes_over_is_new_and_what_needs_a_restart_keeps_its_value() {
    let (old, next) = check(
        "http: { port: 4100, max_body_bytes: 1000 }\nlog: { level: info, format: text }",
        "http: { port: 4200, max_body_bytes: 2000 }\nlog: { level: debug, format: json }\negress: { allow_http: true }",
    );
    assert_eq!(next.diff.restart, ["log.format", "http.port"]);
    assert!(next.diff.live.contains(&"log.level".to_string()));
    assert!(next.diff.live.contains(&"egress.allow_http".to_string()));
    assert_eq!(next.config.http.port, 4100);
    assert_eq!(next.config.http.max_body_bytes, 2000);
    assert_eq!(next.config.log.format, old.log.format);
    assert!(next.config.egress.allow_http);
    let shown = next.config.effective.iter().find(|e| e.path == "http.port");
    assert_eq!(shown.unwrap().value, 4100);
}

#[test]
fn limits_of_connections_wait_for_a_restart_and_say_so() {
    let (old, next) = check("", "http: { limits: { head_bytes: 65000 } }");
    assert_eq!(next.diff.restart, ["http.limits.head_bytes"]);
    assert!(next.diff.live.is_empty());
    assert_eq!(next.config.http.limits, old.http.limits);
}

#[test]
fn body_that_only_a_segment_after_a_restart_can_hold_waits_for_it() {
    let large = "http: { max_body_bytes: 60000000 }";
    let small = "wal: { segment_bytes: 32 MiB }";
    let (old, next) = check(
        small,
        &format!("wal: {{ segment_bytes: 128 MiB }}\n{large}"),
    );
    assert_eq!(
        next.diff.restart,
        ["wal.segment_bytes", "http.max_body_bytes"]
    );
    assert!(next.diff.live.is_empty());
    assert_eq!(next.config.http.max_body_bytes, old.http.max_body_bytes);
    let (_, next) = check("", large);
    assert_eq!(next.config.http.max_body_bytes, 60_000_000);
}

/// A listener holds a share of the queue's bytes, and at least one body of the size it was started
/// for: a larger one would be refused as overload for ever.
#[test]
fn body_larger_than_a_listener_was_started_for_waits_for_a_restart_and_says_so() {
    let queue = "queue: { max_bytes: 64 MiB }\nwal: { segment_bytes: 128 MiB }";
    let old = loaded(&format!("{queue}\nhttp: {{ max_body_bytes: 1 MiB }}")).config;
    let larger = format!("{queue}\nhttp: {{ max_body_bytes: 20 MiB }}");
    let held = body_bytes_held_max(&old, 4);
    assert_eq!(held, 16 << 20);
    let four = next(&old, loaded(&larger), held);
    assert_eq!(four.diff.restart, ["http.max_body_bytes"]);
    assert_eq!(four.config.http.max_body_bytes, 1 << 20);
    let two = next(&old, loaded(&larger), body_bytes_held_max(&old, 2));
    assert!(two.diff.restart.is_empty());
    assert_eq!(two.config.http.max_body_bytes, 20 << 20);
}

#[test]
fn same_file_changes_nothing() {
    let (old, next) = check("", "");
    assert!(next.diff.is_empty());
    assert_eq!(next.config.sources, old.sources);
}

/// A file may move the admin port to loopback and drop its token; the port moves only at a restart.
#[test]
fn port_that_others_can_reach_keeps_its_token_until_the_restart_that_moves_it() {
    let (_, next) = check(
        "admin: { ip: 0.0.0.0, token: secret-secret-secret-secret-secret }",
        "admin: { ip: 127.0.0.1 }",
    );
    assert!(!next.config.admin.ip.is_loopback());
    assert!(next.config.admin.token.is_some());
    assert!(next.diff.restart.contains(&"admin.token".to_string()));
    let (_, next) = check(
        "admin: { token: secret-secret-secret-secret-secret }",
        "admin: { token: other-other-other-other-other-other }",
    );
    assert_eq!(next.diff.live, ["admin.token"]);
    assert_eq!(
        next.config.admin.token.unwrap().expose_str(),
        "other-other-other-other-other-other"
    );
}
