//! Verification against published vectors, generated ones, and hostile input.
#![allow(clippy::unwrap_used)]

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use proptest::prelude::*;

use super::*;
use crate::config::{
    HmacHash, Secret, SignatureEncoding, SignatureParse, SignatureScheme, SignedPart, VerifyConfig,
};

mod build;
mod providers;

const NOW_S: u64 = 1_614_265_330;

type Headers<'a> = &'a [(&'a str, &'a str)];

fn secrets(all: &[&str]) -> Vec<Secret> {
    all.iter().map(|s| Secret::from(*s)).collect()
}

fn stripe_config(all: &[&str], tolerance_seconds: u64) -> VerifyConfig {
    VerifyConfig::Stripe {
        secrets: secrets(all),
        tolerance_seconds,
    }
}

fn verifier(config: VerifyConfig) -> Verifier {
    Verifier::build(&config).unwrap()
}

fn stripe(all: &[&str]) -> Verifier {
    verifier(stripe_config(all, 300))
}

fn github(secret: &str) -> Verifier {
    verifier(VerifyConfig::GitHub {
        secrets: secrets(&[secret]),
    })
}

/// A described scheme over the body alone: hex, whole, no timestamp.
fn described() -> SignatureScheme {
    SignatureScheme {
        signature_header: "X-Sig".into(),
        signed: vec![SignedPart::Body],
        parse: SignatureParse::Whole,
        sig_prefix: String::new(),
        encoding: SignatureEncoding::Hex,
        timestamp_header: None,
        tolerance_seconds: None,
    }
}

fn hmac_config(hash: HmacHash, scheme: SignatureScheme) -> VerifyConfig {
    VerifyConfig::Hmac {
        secrets: secrets(&["k"]),
        hash,
        scheme,
    }
}

/// One of each scheme that has secrets.
fn every_scheme(all: &[&str]) -> [VerifyConfig; 8] {
    let secrets = || secrets(all);
    let tolerance_seconds = 300;
    [
        VerifyConfig::Stripe {
            secrets: secrets(),
            tolerance_seconds,
        },
        VerifyConfig::GitHub { secrets: secrets() },
        VerifyConfig::StandardWebhooks {
            secrets: secrets(),
            tolerance_seconds,
        },
        VerifyConfig::Shopify { secrets: secrets() },
        VerifyConfig::Slack {
            secrets: secrets(),
            tolerance_seconds,
        },
        VerifyConfig::Hmac {
            secrets: secrets(),
            hash: HmacHash::Sha256,
            scheme: described(),
        },
        VerifyConfig::Bearer {
            secrets: secrets(),
            header: "authorization".into(),
            scheme: "Bearer".into(),
        },
        VerifyConfig::Basic {
            username: "u".into(),
            passwords: secrets(),
        },
    ]
}

fn run(v: &Verifier, headers: Headers<'_>, body: &[u8], now_s: u64) -> Result<Verified, Reason> {
    let lookup = |name: &str| Lookup::of(name, headers.iter().map(|(n, v)| (n, v.as_bytes())));
    let whole = v.verify(lookup, body, now_s);
    // The body may come in any pieces.
    let pieces = v.begin(lookup, now_s).and_then(|mut check| {
        body.chunks(7).for_each(|piece| check.update(piece));
        check.finish()
    });
    assert_eq!(whole, pieces);
    whole
}

fn fails(v: &Verifier, headers: Headers<'_>, body: &[u8], reason: Reason) {
    assert_eq!(run(v, headers, body, NOW_S), Err(reason), "{headers:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hmac_hex(secret: &str, message: &[u8]) -> String {
    hex(hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
        message,
    )
    .as_ref())
}

fn stripe_header(secret: &str, ts: &str, body: &str) -> String {
    format!(
        "t={ts},v1={}",
        hmac_hex(secret, format!("{ts}.{body}").as_bytes())
    )
}

