//! A reader of the memory log's files, for the oracle: it shares no code with the log.
//!
//! ```text
//! file   magic "ankusaml" | first position u64 | frame…
//! frame  length u32 | crc32 u32 | position u64 | written at, ms u64 | headers u16 |
//!        { name length u16 | name | value length u32 | value }… | record value
//! ```
//! Little-endian. A torn tail is the end. Blocking.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Hook ids in a log, and how often each is in it.
pub fn ids(dir: &Path) -> Result<BTreeMap<String, usize>> {
    let mut ids = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ext| ext != "log") {
            continue;
        }
        let bytes = fs::read(&path)?;
        for id in of_file(&bytes).with_context(|| path.display().to_string())? {
            *ids.entry(id).or_default() += 1;
        }
    }
    Ok(ids)
}

fn of_file(bytes: &[u8]) -> Result<Vec<String>> {
    let Some(mut rest) = bytes.strip_prefix(b"ankusaml").and_then(|b| b.get(8..)) else {
        bail!("not a log");
    };
    let mut ids = Vec::new();
    while let Some((frame, after)) = frame(rest) {
        rest = after;
        ids.push(id_of(frame).context("a record without an id")?);
    }
    Ok(ids)
}

/// What a frame's checksum covers, and what comes after it.
fn frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes, 4)?;
    let (crc, rest) = number(rest, 4)?;
    let (frame, after) = rest.split_at_checked(length)?;
    (crc32fast::hash(frame) as usize == crc).then_some((frame, after))
}

fn id_of(frame: &[u8]) -> Option<String> {
    let (headers, mut rest) = number(frame.get(16..)?, 2)?;
    for _ in 0..headers {
        let (name, after) = text(rest, 2)?;
        let (value, after) = text(after, 4)?;
        if name == b"ankusa_intake_id" {
            return String::from_utf8(value.to_vec()).ok();
        }
        rest = after;
    }
    None
}

fn text(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes, width)?;
    rest.split_at_checked(length)
}

fn number(bytes: &[u8], width: usize) -> Option<(usize, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(width)?;
    let value = digits.iter().rev().fold(0, |sum, b| sum << 8 | *b as usize);
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record(id: &str) -> Vec<u8> {
        let mut body = vec![0; 16];
        body.extend(2u16.to_le_bytes());
        for (name, value) in [("ankusa_intake_v", "2"), ("ankusa_intake_id", id)] {
            body.extend((name.len() as u16).to_le_bytes());
            body.extend(name.as_bytes());
            body.extend((value.len() as u32).to_le_bytes());
            body.extend(value.as_bytes());
        }
        body.extend(b"value");
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend(crc32fast::hash(&body).to_le_bytes());
        frame.extend(body);
        frame
    }

    #[test]
    fn ids_are_read_up_to_a_torn_tail() {
        let mut file = b"ankusaml".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend(record("a"));
        file.extend(record("b"));
        assert_eq!(of_file(&file).unwrap(), ["a", "b"]);
        file.pop();
        assert_eq!(of_file(&file).unwrap(), ["a"]);
        assert!(of_file(b"something else, 16+").is_err());
    }
}
