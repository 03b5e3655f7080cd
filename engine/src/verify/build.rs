//! From a source's `verify` section to its [`Verifier`].
//!
//! The configuration has validated the section; what would make a verifier accept too much is
//! checked here once more, because this is the only way to one. Runs at boot, on reload and in the
//! admin API.

use aws_lc_rs::{hmac, signature};
use thiserror::Error;

use super::check::{Keys, Kind, Verifier, sha256};
use super::plan::{Plan, github, shopify, slack, standard_webhooks, stripe};
use crate::config::{HmacHash, Secret, VerifyConfig};

/// How many secrets a source may have at once.
pub const SECRETS_MAX: usize = 8;

/// Why a `verify` section cannot be used. Never holds a secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BuildError {
    /// The scheme needs a secret and there is none.
    #[error("there is no secret to verify with")]
    MissingSecret,
    /// A secret without bytes, or of nothing but white space: what an unset variable leaves behind.
    #[error("secret {index} is empty")]
    EmptySecret {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// More than [`SECRETS_MAX`].
    #[error("{got} secrets, at most {SECRETS_MAX}")]
    TooManySecrets {
        /// How many there are.
        got: usize,
    },
    /// Not a point of the curve.
    #[error("public key {index} is not an Ed25519 key")]
    BadPublicKey {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// The signature would not say what the body is.
    #[error("the signed string must contain the body once, not {got} times")]
    BodyCount {
        /// How often it does.
        got: usize,
    },
    /// A window or `{ts}` without a place to read the time from.
    #[error("{what} needs a timestamp header, or csv pairs with a t= pair")]
    NoTimestamp {
        /// What needs it.
        what: &'static str,
    },
    /// A window over a time that anybody could change.
    #[error("a tolerance needs the timestamp in the signed string")]
    UnsignedTimestamp,
}

impl Verifier {
    /// The verifier of a validated section.
    pub fn build(config: &VerifyConfig) -> Result<Verifier, BuildError> {
        let (scheme, kind) = match config {
            VerifyConfig::None => ("none", Kind::Open),
            VerifyConfig::Stripe {
                secrets,
                tolerance_seconds,
            } => ("stripe", preset(secrets, &[stripe(*tolerance_seconds)])?),
            VerifyConfig::GitHub { secrets } => ("github", preset(secrets, &[github()])?),
            VerifyConfig::StandardWebhooks {
                secrets,
                tolerance_seconds,
            } => {
                let families = ["webhook", "svix"];
                let plans = families.map(|f| standard_webhooks(f, *tolerance_seconds));
                ("standard_webhooks", preset(secrets, &plans)?)
            }
            VerifyConfig::Shopify { secrets } => ("shopify", preset(secrets, &[shopify()])?),
            VerifyConfig::Slack {
                secrets,
                tolerance_seconds,
            } => ("slack", preset(secrets, &[slack(*tolerance_seconds)])?),
            VerifyConfig::Hmac {
                secrets,
                hash,
                scheme,
            } => {
                let plans = vec![Plan::build(scheme)?];
                let keys = hmac_keys(secrets, *hash)?;
                ("hmac", Kind::Signed { plans, keys })
            }
            VerifyConfig::Ed25519 {
                public_keys,
                scheme,
            } => {
                let plans = vec![Plan::build(scheme)?];
                let keys = ed25519_keys(public_keys)?;
                ("ed25519", Kind::Signed { plans, keys })
            }
            VerifyConfig::Bearer {
                secrets,
                header,
                scheme,
            } => {
                check_secrets(secrets)?;
                let tokens = secrets.iter().map(|s| sha256(&[s.expose()])).collect();
                let header = header.to_ascii_lowercase().into();
                let word = scheme.as_bytes().into();
                (
                    "bearer",
                    Kind::Bearer {
                        header,
                        word,
                        tokens,
                    },
                )
            }
            VerifyConfig::Basic {
                username,
                passwords,
            } => {
                check_secrets(passwords)?;
                let pair = |p: &Secret| sha256(&[username.as_bytes(), b":", p.expose()]);
                let credentials = passwords.iter().map(pair).collect();
                ("basic", Kind::Basic { credentials })
            }
        };
        Ok(Verifier { scheme, kind })
    }
}

/// A known provider: HMAC-SHA256, whichever of the plans has its header in the request.
fn preset(
    secrets: &[Secret],
    plans: &[crate::config::SignatureScheme],
) -> Result<Kind, BuildError> {
    let plans = plans.iter().map(Plan::build).collect::<Result<_, _>>()?;
    let keys = hmac_keys(secrets, HmacHash::Sha256)?;
    Ok(Kind::Signed { plans, keys })
}

fn hmac_keys(secrets: &[Secret], hash: HmacHash) -> Result<Keys, BuildError> {
    check_secrets(secrets)?;
    let algorithm = match hash {
        HmacHash::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        HmacHash::Sha256 => hmac::HMAC_SHA256,
        HmacHash::Sha512 => hmac::HMAC_SHA512,
    };
    let key = |s: &Secret| hmac::Key::new(algorithm, s.expose());
    Ok(Keys::Hmac(secrets.iter().map(key).collect()))
}

fn ed25519_keys(public_keys: &[[u8; 32]]) -> Result<Keys, BuildError> {
    check_count(public_keys.len())?;
    let parse = |(index, key): (usize, &[u8; 32])| {
        signature::ParsedPublicKey::new(&signature::ED25519, key)
            .map_err(|_| BuildError::BadPublicKey { index })
    };
    let keys = public_keys.iter().enumerate().map(parse);
    Ok(Keys::Ed25519(keys.collect::<Result<_, _>>()?))
}

fn check_secrets(secrets: &[Secret]) -> Result<(), BuildError> {
    check_count(secrets.len())?;
    let blank = |s: &Secret| s.expose().trim_ascii().is_empty();
    match secrets.iter().position(blank) {
        Some(index) => Err(BuildError::EmptySecret { index }),
        None => Ok(()),
    }
}

fn check_count(got: usize) -> Result<(), BuildError> {
    match got {
        0 => Err(BuildError::MissingSecret),
        1..=SECRETS_MAX => Ok(()),
        _ => Err(BuildError::TooManySecrets { got }),
    }
}