#[test]
fn window_holds_at_its_exact_edges() {
    let v = stripe(&["s"]);
    let cases = [
        (-301i64, Err(Reason::TimestampTooOld)),
        (-300, Ok(())),
        (-299, Ok(())),
        (0, Ok(())),
        (299, Ok(())),
        (300, Ok(())),
        (301, Err(Reason::TimestampInFuture)),
    ];
    for (offset_s, expected) in cases {
        let ts = NOW_S.checked_add_signed(offset_s).unwrap().to_string();
        let header = stripe_header("s", &ts, "{}");
        let got = run(&v, &[("Stripe-Signature", &header)], b"{}", NOW_S).map(|_| ());
        assert_eq!(got, expected, "{offset_s}");
    }
}

#[test]
fn tolerance_is_the_configured_one() {
    let v = verifier(stripe_config(&["s"], 10));
    for (age_s, ok) in [(10, true), (11, false)] {
        let header = stripe_header("s", &(NOW_S - age_s).to_string(), "{}");
        assert_eq!(
            run(&v, &[("stripe-signature", &header)], b"{}", NOW_S).is_ok(),
            ok
        );
    }
}

#[test]
fn strange_timestamps_are_malformed() {
    let v = stripe(&["s"]);
    let strange = [
        "",
        "-1",
        "+1614265330",
        "1614265330.0",
        "1.6e9",
        "18446744073709551616",
        "0x10",
        "١",
        "99999999999999999999999",
        "1614265330 1",
        "NaN",
    ];
    for ts in strange {
        let header = stripe_header("s", ts, "{}");
        fails(
            &v,
            &[("stripe-signature", &header)],
            b"{}",
            Reason::MalformedSignature,
        );
    }
    let largest = stripe_header("s", "18446744073709551615", "{}");
    fails(
        &v,
        &[("stripe-signature", &largest)],
        b"{}",
        Reason::TimestampInFuture,
    );
    let zero = stripe_header("s", "0", "{}");
    fails(
        &v,
        &[("stripe-signature", &zero)],
        b"{}",
        Reason::TimestampTooOld,
    );
}

#[test]
fn late_look_is_judged_by_the_receive_time() {
    let v = stripe(&["s"]);
    let header = stripe_header("s", &NOW_S.to_string(), "{}");
    let headers = [("stripe-signature", header.as_str())];
    assert!(run(&v, &headers, b"{}", NOW_S + 20).is_ok());
    assert_eq!(
        run(&v, &headers, b"{}", NOW_S + 3600),
        Err(Reason::TimestampTooOld)
    );
}

#[test]
fn both_secrets_of_a_rotation_pass_and_a_third_does_not() {
    let v = stripe(&["new", "old"]);
    let ts = NOW_S.to_string();
    for (secret, index) in [("new", 0), ("old", 1)] {
        let header = stripe_header(secret, &ts, "{}");
        let verified = run(&v, &[("stripe-signature", &header)], b"{}", NOW_S).unwrap();
        assert_eq!(
            verified,
            Verified {
                signed: true,
                secret_index: index,
                timestamp_s: Some(NOW_S)
            }
        );
    }
    let both = format!(
        "{},v1={}",
        stripe_header("other", &ts, "{}"),
        hmac_hex("old", format!("{ts}.{{}}").as_bytes())
    );
    assert!(run(&v, &[("stripe-signature", &both)], b"{}", NOW_S).is_ok());
    let header = stripe_header("third", &ts, "{}");
    fails(&v, &[("stripe-signature", &header)], b"{}", Reason::NoMatch);
}

#[test]
fn body_is_verified_byte_for_byte() {
    // A form, an emoji beside its escape, a byte order mark, a gzip stream, nothing at all.
    let bodies: [&[u8]; 7] = [
        b"payload=%7B%22a%22%3A1%7D&a=1&a=2+3",
        "{\"e\":\"😀\"}\n".as_bytes(),
        b"{\"e\":\"\\ud83d\\ude00\"}",
        b"\xEF\xBB\xBF{}",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
        b"",
        b"\xff\xfe\x00\xed\xa0\x80",
    ];
    let v = github("s");
    for body in bodies {
        let header = format!("sha256={}", hmac_hex("s", body));
        assert!(run(&v, &[("x-hub-signature-256", &header)], body, NOW_S).is_ok());
        let mut other = body.to_vec();
        other.push(b'\n');
        fails(
            &v,
            &[("x-hub-signature-256", &header)],
            &other,
            Reason::NoMatch,
        );
    }
    // The same JSON value, written another way.
    let header = format!("sha256={}", hmac_hex("s", b"{\"a\": 1}"));
    fails(
        &v,
        &[("x-hub-signature-256", &header)],
        b"{\"a\":1}",
        Reason::NoMatch,
    );
}

