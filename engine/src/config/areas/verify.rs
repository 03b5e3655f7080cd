//! `sources.<name>.verify`: what a provider signs, and with what.
//!
//! Secrets are never empty, and are decoded here where their form says so (`whsec_`), so that a
//! verifier cannot meet one that it cannot use. Runs at boot and offline.

use crate::config::Secret;
use crate::config::key::{Key, Unit};
use crate::config::problem::Fault;
use crate::config::text;
use crate::config::values::Reader;

/// `sources.<name>.verify`. Secrets: one to eight, each tried.
#[derive(Clone, Debug, PartialEq)]
pub enum VerifyConfig {
    /// Nothing is verified.
    None,
    /// `Stripe-Signature`.
    Stripe {
        /// Used as they are, a `whsec_` prefix included.
        secrets: Vec<Secret>,
        /// How old or early a timestamp may be.
        tolerance_seconds: u64,
    },
    /// `X-Hub-Signature-256`.
    GitHub {
        /// Used as they are.
        secrets: Vec<Secret>,
    },
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`, or the `svix-*` names.
    StandardWebhooks {
        /// Decoded keys.
        secrets: Vec<Secret>,
        /// How old or early a timestamp may be.
        tolerance_seconds: u64,
    },
    /// `X-Shopify-Hmac-Sha256`.
    Shopify {
        /// Used as they are.
        secrets: Vec<Secret>,
    },
    /// `X-Slack-Signature`, `X-Slack-Request-Timestamp`.
    Slack {
        /// Used as they are.
        secrets: Vec<Secret>,
        /// How old or early a timestamp may be.
        tolerance_seconds: u64,
    },
    /// A described HMAC.
    Hmac {
        /// Decoded keys.
        secrets: Vec<Secret>,
        /// The hash of the HMAC.
        hash: HmacHash,
        /// What is signed and where the signature is.
        scheme: SignatureScheme,
    },
    /// A described Ed25519 signature.
    Ed25519 {
        /// One to eight public keys.
        public_keys: Vec<[u8; 32]>,
        /// What is signed and where the signature is.
        scheme: SignatureScheme,
    },
    /// A token in a header.
    Bearer {
        /// The accepted tokens.
        secrets: Vec<Secret>,
        /// The header, lower case.
        header: String,
        /// The word before the token; empty for none.
        scheme: String,
    },
    /// HTTP basic authentication.
    Basic {
        /// The accepted user.
        username: String,
        /// The accepted passwords.
        passwords: Vec<Secret>,
    },
}

/// The hash of a described HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HmacHash {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureEncoding {
    /// Hexadecimal.
    Hex,
    /// Base64.
    Base64,
}

/// How the signature header is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureParse {
    /// The whole value is one signature.
    Whole,
    /// `key=value` pairs between commas: signatures under `sig_key`, the timestamp under `t`.
    CsvPairs {
        /// The key of the signatures.
        sig_key: String,
    },
    /// Signatures between spaces; those that start with `version` count, without it.
    SpaceVersions {
        /// Such as `v1,`.
        version: String,
    },
}

/// One part of what is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedPart {
    /// These bytes.
    Literal(String),
    /// The body as received.
    Body,
    /// The value of the header of this name, lower case.
    Header(String),
    /// The timestamp as received.
    Timestamp,
}

/// A described signature: what is signed and where the signature is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureScheme {
    /// The header of the signature, lower case.
    pub signature_header: String,
    /// What is signed.
    pub signed: Vec<SignedPart>,
    /// How the header is read.
    pub parse: SignatureParse,
    /// What stands before each signature; empty for nothing.
    pub sig_prefix: String,
    /// How a signature is written.
    pub encoding: SignatureEncoding,
    /// The header of the timestamp, lower case.
    pub timestamp_header: Option<String>,
    /// How old or early a timestamp may be; `None`: there is no timestamp to judge.
    pub tolerance_seconds: Option<u64>,
}

const HMAC: &[&str] = &["hmac"];
const DESCRIBED: &[&str] = &["hmac", "ed25519"];
const WITH_SECRET: &[&str] = &[
    "stripe",
    "github",
    "standard_webhooks",
    "shopify",
    "slack",
    "hmac",
    "bearer",
];

pub(in crate::config) const KEYS: &[Key] = &[
    Key::word("sources.*.verify.type", &["none", "stripe", "github", "standard_webhooks", "shopify", "slack", "hmac", "ed25519", "bearer", "basic"], "Who signs, and how.").required().live(),
    Key::secrets("sources.*.verify.secret", "The secret, or up to 8 of them while they are rotated; each is tried. Never empty: of a list, entries such as `${OLD_SECRET:-}` that come to nothing are left out, as long as one is left. For `standard_webhooks`: base64, with `whsec_` before it or without. For `stripe`: as it is, `whsec_` included.").required().types(WITH_SECRET).live(),
    Key::int("sources.*.verify.tolerance_seconds", 1, 86_400, Unit::Seconds, "How old, or how far in the future, a timestamp may be. `hmac` and `ed25519` need a timestamp for it.").or_computed("300 where there is a timestamp").types(&["stripe", "standard_webhooks", "slack", "hmac", "ed25519"]).live(),
    Key::text("sources.*.verify.signature_header", &text::HEADER, "The header of the signature.").required().types(DESCRIBED).live(),
    Key::text("sources.*.verify.signed", &text::SIGNED, "What is signed: `{body}`, `{ts}`, `{header:NAME}` and plain text.").or("{body}").types(DESCRIBED).live(),
    Key::word("sources.*.verify.parse", &["whole", "csv_pairs", "space_versions"], "How the header is read. `whole`: one signature. `csv_pairs`: `key=value` between commas, the timestamp under `t`. `space_versions`: signatures between spaces, each after its version.").or("whole").types(DESCRIBED).live(),
    Key::text("sources.*.verify.sig_key", &text::FIELD, "For `parse: csv_pairs`: the key of the signatures.").or("v1").types(DESCRIBED).live(),
    Key::text("sources.*.verify.version", &text::FIELD, "For `parse: space_versions`: what stands before the signatures that count.").or("v1,").types(DESCRIBED).live(),
    Key::text("sources.*.verify.sig_prefix", &text::FIELD, "What stands before the signature, such as `sha256=`.").or("").types(DESCRIBED).live(),
    Key::word("sources.*.verify.hash", &["sha256", "sha512", "sha1"], "The hash of the HMAC.").or("sha256").types(HMAC).live(),
    Key::word("sources.*.verify.encoding", &["hex", "base64"], "How the signature is written.").or("hex").types(DESCRIBED).live(),
    Key::word("sources.*.verify.secret_decode", &["raw", "whsec_base64"], "Whether the secret is used as it is, or is base64 with `whsec_` before it or without.").or("raw").types(HMAC).live(),
    Key::text("sources.*.verify.timestamp_header", &text::HEADER, "The header of the timestamp, in seconds since 1970.").types(DESCRIBED).live(),
    Key::texts("sources.*.verify.public_key", &text::PUBLIC_KEY, "The public key in hex or base64, or up to 8 of them.").required().types(&["ed25519"]).live(),
    Key::text("sources.*.verify.header", &text::HEADER, "The header of the token.").or("authorization").types(&["bearer"]).live(),
    Key::text("sources.*.verify.scheme", &text::FIELD, "The word before the token; empty for none.").or("Bearer").types(&["bearer"]).live(),
    Key::text("sources.*.verify.username", &text::ANY, "The accepted user.").required().types(&["basic"]).live(),
    Key::secrets("sources.*.verify.password", "The accepted password, or up to 8 of them.").required().types(&["basic"]).live(),
];

impl VerifyConfig {
    /// The keys that signatures are made with, or the tokens; none for public keys and passwords.
    pub fn secrets(&self) -> &[Secret] {
        match self {
            VerifyConfig::Stripe { secrets, .. }
            | VerifyConfig::GitHub { secrets }
            | VerifyConfig::StandardWebhooks { secrets, .. }
            | VerifyConfig::Shopify { secrets }
            | VerifyConfig::Slack { secrets, .. }
            | VerifyConfig::Hmac { secrets, .. }
            | VerifyConfig::Bearer { secrets, .. } => secrets,
            VerifyConfig::None | VerifyConfig::Ed25519 { .. } | VerifyConfig::Basic { .. } => &[],
        }
    }

    /// How old or early a timestamp may be, where one is judged.
    pub fn tolerance_seconds(&self) -> Option<u64> {
        match self {
            VerifyConfig::Stripe {
                tolerance_seconds, ..
            }
            | VerifyConfig::StandardWebhooks {
                tolerance_seconds, ..
            }
            | VerifyConfig::Slack {
                tolerance_seconds, ..
            } => Some(*tolerance_seconds),
            VerifyConfig::Hmac { scheme, .. } | VerifyConfig::Ed25519 { scheme, .. } => {
                scheme.tolerance_seconds
            }
            _ => None,
        }
    }

    pub(in crate::config) fn read(r: &Reader<'_>) -> VerifyConfig {
        let secrets = r.secrets("secret");
        let tolerance = || r.int_or("tolerance_seconds", || 300);
        match r.text("type").as_str() {
            "stripe" => VerifyConfig::Stripe {
                secrets,
                tolerance_seconds: tolerance(),
            },
            "github" => VerifyConfig::GitHub { secrets },
            "standard_webhooks" => VerifyConfig::StandardWebhooks {
                secrets: decode_whsec(r, "secret", &secrets),
                tolerance_seconds: tolerance(),
            },
            "shopify" => VerifyConfig::Shopify { secrets },
            "slack" => VerifyConfig::Slack {
                secrets,
                tolerance_seconds: tolerance(),
            },
            "hmac" => VerifyConfig::Hmac {
                secrets: if r.text("secret_decode") == "raw" {
                    secrets
                } else {
                    decode_whsec(r, "secret", &secrets)
                },
                hash: match r.text("hash").as_str() {
                    "sha1" => HmacHash::Sha1,
                    "sha512" => HmacHash::Sha512,
                    _ => HmacHash::Sha256,
                },
                scheme: SignatureScheme::read(r),
            },
            "ed25519" => {
                let texts = r.texts("public_key").unwrap_or_default();
                if texts.len() > 8 {
                    r.fault(
                        "public_key",
                        Fault::Length {
                            got: texts.len(),
                            allowed: "1 to 8".into(),
                        },
                    );
                }
                VerifyConfig::Ed25519 {
                    public_keys: texts
                        .iter()
                        .filter_map(|t| text::parse_public_key(t))
                        .collect(),
                    scheme: SignatureScheme::read(r),
                }
            }
            "bearer" => VerifyConfig::Bearer {
                secrets,
                header: r.text("header").to_ascii_lowercase(),
                scheme: r.text("scheme"),
            },
            "basic" => {
                let username = r.text("username");
                if username.contains(':') {
                    r.fault(
                        "username",
                        Fault::Rule(
                            "holds a colon, which ends the user in basic authentication".into(),
                        ),
                    );
                }
                VerifyConfig::Basic {
                    username,
                    passwords: r.secrets("password"),
                }
            }
            _ => VerifyConfig::None,
        }
    }
}

impl SignatureScheme {
    fn read(r: &Reader<'_>) -> SignatureScheme {
        let signed = text::parse_signed(&r.text("signed")).unwrap_or_default();
        let timestamp_header = r
            .text_opt("timestamp_header")
            .map(|t| t.to_ascii_lowercase());
        let word = r.text("parse");
        let parse = match word.as_str() {
            "csv_pairs" => SignatureParse::CsvPairs {
                sig_key: r.text("sig_key"),
            },
            "space_versions" => SignatureParse::SpaceVersions {
                version: r.text("version"),
            },
            _ => SignatureParse::Whole,
        };
        for (name, owner) in [("sig_key", "csv_pairs"), ("version", "space_versions")] {
            if r.has(name) && word != owner {
                r.fault(
                    name,
                    Fault::Rule(format!(
                        "has no meaning for parse {word}; it belongs to {owner}"
                    )),
                );
            }
        }
        let stamped = timestamp_header.is_some() || word == "csv_pairs";
        if signed.contains(&SignedPart::Timestamp) && !stamped {
            r.fault(
                "signed",
                Fault::Rule("holds {ts}, which needs timestamp_header, or parse: csv_pairs".into()),
            );
        }
        if r.has("tolerance_seconds") && !stamped {
            r.fault(
                "tolerance_seconds",
                Fault::Rule("needs timestamp_header, or parse: csv_pairs".into()),
            );
        }
        if timestamp_header.is_some() && !covers(&signed, timestamp_header.as_deref()) {
            r.fault("timestamp_header", Fault::Rule("the timestamp is not part of what is signed, so anyone could change it; put {ts} into signed".into()));
        }
        let judged = timestamp_header.is_some() || signed.contains(&SignedPart::Timestamp);
        SignatureScheme {
            signature_header: r.text("signature_header").to_ascii_lowercase(),
            signed,
            parse,
            sig_prefix: r.text("sig_prefix"),
            encoding: if r.text("encoding") == "base64" {
                SignatureEncoding::Base64
            } else {
                SignatureEncoding::Hex
            },
            timestamp_header,
            tolerance_seconds: (stamped && judged).then(|| r.int_or("tolerance_seconds", || 300)),
        }
    }
}

/// Whether the timestamp is signed.
fn covers(signed: &[SignedPart], timestamp_header: Option<&str>) -> bool {
    signed.iter().any(|part| match part {
        SignedPart::Timestamp => true,
        SignedPart::Header(name) => Some(name.as_str()) == timestamp_header,
        _ => false,
    })
}

/// Decodes Standard Webhooks secrets; the empty ones have been reported already.
pub(in crate::config) fn decode_whsec(
    r: &Reader<'_>,
    name: &str,
    secrets: &[Secret],
) -> Vec<Secret> {
    let decoded: Vec<Secret> = secrets
        .iter()
        .filter_map(|s| text::parse_whsec(s.expose_str()))
        .map(Secret::new)
        .collect();
    if decoded.len() != secrets.len() {
        r.fault(
            name,
            Fault::Secret(
                "is not a usable secret: wanted is base64, with whsec_ before it or without",
            ),
        );
    }
    decoded
}
