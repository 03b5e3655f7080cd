//! The value a scan is after: collected in constant memory, however long it is.
//!
//! Pure.

use aws_lc_rs::digest;

use super::KEY_BYTES_MAX;

/// The value at the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// The unescaped string, or the digits of the integer as they stand there.
    Short(Vec<u8>),
    /// It has more than [`KEY_BYTES_MAX`] bytes; their SHA-256.
    Long([u8; 32]),
}

/// Collects the value: its bytes while they are few, their digest from then on.
#[derive(Default)]
pub(super) struct Value {
    short: Vec<u8>,
    long: Option<digest::Context>,
}

impl Value {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.long {
            digest.update(bytes);
        } else if self.short.len() + bytes.len() <= KEY_BYTES_MAX {
            self.short.extend_from_slice(bytes);
        } else {
            let mut digest = digest::Context::new(&digest::SHA256);
            digest.update(&self.short);
            digest.update(bytes);
            self.long = Some(digest);
        }
    }

    pub(super) fn take(&mut self) -> Scalar {
        let mut sha256 = [0u8; 32];
        match self.long.take() {
            None => Scalar::Short(std::mem::take(&mut self.short)),
            Some(digest) => {
                sha256.copy_from_slice(digest.finish().as_ref());
                Scalar::Long(sha256)
            }
        }
    }

    /// False when the digits are no JSON integer: no digit at all, or a zero in front.
    pub(super) fn is_integer(&self) -> bool {
        let digits = self.short.strip_prefix(b"-").unwrap_or(&self.short);
        !digits.is_empty() && (digits.len() == 1 || digits[0] != b'0')
    }
}
