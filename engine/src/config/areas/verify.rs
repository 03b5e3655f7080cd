//! `sources.<name>.verify`: what a provider signs, and with what.
//!
//! Secrets are never empty, and are decoded here where their form says so (`whsec_`), so that a
//! verifier cannot meet one that it cannot use. Runs at boot and offline.

use crate::config::Secret;

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
