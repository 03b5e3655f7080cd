//! The first file system of the guest: a cpio archive in the `newc` format, as the kernel unpacks
//! it. Pure.

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    count: u32,
}

impl Archive {
    /// A file, with the directories above it.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.above(path);
        self.entry(path, FILE, content);
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.above(path);
        self.entry(path, LINK, target.as_bytes());
    }

    /// An empty directory.
    pub fn directory(&mut self, path: &str) {
        self.above(path);
        if self.directories.insert(path.trim_matches('/').to_owned()) {
            self.entry(path, DIRECTORY, &[]);
        }
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn above(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if let Some((above, _)) = path.rsplit_once('/') {
            self.directory(above);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let path = path.trim_start_matches('/');
        self.count += 1;
        let fields = [
            self.count,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_directories_above_a_file_once_and_an_end() {
        let mut archive = Archive::default();
        archive.file("/usr/bin/a", b"12345");
        archive.link("/usr/bin/b", "a");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5);
        assert_eq!(bytes.len() % 4, 0);
        for name in [
            "usr\0",
            "usr/bin\0",
            "usr/bin/a\0",
            "usr/bin/b\0",
            "TRAILER!!!\0",
        ] {
            assert!(text.contains(name), "{name}");
        }
        assert!(text.starts_with("07070100000001000041ed"));
    }
}
