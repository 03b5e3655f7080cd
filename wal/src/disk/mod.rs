//! The seam to the disk: one directory, and the few operations the store needs of it.
//!
//! Sides: `glommio` (direct I/O over io_uring, on a shard core), `blocking` (plain calls, for
//! the offline tools), `sim` (a simulated medium with faults at every operation). Every method
//! says what its success does *not* promise.

use std::future::Future;
use std::io;
use std::rc::Rc;

pub mod glommio;

pub mod blocking;

pub mod sim;

pub mod preflight;

mod side;

mod sys;

#[cfg(test)]
mod tests;

/// Every position, length and buffer of an I/O is a multiple of this.
pub const BLOCK_BYTES: usize = 4096;

/// The largest single read or write: larger direct reads hung the process on older kernels.
pub const IO_BYTES_MAX: usize = 1 << 20;

/// An aligned buffer; its length is a multiple of [`BLOCK_BYTES`].
pub trait DiskBuf: AsRef<[u8]> + AsMut<[u8]> + 'static {
    /// Cuts the length to `bytes` (a multiple of [`BLOCK_BYTES`], at most the present length),
    /// so that a write of the buffer writes that much. The memory stays allocated.
    fn truncate(&mut self, bytes: usize);
}

/// A name in the directory and the file's length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The file name, without a path.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// Free and total bytes of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Available to this process.
    pub free_bytes: u64,
    /// In all.
    pub total_bytes: u64,
}

/// One directory on a disk. Cloning is cheap and means the same directory.
pub trait Disk: Clone + 'static {
    /// An open file; cloning is cheap and means the same descriptor.
    type File: Clone + 'static;
    /// An aligned buffer.
    type Buf: DiskBuf;

    /// A buffer of `bytes` (rounded up to a block). Content is unspecified.
    fn alloc(&self, bytes: usize) -> Self::Buf;

    /// The names in the directory, in no order.
    fn list(&self) -> impl Future<Output = io::Result<Vec<DirEntry>>>;

    /// Opens an existing file for direct reads and writes.
    fn open(&self, name: &str) -> impl Future<Output = io::Result<Self::File>>;

    /// Creates a new file of length 0; an error when the name is taken. The *name* is durable
    /// only after [`Disk::sync_dir`].
    fn create(&self, name: &str) -> impl Future<Output = io::Result<Self::File>>;

    /// Length in bytes.
    fn len(&self, file: &Self::File) -> impl Future<Output = io::Result<u64>>;

    /// Writes the whole buffer (at most [`IO_BYTES_MAX`]) at `pos`. `Ok(n)` with `n` short of
    /// the length is a short write, which the caller must complete or fail. Success says
    /// nothing about durability. Dropping the future does not cancel the write: await it before
    /// the range is used again.
    fn write_at(
        &self,
        file: &Self::File,
        buf: Rc<Self::Buf>,
        pos: u64,
    ) -> impl Future<Output = io::Result<usize>>;

    /// Reads up to `bytes` (at most [`IO_BYTES_MAX`]) at `pos`; the result is the buffer and how
    /// much of it is filled (short only at the end of the file).
    fn read_at(
        &self,
        file: &Self::File,
        pos: u64,
        bytes: usize,
    ) -> impl Future<Output = io::Result<(Self::Buf, usize)>>;

    /// `fdatasync`: content of completed writes and the length are on the medium. After an
    /// error nothing is known about any unsynced write to this file, and a later success proves
    /// nothing about them: never call it again on a file where it failed.
    fn sync_data(&self, file: &Self::File) -> impl Future<Output = io::Result<()>>;

    /// Reopens an open file so that every write is itself synced (`O_DSYNC`).
    fn reopen_dsync(&self, name: &str) -> impl Future<Output = io::Result<Self::File>>;

    /// Renames within the directory, replacing the target. Durable only after `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> impl Future<Output = io::Result<()>>;

    /// Unlinks. Durable only after `sync_dir`.
    fn remove(&self, name: &str) -> impl Future<Output = io::Result<()>>;

    /// `fsync` of the directory.
    fn sync_dir(&self) -> impl Future<Output = io::Result<()>>;

    /// Free space of the file system.
    fn space(&self) -> impl Future<Output = io::Result<Space>>;

    /// Closes the descriptor once its last clone is gone. Never fails the caller.
    fn close(&self, file: Self::File) -> impl Future<Output = ()>;
}
