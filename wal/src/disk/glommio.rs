//! The node's disk: direct I/O over io_uring on a glommio core. The only file of this crate that
//! names glommio.
//!
//! Owns the descriptors and buffers of one directory. Data operations go through the ring;
//! names, directory sync and space go through a side thread (module `side`). Errors keep their
//! errno. Buffers come from the executor's registered memory while it lasts; who writes one fills
//! all of it, so that nothing of the process's memory reaches the disk as padding.
//!
//! Deliberately not here: retries of any kind, and any opinion on a short write.
//!
//! Runs on a shard core; [`GlommioDisk::open`] blocks and belongs to the boot.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use glommio::GlommioError;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions, ReadResult};

use super::side::SideThread;
use super::sys::{self, check_name};
use super::{BLOCK_BYTES, DirEntry, Disk, DiskBuf, IO_BYTES_MAX, Space};

/// A directory, used from one glommio core. Cloning means the same directory.
#[derive(Clone)]
pub struct GlommioDisk(Rc<Dir>);

struct Dir {
    path: PathBuf,
    /// Open from the start, so that a write-back error is reported to this descriptor and not
    /// only to one that was opened before it.
    dir: Arc<File>,
    side: SideThread,
    polling_off: Cell<bool>,
}

/// An open file.
#[derive(Clone)]
pub struct GlommioFile(Rc<DmaFile>);

/// An aligned buffer: allocated here, or as a read left it.
pub struct GlommioBuf(Inner);

enum Inner {
    Own(Rc<DmaBuffer>),
    Read(ReadResult),
}

impl GlommioBuf {
    fn own(bytes: usize, content: &[u8]) -> GlommioBuf {
        GlommioBuf(Inner::Own(Rc::new(filled(bytes, content))))
    }

    /// The buffer to hand to the ring; what a read returned is copied.
    fn to_write(&self) -> Rc<DmaBuffer> {
        match &self.0 {
            Inner::Own(buf) => Rc::clone(buf),
            Inner::Read(read) => Rc::new(filled(read.len(), read)),
        }
    }
}

impl AsRef<[u8]> for GlommioBuf {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Inner::Own(buf) => buf.as_bytes(),
            Inner::Read(read) => read,
        }
    }
}

impl AsMut<[u8]> for GlommioBuf {
    /// What a read returned, or what a write whose future was dropped may still be sending, is
    /// copied first.
    fn as_mut(&mut self) -> &mut [u8] {
        let shared = match &mut self.0 {
            Inner::Own(buf) => Rc::get_mut(buf).is_none(),
            Inner::Read(_) => true,
        };
        if shared {
            *self = GlommioBuf::own(self.as_ref().len(), self.as_ref());
        }
        match &mut self.0 {
            Inner::Own(buf) => Rc::get_mut(buf).map_or(&mut [], |buf| buf.as_bytes_mut()),
            Inner::Read(_) => &mut [],
        }
    }
}

impl DiskBuf for GlommioBuf {
    fn truncate(&mut self, bytes: usize) {
        assert!(bytes.is_multiple_of(BLOCK_BYTES) && bytes <= self.as_ref().len());
        match &mut self.0 {
            Inner::Own(buf) => match Rc::get_mut(buf) {
                Some(buf) => buf.trim_to_size(bytes),
                None => *self = GlommioBuf::own(bytes, &self.as_ref()[..bytes]),
            },
            Inner::Read(read) => {
                if let Some(cut) = ReadResult::slice(read, 0, bytes) {
                    *read = cut;
                }
            }
        }
    }
}

fn allocated(bytes: usize) -> DmaBuffer {
    glommio::allocate_dma_buffer(bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES))
}

/// `content`, then zeros.
fn filled(bytes: usize, content: &[u8]) -> DmaBuffer {
    let mut buf = allocated(bytes);
    let (head, rest) = buf.as_bytes_mut().split_at_mut(content.len());
    head.copy_from_slice(content);
    rest.fill(0);
    buf
}

/// glommio's own conversion drops the errno.
fn plain(error: GlommioError<()>) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => error.into(),
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn check_io(pos: u64, bytes: usize) -> io::Result<()> {
    let aligned = pos.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES);
    if aligned && bytes > 0 && bytes <= IO_BYTES_MAX {
        Ok(())
    } else {
        Err(invalid())
    }
}

