//! Names below the prefix of a node, and the limits of what lies there.
//!
//! ```text
//! owner.json                                   whose prefix this is, and which process writes
//! manifests/0000000012.manifest                one backup; written last
//! shard-000/segment-00000007-<salt>.0-40000    bytes 0 to 0x40000 of a segment
//! shard-000/checkpoint-<number>-<writer>.0-9000
//! shard-000/dedupe-<number>-<salt>.0-3000
//! ```
//!
//! An object holds a range of a file that never changes again, so that its name tells its
//! content: what is there with its name and length is not sent again. Pure.

/// The owner row.
pub const OWNER: &str = "owner.json";
/// The directory of the manifests.
pub const MANIFESTS: &str = "manifests";
/// Largest owner row.
pub const OWNER_BYTES_MAX: usize = 64 << 10;
/// Largest manifest: about 400,000 objects.
pub const MANIFEST_BYTES_MAX: usize = 64 << 20;
/// A file in more parts than this is sent again whole.
pub const PARTS_MAX: usize = 64;
/// Bytes read, hashed and written at a time.
pub const PIECE_BYTES: usize = 1 << 20;

const MANIFEST_SUFFIX: &str = ".manifest";
const UNNAMED: &str = "sending-";

/// The path of manifest `number`.
pub fn manifest_path(number: u64) -> String {
    format!("{MANIFESTS}/{number:010}{MANIFEST_SUFFIX}")
}

/// The number of a manifest, from its file name.
pub fn manifest_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(MANIFEST_SUFFIX)?;
    let is_ours = digits.len() >= 10 && digits.bytes().all(|b| b.is_ascii_digit());
    if is_ours { digits.parse().ok() } else { None }
}

/// The directory of a shard's objects.
pub fn shard_dir(shard: u16) -> String {
    format!("shard-{shard:03}")
}

/// What an object's name begins with: one file of a shard, never another.
pub fn stem(kind: &str, number: u64, salt: u64) -> String {
    format!("{kind}-{number:016x}-{salt:016x}")
}

/// The path of the object that holds bytes `from..to` of a file.
pub fn object_path(shard: u16, stem: &str, from: u64, to: u64) -> String {
    format!("{}/{stem}.{from:x}-{to:x}", shard_dir(shard))
}

/// The name under which something is written before it has its own.
pub fn unnamed_path(dir: &str, writer: &str) -> String {
    if dir.is_empty() {
        format!("{UNNAMED}{writer}")
    } else {
        format!("{dir}/{UNNAMED}{writer}")
    }
}

/// Whether a file name is one of those: left over by a process that died.
pub fn is_unnamed(name: &str) -> bool {
    name.starts_with(UNNAMED)
}

/// A path that a manifest may name: below the prefix, in a shard's directory.
pub fn is_object_path(path: &str) -> bool {
    let Some((dir, name)) = path.split_once('/') else {
        return false;
    };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    dir.strip_prefix("shard-")
        .is_some_and(|no| no.len() >= 3 && no.bytes().all(|b| b.is_ascii_digit()))
        && !name.starts_with('.')
        && !name.is_empty()
        && name.bytes().all(is_plain)
}

/// A file name that a manifest may give a file of a shard.
pub fn is_file_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
        && [".wal", ".ckpt", ".dedupe"]
            .iter()
            .any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_prefix_or_the_shard_are_none() {
        for path in [
            "../x",
            "shard-000/../x",
            "shard-000/",
            "/etc/x",
            "shard-x/a",
            "shard-000/.a",
            "shard-000/a/b",
        ] {
            assert!(!is_object_path(path), "{path}");
        }
        assert!(is_object_path(&object_path(
            7,
            &stem("segment", 3, 9),
            0,
            4096
        )));
        for name in ["../a.wal", "a/b.wal", ".wal", "store.json", ""] {
            assert!(!is_file_name(name), "{name}");
        }
        assert!(is_file_name("slot-0001.wal"));
        assert_eq!(
            manifest_number(&manifest_path(12)["manifests/".len()..]),
            Some(12)
        );
    }
}
