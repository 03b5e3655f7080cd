//! The texts of the headers: decimal numbers and hook ids, written without allocation, read
//! strictly (digits only, no sign, no overflow). Pure.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes `value` and returns how many bytes it took.
pub(super) fn write_decimal(mut value: u64, out: &mut [u8; 20]) -> usize {
    let mut len = 1;
    let mut rest = value / 10;
    while rest > 0 {
        len += 1;
        rest /= 10;
    }
    for at in (0..len).rev() {
        out[at] = DIGITS[(value % 10) as usize];
        value /= 10;
    }
    len
}

/// Reads 1 to 20 digits that fit 64 bits.
pub(super) fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|d| *d < 10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Writes the hyphenated form of an id.
pub(super) fn write_id(id: [u8; 16], out: &mut [u8; 36]) {
    let mut at = 0;
    for (i, byte) in id.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out[at] = b'-';
            at += 1;
        }
        out[at] = DIGITS[usize::from(byte >> 4)];
        out[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
}

/// Reads the hyphenated form, and only that one.
pub(super) fn parse_id(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != 36 {
        return None;
    }
    let mut id = [0u8; 16];
    let mut nibbles = 0usize;
    for (at, byte) in text.iter().enumerate() {
        if matches!(at, 8 | 13 | 18 | 23) {
            if *byte != b'-' {
                return None;
            }
            continue;
        }
        let nibble = char::from(*byte).to_digit(16)? as u8;
        id[nibbles / 2] = (id[nibbles / 2] << 4) | nibble;
        nibbles += 1;
    }
    Some(id)
}