impl GlommioDisk {
    /// Opens a directory. Blocks; for the boot. The futures of the result must be polled on a
    /// glommio executor.
    pub fn open(path: &Path) -> io::Result<GlommioDisk> {
        let path = path.canonicalize()?;
        let dir = Arc::new(File::open(&path)?);
        if !dir.metadata()?.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        let side = SideThread::start("ankusa-disk")?;
        Ok(GlommioDisk(Rc::new(Dir {
            path,
            dir,
            side,
            polling_off: Cell::new(false),
        })))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Settles, once for this core and file system, that I/O is not polled.
    ///
    /// NOTE: at the first open on a file system glommio reads the file's first block on a polled
    /// ring and takes success for support. A read of an empty file succeeds without reaching the
    /// device, after which every real I/O fails with EOPNOTSUPP. On a file that is open for
    /// writing only that read fails everywhere, and polling stays off for good.
    ///
    /// `known` is a file that is there: a file system without a free block may have no room for
    /// another one, and must not keep the node from opening.
    async fn turn_polling_off(&self, known: Option<&str>) -> io::Result<()> {
        if self.0.polling_off.get() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        let file = match options
            .tmpfile(true)
            .dma_open(&self.0.path)
            .await
            .map_err(plain)
        {
            Ok(file) => file,
            // No unnamed files here.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
                let path = self
                    .0
                    .path
                    .join(format!(".ankusa-open-{}", std::process::id()));
                options.tmpfile(false).create(true);
                let file = options.dma_open(&path).await.map_err(plain)?;
                self.0.side.run(move || std::fs::remove_file(path)).await?;
                file
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                let known = known.ok_or(error)?;
                options.tmpfile(false).custom_flags(libc::O_NOFOLLOW);
                let path = self.0.path.join(known);
                options.dma_open(path).await.map_err(plain)?
            }
            Err(error) => return Err(error),
        };
        file.close().await.map_err(plain)?;
        self.0.polling_off.set(true);
        Ok(())
    }

    async fn dma_open(&self, name: &str, flags: i32, create: bool) -> io::Result<GlommioFile> {
        check_name(name)?;
        self.turn_polling_off((!create).then_some(name)).await?;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create_new(create)
            .mode(0o600);
        options.custom_flags(flags | libc::O_NOFOLLOW);
        let file = options
            .dma_open(self.0.path.join(name))
            .await
            .map_err(plain)?;
        Ok(GlommioFile(Rc::new(file)))
    }
}

impl Disk for GlommioDisk {
    type File = GlommioFile;
    type Buf = GlommioBuf;

    /// Zeroed.
    fn alloc(&self, bytes: usize) -> GlommioBuf {
        // NOTE: not zeroed. A group fills what it writes, and zeroing 1 MiB first was a fifth of
        // the core's time at large groups; the simulated disk fills its buffers with rubbish, so
        // that whoever counts on zeros is found out.
        GlommioBuf(Inner::Own(Rc::new(allocated(bytes))))
    }

    async fn list(&self) -> io::Result<Vec<DirEntry>> {
        let path = self.0.path.clone();
        self.0.side.run(move || sys::list(&path)).await
    }

    async fn open(&self, name: &str) -> io::Result<GlommioFile> {
        self.dma_open(name, 0, false).await
    }

    async fn create(&self, name: &str) -> io::Result<GlommioFile> {
        self.dma_open(name, 0, true).await
    }

    async fn len(&self, file: &GlommioFile) -> io::Result<u64> {
        // NOTE: glommio asks by path, which a rename makes stale.
        sys::file_len(file.0.as_raw_fd())
    }

    /// # Cancel safety
    /// Dropping the future asks the kernel to cancel; whether the write happens is unknown, and
    /// the buffer stays alive until it is known. Await it before the range is used again.
    async fn write_at(
        &self,
        file: &GlommioFile,
        buf: Rc<GlommioBuf>,
        pos: u64,
    ) -> io::Result<usize> {
        let buf = buf.to_write();
        check_io(pos, buf.len())?;
        file.0.write_rc_at(buf, pos).await.map_err(plain)
    }

    async fn read_at(
        &self,
        file: &GlommioFile,
        pos: u64,
        bytes: usize,
    ) -> io::Result<(GlommioBuf, usize)> {
        check_io(pos, bytes)?;
        let read = file.0.read_at_aligned(pos, bytes).await.map_err(plain)?;
        let filled = read.len();
        if filled == bytes {
            return Ok((GlommioBuf(Inner::Read(read)), filled));
        }
        // The end of the file: the rest of the buffer is zeros.
        Ok((GlommioBuf::own(bytes, &read), filled))
    }

    async fn sync_data(&self, file: &GlommioFile) -> io::Result<()> {
        if let Some(delay) = crate::mutations::sync_delay() {
            glommio::timer::sleep(delay).await;
        }
        file.0.fdatasync().await.map_err(plain)
    }

    async fn reopen_dsync(&self, name: &str) -> io::Result<GlommioFile> {
        self.dma_open(name, libc::O_DSYNC, false).await
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let (from, to) = (self.0.path.join(from), self.0.path.join(to));
        self.0.side.run(move || std::fs::rename(from, to)).await
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let path = self.0.path.join(name);
        self.0.side.run(move || std::fs::remove_file(path)).await
    }

    async fn sync_dir(&self) -> io::Result<()> {
        let dir = Arc::clone(&self.0.dir);
        self.0.side.run(move || dir.sync_all()).await
    }

    async fn space(&self) -> io::Result<Space> {
        let dir = Arc::clone(&self.0.dir);
        self.0.side.run(move || sys::space(dir.as_raw_fd())).await
    }

    async fn close(&self, file: GlommioFile) {
        // An error of close says nothing that a sync has not said.
        drop(file.0.close_rc().await);
    }
}
