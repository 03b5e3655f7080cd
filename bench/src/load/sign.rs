//! Signs requests the way providers do.
//!
//! Pure apart from the clock value it is given. Three schemes of the receiver's table:
//! Standard Webhooks, Stripe, GitHub.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A way of signing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Scheme {
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<base64>`.
    StandardWebhooks,
    /// `Stripe-Signature: t=…,v1=<hex>`.
    Stripe,
    /// `X-Hub-Signature-256: sha256=<hex>`.
    Github,
}

/// A scheme with its key.
pub struct Signer {
    scheme: Scheme,
    key: hmac::Key,
}

impl Signer {
    /// A signer; for Standard Webhooks the secret is `whsec_<base64>`.
    pub fn new(scheme: Scheme, secret: &str) -> Result<Signer, String> {
        let bytes = match scheme {
            Scheme::StandardWebhooks => {
                let encoded = secret.strip_prefix("whsec_").unwrap_or(secret);
                STANDARD
                    .decode(encoded)
                    .map_err(|e| format!("the secret is not whsec_<base64>: {e}"))?
            }
            Scheme::Stripe | Scheme::Github => secret.as_bytes().to_vec(),
        };
        if bytes.is_empty() {
            return Err("the secret is empty".to_owned());
        }
        Ok(Signer {
            scheme,
            key: hmac::Key::new(hmac::HMAC_SHA256, &bytes),
        })
    }

    /// Appends the signature's header lines for `body`, message id `id`, at `unix_s`.
    pub fn append_headers(&self, out: &mut Vec<u8>, id: &[u8], unix_s: u64, body: &[u8]) {
        let ts = unix_s.to_string();
        let mut mac = hmac::Context::with_key(&self.key);
        match self.scheme {
            Scheme::StandardWebhooks => {
                mac.update(id);
                mac.update(b".");
                mac.update(ts.as_bytes());
                mac.update(b".");
                mac.update(body);
                out.extend_from_slice(b"webhook-id: ");
                out.extend_from_slice(id);
                out.extend_from_slice(b"\r\nwebhook-timestamp: ");
                out.extend_from_slice(ts.as_bytes());
                out.extend_from_slice(b"\r\nwebhook-signature: v1,");
                out.extend_from_slice(STANDARD.encode(mac.sign().as_ref()).as_bytes());
            }
            Scheme::Stripe => {
                mac.update(ts.as_bytes());
                mac.update(b".");
                mac.update(body);
                out.extend_from_slice(b"Stripe-Signature: t=");
                out.extend_from_slice(ts.as_bytes());
                out.extend_from_slice(b",v1=");
                append_hex(out, mac.sign().as_ref());
            }
            Scheme::Github => {
                mac.update(body);
                out.extend_from_slice(b"X-Hub-Signature-256: sha256=");
                append_hex(out, mac.sign().as_ref());
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends lower-case hex.
pub(super) fn append_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(scheme: Scheme, secret: &str, body: &[u8]) -> String {
        let mut out = Vec::new();
        Signer::new(scheme, secret).unwrap().append_headers(
            &mut out,
            b"msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            body,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn standard_webhooks_matches_its_published_example() {
        let text = headers(
            Scheme::StandardWebhooks,
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            br#"{"test": 2432232314}"#,
        );
        assert!(
            text.contains("webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n"),
            "{text}"
        );
    }

    #[test]
    fn github_matches_its_published_example() {
        let text = headers(
            Scheme::Github,
            "It's a Secret to Everybody",
            b"Hello, World!",
        );
        assert_eq!(
            text,
            "X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17\r\n"
        );
    }

    #[test]
    fn stripe_signs_time_and_body() {
        let text = headers(Scheme::Stripe, "whsec_x", b"{}");
        assert!(
            text.starts_with("Stripe-Signature: t=1614265330,v1="),
            "{text}"
        );
        assert_ne!(text, headers(Scheme::Stripe, "whsec_x", b"{ }"));
    }

    #[test]
    fn empty_or_undecodable_secret_is_refused() {
        assert!(Signer::new(Scheme::Github, "").is_err());
        assert!(Signer::new(Scheme::StandardWebhooks, "whsec_***").is_err());
    }
}
