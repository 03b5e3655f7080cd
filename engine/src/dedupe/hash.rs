//! The 128 bits a dedupe key is remembered by.
//!
//! SipHash-2-4 with 128 bit output over `(tenant, source, key)`, each with its length in front so
//! that no two triples give the same input. Keyed with the store's random key: whoever can choose
//! keys cannot look for two that collide, and a collision would answer `duplicate` for a hook that
//! is not there. The result is written to disk, so this definition is part of the storage format.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// Bytes of the hash.
pub const DEDUPE_HASH_BYTES: usize = 16;

/// The hash of a dedupe triple under the store's `hash_key`.
pub fn dedupe_hash(
    hash_key: &[u8; 16],
    tenant: &[u8],
    source: &[u8],
    key: &[u8],
) -> [u8; DEDUPE_HASH_BYTES] {
    let mut hasher = SipHasher24::new_with_key(hash_key);
    for part in [tenant, source, key] {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_bytes()
}
