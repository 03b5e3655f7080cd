//! Each provider's published vector, or one made by an independent implementation.

use super::*;

const EVENT: &[u8] = br#"{"id":"evt_1"}"#;

const STANDARD: [(&str, &str); 3] = [
    ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
    ("webhook-timestamp", "1614265330"),
    (
        "webhook-signature",
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    ),
];
const STANDARD_BODY: &[u8] = br#"{"test": 2432232314}"#;
const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const SLACK_SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";
const SLACK_TS: u64 = 1_531_420_618;
const SLACK_BODY: &[u8] = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
const SLACK_SIGNATURE: &str = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";

/// The configuration hands the key over decoded.
fn standard(secret: &str) -> Verifier {
    let digits = secret.strip_prefix("whsec_").unwrap();
    let key = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, digits).unwrap();
    verifier(VerifyConfig::StandardWebhooks {
        secrets: vec![Secret::new(key)],
        tolerance_seconds: 300,
    })
}

#[test]
fn standard_webhooks_vector_verifies() {
    let v = standard(STANDARD_SECRET);
    assert!(run(&v, &STANDARD, STANDARD_BODY, NOW_S).is_ok());
    fails(&v, &STANDARD, b"{\"test\":2432232314}", Reason::NoMatch);
}

#[test]
fn standard_webhooks_takes_signatures_without_padding() {
    let v = standard(STANDARD_SECRET);
    let headers = [
        STANDARD[0],
        STANDARD[1],
        (STANDARD[2].0, STANDARD[2].1.trim_end_matches('=')),
    ];
    assert!(run(&v, &headers, STANDARD_BODY, NOW_S).is_ok());
}

#[test]
fn svix_names_verify_and_do_not_mix_with_the_others() {
    let v = standard(STANDARD_SECRET);
    let svix = STANDARD.map(|(name, value)| (name.replace("webhook", "svix"), value));
    let svix: Vec<_> = svix.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    assert!(run(&v, &svix, STANDARD_BODY, NOW_S).is_ok());
    fails(
        &v,
        &[STANDARD[0], STANDARD[1], svix[2]],
        STANDARD_BODY,
        Reason::MissingSignature,
    );
}

#[test]
fn standard_webhooks_reads_lists_and_versions() {
    let v = standard(STANDARD_SECRET);
    let with = |value: &str, expected: Result<(), Reason>| {
        let headers = [STANDARD[0], STANDARD[1], ("webhook-signature", value)];
        assert_eq!(
            run(&v, &headers, STANDARD_BODY, NOW_S).map(|_| ()),
            expected,
            "{value}"
        );
    };
    let good = STANDARD[2].1;
    let zeros = format!("v1,{}=", "A".repeat(43));
    with(&format!("v2,xx v1a,yy  {zeros} {good}"), Ok(()));
    with(&format!("v1,!! {good}"), Ok(()));
    with(&zeros, Err(Reason::NoMatch));
    with(
        "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        Err(Reason::BadScheme),
    );
    with("v1,g0hM9SsE", Err(Reason::MalformedSignature));
    with("v1,", Err(Reason::MalformedSignature));
    with("v1", Err(Reason::BadScheme));
    with("", Err(Reason::MalformedSignature));
}

#[test]
fn standard_webhooks_needs_each_of_its_headers() {
    let v = standard(STANDARD_SECRET);
    for left_out in 0..3 {
        let mut headers = STANDARD.to_vec();
        headers.remove(left_out);
        fails(&v, &headers, STANDARD_BODY, Reason::MissingSignature);
    }
}

