//! The HTTP request that a hook is to an HTTP sink.
//!
//! The body goes out byte for byte as it came in, with the provider's content type and encoding.
//! Who it is stands in `x-ankusa-*`; the provider's headers go along as the source's rule says. A
//! sink's own `headers` win over the provider's. When the sink signs, `webhook-id`,
//! `webhook-timestamp` and `webhook-signature` are this node's: a provider's headers of these names
//! would only be read in their place.
//!
//! Pure; runs on a shard core, in the delivery's task.

use ankusa_wal::hook::Verification;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};

use super::Delivery;
use super::forward::{ForwardRule, may_never_go};
use super::stamp::{Stamp, hex};
use crate::config::Secret;
use crate::dedupe::idempotency_key;

/// The name sent when the provider sent none.
const AGENT: &str = concat!("ankusa/", env!("CARGO_PKG_VERSION"));

const SIGNED: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// What a sink adds to every request.
pub struct OwnHeaders(Vec<(HeaderName, HeaderValue)>);

impl OwnHeaders {
    /// Takes the configured ones; `None` when one of them cannot be sent, or is not the sink's to
    /// set (framing and `x-ankusa-*`; `authorization`, cookies and the like are the sink's own).
    pub fn new(headers: &[(String, Secret)]) -> Option<OwnHeaders> {
        const CREDENTIALS: [&str; 4] = [
            "authorization",
            "cookie",
            "proxy-authorization",
            "x-api-key",
        ];
        let parse = |(name, value): &(String, Secret)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let mut value = HeaderValue::from_bytes(value.expose()).ok()?;
            value.set_sensitive(true);
            let refused = may_never_go(name.as_str().as_bytes());
            (!refused || CREDENTIALS.contains(&name.as_str())).then_some((name, value))
        };
        headers
            .iter()
            .map(parse)
            .collect::<Option<Vec<_>>>()
            .map(OwnHeaders)
    }
}

/// The headers of a delivery, but for `Host` and `Content-Length`, which the client adds.
pub fn request_headers(
    delivery: &Delivery<'_>,
    forward: &ForwardRule,
    own: &OwnHeaders,
    stamp: &Stamp,
    timestamp_s: u64,
) -> HeaderMap {
    let hook = &delivery.hook;
    let mut headers = HeaderMap::with_capacity(24);
    let is_signed = !stamp.signature.is_empty();
    for (name, value) in forward.select(hook.headers()) {
        let content_type = name.eq_ignore_ascii_case(CONTENT_TYPE.as_str().as_bytes());
        let shadowed = is_signed
            && SIGNED
                .iter()
                .any(|s| name.eq_ignore_ascii_case(s.as_bytes()));
        if !content_type && !shadowed {
            append(&mut headers, name, value);
        }
    }
    let content_type = match hook.content_type {
        b"" => b"application/octet-stream",
        given => given,
    };
    set(&mut headers, "content-type", content_type);
    if !headers.contains_key(USER_AGENT) {
        set(&mut headers, "user-agent", AGENT.as_bytes());
    }
    for (name, value) in &own.0 {
        // More of them than a map can hold is no request that anyone could answer.
        let _ = headers.try_insert(name.clone(), value.clone());
    }
    write_identity(&mut headers, delivery, &stamp.sha256);
    if is_signed {
        set(&mut headers, SIGNED[0], hook.id.to_string().as_bytes());
        set(&mut headers, SIGNED[1], timestamp_s.to_string().as_bytes());
        set(&mut headers, SIGNED[2], stamp.signature.as_bytes());
    }
    headers
}

/// `x-ankusa-*`.
fn write_identity(headers: &mut HeaderMap, delivery: &Delivery<'_>, sha256: &[u8; 32]) {
    let hook = &delivery.hook;
    let key = idempotency_key(hook.tenant, hook.source, hook.dedupe_key, hook.id);
    set(headers, "x-ankusa-id", hook.id.to_string().as_bytes());
    set(headers, "x-ankusa-source", hook.source);
    if !hook.tenant.is_empty() {
        set(headers, "x-ankusa-tenant", hook.tenant);
    }
    set(headers, "x-ankusa-idempotency-key", &key);
    if let Some(key) = hook.dedupe_key {
        set(headers, "x-ankusa-dedupe-key", key);
    }
    if let Some(replay) = delivery.replay_id {
        set(headers, "x-ankusa-replay-id", replay.as_bytes());
    }
    set(
        headers,
        "x-ankusa-received-at",
        hook.received_at_ms.to_string().as_bytes(),
    );
    set(headers, "x-ankusa-body-sha256", hex(sha256).as_bytes());
    let verification = match hook.verification {
        Verification::None => "none",
        Verification::Verified => "verified",
        Verification::Flagged => "flagged",
    };
    set(headers, "x-ankusa-verification", verification.as_bytes());
    if hook.verification == Verification::Flagged {
        set(headers, "x-ankusa-verification-flagged", b"true");
    }
}

/// Replaces. A value that cannot be sent is left out: the ones set here are made of names, numbers
/// and keys in their normal form, so there is none.
fn set(headers: &mut HeaderMap, name: &'static str, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        let _ = headers.try_insert(HeaderName::from_static(name), value);
    }
}

/// Adds. What cannot be sent is left out.
fn append(headers: &mut HeaderMap, name: &[u8], value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
        let _ = headers.try_append(name, value);
    }
}
