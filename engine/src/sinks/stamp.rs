//! What is computed over a body before it goes out: its SHA-256 and its signatures, in one pass
//! that lets other tasks run.
//!
//! Signatures follow Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, one for each secret,
//! so that a secret can be rotated without a delivery that the receiver cannot verify.
//!
//! Runs on a shard core, in the delivery's task.

use ankusa_wal::host::Host;
use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::config::Secret;

/// Bytes hashed between two chances to yield, over all hashes: under a millisecond also on a machine
/// without instructions for it.
const SLICE_BYTES: usize = 128 * 1024;

/// Signs deliveries to one sink. Without secrets it signs nothing.
#[derive(Default)]
pub struct Signer {
    keys: Vec<hmac::Key>,
}

impl Signer {
    /// A signer with these keys.
    pub fn new(secrets: &[Secret]) -> Signer {
        let key = |s: &Secret| hmac::Key::new(hmac::HMAC_SHA256, s.expose());
        Signer {
            keys: secrets.iter().map(key).collect(),
        }
    }

    /// True when deliveries go unsigned.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// What the pass yields.
pub struct Stamp {
    /// Of the body.
    pub sha256: [u8; 32],
    /// The value of `webhook-signature`; empty without secrets.
    pub signature: String,
    /// The body again, in pieces that can be sent; empty unless asked for.
    pub chunks: Vec<Bytes>,
}

/// Hashes and signs `body`, and copies it in pieces when `copy` says so.
///
/// # Cancel safety
/// Dropping it leaves nothing behind.
pub async fn stamp(
    host: &dyn Host,
    signer: &Signer,
    id: &str,
    timestamp_s: u64,
    body: &[u8],
    copy: bool,
) -> Stamp {
    let mut sha256 = digest::Context::new(&digest::SHA256);
    let mut macs: Vec<_> = signer.keys.iter().map(hmac::Context::with_key).collect();
    let before = format!("{id}.{timestamp_s}.");
    macs.iter_mut()
        .for_each(|mac| mac.update(before.as_bytes()));
    let mut chunks = Vec::new();
    for slice in body.chunks(SLICE_BYTES / (1 + macs.len())) {
        sha256.update(slice);
        macs.iter_mut().for_each(|mac| mac.update(slice));
        if copy {
            chunks.push(Bytes::copy_from_slice(slice));
        }
        if host.must_yield() {
            host.yield_now().await;
        }
    }
    let mut signature = String::new();
    for mac in macs {
        if !signature.is_empty() {
            signature.push(' ');
        }
        signature.push_str("v1,");
        STANDARD.encode_string(mac.sign(), &mut signature);
    }
    let mut out = [0u8; 32];
    out.copy_from_slice(sha256.finish().as_ref());
    Stamp {
        sha256: out,
        signature,
        chunks,
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes
        .iter()
        .flat_map(|b| [digit(b >> 4), digit(*b)])
        .collect()
}