#[test]
fn github_vector_verifies() {
    let v = github("It's a Secret to Everybody");
    let digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let good = format!("sha256={digits}");
    assert!(
        run(
            &v,
            &[("X-Hub-Signature-256", &good)],
            b"Hello, World!",
            NOW_S
        )
        .is_ok()
    );
    let upper = format!("sha256={}", digits.to_uppercase());
    assert!(
        run(
            &v,
            &[("X-Hub-Signature-256", &upper)],
            b"Hello, World!",
            NOW_S
        )
        .is_ok()
    );
    let with = |value: &str, reason| {
        fails(
            &v,
            &[("x-hub-signature-256", value)],
            b"Hello, World!",
            reason,
        )
    };
    with(digits, Reason::BadScheme);
    with(&format!("sha1={digits}"), Reason::BadScheme);
    with(&good[..good.len() - 1], Reason::MalformedSignature);
    with(&good[..good.len() - 2], Reason::MalformedSignature);
    with(&format!("{good}00"), Reason::MalformedSignature);
    with("sha256=", Reason::MalformedSignature);
    with(
        &format!("sha256={}", "zz".repeat(32)),
        Reason::MalformedSignature,
    );
    fails(
        &v,
        &[("x-hub-signature", &good)],
        b"Hello, World!",
        Reason::MissingSignature,
    );
}

#[test]
fn slack_vector_verifies() {
    let v = verifier(VerifyConfig::Slack {
        secrets: secrets(&[SLACK_SECRET]),
        tolerance_seconds: 300,
    });
    let ts = SLACK_TS.to_string();
    let headers = [
        ("X-Slack-Signature", SLACK_SIGNATURE),
        ("X-Slack-Request-Timestamp", &ts),
    ];
    assert!(run(&v, &headers, SLACK_BODY, SLACK_TS).is_ok());
    assert_eq!(
        run(&v, &headers, &SLACK_BODY[1..], SLACK_TS),
        Err(Reason::NoMatch)
    );
    assert_eq!(
        run(&v, &headers[..1], SLACK_BODY, SLACK_TS),
        Err(Reason::MissingSignature)
    );
    assert_eq!(
        run(&v, &headers[1..], SLACK_BODY, SLACK_TS),
        Err(Reason::MissingSignature)
    );
    assert_eq!(
        run(&v, &headers, SLACK_BODY, SLACK_TS + 301),
        Err(Reason::TimestampTooOld)
    );
    let later = [headers[0], ("x-slack-request-timestamp", "1531420619")];
    assert_eq!(run(&v, &later, SLACK_BODY, SLACK_TS), Err(Reason::NoMatch));
}

#[test]
fn stripe_generated_vector_verifies() {
    let v = stripe(&["whsec_test"]);
    let digits = "347e9afe3d74ec4c5cbefd270edc9246513ae3da7b375223e302560fbd4146eb";
    let with = |value: &str, expected: Result<(), Reason>| {
        let got = run(&v, &[("Stripe-Signature", value)], EVENT, NOW_S);
        assert_eq!(got.map(|_| ()), expected, "{value}");
    };
    with(&format!("t=1614265330,v1={digits}"), Ok(()));
    with(&format!("v1={digits}, v0=00 ,t=1614265330,"), Ok(()));
    with(&format!("t=1614265331,v1={digits}"), Err(Reason::NoMatch));
    with(
        &format!("t=1614265330,t=1614265330,v1={digits}"),
        Err(Reason::MalformedSignature),
    );
    with(&format!("v1={digits}"), Err(Reason::MalformedSignature));
    with(&format!("t=1614265330,v0={digits}"), Err(Reason::BadScheme));
    with("t=1614265330", Err(Reason::MalformedSignature));
    with("", Err(Reason::MalformedSignature));
}

#[test]
fn shopify_generated_vector_verifies() {
    let v = verifier(VerifyConfig::Shopify {
        secrets: secrets(&["hush"]),
    });
    let value = "+TTNLrIAr++NEmlyRgFUnRYTKAMRFpBc9+Qp7eD6x2I=";
    assert!(run(&v, &[("X-Shopify-Hmac-Sha256", value)], EVENT, NOW_S).is_ok());
    fails(
        &v,
        &[("X-Shopify-Hmac-Sha256", value)],
        b"{}",
        Reason::NoMatch,
    );
    fails(
        &v,
        &[("X-Shopify-Hmac-Sha256", "%%%")],
        EVENT,
        Reason::MalformedSignature,
    );
}

