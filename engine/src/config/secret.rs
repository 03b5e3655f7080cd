//! A value that must never be seen: passwords, signing keys, tokens.
//!
//! Owns the bytes and wipes them when dropped. Both `Debug` and `Display` print [`REDACTED`];
//! the only way to the bytes is [`Secret::expose`], so that every use can be found by name.
//! Does not hide the text of the configuration file itself, which is freed without wiping.
//! Pure; runs anywhere.

use std::fmt;

use zeroize::Zeroizing;

/// What is printed in place of a hidden value.
pub const REDACTED: &str = "[REDACTED]";

/// Bytes that print as [`REDACTED`] and are wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes over.
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes, for the one who signs, verifies or sends with them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The text, where the secret came from a text; the empty text where the bytes are not UTF-8.
    pub fn expose_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret::new(text.as_bytes().to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}
