//! Where a source's dedupe key comes from, its normal form, and the `idempotency_key`.
//!
//! Pure; the plan is made at boot and on reload, the rest runs per request.

use ankusa_wal::ids::HookId;
use aws_lc_rs::digest;

use super::KEY_BYTES_MAX;
use super::path::{JsonPath, PathError};
use super::scalar::Scalar;
use super::scan::JsonScan;
use crate::config::DedupeKeyFrom;
use crate::verify::Lookup;

/// Where the key of a source's hooks is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlan {
    /// In the first of these headers that is there; lower-case names.
    Headers(Box<[Box<str>]>),
    /// In the JSON body.
    Json(JsonPath),
}

/// What the head of a request says about its key.
pub enum Extraction {
    /// It has one.
    Key(DedupeKey),
    /// It has none: the request becomes a new hook.
    Absent,
    /// To be found in the body: step the scan, then hand its value to [`DedupeKey::of_scalar`].
    Scan(Box<JsonScan>),
}

impl KeyPlan {
    /// The plan of a source.
    pub fn build(from: &DedupeKeyFrom) -> Result<KeyPlan, PathError> {
        let headers =
            |names: &[&str]| KeyPlan::Headers(names.iter().map(|n| Box::from(*n)).collect());
        Ok(match from {
            DedupeKeyFrom::GitHub => headers(&["x-github-delivery"]),
            DedupeKeyFrom::StandardWebhooks => headers(&["webhook-id", "svix-id"]),
            DedupeKeyFrom::Shopify => headers(&["x-shopify-event-id", "x-shopify-webhook-id"]),
            DedupeKeyFrom::Stripe => KeyPlan::Json(JsonPath::parse("id")?),
            DedupeKeyFrom::Header(name) => headers(&[&name.to_ascii_lowercase()]),
            DedupeKeyFrom::Json(members) => KeyPlan::Json(JsonPath::new(members)?),
        })
    }

    /// Starts the extraction. A header sent twice gives no key: guessing wrong could lose a hook.
    pub fn begin<'h>(&self, headers: impl Fn(&str) -> Lookup<'h>) -> Extraction {
        match self {
            KeyPlan::Json(path) => Extraction::Scan(Box::new(JsonScan::new(path.clone()))),
            KeyPlan::Headers(names) => {
                let mut values = names.iter().map(|name| headers(name));
                match values.find(|v| *v != Lookup::Absent) {
                    Some(Lookup::One(value)) => {
                        DedupeKey::of_bytes(value).map_or(Extraction::Absent, Extraction::Key)
                    }
                    _ => Extraction::Absent,
                }
            }
        }
    }

    /// The whole extraction at once: for short bodies and work off the request path.
    pub fn run<'h>(&self, headers: impl Fn(&str) -> Lookup<'h>, body: &[u8]) -> Option<DedupeKey> {
        match self.begin(headers) {
            Extraction::Key(key) => Some(key),
            Extraction::Absent => None,
            Extraction::Scan(scan) => scan.run(body).ok().and_then(DedupeKey::of_scalar),
        }
    }
}

/// A key in its normal form: 1 to [`KEY_BYTES_MAX`] bytes of UTF-8 that pass through a header
/// unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DedupeKey(Box<[u8]>);

impl DedupeKey {
    /// The normal form of `raw`; `None` when it is empty.
    pub fn of_bytes(raw: &[u8]) -> Option<DedupeKey> {
        if raw.is_empty() {
            return None;
        }
        let sha256 = || digest::digest(&digest::SHA256, raw);
        Some(if raw.len() <= KEY_BYTES_MAX && passes_unchanged(raw) {
            DedupeKey(raw.into())
        } else {
            DedupeKey::of_digest(sha256().as_ref())
        })
    }

    /// The normal form of what a scan found.
    pub fn of_scalar(value: Scalar) -> Option<DedupeKey> {
        match value {
            Scalar::Short(bytes) => DedupeKey::of_bytes(&bytes),
            Scalar::Long(sha256) => Some(DedupeKey::of_digest(&sha256)),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn of_digest(sha256: &[u8]) -> DedupeKey {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = b"sha256:".to_vec();
        for byte in sha256 {
            text.push(DIGITS[usize::from(byte >> 4)]);
            text.push(DIGITS[usize::from(byte & 15)]);
        }
        DedupeKey(text.into())
    }
}

/// Text that neither a header nor a JSON string changes on its way to a sink.
fn passes_unchanged(raw: &[u8]) -> bool {
    std::str::from_utf8(raw).is_ok()
        && raw.trim_ascii().len() == raw.len()
        && !raw.iter().any(u8::is_ascii_control)
}

/// The key that sinks dedupe by: `tenant:source:key` (the tenant being `default` when there is
/// none), or the hook's id when it has no dedupe key.
pub fn idempotency_key(tenant: &[u8], source: &[u8], key: Option<&[u8]>, id: HookId) -> Vec<u8> {
    let mut out = Vec::with_capacity(tenant.len() + source.len() + key.map_or(36, <[u8]>::len) + 9);
    write_idempotency_key(&mut out, tenant, source, key, id);
    out
}

/// Appends [`idempotency_key`] to `out`.
pub fn write_idempotency_key(
    out: &mut Vec<u8>,
    tenant: &[u8],
    source: &[u8],
    key: Option<&[u8]>,
    id: HookId,
) {
    match key {
        Some(key) => {
            out.extend_from_slice(if tenant.is_empty() {
                b"default"
            } else {
                tenant
            });
            out.push(b':');
            out.extend_from_slice(source);
            out.push(b':');
            out.extend_from_slice(key);
        }
        None => {
            let mut text = [0u8; 36];
            id.write_text(&mut text);
            out.extend_from_slice(&text);
        }
    }
}
