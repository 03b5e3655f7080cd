//! What the configuration says about a source's verification, and its validation.
//!
//! Pure; used at boot, on reload and by the admin API. [`VerifySpec`] is plain data that the
//! configuration converts into; [`Verifier::build`](super::Verifier::build) is the only way from it
//! to something that can accept a request.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use thiserror::Error;

use super::template::TemplateError;

/// How many secrets a source may have at once.
pub const SECRETS_MAX: usize = 8;

/// The window of the providers that sign a timestamp.
pub(super) const PRESET_TOLERANCE_S: u64 = 300;

/// Standard base64; the padding may be absent, because secrets and signatures get copied without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A source's `verify` section.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifySpec {
    /// `verify.type` and what belongs to it.
    pub scheme: Scheme,
    /// `verify.secret`, one or a list: each is tried. Ed25519: the public keys. Empty for `none`.
    pub secrets: Vec<String>,
    /// `verify.tolerance_seconds`. `None`: 300 for stripe, standard_webhooks and slack, no window
    /// for the described ones.
    pub tolerance_s: Option<u64>,
}

impl fmt::Debug for VerifySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifySpec")
            .field("scheme", &self.scheme)
            .field(
                "secrets",
                &format_args!("[{} redacted]", self.secrets.len()),
            )
            .field("tolerance_s", &self.tolerance_s)
            .finish()
    }
}

