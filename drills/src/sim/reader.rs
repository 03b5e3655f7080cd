//! The judge's own reader of an envelope, from the documented layout: nothing of the store's.

/// The fields of an envelope that the judge looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read<'a> {
    /// Its place in the shard.
    pub seq: u64,
    /// The hook's id.
    pub id: [u8; 16],
    /// The source.
    pub source: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
    /// The dedupe key.
    pub key: Option<&'a [u8]>,
    /// The body.
    pub body: &'a [u8],
}

const FIXED_BYTES: usize = 96;

/// Reads an envelope of version 1; `None` when it is not one, to the last byte.
pub fn read(bytes: &[u8]) -> Option<Read<'_>> {
    let short =
        |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    if bytes.get(..2)? != [1, 0] {
        return None;
    }
    let mut at = FIXED_BYTES;
    // Tenant, source, method, target, content type, dedupe key, headers, body.
    let mut parts = [&bytes[..0]; 8];
    for (part, length_at) in parts.iter_mut().zip((60..92).step_by(4)) {
        let length = short(length_at)?;
        *part = bytes.get(at..at + length)?;
        at += length;
    }
    if at != bytes.len() {
        return None;
    }
    Some(Read {
        seq: u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?),
        id: bytes.get(16..32)?.try_into().ok()?,
        source: parts[1],
        target: parts[3],
        key: (bytes[3] & 1 == 1).then_some(parts[5]),
        body: parts[7],
    })
}
