//! The manifest: one backup, signed.
//!
//! One line `ankusa-backup 1 hmac-sha256 <64 hexadecimal digits>`, then JSON. The signature is the
//! HMAC-SHA256 of every byte after that line under `backup.signing_key`. Nothing of an unsigned
//! manifest is believed, but for which objects it names when old ones are cleared away.
//!
//! Pure; blocking callers only.

use std::fmt;

use ankusa_wal::home::StoreFacts;
use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::layout;

/// Format version of a manifest, and of the layout of a prefix.
pub const MANIFEST_FORMAT: u32 = 1;

const FIRST_WORD: &str = "ankusa-backup";
const ALGORITHM: &str = "hmac-sha256";

/// The key of the signatures.
#[derive(Clone)]
pub struct SigningKey(hmac::Key);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// The key with these bytes.
    pub fn new(bytes: &[u8]) -> SigningKey {
        SigningKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }
}

/// Why a manifest is not believed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// The key does not fit, or something was changed.
    #[error("the signature does not fit (another backup.signing_key, or the manifest was changed)")]
    Signature,
    /// It is of a newer release.
    #[error("format {0} is newer than {MANIFEST_FORMAT}, the newest this release knows")]
    Newer(u32),
    /// It is not a manifest.
    #[error("not a manifest: {0}")]
    Malformed(String),
}

impl ManifestError {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            ManifestError::Signature => "bad_signature",
            ManifestError::Newer(_) => "newer_format",
            ManifestError::Malformed(_) => "bad_manifest",
        }
    }
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version.
    pub format: u32,
    /// Its number; rises.
    pub number: u64,
    /// When the first checkpoint was asked for, milliseconds since 1970. Every hook acked before
    /// is in it.
    pub began_at_ms: u64,
    /// When it was written.
    pub made_at_ms: u64,
    /// The release that wrote it.
    pub release: String,
    /// The node.
    pub node: String,
    /// The process that wrote it.
    pub writer: String,
    /// Format version of what is in the shards' files.
    pub wal_format: u32,
    /// `store.json`: uuid, hash key, incarnation, partition, identity of the log.
    pub store: StoreFacts,
    /// The shards, rising.
    pub shards: Vec<ShardEntry>,
}

/// One shard of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// The shard.
    pub shard: u16,
    /// Number of its checkpoint.
    pub checkpoint: u64,
    /// Groups above it are applied on top of the checkpoint.
    pub checkpoint_lsn: u64,
    /// Every group up to here is in it.
    pub durable_lsn: u64,
    /// At least the next seq.
    pub next_seq: u64,
    /// Live hooks, about.
    pub hooks: u64,
    /// The watermark.
    pub watermark: u64,
    /// Seqs below it that the log has not confirmed.
    pub watermark_exceptions: u64,
    /// The intake offset; every record at or below it is in the backup.
    pub offset: Option<u64>,
    /// The intake hold.
    pub hold: Option<u64>,
    /// Its files.
    pub files: Vec<FileEntry>,
}

/// One file of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the shard's directory.
    pub file: String,
    /// Tells it from any other file that had the name.
    pub stem: String,
    /// Its length.
    pub bytes: u64,
    /// Its content, in order.
    pub parts: Vec<Part>,
}

/// A range of a file, in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The object.
    pub object: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of it, hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// The signed bytes.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, ManifestError> {
        let body = serde_json::to_vec_pretty(self)
            .map_err(|error| ManifestError::Malformed(error.to_string()))?;
        let tag = hmac::sign(&key.0, &body);
        let head = format!(
            "{FIRST_WORD} {MANIFEST_FORMAT} {ALGORITHM} {}\n",
            hex(tag.as_ref())
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// Reads a manifest whose signature fits.
    pub fn verify(bytes: &[u8], key: &SigningKey) -> Result<Manifest, ManifestError> {
        let (tag, body) = split(bytes)?;
        hmac::verify(&key.0, body, &tag).map_err(|_| ManifestError::Signature)?;
        let manifest = parse(body)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Reads one whose signature is not looked at.
    pub fn unverified(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        parse(split(bytes)?.1)
    }

    /// Every object it names.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let files = self.shards.iter().flat_map(|shard| &shard.files);
        files.flat_map(|file| &file.parts)
    }

    /// Bytes of its objects.
    pub fn bytes(&self) -> u64 {
        self.parts().map(|part| part.bytes).sum()
    }

    /// The least offset of its shards: where a replay begins. `None`: from the start.
    pub fn offset(&self) -> Option<u64> {
        self.shards.iter().map(|shard| shard.offset).min().flatten()
    }

    /// Names stay inside the prefix and the shard, and lengths add up.
    fn check(&self) -> Result<(), ManifestError> {
        let wrong = |what: String| Err(ManifestError::Malformed(what));
        if self.shards.len() != usize::from(self.store.shards) {
            return wrong(format!(
                "{} shards of {}",
                self.shards.len(),
                self.store.shards
            ));
        }
        for (at, shard) in self.shards.iter().enumerate() {
            if usize::from(shard.shard) != at {
                return wrong(format!("shard {} in place of {at}", shard.shard));
            }
            for file in &shard.files {
                let sum: u64 = file.parts.iter().map(|part| part.bytes).sum();
                if !layout::is_file_name(&file.file) || sum != file.bytes {
                    return wrong(format!("file {:?}", file.file));
                }
                let odd = file
                    .parts
                    .iter()
                    .find(|p| !layout::is_object_path(&p.object));
                if let Some(part) = odd {
                    return wrong(format!("object {:?}", part.object));
                }
            }
        }
        Ok(())
    }
}

fn split(bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), ManifestError> {
    let malformed = |what: &str| ManifestError::Malformed(what.into());
    let end = bytes.iter().take(256).position(|b| *b == b'\n');
    let end = end.ok_or_else(|| malformed("no first line"))?;
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| malformed("first line"))?;
    let words: Vec<&str> = line.split(' ').collect();
    let [FIRST_WORD, format, ALGORITHM, tag] = words[..] else {
        return Err(malformed("first line"));
    };
    let format: u32 = format.parse().map_err(|_| malformed("format"))?;
    if format > MANIFEST_FORMAT {
        return Err(ManifestError::Newer(format));
    }
    let tag = unhex(tag).ok_or_else(|| malformed("signature"))?;
    Ok((tag, &bytes[end + 1..]))
}

fn parse(body: &[u8]) -> Result<Manifest, ManifestError> {
    let manifest: Manifest = serde_json::from_slice(body)
        .map_err(|error| ManifestError::Malformed(error.to_string()))?;
    if manifest.format > MANIFEST_FORMAT {
        return Err(ManifestError::Newer(manifest.format));
    }
    Ok(manifest)
}

/// Hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}
