//! The message as its readers parse it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn message(spec: &HookSpec<'_>, forward: &ForwardRule) -> Value {
    let envelope = spec.envelope();
    let bytes = MessageWriter::begin(&delivery(&envelope), forward, &sha256(spec.body), 1).finish();
    assert!(!bytes.contains(&b'\n'));
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn message_has_every_field_in_its_order() {
    let spec = HookSpec {
        headers: &[(b"X-Event", b"push"), (b"authorization", b"secret")],
        dedupe_key: Some("evt_1"),
        ..HookSpec::default()
    };
    let envelope = spec.envelope();
    let delivery = Delivery {
        replay_id: Some("r1"),
        ..delivery(&envelope)
    };
    let bytes = MessageWriter::begin(&delivery, &ForwardRule::all(), &sha256(b"{}"), 0).finish();
    let expected = format!(
        concat!(
            r#"{{"v":1,"id":"{}","source_id":"pay","tenant_id":"acme","received_at":1737500000000,"#,
            r#""content_type":"application/json","size":2,"dedupe_key":"evt_1","replay_id":"r1","#,
            r#""idempotency_key":"acme:pay:evt_1","headers":{{"x-event":"push"}},"#,
            r#""sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","#,
            r#""body_base64":"e30="}}"#
        ),
        ID
    );
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[test]
fn absent_fields_are_null() {
    let value = message(
        &HookSpec {
            content_type: "",
            ..HookSpec::default()
        },
        &ForwardRule::all(),
    );
    for field in ["content_type", "dedupe_key", "replay_id"] {
        assert_eq!(value[field], Value::Null, "{field}");
    }
    assert_eq!(value["idempotency_key"], ID);
    assert_eq!(value["headers"], serde_json::json!({}));
}

#[test]
fn headers_are_lower_case_and_joined() {
    let spec = HookSpec {
        headers: &[
            (b"X-B", b"1"),
            (b"x-a", b"quote \" slash \\ tab \t"),
            (b"x-b", b"2"),
            (b"X-Latin", b"caf\xe9"),
            (b"x-utf", "é".as_bytes()),
            (b"Connection", b"close, X-Hop"),
            (b"x-hop", b"no"),
            (b"Cookie", b"no"),
            (b"X-Ankusa-Id", b"no"),
            (b"X-API-Key", b"no"),
            (b"transfer-encoding", b"no"),
        ],
        ..HookSpec::default()
    };
    let expected = serde_json::json!({
        "x-a": "quote \" slash \\ tab \t", "x-b": "1, 2", "x-latin": "café", "x-utf": "é",
    });
    assert_eq!(message(&spec, &ForwardRule::all())["headers"], expected);
    let only = forwarding(&["x-b", "cookie"]);
    assert_eq!(
        message(&spec, &only)["headers"],
        serde_json::json!({ "x-b": "1, 2" })
    );
}

#[test]
fn bodies_come_back_byte_for_byte() {
    let pattern: Vec<u8> = (0..200_000u32).map(|n| (n * 7 + n / 256) as u8).collect();
    let lens = [
        0,
        1,
        2,
        3,
        4,
        48 * 1024 - 1,
        48 * 1024,
        48 * 1024 + 1,
        96 * 1024 + 2,
        200_000,
    ];
    let strange: [&[u8]; 4] = [
        b"\xff\xfe\x00",
        b"\xed\xa0\x80",
        "\u{FFFD}".as_bytes(),
        b"a=1&a=2+%00",
    ];
    for body in lens.iter().map(|len| &pattern[..*len]).chain(strange) {
        let value = message(
            &HookSpec {
                body,
                ..HookSpec::default()
            },
            &ForwardRule::all(),
        );
        let decoded = BASE64_STANDARD
            .decode(value["body_base64"].as_str().unwrap())
            .unwrap();
        assert_eq!(decoded, body);
        assert_eq!(value["size"], body.len());
    }
}

#[test]
fn buffer_never_grows_after_the_head() {
    let body = vec![7u8; 100_000];
    let spec = HookSpec {
        body: &body,
        ..HookSpec::default()
    };
    let envelope = spec.envelope();
    let writer = MessageWriter::begin(&delivery(&envelope), &ForwardRule::all(), &sha256(&body), 1);
    let mut bytes = writer.finish();
    let capacity = bytes.capacity();
    bytes.push(b'\n');
    assert_eq!(bytes.capacity(), capacity);
    assert_eq!(bytes.len(), capacity);
}

proptest! {
    #[test]
    fn any_header_makes_a_sound_message(
        name in proptest::collection::vec(any::<u8>(), 0..20),
        value in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let pairs: [(&[u8], &[u8]); 2] = [(&name, &value), (b"x", &value)];
        message(&HookSpec { headers: &pairs, ..HookSpec::default() }, &ForwardRule::all());
    }
}
