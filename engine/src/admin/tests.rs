#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use ankusa_net::types::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;

use super::input::{Query, object};
use super::reply::Reply;
use super::routes::{Action, ROUTES, find};
use super::{OPENAPI, guard};
use crate::config::Secret;

#[test]
fn description_and_route_table_agree_on_paths_methods_query_and_body() {
    let doc: Value = serde_json::from_str(OPENAPI).unwrap();
    let none = Vec::new();
    let mut described = BTreeSet::new();
    for (path, methods) in doc["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().unwrap_or(&none);
            let query = parameters.iter().filter(|p| p["in"] == "query");
            let names: BTreeSet<_> = query.map(|p| p["name"].as_str().unwrap()).collect();
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body: BTreeSet<_> = match schema["properties"].as_object() {
                Some(members) => members.keys().map(String::as_str).collect(),
                None => BTreeSet::new(),
            };
            let in_path = parameters.iter().filter(|p| p["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{path}");
            described.insert((path.as_str(), method.to_uppercase(), names, body));
        }
    }
    let table: BTreeSet<_> = ROUTES
        .iter()
        .map(|r| {
            let query = r.query.iter().copied().collect();
            let body = r.body.iter().copied().collect();
            (r.path, r.method.to_string(), query, body)
        })
        .collect();
    assert_eq!(described, table);
}

#[test]
fn path_finds_its_route_and_its_names() {
    let (route, names) = find("PATCH", "/v1/tenants/t/sources/s-1/sinks/out").unwrap();
    assert_eq!(route.action, Action::SinkChange);
    assert_eq!(names, ["t", "s-1", "out"]);
    assert_eq!(find("HEAD", "/health").unwrap().0.action, Action::Health);
    for path in [
        "/",
        "/health/",
        "/v1",
        "/v1/hooks/",
        "/v1/hooks/a.b",
        "/v1/hooks/a/b",
        "//health",
    ] {
        assert_eq!(
            find("GET", path).unwrap_err().status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

#[test]
fn other_method_is_told_which_are_allowed() {
    let refused = find("DELETE", "/v1/replays").unwrap_err();
    assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED);
    let reply = Reply::from(refused);
    assert_eq!(reply.headers()["allow"], "GET, HEAD, POST");
}

#[test]
fn query_knows_its_keys_and_their_values() {
    let parse = |text| Query::parse(text, &["limit", "tenant", "body"]);
    assert_eq!(parse("").unwrap().limit().unwrap(), 100);
    assert_eq!(parse("limit=1000").unwrap().limit().unwrap(), 1000);
    for text in ["limit=0", "limit=1001", "limit=", "limit=-1", "limit=1e3"] {
        assert_eq!(
            parse(text).unwrap().limit().unwrap_err().word,
            "invalid_value",
            "{text}"
        );
    }
    assert_eq!(
        parse("tenant=a%62")
            .unwrap()
            .name("tenant")
            .unwrap_err()
            .word,
        "invalid_value"
    );
    assert!(parse("body=true").unwrap().flag("body").unwrap());
    assert!(parse("body=1").unwrap().flag("body").is_err());
    assert_eq!(parse("x=1").unwrap_err().word, "unknown_key");
    assert_eq!(parse("limit=1&limit=1").unwrap_err().word, "repeated_key");
}

#[test]
fn body_is_json_that_says_so_with_known_members_only() {
    let json = Some(&b"application/json; charset=utf-8"[..]);
    assert!(object(json, b"{\"a\":1}", &["a"]).is_ok());
    assert_eq!(
        object(json, b"{\"b\":1}", &["a"]).unwrap_err().word,
        "unknown_key"
    );
    for body in [&b""[..], b"[]", b"{", b"\xff", b"{}{}"] {
        assert_eq!(
            object(json, body, &["a"]).unwrap_err().word,
            "malformed_json"
        );
    }
    for kind in [
        None,
        Some(&b"text/plain"[..]),
        Some(b"application/x-www-form-urlencoded"),
    ] {
        assert_eq!(
            object(kind, b"{}", &[]).unwrap_err().word,
            "unsupported_media_type"
        );
    }
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(*name, HeaderValue::from_static(value));
    }
    map
}

#[test]
fn token_is_asked_for_where_there_is_one() {
    let token = Secret::from("t0ken");
    let check = |pairs: &[_]| guard::check(&headers(pairs), Some(&token));
    assert!(check(&[("authorization", "Bearer t0ken")]).is_ok());
    assert!(check(&[("authorization", "bearer t0ken"), ("host", "x.example")]).is_ok());
    for bad in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer t0kex",
        "Bearer t0ken ",
        "Basic t0ken",
        "t0ken",
    ] {
        let refused = check(&[("authorization", bad)]).unwrap_err();
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{bad}");
    }
    assert!(check(&[]).is_err());
    let twice = [
        ("authorization", "Bearer t0ken"),
        ("authorization", "Bearer t0ken"),
    ];
    assert!(check(&twice).is_err());
}

#[test]
fn without_a_token_only_an_address_or_localhost_may_be_named() {
    for host in ["127.0.0.1:4002", "localhost", "LOCALHOST:1", "[::1]:4002"] {
        assert!(
            guard::check(&headers(&[("host", host)]), None).is_ok(),
            "{host}"
        );
    }
    for host in [
        "evil.example",
        "evil.example:4002",
        "127.0.0.1.evil.example",
        "",
    ] {
        let refused = guard::check(&headers(&[("host", host)]), None).unwrap_err();
        assert_eq!(refused.word, "forbidden_host", "{host}");
    }
}
