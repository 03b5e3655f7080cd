//! A shard of a backup as a directory that can only be read: for the tools that judge a store at
//! rest, without unpacking anything.
//!
//! Every future is ready when it is first polled. Offline.

use std::io;
use std::rc::Rc;

use ankusa_wal::disk::blocking::BlockingBuf;
use ankusa_wal::disk::{DirEntry, Disk, Space};

use super::folder::Folder;
use super::manifest::{FileEntry, ShardEntry};

/// The directory.
#[derive(Clone)]
pub struct BackupDisk {
    folder: Rc<dyn Folder>,
    files: Rc<[FileEntry]>,
}

impl BackupDisk {
    /// The files of a shard of a backup in `folder`.
    pub fn new(folder: Rc<dyn Folder>, shard: &ShardEntry) -> BackupDisk {
        BackupDisk {
            folder,
            files: shard.files.clone().into(),
        }
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EROFS))
}

impl Disk for BackupDisk {
    /// Its place in the list.
    type File = usize;
    type Buf = BlockingBuf;

    fn alloc(&self, bytes: usize) -> BlockingBuf {
        BlockingBuf::zeroed(bytes)
    }

    async fn list(&self) -> io::Result<Vec<DirEntry>> {
        let files = self.files.iter();
        let entry = |file: &FileEntry| DirEntry {
            name: file.file.clone(),
            bytes: file.bytes,
        };
        Ok(files.map(entry).collect())
    }

    async fn open(&self, name: &str) -> io::Result<usize> {
        let at = self.files.iter().position(|file| file.file == name);
        at.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn create(&self, _name: &str) -> io::Result<usize> {
        read_only()
    }

    async fn len(&self, file: &usize) -> io::Result<u64> {
        Ok(self.files[*file].bytes)
    }

    async fn write_at(&self, _: &usize, _: Rc<BlockingBuf>, _: u64) -> io::Result<usize> {
        read_only()
    }

    async fn read_at(
        &self,
        file: &usize,
        pos: u64,
        bytes: usize,
    ) -> io::Result<(BlockingBuf, usize)> {
        let mut buf = self.alloc(bytes);
        let out = &mut buf.as_mut()[..bytes];
        let (mut filled, mut begins) = (0, 0);
        for part in &self.files[*file].parts {
            let (from, ends) = (pos + filled as u64, begins + part.bytes);
            if filled < out.len() && from >= begins && from < ends {
                let wanted = (out.len() - filled).min((ends - from) as usize);
                let mut object = self.folder.open(&part.object)?;
                let got = object.read_at(from - begins, &mut out[filled..filled + wanted])?;
                filled += got;
                if got < wanted {
                    break;
                }
            }
            begins = ends;
        }
        Ok((buf, filled))
    }

    async fn sync_data(&self, _: &usize) -> io::Result<()> {
        read_only()
    }

    async fn reopen_dsync(&self, _: &str) -> io::Result<usize> {
        read_only()
    }

    async fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        read_only()
    }

    async fn remove(&self, _: &str) -> io::Result<()> {
        read_only()
    }

    async fn sync_dir(&self) -> io::Result<()> {
        read_only()
    }

    async fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }

    async fn close(&self, _: usize) {}
}
