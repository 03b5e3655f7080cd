//! Slack's `url_verification`: the request that asks a new endpoint to prove itself by echoing.
//!
//! Pure. To be asked only after the request verified; such a request is answered and not stored.

use crate::dedupe::{JsonPath, JsonScan, KEY_BYTES_MAX, Scalar};

/// Longer bodies are events, whatever they say.
pub const CHALLENGE_BODY_BYTES_MAX: usize = 4096;

/// The challenge to send back, as the text body of a 200, when `body` is a `url_verification`.
/// `None`: an ordinary event.
pub fn slack_challenge(body: &[u8]) -> Option<Vec<u8>> {
    if body.len() > CHALLENGE_BODY_BYTES_MAX {
        return None;
    }
    let text = |name: &str| match JsonScan::new(JsonPath::parse(name).ok()?).run(body) {
        Ok(Scalar::Short(bytes)) => Some(bytes),
        _ => None,
    };
    if text("type")? != b"url_verification" {
        return None;
    }
    let challenge = text("challenge")?;
    debug_assert!(challenge.len() <= KEY_BYTES_MAX);
    Some(challenge)
}
