//! What no verifier is made from, whatever the configuration let through.

use super::*;

fn refused(config: VerifyConfig) -> BuildError {
    match Verifier::build(&config) {
        Ok(_) => panic!("built from {config:?}"),
        Err(error) => error,
    }
}

fn ed25519(public_keys: Vec<[u8; 32]>) -> VerifyConfig {
    VerifyConfig::Ed25519 {
        public_keys,
        scheme: described(),
    }
}

#[test]
fn scheme_without_a_usable_secret_is_refused() {
    for config in every_scheme(&[]) {
        assert_eq!(refused(config), BuildError::MissingSecret);
    }
    for blank in ["", " ", "\n"] {
        for config in every_scheme(&["good", blank]) {
            assert_eq!(refused(config), BuildError::EmptySecret { index: 1 });
        }
    }
    for config in every_scheme(&["x"; SECRETS_MAX + 1]) {
        assert_eq!(refused(config), BuildError::TooManySecrets { got: 9 });
    }
    for config in every_scheme(&["x"; SECRETS_MAX]) {
        assert!(Verifier::build(&config).is_ok());
    }
    assert_eq!(refused(ed25519(vec![])), BuildError::MissingSecret);
    assert_eq!(
        refused(ed25519(vec![[1; 32]; 9])),
        BuildError::TooManySecrets { got: 9 }
    );
}

#[test]
fn window_without_a_signed_time_is_refused() {
    let config = |scheme| hmac_config(HmacHash::Sha256, scheme);
    let windowed = SignatureScheme {
        tolerance_seconds: Some(5),
        ..described()
    };
    assert!(matches!(
        refused(config(windowed.clone())),
        BuildError::NoTimestamp { .. }
    ));
    let timed = SignatureScheme {
        timestamp_header: Some("x-time".into()),
        ..windowed
    };
    assert_eq!(
        refused(config(timed.clone())),
        BuildError::UnsignedTimestamp
    );
    let signed = vec![SignedPart::Header("X-Time".into()), SignedPart::Body];
    assert!(Verifier::build(&config(SignatureScheme { signed, ..timed })).is_ok());
    let signed = vec![SignedPart::Timestamp, SignedPart::Body];
    let nowhere = SignatureScheme {
        signed,
        ..described()
    };
    assert!(matches!(
        refused(config(nowhere)),
        BuildError::NoTimestamp { .. }
    ));
}

#[test]
fn signature_that_does_not_cover_the_body_is_refused() {
    for (signed, got) in [(vec![], 0), (vec![SignedPart::Body; 2], 2)] {
        let config = hmac_config(
            HmacHash::Sha256,
            SignatureScheme {
                signed,
                ..described()
            },
        );
        assert_eq!(refused(config), BuildError::BodyCount { got });
    }
}

#[test]
fn unusable_source_refuses_everything() {
    let v = Verifier::refusing("github");
    fails(
        &v,
        &[("x-hub-signature-256", "sha256=00")],
        b"",
        Reason::BadSecret,
    );
}

#[test]
fn reasons_are_the_words_of_the_contract() {
    let words = Reason::ALL.map(Reason::as_str);
    assert_eq!(
        words,
        [
            "missing_signature",
            "malformed_signature",
            "no_match",
            "bad_scheme",
            "bad_secret",
            "timestamp_too_old",
            "timestamp_in_future"
        ]
    );
}
