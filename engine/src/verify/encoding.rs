//! Signatures and credentials from text to bytes. Pure functions; no input panics.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::config::SignatureEncoding;

/// The longest signature: SHA-512 and Ed25519 both have 64 bytes.
pub(super) const SIGNATURE_BYTES_MAX: usize = 64;

/// 64 bytes in base64, padded.
const SIGNATURE_BASE64_MAX: usize = 88;

/// Standard base64; the padding may be absent, because signatures get copied without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes a signature and returns its length; `None` when it is not in that encoding or too long.
pub(super) fn decode_signature(
    encoding: SignatureEncoding,
    text: &[u8],
    out: &mut [u8; SIGNATURE_BYTES_MAX],
) -> Option<usize> {
    match encoding {
        SignatureEncoding::Hex => {
            let len = text.len() / 2;
            if !text.len().is_multiple_of(2) || len > out.len() {
                return None;
            }
            for (pair, byte) in text.chunks_exact(2).zip(out.iter_mut()) {
                *byte = (hex_digit(pair[0])? << 4) | hex_digit(pair[1])?;
            }
            Some(len)
        }
        SignatureEncoding::Base64 => {
            if text.len() > SIGNATURE_BASE64_MAX {
                return None;
            }
            // The decoder wants room for whole quartets.
            let mut room = [0u8; SIGNATURE_BASE64_MAX / 4 * 3];
            let len = BASE64.decode_slice(text, &mut room).ok()?;
            out.get_mut(..len)?.copy_from_slice(&room[..len]);
            Some(len)
        }
    }
}

/// The user and password of a `Basic` header.
pub(super) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|d| d as u8)
}
