//! The message that a hook is to sinks that take records rather than requests: one JSON object.
//!
//! `v` is 1 and stays 1 as long as no field changes its meaning or goes; readers ignore fields that
//! they do not know. The body is in `body_base64`, byte for byte. Header names are in lower case,
//! and headers sent more than once are joined by a comma, as HTTP allows. A header that is not
//! UTF-8 is read as ISO 8859-1.
//!
//! A [`MessageWriter`] writes into one buffer of the final size, in steps between which the caller
//! may yield: the body is encoded straight into its place.
//!
//! Pure; runs on a shard core, in the delivery's task.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Delivery;
use super::forward::ForwardRule;
use super::stamp::hex;
use crate::dedupe::idempotency_key;

/// The value of `v`.
pub const MESSAGE_VERSION: u32 = 1;

/// Body bytes encoded per step: whole triplets, so that the pieces join without padding.
const STEP_BYTES: usize = 48 * 1024;

/// A message on its way into a buffer.
pub struct MessageWriter<'a> {
    body: &'a [u8],
    out: Vec<u8>,
}

impl<'a> MessageWriter<'a> {
    /// Writes everything but the body. `sha256` is the body's; `tail_bytes` more will be appended
    /// by the caller.
    pub fn begin(
        delivery: &Delivery<'a>,
        forward: &ForwardRule,
        sha256: &[u8; 32],
        tail_bytes: usize,
    ) -> MessageWriter<'a> {
        let hook = &delivery.hook;
        let mut head = Vec::with_capacity(1024);
        // Writing to a vector does not fail.
        let _ = write!(
            head,
            "{{\"v\":{MESSAGE_VERSION},\"id\":\"{}\",\"source_id\":",
            hook.id
        );
        write_text(&mut head, hook.source);
        head.extend_from_slice(b",\"tenant_id\":");
        write_text(&mut head, hook.tenant);
        let _ = write!(
            head,
            ",\"received_at\":{},\"content_type\":",
            hook.received_at_ms
        );
        write_optional(&mut head, Some(hook.content_type).filter(|t| !t.is_empty()));
        let _ = write!(head, ",\"size\":{},\"dedupe_key\":", hook.body.len());
        write_optional(&mut head, hook.dedupe_key);
        head.extend_from_slice(b",\"replay_id\":");
        write_optional(&mut head, delivery.replay_id.map(str::as_bytes));
        head.extend_from_slice(b",\"idempotency_key\":");
        let key = idempotency_key(hook.tenant, hook.source, hook.dedupe_key, hook.id);
        write_text(&mut head, &key);
        head.extend_from_slice(b",\"headers\":");
        write_headers(&mut head, delivery, forward);
        let _ = write!(head, ",\"sha256\":\"{}\",\"body_base64\":\"", hex(sha256));
        let body_bytes = hook.body.len().div_ceil(3) * 4;
        let mut out = Vec::with_capacity(head.len() + body_bytes + 2 + tail_bytes);
        out.append(&mut head);
        MessageWriter {
            body: hook.body,
            out,
        }
    }

    /// Encodes the next piece of the body; false when there was none left.
    pub fn step(&mut self) -> bool {
        let (piece, rest) = self.body.split_at(self.body.len().min(STEP_BYTES));
        if piece.is_empty() {
            return false;
        }
        self.body = rest;
        let at = self.out.len();
        self.out.resize(at + piece.len().div_ceil(3) * 4, 0);
        let written = STANDARD.encode_slice(piece, &mut self.out[at..]);
        // The room is exactly what the encoder needs.
        self.out.truncate(at + written.unwrap_or_default());
        true
    }

    /// The whole message.
    pub fn finish(mut self) -> Vec<u8> {
        while self.step() {}
        self.out.extend_from_slice(b"\"}");
        self.out
    }
}

fn write_headers(out: &mut Vec<u8>, delivery: &Delivery<'_>, forward: &ForwardRule) {
    let mut wanted: Vec<_> = forward.select(delivery.hook.headers()).collect();
    // Stable: values of one name stay in their order.
    wanted.sort_by_cached_key(|(name, _)| name.to_ascii_lowercase());
    out.push(b'{');
    let mut group = wanted.as_slice();
    while let [(name, _), ..] = group {
        let same = group
            .iter()
            .take_while(|(n, _)| n.eq_ignore_ascii_case(name))
            .count();
        let values: Vec<&[u8]> = group[..same].iter().map(|(_, value)| *value).collect();
        if group.len() < wanted.len() {
            out.push(b',');
        }
        write_text(out, &name.to_ascii_lowercase());
        out.push(b':');
        write_text(out, &values.join(&b", "[..]));
        group = &group[same..];
    }
    out.push(b'}');
}

fn write_optional(out: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) => write_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// A JSON string: the text when it is UTF-8, otherwise each byte as the character of its number.
fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    match std::str::from_utf8(text) {
        Ok(text) => text.chars().for_each(|c| write_char(out, c)),
        Err(_) => text.iter().for_each(|b| write_char(out, char::from(*b))),
    }
    out.push(b'"');
}

fn write_char(out: &mut Vec<u8>, c: char) {
    match c {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\0'..='\x1F' => {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}