#[test]
fn header_sent_twice_is_malformed() {
    let v = github("s");
    let header = format!("sha256={}", hmac_hex("s", b"{}"));
    let twice = [
        ("x-hub-signature-256", header.as_str()),
        ("X-Hub-Signature-256", "sha256=00"),
    ];
    fails(&v, &twice, b"{}", Reason::MalformedSignature);
}

#[test]
fn candidates_are_bounded() {
    let v = stripe(&["s"]);
    let good = stripe_header("s", &NOW_S.to_string(), "{}");
    let wrong = format!(",v1={}", "00".repeat(32));
    let most = format!("{good}{}", wrong.repeat(CANDIDATES_MAX - 1));
    assert!(run(&v, &[("stripe-signature", &most)], b"{}", NOW_S).is_ok());
    let over = format!("{good}{}", wrong.repeat(CANDIDATES_MAX));
    fails(
        &v,
        &[("stripe-signature", &over)],
        b"{}",
        Reason::MalformedSignature,
    );
}

#[test]
fn lookup_trims_and_ignores_case() {
    let headers = [("X-A", b" v ".as_slice()), ("x-b", b"")];
    assert_eq!(Lookup::of("x-a", headers), Lookup::One(b"v"));
    assert_eq!(Lookup::of("x-b", headers), Lookup::One(b""));
    assert_eq!(Lookup::of("x-c", headers), Lookup::Absent);
}

#[test]
fn chunks_shrink_with_the_number_of_secrets() {
    let header = stripe_header("s", &NOW_S.to_string(), "");
    let lookup = |name: &str| Lookup::of(name, [("stripe-signature", header.as_bytes())]);
    let one = stripe(&["s"]);
    let eight = stripe(&["s"; 8]);
    let chunk = |v: &Verifier| v.begin(lookup, NOW_S).map(|c| c.chunk_bytes()).unwrap();
    assert_eq!(chunk(&one), 8 * chunk(&eight));
}

#[test]
fn challenge_is_answered_only_for_url_verification() {
    let body = br#"{"token":"x","challenge":"3eZbrw1aB\u0041","type":"url_verification"}"#;
    assert_eq!(slack_challenge(body).as_deref(), Some(&b"3eZbrw1aBA"[..]));
    let others: [&[u8]; 5] = [
        br#"{"type":"event_callback","challenge":"x"}"#,
        br#"{"type":"url_verification"}"#,
        br#"{"event":{"type":"url_verification","challenge":"x"}}"#,
        b"payload=1",
        b"",
    ];
    for other in others {
        assert_eq!(slack_challenge(other), None);
    }
}

proptest! {
    #[test]
    fn no_header_panics(header in proptest::collection::vec(any::<u8>(), 0..200), ts in "\\PC{0,30}") {
        for config in every_scheme(&["secret"]) {
            let v = verifier(config);
            let lookup = |name: &str| if name.ends_with("timestamp") {
                Lookup::One(ts.as_bytes())
            } else {
                Lookup::One(&header)
            };
            prop_assert!(v.verify(lookup, b"body", NOW_S).is_err());
        }
    }

    #[test]
    fn changed_body_never_verifies(body in proptest::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let v = github("s");
        let header = format!("sha256={}", hmac_hex("s", &body));
        let mut other = body.clone();
        other[at.index(body.len())] ^= 1 << bit;
        let lookup = |_: &str| Lookup::One(header.as_bytes());
        prop_assert!(v.verify(lookup, &body, 0).is_ok());
        prop_assert_eq!(v.verify(lookup, &other, 0), Err(Reason::NoMatch));
    }
}
