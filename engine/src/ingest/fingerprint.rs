//! The body's fingerprint in a hook's id: 32 of its random bits.
//!
//! A retry with the same dedupe key and another body is answered as a duplicate of the first, and
//! counted. The first body is not at hand by then (it may be delivered and gone, or on another
//! core, or acked by an earlier process), and a dedupe row has no room for it; the id that the row
//! leads to has. Keyed, so that an id tells nobody outside what the body was. A collision leaves a
//! mismatch uncounted, nothing else. Only sources with a dedupe key pay for it. Pure.

use std::hash::Hasher as _;

use ankusa_wal::HookId;
use siphasher::sip::SipHasher13;

/// Bytes of a body that are looked at: no long work, however large it is.
const BYTES_MAX: usize = 64 << 10;

/// `random`, with its lower half replaced by the body's fingerprint.
pub fn mix(random: u64, hash_key: &[u8; 16], body: &[u8]) -> u64 {
    random & !u64::from(u32::MAX) | u64::from(of(hash_key, body))
}

/// Whether two ids are those of different bodies.
pub fn differ(a: HookId, b: HookId) -> bool {
    a.0[12..] != b.0[12..]
}

fn of(hash_key: &[u8; 16], body: &[u8]) -> u32 {
    let mut hash = SipHasher13::new_with_key(hash_key);
    hash.write(&(body.len() as u64).to_le_bytes());
    let half = BYTES_MAX / 2;
    if body.len() <= BYTES_MAX {
        hash.write(body);
    } else {
        hash.write(&body[..half]);
        hash.write(&body[body.len() - half..]);
    }
    hash.finish() as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ingest::mint::Minter;

    const KEY: [u8; 16] = [9; 16];

    #[test]
    fn ids_of_one_body_agree_over_cores_and_times_and_those_of_others_differ() {
        let id = |core, random, body: &[u8]| Minter::new(core).mint(5, mix(random, &KEY, body));
        let first = id(0, 1, b"paid 10");
        assert!(!differ(first, id(3, u64::MAX, b"paid 10")));
        assert!(differ(first, id(0, 1, b"paid 11")));
        assert!(differ(first, id(0, 1, b"paid 10\n")));
        assert!(differ(id(0, 1, b""), id(0, 1, b"\0")));
        let mut large = vec![0; 2 * BYTES_MAX];
        let whole = id(0, 1, &large);
        *large.last_mut().unwrap() = 1;
        assert!(differ(whole, id(0, 1, &large)));
    }

    #[test]
    fn another_store_gives_another_fingerprint() {
        assert_ne!(mix(0, &KEY, b"x"), mix(0, &[8; 16], b"x"));
    }
}