#[test]
fn described_hmac_knows_each_hash_and_encoding() {
    let v = verifier(hmac_config(HmacHash::Sha1, described()));
    let sha1 = "000dfbf9fd58bd4e3c7633f494506cb4190a14a7";
    assert!(run(&v, &[("x-sig", sha1)], EVENT, NOW_S).is_ok());
    let encoding = SignatureEncoding::Base64;
    let v = verifier(hmac_config(
        HmacHash::Sha512,
        SignatureScheme {
            encoding,
            ..described()
        },
    ));
    let sha512 =
        "/25uOq+v/zSaZ6DK00tYJITdGr12dbMtHzaHwgmesHeuU8GqvdbGvhrPgieXjzXM8mSZm02lrZk2KoMPhkkZlQ==";
    assert!(run(&v, &[("x-sig", sha512)], EVENT, NOW_S).is_ok());
    fails(&v, &[("x-sig", sha1)], EVENT, Reason::MalformedSignature);
}

#[test]
fn described_hmac_fills_its_template() {
    let literal = |text: &str| SignedPart::Literal(text.into());
    let v = verifier(hmac_config(
        HmacHash::Sha256,
        SignatureScheme {
            signed: vec![
                literal("{v:"),
                SignedPart::Header("X-Id".into()),
                literal("|"),
                SignedPart::Body,
                literal("|"),
                SignedPart::Timestamp,
                literal("}"),
            ],
            timestamp_header: Some("X-Time".into()),
            sig_prefix: "sig ".into(),
            ..described()
        },
    ));
    let value = format!("sig {}", hmac_hex("k", b"{v:id 1|BODY|17}"));
    let headers = [
        ("x-sig", value.as_str()),
        ("x-id", "id 1"),
        ("x-time", "17"),
    ];
    // No tolerance: the time is signed, its age is not judged.
    assert!(run(&v, &headers, b"BODY", NOW_S).is_ok());
    fails(&v, &headers[..2], b"BODY", Reason::MissingSignature);
    fails(
        &v,
        &[headers[0], headers[2]],
        b"BODY",
        Reason::MissingSignature,
    );
    fails(
        &v,
        &[headers[0], headers[2], ("x-id", "id 2")],
        b"BODY",
        Reason::NoMatch,
    );
}

#[test]
fn described_lists_take_their_keys_and_prefixes() {
    let digits = hmac_hex("k", b"BODY");
    let parse = SignatureParse::CsvPairs {
        sig_key: "s".into(),
    };
    let sig_prefix = "x:".to_owned();
    let v = verifier(hmac_config(
        HmacHash::Sha256,
        SignatureScheme {
            parse,
            sig_prefix,
            ..described()
        },
    ));
    assert!(
        run(
            &v,
            &[("x-sig", &format!("a=1,s=x:{digits}"))],
            b"BODY",
            NOW_S
        )
        .is_ok()
    );
    fails(
        &v,
        &[("x-sig", &format!("s={digits}"))],
        b"BODY",
        Reason::BadScheme,
    );
    let parse = SignatureParse::SpaceVersions {
        version: "v9:".into(),
    };
    let v = verifier(hmac_config(
        HmacHash::Sha256,
        SignatureScheme {
            parse,
            ..described()
        },
    ));
    assert!(
        run(
            &v,
            &[("x-sig", &format!("v8:00 v9:{digits}"))],
            b"BODY",
            NOW_S
        )
        .is_ok()
    );
}