/// `verify.type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Accepts every request.
    None,
    /// `Stripe-Signature`.
    Stripe,
    /// `X-Hub-Signature-256`.
    Github,
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`, or the same with `svix-`.
    StandardWebhooks,
    /// `X-Shopify-Hmac-Sha256`.
    Shopify,
    /// `X-Slack-Signature`, `X-Slack-Request-Timestamp`.
    Slack,
    /// A described HMAC.
    Hmac {
        /// Where the signature is and what it covers.
        signed: SignedSpec,
        /// The hash under the HMAC.
        hash: HashKind,
        /// How the secrets are written.
        secret_encoding: SecretEncoding,
    },
    /// A described Ed25519 signature; the secrets are public keys, 32 bytes in hex or base64.
    Ed25519 {
        /// Where the signature is and what it covers.
        signed: SignedSpec,
    },
    /// `Authorization: Bearer <secret>`, or the bare secret in another header.
    Bearer {
        /// `None`: `authorization`, with the word `Bearer`.
        header: Option<String>,
    },
    /// `Authorization: Basic`, RFC 7617.
    Basic {
        /// The user; the secrets are its passwords.
        username: String,
    },
}

impl Scheme {
    /// True when requests carry no time that could be judged.
    pub(super) fn is_timeless(&self) -> bool {
        match self {
            Scheme::None | Scheme::Github | Scheme::Shopify => true,
            Scheme::Bearer { .. } | Scheme::Basic { .. } => true,
            Scheme::Stripe | Scheme::StandardWebhooks | Scheme::Slack => false,
            Scheme::Hmac { .. } | Scheme::Ed25519 { .. } => false,
        }
    }

    /// The word in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Scheme::None => "none",
            Scheme::Stripe => "stripe",
            Scheme::Github => "github",
            Scheme::StandardWebhooks => "standard_webhooks",
            Scheme::Shopify => "shopify",
            Scheme::Slack => "slack",
            Scheme::Hmac { .. } => "hmac",
            Scheme::Ed25519 { .. } => "ed25519",
            Scheme::Bearer { .. } => "bearer",
            Scheme::Basic { .. } => "basic",
        }
    }
}

/// Where a described signature is and what it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedSpec {
    /// `signature_header`.
    pub signature_header: String,
    /// `signed`: the template, `{body}` by default.
    pub signed: String,
    /// `parse`.
    pub parse: Parse,
    /// `sig_prefix`: what a candidate must open with. `None`: nothing for `whole`, `v1=` for
    /// `csv_pairs`, `v1,` for `space_versions`.
    pub sig_prefix: Option<String>,
    /// `encoding`.
    pub encoding: Encoding,
    /// `timestamp_header`. `None`: the `t=` pair under `csv_pairs`, otherwise no timestamp.
    pub timestamp_header: Option<String>,
}

/// How the signature header is cut into candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse {
    /// The whole value is one candidate.
    Whole,
    /// `t=1614265330,v1=…,v1=…`: pairs between commas.
    CsvPairs,
    /// `v1,… v1,…`: versions between spaces.
    SpaceVersions,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal, either case.
    Hex,
    /// Standard base64, padded or not.
    Base64,
}

impl Encoding {
    /// Decodes into `out`; `None` when it is not the encoding or longer than `out`.
    pub(super) fn decode_signature(self, text: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Encoding::Hex => {
                let len = text.len() / 2;
                if !text.len().is_multiple_of(2) || len > out.len() {
                    return None;
                }
                for (pair, byte) in text.chunks_exact(2).zip(out.iter_mut()) {
                    *byte = (hex_digit(pair[0])? << 4) | hex_digit(pair[1])?;
                }
                Some(len)
            }
            Encoding::Base64 => {
                // The decoder wants room for whole quartets; three bytes more than the longest.
                let mut room = [0u8; 72];
                if text.len() > 88 {
                    return None;
                }
                let len = BASE64.decode_slice(text, &mut room).ok()?;
                out.get_mut(..len)?.copy_from_slice(&room[..len]);
                Some(len)
            }
        }
    }
}

/// The hash of a described HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashKind {
    /// For providers that have nothing better.
    Sha1,
    /// The usual one.
    Sha256,
    /// The long one.
    Sha512,
}

impl HashKind {
    pub(super) fn hmac(self) -> hmac::Algorithm {
        match self {
            HashKind::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            HashKind::Sha256 => hmac::HMAC_SHA256,
            HashKind::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// How a secret is written in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretEncoding {
    /// Its bytes are the key.
    Text,
    /// Hexadecimal.
    Hex,
    /// Standard base64; `whsec_` in front is dropped.
    Base64,
}

impl SecretEncoding {
    /// The key bytes of secret number `index`.
    pub(super) fn decode(self, secret: &str, index: usize) -> Result<Vec<u8>, BuildError> {
        let unreadable = |what| BuildError::UndecodableSecret { index, what };
        let key = match self {
            SecretEncoding::Text => secret.as_bytes().to_vec(),
            SecretEncoding::Hex => decode_hex(secret).ok_or_else(|| unreadable("hex"))?,
            SecretEncoding::Base64 => BASE64
                .decode(secret.strip_prefix("whsec_").unwrap_or(secret))
                .map_err(|_| unreadable("base64"))?,
        };
        if key.is_empty() {
            return Err(BuildError::EmptySecret { index });
        }
        Ok(key)
    }
}

/// 32 bytes in hex or base64.
pub(super) fn decode_public_key(text: &str, index: usize) -> Result<[u8; 32], BuildError> {
    let bytes = decode_hex(text).or_else(|| BASE64.decode(text).ok());
    bytes
        .and_then(|b| <[u8; 32]>::try_from(b).ok())
        .ok_or(BuildError::UndecodableSecret {
            index,
            what: "32 bytes of hex or base64",
        })
}

/// Standard base64 as in a `Basic` header.
pub(super) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let mut out = vec![0u8; text.len() / 2];
    Encoding::Hex.decode_signature(text.as_bytes(), &mut out)?;
    Some(out)
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|d| d as u8)
}

/// Why a `verify` section cannot be used. Never holds a secret.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BuildError {
    /// The scheme needs a secret and there is none.
    #[error("verify type {scheme} needs a secret")]
    MissingSecret {
        /// The word of the scheme.
        scheme: &'static str,
    },
    /// A secret without bytes.
    #[error("secret {index} is empty")]
    EmptySecret {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// A secret that is not what it must be.
    #[error("secret {index} is not {what}")]
    UndecodableSecret {
        /// Its place in the list, from 0.
        index: usize,
        /// What it must be.
        what: &'static str,
    },
    /// More than [`SECRETS_MAX`].
    #[error("{got} secrets, at most {SECRETS_MAX}")]
    TooManySecrets {
        /// How many there are.
        got: usize,
    },
    /// `none` with a secret: the operator believes that requests are verified.
    #[error("verify type none takes no secret")]
    UnusedSecret,
    /// Not a header name.
    #[error("`{name}` is not a header name")]
    BadHeaderName {
        /// What it is.
        name: String,
    },
    /// The template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A window or `{ts}` without a place to read the time from.
    #[error("{what} needs timestamp_header (or parse: csv_pairs, whose t= pair is the timestamp)")]
    NoTimestamp {
        /// What needs it.
        what: &'static str,
    },
    /// A window over a time that anybody could change.
    #[error("tolerance_seconds needs {{ts}} (or the timestamp header) in the signed template")]
    UnsignedTimestamp,
    /// A window for a scheme without a timestamp.
    #[error("verify type {scheme} has no timestamp, so tolerance_seconds has no meaning")]
    UnusedTolerance {
        /// The word of the scheme.
        scheme: &'static str,
    },
    /// A user name that RFC 7617 cannot carry.
    #[error("the username must not be empty nor contain a colon")]
    BadUsername,
}
