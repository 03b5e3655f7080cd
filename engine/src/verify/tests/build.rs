//! What the configuration may not say.

use super::*;

fn refused(scheme: Scheme, secrets: &[&str], tolerance_s: Option<u64>) -> BuildError {
    let mut wanted = spec(scheme, secrets);
    wanted.tolerance_s = tolerance_s;
    match Verifier::build(&wanted) {
        Ok(_) => panic!("built from {wanted:?}"),
        Err(error) => error,
    }
}

fn hmac_scheme(template: &str) -> Scheme {
    described(signed("x-sig", template, Parse::Whole), HashKind::Sha256)
}

#[test]
fn scheme_without_a_usable_secret_is_refused() {
    let schemes = [
        Scheme::Stripe,
        Scheme::Github,
        Scheme::StandardWebhooks,
        Scheme::Shopify,
        Scheme::Slack,
        hmac_scheme("{body}"),
        Scheme::Ed25519 {
            signed: signed("x-sig", "{body}", Parse::Whole),
        },
        Scheme::Bearer { header: None },
        Scheme::Basic {
            username: "u".into(),
        },
    ];
    for scheme in schemes {
        let word = scheme.as_str();
        assert_eq!(
            refused(scheme.clone(), &[], None),
            BuildError::MissingSecret { scheme: word }
        );
        let good = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        for blank in ["", " ", "\n"] {
            let error = refused(scheme.clone(), &[good, blank], None);
            // Ed25519 may complain about the first one already.
            let first_is_no_key = matches!(error, BuildError::UndecodableSecret { index: 0, .. });
            assert!(
                first_is_no_key || error == BuildError::EmptySecret { index: 1 },
                "{error}"
            );
        }
        assert_eq!(
            refused(scheme, &["x"; 9], None),
            BuildError::TooManySecrets { got: 9 }
        );
    }
}

#[test]
fn undecodable_secret_is_refused() {
    let undecodable = |secret| refused(Scheme::StandardWebhooks, &[secret], None);
    assert_eq!(undecodable("whsec_"), BuildError::EmptySecret { index: 0 });
    assert_eq!(
        undecodable("whsec_***"),
        BuildError::UndecodableSecret {
            index: 0,
            what: "base64"
        }
    );
    let scheme = Scheme::Ed25519 {
        signed: signed("x-sig", "{body}", Parse::Whole),
    };
    for key in ["00", "zz", &"00".repeat(31), &"00".repeat(33)] {
        let error = refused(scheme.clone(), &[key], None);
        assert!(matches!(
            error,
            BuildError::UndecodableSecret { index: 0, .. }
        ));
    }
}

#[test]
fn none_with_a_secret_is_refused() {
    assert_eq!(
        refused(Scheme::None, &["s"], None),
        BuildError::UnusedSecret
    );
}

#[test]
fn window_without_a_signed_time_is_refused() {
    let mut plan = signed("x-sig", "{body}", Parse::Whole);
    let scheme = described(plan.clone(), HashKind::Sha256);
    assert!(matches!(
        refused(scheme, &["s"], Some(5)),
        BuildError::NoTimestamp { .. }
    ));
    plan.timestamp_header = Some("x-time".into());
    let scheme = described(plan.clone(), HashKind::Sha256);
    assert_eq!(
        refused(scheme, &["s"], Some(5)),
        BuildError::UnsignedTimestamp
    );
    plan.signed = "{header:x-time}{body}".into();
    let mut wanted = spec(described(plan, HashKind::Sha256), &["s"]);
    wanted.tolerance_s = Some(5);
    assert!(Verifier::build(&wanted).is_ok());
    assert!(matches!(
        refused(hmac_scheme("{ts}{body}"), &["s"], None),
        BuildError::NoTimestamp { .. }
    ));
    let unused = BuildError::UnusedTolerance { scheme: "github" };
    assert_eq!(refused(Scheme::Github, &["s"], Some(300)), unused);
}

#[test]
fn broken_templates_are_refused() {
    let broken = |template: &str| match refused(hmac_scheme(template), &["s"], None) {
        BuildError::Template(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(broken("{ts}"), TemplateError::BodyCount { found_count: 0 });
    assert_eq!(
        broken("{body}{body}"),
        TemplateError::BodyCount { found_count: 2 }
    );
    assert_eq!(
        broken("{bod}"),
        TemplateError::UnknownPlaceholder { name: "bod".into() }
    );
    assert_eq!(
        broken("{header:}{body}"),
        TemplateError::UnknownPlaceholder {
            name: "header:".into()
        }
    );
    assert_eq!(broken("{body"), TemplateError::Unbalanced { at: 0 });
    assert_eq!(broken("{body}}"), TemplateError::Unbalanced { at: 6 });
    assert_eq!(
        broken(&"x".repeat(513)),
        TemplateError::TooLong { got: 513 }
    );
}

#[test]
fn names_that_cannot_be_sent_are_refused() {
    for name in ["", "a b", "a:b", "ä", "a\r\nb"] {
        let scheme = described(signed(name, "{body}", Parse::Whole), HashKind::Sha256);
        assert_eq!(
            refused(scheme, &["s"], None),
            BuildError::BadHeaderName { name: name.into() }
        );
    }
    for username in ["", "a:b"] {
        let scheme = Scheme::Basic {
            username: username.into(),
        };
        assert_eq!(refused(scheme, &["s"], None), BuildError::BadUsername);
    }
}

#[test]
fn unusable_source_refuses_everything() {
    fails(
        &Verifier::refusing("github"),
        &[("x-hub-signature-256", "sha256=00")],
        b"",
        Reason::BadSecret,
    );
}

#[test]
fn secrets_do_not_show() {
    let shown = format!("{:?}", spec(Scheme::Stripe, &["whsec_hidden"]));
    assert!(!shown.contains("hidden"), "{shown}");
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
