//! The request as an endpoint sees it.

use base64::Engine as _;
use futures_lite::future::block_on;
use hyper::header::HeaderMap;
use proptest::prelude::*;

use super::*;

fn headers_of(
    spec: &HookSpec<'_>,
    forward: &ForwardRule,
    own: &[(&str, &str)],
    signer: &Signer,
) -> HeaderMap {
    let envelope = spec.envelope();
    let own: Vec<_> = own
        .iter()
        .map(|(n, v)| ((*n).to_owned(), Secret::from(*v)))
        .collect();
    let own = OwnHeaders::new(&own).unwrap();
    let stamp = block_on(stamp(
        &EagerHost::default(),
        signer,
        ID,
        1_614_265_330,
        spec.body,
        false,
    ));
    request_headers(&delivery(&envelope), forward, &own, &stamp, 1_614_265_330)
}

fn plain(spec: &HookSpec<'_>) -> HeaderMap {
    headers_of(spec, &ForwardRule::all(), &[], &Signer::default())
}

fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|v| v.to_str().unwrap())
}

#[test]
fn identity_is_in_the_headers() {
    let spec = HookSpec {
        dedupe_key: Some("evt_1"),
        ..HookSpec::default()
    };
    let headers = plain(&spec);
    for (name, value) in [
        ("x-ankusa-id", ID),
        ("x-ankusa-source", "pay"),
        ("x-ankusa-tenant", "acme"),
        ("x-ankusa-idempotency-key", "acme:pay:evt_1"),
        ("x-ankusa-dedupe-key", "evt_1"),
        ("x-ankusa-received-at", "1737500000000"),
        (
            "x-ankusa-body-sha256",
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        ),
        ("x-ankusa-verification", "verified"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(get(&headers, name), Some(value), "{name}");
    }
    for name in [
        "x-ankusa-replay-id",
        "x-ankusa-verification-flagged",
        "webhook-id",
        "webhook-signature",
    ] {
        assert_eq!(get(&headers, name), None, "{name}");
    }
    let flagged = plain(&HookSpec {
        verification: Verification::Flagged,
        ..HookSpec::default()
    });
    assert_eq!(get(&flagged, "x-ankusa-verification-flagged"), Some("true"));
    assert_eq!(get(&flagged, "x-ankusa-idempotency-key"), Some(ID));
    let bare = plain(&HookSpec {
        content_type: "",
        tenant: "",
        ..HookSpec::default()
    });
    assert_eq!(get(&bare, "content-type"), Some("application/octet-stream"));
    assert_eq!(get(&bare, "x-ankusa-tenant"), None);
}

#[test]
fn providers_headers_go_on_but_for_what_is_not_theirs_to_say() {
    let kept: [(&[u8], &[u8]); 7] = [
        (b"Stripe-Signature", b"t=1"),
        (b"X-Many", b"1"),
        (b"x-many", b"2"),
        (b"User-Agent", b"Hook/1"),
        (b"Content-Encoding", b"gzip"),
        (b"X-Raw", b"caf\xe9"),
        (b"webhook-id", b"theirs"),
    ];
    let dropped: [&[u8]; 19] = [
        b"Authorization",
        b"Proxy-Authorization",
        b"Cookie",
        b"Set-Cookie",
        b"X-Api-Key",
        b"Host",
        b"Content-Length",
        b"Transfer-Encoding",
        b"Connection",
        b"Keep-Alive",
        b"Proxy-Connection",
        b"TE",
        b"Trailer",
        b"Upgrade",
        b"Expect",
        b"HTTP2-Settings",
        b"X-ANKUSA-Source",
        b"x-ankusa-anything",
        b"X-Hop",
    ];
    let mut all: Vec<(&[u8], &[u8])> = kept.to_vec();
    all.extend(dropped.map(|name| {
        (
            name,
            if name == b"Connection" {
                &b"x-hop"[..]
            } else {
                &b"no"[..]
            },
        )
    }));
    let headers = plain(&HookSpec {
        headers: &all,
        ..HookSpec::default()
    });
    assert!(
        !headers.values().any(|v| v.as_bytes() == b"no"),
        "{headers:?}"
    );
    assert_eq!(get(&headers, "connection"), None);
    assert_eq!(get(&headers, "user-agent"), Some("Hook/1"));
    assert_eq!(get(&headers, "webhook-id"), Some("theirs"));
    assert_eq!(headers["x-raw"].as_bytes(), b"caf\xe9");
    assert_eq!(headers.get_all("x-many").iter().count(), 2);
    let only = forwarding(&["stripe-signature", "host"]);
    let spec = HookSpec {
        headers: &all,
        ..HookSpec::default()
    };
    let headers = headers_of(&spec, &only, &[], &Signer::default());
    assert_eq!(get(&headers, "stripe-signature"), Some("t=1"));
    assert_eq!(get(&headers, "content-encoding"), Some("gzip"));
    assert_eq!(get(&headers, "x-many"), None);
    assert_eq!(get(&headers, "host"), None);
    assert!(get(&headers, "user-agent").unwrap().starts_with("ankusa/"));
}

#[test]
fn providers_token_stays_here() {
    let spec = HookSpec {
        headers: &[(b"X-Token", b"t"), (b"x-other", b"1")],
        ..HookSpec::default()
    };
    for rule in [
        ForwardRule::new(&source()),
        forwarding(&["x-token", "x-other"]),
    ] {
        let headers = headers_of(&spec, &rule, &[], &Signer::default());
        assert_eq!(get(&headers, "x-token"), None);
        assert_eq!(get(&headers, "x-other"), Some("1"));
    }
}

#[test]
fn own_headers_win_over_the_providers_but_not_over_identity() {
    let spec = HookSpec {
        headers: &[
            (b"x-a", b"theirs"),
            (b"x-a", b"theirs too"),
            (b"authorization", b"theirs"),
        ],
        ..HookSpec::default()
    };
    let own = [
        ("X-A", "ours"),
        ("Authorization", "Bearer t"),
        ("content-type", "text/plain"),
    ];
    let headers = headers_of(&spec, &ForwardRule::all(), &own, &Signer::default());
    assert_eq!(headers.get_all("x-a").iter().count(), 1);
    assert_eq!(get(&headers, "x-a"), Some("ours"));
    assert_eq!(get(&headers, "authorization"), Some("Bearer t"));
    assert_eq!(get(&headers, "content-type"), Some("text/plain"));
    assert!(!format!("{headers:?}").contains("Bearer"));
    let refused = [
        ("x-ankusa-id", "x"),
        ("Host", "x"),
        ("content-length", "1"),
        ("a b", "x"),
        ("a", "x\ny"),
        ("", "x"),
    ];
    for (name, value) in refused {
        assert!(
            OwnHeaders::new(&[(name.to_owned(), Secret::from(value))]).is_none(),
            "{name}"
        );
    }
}

#[test]
fn signature_is_the_one_of_standard_webhooks() {
    let secret = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let key = base64::prelude::BASE64_STANDARD.decode(secret).unwrap();
    let signer = Signer::new(&[Secret::new(key)]);
    let body = br#"{"test": 2432232314}"#;
    let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let stamp = block_on(stamp(
        &EagerHost::default(),
        &signer,
        id,
        1_614_265_330,
        body,
        false,
    ));
    assert_eq!(
        stamp.signature,
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    );
}

#[test]
fn signed_delivery_verifies_with_each_of_its_secrets() {
    use crate::config::VerifyConfig;
    use crate::verify::{Lookup, Verifier};
    let secrets = [Secret::from("new"), Secret::from("old")];
    // A source that takes Standard Webhooks itself: its headers must not be read for ours.
    let spec = HookSpec {
        headers: &[(b"Webhook-Id", b"theirs"), (b"webhook-signature", b"v1,x")],
        ..HookSpec::default()
    };
    let headers = headers_of(&spec, &ForwardRule::all(), &[], &Signer::new(&secrets));
    assert_eq!(headers.get_all("webhook-id").iter().count(), 1);
    assert_eq!(get(&headers, "webhook-id"), Some(ID));
    assert_eq!(get(&headers, "webhook-timestamp"), Some("1614265330"));
    for secret in secrets {
        let config = VerifyConfig::StandardWebhooks {
            secrets: vec![secret],
            tolerance_seconds: 300,
        };
        let verifier = Verifier::build(&config).unwrap();
        let lookup = |name: &str| Lookup::from(headers.get(name).map(|v| v.as_bytes()));
        assert!(verifier.verify(lookup, spec.body, 1_614_265_330).is_ok());
    }
}

#[test]
fn long_body_is_hashed_in_turns() {
    let host = EagerHost::default();
    let body = vec![3u8; 1_000_000];
    let stamped = block_on(stamp(&host, &Signer::default(), ID, 0, &body, true));
    assert_eq!(stamped.sha256, sha256(&body));
    assert_eq!(stamped.chunks.concat(), body);
    assert_eq!(host.yields.get(), stamped.chunks.len() as u64);
    assert_eq!(host.yields.get(), 8);
}

proptest! {
    #[test]
    fn no_header_panics(
        name in proptest::collection::vec(any::<u8>(), 0..20),
        value in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let pairs: [(&[u8], &[u8]); 2] = [(&name, &value), (b"x-a", &value)];
        plain(&HookSpec { headers: &pairs, ..HookSpec::default() });
    }
}
