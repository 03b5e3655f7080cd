//! Carrying a plan out. See the parent for the order.

use std::rc::Rc;

use super::super::{OfflineError, io_error};
use super::RepairPlan;
use crate::disk::{BLOCK_BYTES, DirEntry, Disk, IO_BYTES_MAX};
use crate::offline::scan::read_slot;

/// Copies aside, then replaces.
pub(super) async fn carry_out<D: Disk>(
    disk: &D,
    plan: &RepairPlan,
    copies: &mut Vec<String>,
) -> Result<(), OfflineError> {
    let entries = disk.list().await.map_err(io_error("listing", ""))?;
    let free_name = |name: &str| -> String {
        let taken = |n: &str| entries.iter().any(|e| e.name == n);
        (1..)
            .map(|n| format!("{name}.damaged-{n}"))
            .find(|n| !taken(n))
            .unwrap_or_default()
    };
    for name in &plan.aside {
        let to = free_name(name);
        disk.rename(name, &to)
            .await
            .map_err(io_error("moving aside", name))?;
        copies.push(to);
    }
    for (name, content) in &plan.replace {
        let new = format!("{name}.repair");
        // Left by a repair that was cut short.
        let _ = disk.remove(&new).await;
        if let Some(entry) = entries.iter().find(|e| e.name == *name) {
            let copy = free_name(name);
            copy_aside(disk, entry, &copy).await?;
            copies.push(copy);
        }
        write_file(disk, &new, content).await?;
        // IMPORTANT: content → copy's name → rename → directory. The rename is what repairs.
        disk.sync_dir()
            .await
            .map_err(io_error("syncing the directory of", &new))?;
        disk.rename(&new, name)
            .await
            .map_err(io_error("replacing", name))?;
        disk.sync_dir()
            .await
            .map_err(io_error("syncing the directory of", name))?;
    }
    disk.sync_dir()
        .await
        .map_err(io_error("syncing the directory", ""))
}

async fn copy_aside<D: Disk>(disk: &D, entry: &DirEntry, to: &str) -> Result<(), OfflineError> {
    // Blocks that cannot be read are zeros in the copy.
    let (content, _) = read_slot(disk, entry, |_| {}).await?;
    write_file(disk, to, &content).await
}

async fn write_file<D: Disk>(disk: &D, name: &str, content: &[u8]) -> Result<(), OfflineError> {
    let file = disk
        .create(name)
        .await
        .map_err(io_error("creating", name))?;
    let wrote = write_all(disk, &file, name, content).await;
    let synced = match wrote {
        Ok(()) => disk
            .sync_data(&file)
            .await
            .map_err(io_error("syncing", name)),
        Err(error) => Err(error),
    };
    disk.close(file).await;
    synced
}

async fn write_all<D: Disk>(
    disk: &D,
    file: &D::File,
    name: &str,
    content: &[u8],
) -> Result<(), OfflineError> {
    for (i, piece) in content.chunks(IO_BYTES_MAX).enumerate() {
        let mut buf = disk.alloc(piece.len().next_multiple_of(BLOCK_BYTES));
        let out = buf.as_mut();
        out[..piece.len()].copy_from_slice(piece);
        out[piece.len()..].fill(0);
        let want = out.len();
        let pos = (i * IO_BYTES_MAX) as u64;
        let wrote = disk
            .write_at(file, Rc::new(buf), pos)
            .await
            .map_err(io_error("writing", name))?;
        if wrote < want {
            let short = std::io::Error::from(std::io::ErrorKind::WriteZero);
            return Err(io_error("writing", name)(short));
        }
    }
    Ok(())
}
