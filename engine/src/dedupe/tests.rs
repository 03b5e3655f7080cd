//! Keys out of headers and out of every kind of JSON.
#![allow(clippy::unwrap_used)]

use ankusa_wal::ids::HookId;
use proptest::prelude::*;

use super::*;
use crate::config::DedupeKeyFrom;
use crate::verify::Lookup;

fn scan(path: &str, body: &[u8]) -> Result<Scalar, Absence> {
    JsonScan::new(JsonPath::parse(path).unwrap()).run(body)
}

fn found(path: &str, body: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
    let body = body.as_ref();
    let expected = Ok(Scalar::Short(expected.as_ref().to_vec()));
    assert_eq!(
        scan(path, body),
        expected,
        "{path} in {}",
        String::from_utf8_lossy(body)
    );
}

fn absent(path: &str, body: impl AsRef<[u8]>, why: Absence) {
    let body = body.as_ref();
    assert_eq!(
        scan(path, body),
        Err(why),
        "{path} in {}",
        String::from_utf8_lossy(body)
    );
}

#[test]
fn value_is_found_at_its_path() {
    found("id", r#"{"id":"evt_1"}"#, "evt_1");
    found(
        "id",
        " \t\r\n{ \"a\" : [1,{\"id\":2}] , \"id\" : \"x\" }",
        "x",
    );
    found(
        "data.id",
        r#"{"id":"no","data":{"x":{"id":0},"id":"yes"}}"#,
        "yes",
    );
    found("a.b.c", r#"{"a":{"b":{"c":17}}}"#, "17");
    found("id", r#"{"id":-3 }"#, "-3");
    found("id", r#"{"id":0}"#, "0");
    found(
        "id",
        r#"{"t":true,"f":false,"n":null,"d":-1.5e+3,"id":"x"}"#,
        "x",
    );
}

#[test]
fn elements_of_arrays_are_counted() {
    found("items.1.id", r#"{"items":[{"id":"a"},{"id":"b"}]}"#, "b");
    found("0.0", r#"[["x"],["y"]]"#, "x");
    found("1", r#"[[1,[2,3],{"1":4}], "z"]"#, "z");
    found("10", "[0,1,2,3,4,5,6,7,8,9,10]", "10");
    absent(
        "items.2.id",
        r#"{"items":[{"id":"a"},{"id":"b"}]}"#,
        Absence::NotFound,
    );
    absent("items.id", r#"{"items":[{"id":"a"}]}"#, Absence::NotFound);
    absent("0", "[]", Absence::NotFound);
    // Of an object the same segment is a name.
    found("1", r#"{"0":"a","1":"b"}"#, "b");
}

#[test]
fn first_of_equal_names_decides() {
    found("id", r#"{"id":"first","id":"second"}"#, "first");
    absent(
        "data.id",
        r#"{"data":{},"data":{"id":"second"}}"#,
        Absence::NotFound,
    );
    absent("id", r#"{"id":null,"id":"second"}"#, Absence::WrongType);
}

#[test]
fn names_compare_after_their_escapes() {
    found("id", r#"{"\u0069\u0064":"x"}"#, "x");
    found("a/b", r#"{"a\/b":"x"}"#, "x");
    found("é😀", r#"{"\u00e9\ud83d\ude00":"x"}"#, "x");
    found(
        "id",
        r#"{"id\u0000":"no","i":"no","idx":"no","id":"x"}"#,
        "x",
    );
    found(
        "id",
        r#"{"\ud800":1,"\ud800\\":2,"\ud800d":3,"id":"x"}"#,
        "x",
    );
}

#[test]
fn values_lose_their_escapes() {
    found("id", r#"{"id":"\"\\\/\b\f\n\r\t"}"#, b"\"\\/\x08\x0C\n\r\t");
    found("id", r#"{"id":"A\u00e9\u20ac\uD83D\uDE00"}"#, "Aé€😀");
    found("id", "{\"id\":\"é😀\u{FFFD}\"}", "é😀\u{FFFD}");
    found("id", b"{\"id\":\"a\x00b\"}", b"a\x00b");
    for broken in [
        r#"{"id":"\x"}"#,
        r#"{"id":"\u12g4"}"#,
        r#"{"id":"\ud83d\u"}"#,
        r#"{"id":"\"#,
    ] {
        absent("id", broken, Absence::Malformed);
    }
}

#[test]
fn different_lone_surrogates_are_different_keys() {
    found("id", r#"{"id":"\ud800"}"#, b"\xED\xA0\x80");
    found("id", r#"{"id":"\udfff"}"#, b"\xED\xBF\xBF");
    found("id", r#"{"id":"\ud800x"}"#, b"\xED\xA0\x80x");
    found("id", r#"{"id":"\ud800\n"}"#, b"\xED\xA0\x80\n");
    found(
        "id",
        r#"{"id":"\ud800\ud83d\ude00"}"#,
        b"\xED\xA0\x80\xF0\x9F\x98\x80",
    );
    found("id", r#"{"id":"\ud800\u0041"}"#, b"\xED\xA0\x80A");
    let key = |text: &str| {
        KeyPlan::build(&DedupeKeyFrom::Stripe)
            .unwrap()
            .run(|_| Lookup::Absent, text.as_bytes())
            .unwrap()
    };
    let one = key(r#"{"id":"\ud800"}"#);
    assert_ne!(one, key(r#"{"id":"\ud801"}"#));
    assert!(one.as_bytes().starts_with(b"sha256:"));
}

#[test]
fn only_strings_and_integers_are_keys() {
    for wrong in [
        "null", "true", "false", "1.0", "1e5", "1E5", "-0.5", "{}", "[]", "[1]",
    ] {
        absent(
            "id",
            format!(r#"{{"id":{wrong},"x":1}}"#),
            Absence::WrongType,
        );
    }
    for broken in ["01", "-", "-01", "--1", "1x", "+1", "'a'", "a"] {
        absent(
            "id",
            format!(r#"{{"id":{broken},"x":1}}"#),
            Absence::Malformed,
        );
    }
    absent("id.x", r#"{"id":"x"}"#, Absence::NotFound);
    absent("id", r#""id""#, Absence::NotFound);
    absent("id", "17", Absence::NotFound);
}

#[test]
fn what_is_not_json_has_no_key() {
    for broken in [
        "",
        " ",
        "{",
        "{\"id\"",
        "{\"id\":",
        "{\"id\":\"x",
        "{\"id\":12",
        "{id:1}",
        "{\"a\" 1}",
        "{\"a\":1 \"id\":2}",
        "{,\"id\":1}",
        "{\"a\":1,}",
        "[1,]",
        "{\"a\":[}",
        "{\"a\":{]",
        "payload=%7B%7D&id=1",
        "\u{FEFF}",
        "<xml/>",
        "]",
        "}",
    ] {
        absent(
            "id",
            broken,
            match broken {
                "[1,]" => Absence::NotFound,
                _ => Absence::Malformed,
            },
        );
    }
}

#[test]
fn damage_after_the_value_does_not_matter() {
    found("id", b"{\"id\":\"x\"\xff\xff", "x");
}

#[test]
fn invalid_utf8_is_passed_and_hashed() {
    found("id", b"{\"a\":\"\xff\xfe\",\"\xc0\":1,\"id\":\"x\"}", "x");
    found("id", b"{\"id\":\"\xff\"}", b"\xff");
    assert!(
        DedupeKey::of_bytes(b"\xff")
            .unwrap()
            .as_bytes()
            .starts_with(b"sha256:")
    );
}

#[test]
fn byte_order_mark_is_skipped() {
    found("id", b"\xEF\xBB\xBF{\"id\":\"x\"}", "x");
    absent("id", b"\xEF\xBB{\"id\":\"x\"}", Absence::Malformed);
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        format!(
            "{{\"a\":{}1{},\"id\":7}}",
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    found("id", nested(DEPTH_MAX - 1), "7");
    absent("id", nested(DEPTH_MAX), Absence::TooDeep);
}

#[test]
fn long_values_become_their_digest() {
    let body = |len: usize| format!(r#"{{"id":"{}"}}"#, "a".repeat(len));
    assert_eq!(
        scan("id", body(200).as_bytes()),
        Ok(Scalar::Short(vec![b'a'; 200]))
    );
    let long = scan("id", body(201).as_bytes()).unwrap();
    assert!(matches!(long, Scalar::Long(_)));
    // The body's way and the header's way give one key.
    let key = DedupeKey::of_scalar(long).unwrap();
    assert_eq!(key, DedupeKey::of_bytes(&[b'a'; 201]).unwrap());
    assert_eq!(key.as_bytes().len(), 7 + 64);
    let digits = "9".repeat(300);
    let number = scan("id", format!(r#"{{"id":{digits}}}"#).as_bytes()).unwrap();
    assert_eq!(
        DedupeKey::of_scalar(number),
        DedupeKey::of_bytes(digits.as_bytes())
    );
    let huge = "18446744073709551616000";
    found("id", format!(r#"{{"id":{huge}}}"#), huge);
}

#[test]
fn digest_key_is_the_sha256_of_the_raw_key() {
    let key = DedupeKey::of_bytes(&[b'a'; 201]).unwrap();
    let expected = "sha256:a92efd82109373e58f9a2056dee01e807e216ce6075f7051207c0a9f7d666e50";
    assert_eq!(std::str::from_utf8(key.as_bytes()).unwrap(), expected);
}

#[test]
fn long_bodies_are_scanned_in_steps() {
    let body = format!(r#"{{"pad":"{}","id":"x"}}"#, "p".repeat(8_000_000));
    let mut scan = JsonScan::new(JsonPath::parse("id").unwrap());
    let mut steps = 1;
    let value = loop {
        match scan.scan_step(body.as_bytes()) {
            ScanStep::Pending => steps += 1,
            ScanStep::Found(value) => break value,
            ScanStep::Absent(why) => panic!("{why:?}"),
        }
    };
    assert_eq!(value, Scalar::Short(b"x".to_vec()));
    assert_eq!(steps, body.len().div_ceil(SCAN_STEP_BYTES));
}

#[test]
fn unusable_paths_are_refused() {
    for path in ["", ".", "a.", ".a", "a..b"] {
        assert_eq!(JsonPath::parse(path), Err(PathError::EmptySegment));
    }
    assert_eq!(
        JsonPath::parse(&vec!["a"; 17].join(".")),
        Err(PathError::TooLong)
    );
    assert_eq!(JsonPath::parse(&"a".repeat(257)), Err(PathError::TooLong));
}

#[test]
fn presets_look_where_the_provider_puts_it() {
    let key = |from: DedupeKeyFrom, headers: &[(&str, &str)], body: &str| {
        let plan = KeyPlan::build(&from).unwrap();
        let lookup = |name: &str| Lookup::of(name, headers.iter().map(|(n, v)| (n, v.as_bytes())));
        let key = plan.run(lookup, body.as_bytes());
        key.map(|k| String::from_utf8(k.as_bytes().to_vec()).unwrap())
    };
    let is = |got: Option<String>, expected: &str| assert_eq!(got.as_deref(), Some(expected));
    let github = || DedupeKeyFrom::GitHub;
    is(
        key(github(), &[("X-GitHub-Delivery", "72d3162e")], "{}"),
        "72d3162e",
    );
    is(
        key(
            DedupeKeyFrom::StandardWebhooks,
            &[("webhook-id", "msg_1")],
            "{}",
        ),
        "msg_1",
    );
    is(
        key(
            DedupeKeyFrom::StandardWebhooks,
            &[("svix-id", "msg_2")],
            "{}",
        ),
        "msg_2",
    );
    let both = [("X-Shopify-Webhook-Id", "w"), ("X-Shopify-Event-Id", "e")];
    is(key(DedupeKeyFrom::Shopify, &both, "{}"), "e");
    is(key(DedupeKeyFrom::Shopify, &both[..1], "{}"), "w");
    is(
        key(
            DedupeKeyFrom::Stripe,
            &[],
            r#"{"object":"event","id":"evt_9"}"#,
        ),
        "evt_9",
    );
    is(
        key(DedupeKeyFrom::Header("X-A".into()), &[("x-a", "k")], ""),
        "k",
    );
    let path = DedupeKeyFrom::Json(vec!["a".into(), "b".into()]);
    is(key(path, &[], r#"{"a":{"b":7}}"#), "7");
    assert_eq!(key(github(), &[], "{}"), None);
    assert_eq!(
        key(
            github(),
            &[("x-github-delivery", "a"), ("x-github-delivery", "a")],
            "{}"
        ),
        None
    );
}

#[test]
fn empty_values_are_no_key() {
    let json = KeyPlan::build(&DedupeKeyFrom::Stripe).unwrap();
    assert_eq!(json.run(|_| Lookup::Absent, br#"{"id":""}"#), None);
    let header = KeyPlan::build(&DedupeKeyFrom::Header("X-Event-Id".into())).unwrap();
    assert_eq!(header.run(|_| Lookup::One(b""), b""), None);
    assert_eq!(
        header.run(
            |name| {
                assert_eq!(name, "x-event-id");
                Lookup::One(b"k")
            },
            b""
        ),
        DedupeKey::of_bytes(b"k")
    );
}

#[test]
fn keys_that_a_header_would_change_become_their_digest() {
    for kept in ["k", "a b", "é", "a:b", "\u{1F600}"] {
        assert_eq!(
            DedupeKey::of_bytes(kept.as_bytes()).unwrap().as_bytes(),
            kept.as_bytes()
        );
    }
    for changed in [" k", "k ", "k\n", "a\r\nb", "\0", "\x7f", "a\tb"] {
        assert!(
            DedupeKey::of_bytes(changed.as_bytes())
                .unwrap()
                .as_bytes()
                .starts_with(b"sha256:")
        );
    }
}

#[test]
fn idempotency_key_names_tenant_source_and_key() {
    let id = HookId::parse("01939b5e-7b5f-7000-8000-000000000001").unwrap();
    assert_eq!(
        idempotency_key(b"acme", b"pay", Some(b"evt"), id),
        b"acme:pay:evt"
    );
    assert_eq!(
        idempotency_key(b"", b"pay", Some(b"evt"), id),
        b"default:pay:evt"
    );
    assert_eq!(
        idempotency_key(b"acme", b"pay", None, id),
        b"01939b5e-7b5f-7000-8000-000000000001"
    );
}

#[test]
fn hash_is_siphash_and_never_changes() {
    // Reference vector of SipHash-2-4-128: key 00..0f, input 00..0e.
    use siphasher::sip128::{Hasher128 as _, SipHasher24};
    use std::hash::Hasher as _;
    let key: [u8; 16] = std::array::from_fn(|i| i as u8);
    let mut hasher = SipHasher24::new_with_key(&key);
    hasher.write(&key[..15]);
    assert_eq!(
        hex(&hasher.finish128().as_bytes()),
        "5493e99933b0a8117e08ec0f97cfc3d9"
    );
    // The framing around it, pinned.
    assert_eq!(
        hex(&dedupe_hash(&key, b"default", b"pay", b"evt_1")),
        "a461ec63bb7392548eb021d48b708613"
    );
}

#[test]
fn hash_tells_the_parts_apart() {
    let key = [9u8; 16];
    let base = dedupe_hash(&key, b"ab", b"c", b"d");
    assert_ne!(base, dedupe_hash(&key, b"a", b"bc", b"d"));
    assert_ne!(base, dedupe_hash(&key, b"ab", b"cd", b""));
    assert_ne!(base, dedupe_hash(&[8u8; 16], b"ab", b"c", b"d"));
    assert_eq!(base, dedupe_hash(&key, b"ab", b"c", b"d"));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The answer of a full parser: the first member of a name decides.
fn expected(value: &serde_json::Value, path: &[&str]) -> Option<Vec<u8>> {
    match (value, path) {
        (serde_json::Value::String(text), []) => Some(text.clone().into_bytes()),
        (serde_json::Value::Number(n), []) if n.is_i64() || n.is_u64() => {
            Some(n.to_string().into_bytes())
        }
        (serde_json::Value::Object(members), [name, rest @ ..]) => {
            expected(members.get(*name)?, rest)
        }
        (serde_json::Value::Array(items), [at, rest @ ..]) => {
            expected(items.get(at.parse::<usize>().ok()?)?, rest)
        }
        _ => None,
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (-1e6f64..1e6).prop_map(|f| serde_json::Value::from(f + 0.5e-3)),
        "\\PC{0,12}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            proptest::collection::vec(("[abc01]|\\PC{0,3}", inner), 0..5)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn scan_agrees_with_a_full_parser(
        value in json(),
        path in proptest::collection::vec("[abc01]", 1..4),
        pretty in any::<bool>(),
    ) {
        let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let got = match scan(&path.join("."), &body.unwrap()) {
            Ok(Scalar::Short(bytes)) => Some(bytes),
            Ok(Scalar::Long(_)) => unreachable!("values are short"),
            Err(Absence::Malformed) => return Err(TestCaseError::fail("sound JSON called malformed")),
            Err(_) => None,
        };
        prop_assert_eq!(got, expected(&value, &parts));
    }

    #[test]
    fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = scan("id", &body);
    }

    #[test]
    fn no_almost_json_panics(body in "[\\[\\]{}\":,\\\\u0-9a-dite \u{E9}-]{0,80}") {
        for path in ["id", "0", "a.0.b"] {
            let _ = scan(path, body.as_bytes());
        }
    }
}
