//! Reading a shard's files beside the live shard.
//!
//! Direct reads, so that what passes by once does not push anything out of the page cache and
//! never meets a stale page of it; buffered ones where the file system has no direct reads. Only
//! ranges that are durable and do not change are read. Blocking; side thread or offline.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ankusa_wal::disk::BLOCK_BYTES;

use super::folder::ReadFile;

/// Where the files of a shard are read.
pub trait ShardFiles {
    /// Opens a file.
    fn open(&self, file: &str) -> io::Result<Box<dyn ReadFile>>;
}

/// A shard's directory.
#[derive(Clone, Debug)]
pub struct ShardDir(PathBuf);

impl ShardDir {
    /// The directory of a shard.
    pub fn new(dir: &Path) -> ShardDir {
        ShardDir(dir.into())
    }
}

impl ShardFiles for ShardDir {
    fn open(&self, file: &str) -> io::Result<Box<dyn ReadFile>> {
        let path = self.0.join(file);
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW)
            .open(&path);
        let file = match direct {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?,
            other => other?,
        };
        Ok(Box::new(DirectFile {
            file,
            bounce: Vec::new(),
        }))
    }
}

struct DirectFile {
    file: File,
    /// Memory with an aligned piece in it.
    bounce: Vec<u8>,
}

impl ReadFile for DirectFile {
    /// `pos` and the length of `out` are multiples of a block.
    fn read_at(&mut self, pos: u64, out: &mut [u8]) -> io::Result<usize> {
        let wanted = out.len();
        if self.bounce.len() < wanted + BLOCK_BYTES {
            self.bounce.resize(wanted + BLOCK_BYTES, 0);
        }
        let skew = self.bounce.as_ptr().align_offset(BLOCK_BYTES);
        let aligned = self
            .bounce
            .get_mut(skew..skew + wanted)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut filled = 0;
        while filled < wanted {
            match self
                .file
                .read_at(&mut aligned[filled..], pos + filled as u64)
            {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A short direct read is the end, or ends on a block.
            if !filled.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        out[..filled].copy_from_slice(&aligned[..filled]);
        Ok(filled)
    }
}
