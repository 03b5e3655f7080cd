//! The writes of a group: pieces of at most 1 MiB, short ones completed, then the sync.
//!
//! A failed sync is final for the file: nothing is issued to it again. Runs on the shard core.

use std::io;
use std::rc::Rc;

use crate::config::SyncMode;
use crate::disk::{BLOCK_BYTES, Disk, DiskBuf};
use crate::mutations;

/// Most times one piece is completed after short writes.
const COMPLETIONS_MAX: usize = 64;

/// Writes all of `buf` at `pos`. A short write is completed from the last whole block that it
/// covered, at that block's own offset.
///
/// # Cancel safety
/// None: the write in flight goes on after a drop. Await it before the range is used again.
pub(crate) async fn write_all<D: Disk>(
    disk: &D,
    file: &D::File,
    buf: Rc<D::Buf>,
    pos: u64,
) -> io::Result<()> {
    let len = (*buf).as_ref().len();
    let mut done = disk.write_at(file, Rc::clone(&buf), pos).await?;
    let mut tries = 0;
    while done < len {
        tries += 1;
        if done == 0 || tries > COMPLETIONS_MAX {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
        let from = done / BLOCK_BYTES * BLOCK_BYTES;
        let mut rest = disk.alloc(len - from);
        rest.truncate(len - from);
        rest.as_mut().copy_from_slice(&(*buf).as_ref()[from..]);
        let more = disk
            .write_at(file, Rc::new(rest), pos + from as u64)
            .await?;
        if from + more <= done && more < len - from {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
        done = from + more;
    }
    Ok(())
}

/// Makes completed writes of `file` durable, unless they are so already by the file's mode.
pub(crate) async fn sync<D: Disk>(disk: &D, file: &D::File, mode: SyncMode) -> io::Result<()> {
    if mode == SyncMode::Dsync || mutations::is("skip_sync") {
        return Ok(());
    }
    let first = disk.sync_data(file).await;
    if first.is_err() && mutations::is("retry_failed_sync") {
        return disk.sync_data(file).await;
    }
    first
}

/// A buffer for one write with a copy of `bytes` (whole blocks, at most what one write takes).
pub(crate) fn piece<D: Disk>(disk: &D, bytes: &[u8]) -> Rc<D::Buf> {
    let mut buf = disk.alloc(bytes.len());
    buf.truncate(bytes.len());
    buf.as_mut().copy_from_slice(bytes);
    Rc::new(buf)
}
