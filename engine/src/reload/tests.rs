#![allow(clippy::unwrap_used)]
use super::*;

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
    let next = next(&old, loaded(new));
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
    let (old, next) = check("", "http: { limits: { head_bytes: 65536 } }");
    assert_eq!(next.diff.restart, ["http.limits.head_bytes"]);
    assert!(next.diff.live.is_empty());
    assert_eq!(next.config.http.limits, old.http.limits);
}

#[test]
fn same_file_changes_nothing() {
    let (old, next) = check("", "");
    assert!(next.diff.is_empty());
    assert_eq!(next.config.sources, old.sources);
}
