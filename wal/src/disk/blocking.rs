//! The plain disk: buffered `pread` and `pwrite`, for tools that work on a store at rest.
//!
//! Every future is ready when it is first polled, so [`block_on`] needs no runtime. Success of a
//! write or sync means what it means for any buffered file; errors keep their errno.
//!
//! Runs in offline tools only, never on a shard core.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::sys::{self, check_name};
use super::{BLOCK_BYTES, DirEntry, Disk, DiskBuf, Space};

/// Runs a future to its end.
///
/// # Panics
/// When it waits for something other than a blocking disk: there is nobody to wake it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    // A future may yield a few times on its own account.
    for _ in 0..1_000_000 {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
    panic!("a future on a blocking disk waits for something else");
}

/// A directory. Cloning means the same directory.
#[derive(Clone)]
pub struct BlockingDisk(Rc<Dir>);

struct Dir {
    path: PathBuf,
    dir: File,
    read_only: bool,
}

/// An open file.
#[derive(Clone)]
pub struct BlockingFile(Rc<File>);

/// Bytes on the heap.
pub struct BlockingBuf(Vec<u8>);

impl BlockingBuf {
    /// Zeros, at least so many, whole blocks.
    pub fn zeroed(bytes: usize) -> BlockingBuf {
        BlockingBuf(vec![0; bytes.next_multiple_of(BLOCK_BYTES)])
    }
}

impl AsRef<[u8]> for BlockingBuf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl AsMut<[u8]> for BlockingBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
impl DiskBuf for BlockingBuf {
    fn truncate(&mut self, bytes: usize) {
        assert!(bytes.is_multiple_of(BLOCK_BYTES) && bytes <= self.0.len());
        self.0.truncate(bytes);
    }
}

impl BlockingDisk {
    /// Opens a directory.
    pub fn open(path: &Path) -> io::Result<BlockingDisk> {
        BlockingDisk::new(path, false)
    }

    /// Opens a directory whose files are only read; every change is refused with `EROFS`.
    pub fn open_read_only(path: &Path) -> io::Result<BlockingDisk> {
        BlockingDisk::new(path, true)
    }

    fn new(path: &Path, read_only: bool) -> io::Result<BlockingDisk> {
        let path = path.canonicalize()?;
        let dir = File::open(&path)?;
        if !dir.metadata()?.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        Ok(BlockingDisk(Rc::new(Dir {
            path,
            dir,
            read_only,
        })))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    fn may_change(&self) -> io::Result<()> {
        if self.0.read_only {
            Err(io::Error::from_raw_os_error(libc::EROFS))
        } else {
            Ok(())
        }
    }

    fn open_file(
        &self,
        name: &str,
        options: &mut OpenOptions,
        flags: i32,
    ) -> io::Result<BlockingFile> {
        check_name(name)?;
        options.read(true).write(!self.0.read_only).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | flags);
        Ok(BlockingFile(Rc::new(options.open(self.0.path.join(name))?)))
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, out: &mut [u8], pos: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match file.read_at(&mut out[filled..], pos + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Disk for BlockingDisk {
    type File = BlockingFile;
    type Buf = BlockingBuf;

    /// Zeroed.
    fn alloc(&self, bytes: usize) -> BlockingBuf {
        BlockingBuf::zeroed(bytes)
    }

    async fn list(&self) -> io::Result<Vec<DirEntry>> {
        sys::list(&self.0.path)
    }

    async fn open(&self, name: &str) -> io::Result<BlockingFile> {
        self.open_file(name, &mut OpenOptions::new(), 0)
    }

    async fn create(&self, name: &str) -> io::Result<BlockingFile> {
        self.may_change()?;
        self.open_file(name, OpenOptions::new().create_new(true), 0)
    }

    async fn len(&self, file: &BlockingFile) -> io::Result<u64> {
        sys::file_len(file.0.as_raw_fd())
    }

    async fn write_at(
        &self,
        file: &BlockingFile,
        buf: Rc<BlockingBuf>,
        pos: u64,
    ) -> io::Result<usize> {
        self.may_change()?;
        file.0.write_at(&buf.0, pos)
    }

    async fn read_at(
        &self,
        file: &BlockingFile,
        pos: u64,
        bytes: usize,
    ) -> io::Result<(BlockingBuf, usize)> {
        let mut buf = self.alloc(bytes);
        let filled = read_full(&file.0, &mut buf.0[..bytes], pos)?;
        Ok((buf, filled))
    }

    async fn sync_data(&self, file: &BlockingFile) -> io::Result<()> {
        file.0.sync_data()
    }

    async fn reopen_dsync(&self, name: &str) -> io::Result<BlockingFile> {
        self.open_file(name, &mut OpenOptions::new(), libc::O_DSYNC)
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_change()?;
        check_name(from)?;
        check_name(to)?;
        std::fs::rename(self.0.path.join(from), self.0.path.join(to))
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        self.may_change()?;
        check_name(name)?;
        std::fs::remove_file(self.0.path.join(name))
    }

    async fn sync_dir(&self) -> io::Result<()> {
        self.0.dir.sync_all()
    }

    async fn space(&self) -> io::Result<Space> {
        sys::space(self.0.dir.as_raw_fd())
    }

    async fn close(&self, file: BlockingFile) {
        drop(file);
    }
}