#[test]
fn described_ed25519_verifies() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
    let key = |p: &Ed25519KeyPair| <[u8; 32]>::try_from(p.public_key().as_ref()).unwrap();
    let v = verifier(VerifyConfig::Ed25519 {
        public_keys: vec![key(&other), key(&pair)],
        scheme: SignatureScheme {
            signature_header: "X-Signature-Ed25519".into(),
            signed: vec![SignedPart::Timestamp, SignedPart::Body],
            timestamp_header: Some("X-Signature-Timestamp".into()),
            ..described()
        },
    });
    let signature = hex(pair.sign(b"1614265330{}").as_ref());
    let headers = [
        ("x-signature-ed25519", signature.as_str()),
        ("x-signature-timestamp", "1614265330"),
    ];
    assert_eq!(run(&v, &headers, b"{}", NOW_S).unwrap().secret_index, 1);
    fails(&v, &headers, b"{} ", Reason::NoMatch);
    // The sender says how many signatures there are; a core does one under one key at a time.
    let all = headers.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let mut check = v.begin(|name| Lookup::of(name, all), NOW_S).unwrap();
    check.update(b"{} ");
    assert_eq!(std::iter::from_fn(|| check.step().then_some(())).count(), 2);
    assert_eq!(check.finish().unwrap_err(), Reason::NoMatch);
    let short = [("x-signature-ed25519", &signature[2..]), headers[1]];
    fails(&v, &short, b"{}", Reason::MalformedSignature);
}

fn bearer(header: &str, scheme: &str, tokens: &[&str]) -> VerifyConfig {
    VerifyConfig::Bearer {
        secrets: secrets(tokens),
        header: header.into(),
        scheme: scheme.into(),
    }
}

#[test]
fn bearer_compares_whole_tokens() {
    let v = verifier(bearer("authorization", "Bearer", &["old", "token"]));
    let with =
        |value: &str| run(&v, &[("Authorization", value)], b"x", NOW_S).map(|v| v.secret_index);
    assert_eq!(with("Bearer token"), Ok(1));
    assert_eq!(with("bearer  old"), Ok(0));
    assert_eq!(with("Bearer toke"), Err(Reason::NoMatch));
    assert_eq!(with("Bearer token2"), Err(Reason::NoMatch));
    assert_eq!(with("Bearer"), Err(Reason::MalformedSignature));
    assert_eq!(with("Bearertoken"), Err(Reason::BadScheme));
    assert_eq!(with("Basic token"), Err(Reason::BadScheme));
    assert_eq!(with("token"), Err(Reason::BadScheme));
    fails(&v, &[], b"x", Reason::MissingSignature);
    assert_eq!(v.credential_header(), Some("authorization"));
    let bare = verifier(bearer("X-Token", "", &["token"]));
    assert_eq!(bare.credential_header(), Some("x-token"));
    assert!(run(&bare, &[("x-token", "token")], b"x", NOW_S).is_ok());
}

#[test]
fn basic_compares_user_and_password() {
    let v = verifier(VerifyConfig::Basic {
        username: "hook".into(),
        passwords: secrets(&["pass", "pa:ss"]),
    });
    let with = |pair: &str| {
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pair);
        let value = format!("Basic {encoded}");
        run(&v, &[("authorization", &value)], b"x", NOW_S).map(|v| v.secret_index)
    };
    assert_eq!(with("hook:pass"), Ok(0));
    assert_eq!(with("hook:pa:ss"), Ok(1));
    assert_eq!(with("hook:"), Err(Reason::NoMatch));
    assert_eq!(with("root:pass"), Err(Reason::NoMatch));
    fails(
        &v,
        &[("authorization", "Basic !!!")],
        b"x",
        Reason::MalformedSignature,
    );
    fails(
        &v,
        &[("authorization", "Bearer x")],
        b"x",
        Reason::BadScheme,
    );
}

#[test]
fn none_accepts_and_says_unsigned() {
    let v = verifier(VerifyConfig::None);
    assert!(!run(&v, &[], b"anything", NOW_S).unwrap().signed);
}
