//! What must be true of the machine and of a data directory before a store is opened there, each
//! failure with a plain message: the executor itself ends the process without one.
//!
//! The judgements are pure functions over what was found; [`look`] finds it. Blocks; runs at boot
//! and in `check` commands.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{BLOCK_BYTES, sys};

/// Locked memory that each core needs for its rings and registered buffers.
pub const MEMLOCK_PER_CORE_BYTES: u64 = 512 << 10;

/// How far a file system can be trusted with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsTrust {
    /// A local disk file system that is tested with ankusa.
    Tested(&'static str),
    /// A local file system not known here; nothing speaks against it.
    Unknown(u64),
    /// Its writes or syncs do not mean what the log needs: network, user space, overlay.
    Unsafe(&'static str),
    /// In memory: gone with the power.
    Volatile(&'static str),
}

/// Judges a file system by its magic number.
pub fn judge_fs(magic: u64) -> FsTrust {
    match magic {
        0xEF53 => FsTrust::Tested("ext4"),
        0x5846_5342 => FsTrust::Tested("xfs"),
        0x9123_683E => FsTrust::Unknown(magic),
        0x6573_5546 => FsTrust::Unsafe("fuse (or virtiofs)"),
        0x6969 => FsTrust::Unsafe("nfs"),
        0x794C_7630 => FsTrust::Unsafe("overlay"),
        0x0102_1997 => FsTrust::Unsafe("9p"),
        0xFF53_4D42 | 0xFE53_4D42 | 0x517B => FsTrust::Unsafe("smb"),
        0x00C3_6400 => FsTrust::Unsafe("ceph"),
        0x0102_1994 => FsTrust::Volatile("tmpfs"),
        0x8584_58F6 => FsTrust::Volatile("ramfs"),
        other => FsTrust::Unknown(other),
    }
}

/// What [`look`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The data directory.
    pub dir: PathBuf,
    /// Magic number of its file system.
    pub magic: u64,
    /// Errno of an attempt to make an io_uring; `None` when it worked.
    pub io_uring: Option<i32>,
    /// Soft limit of locked memory, bytes.
    pub memlock_bytes: u64,
    /// Errno of a direct write and read back in the directory; `None` when they worked, or there was
    /// no room for them.
    pub direct_io: Option<i32>,
    /// What the executor would stumble over in the block device's entries; `None` when it would
    /// not.
    pub block_device: Option<String>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, and what to do.
    pub message: String,
    /// True when nothing can run; false when `wal.allow_unsafe_filesystem` lets it pass.
    pub fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Judges what was found, for `cores` shard cores. Empty: go ahead.
pub fn judge(found: &Found, cores: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |fatal, message| findings.push(Finding { message, fatal });
    let dir = found.dir.display();
    match judge_fs(found.magic) {
        FsTrust::Tested(_) | FsTrust::Unknown(_) => {}
        FsTrust::Unsafe(name) => add(
            false,
            format!(
                "{dir} is on {name}, where a completed sync does not mean that the data is on a \
                 disk; use a local ext4 or xfs, or set wal.allow_unsafe_filesystem: true"
            ),
        ),
        FsTrust::Volatile(name) => add(
            false,
            format!(
                "{dir} is on {name}: everything is lost when the machine stops; use a local ext4 \
                 or xfs, or set wal.allow_unsafe_filesystem: true"
            ),
        ),
    }
    if let Some(errno) = found.io_uring {
        add(true, io_uring_message(errno));
    }
    let need = MEMLOCK_PER_CORE_BYTES.saturating_mul(cores);
    if found.memlock_bytes < need {
        add(
            true,
            format!(
                "locked memory is limited to {} KiB, {cores} cores need {} KiB; set \
                 LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
                found.memlock_bytes >> 10,
                need >> 10
            ),
        );
    }
    match (found.direct_io, judge_fs(found.magic)) {
        // The executor does buffered I/O there by itself.
        (None, _) | (Some(_), FsTrust::Volatile(_)) => {}
        (Some(errno), _) => add(
            true,
            format!(
                "{dir}: no direct I/O ({}); the log needs a file system with O_DIRECT, such as \
                 ext4 or xfs, and a writable directory",
                io::Error::from_raw_os_error(errno)
            ),
        ),
    }
    if let Some(what) = &found.block_device {
        add(
            true,
            format!("{dir}: cannot read the block device's limits: {what}"),
        );
    }
    findings
}

fn io_uring_message(errno: i32) -> String {
    let why = match errno {
        libc::EPERM => {
            "it is switched off: check sysctl kernel.io_uring_disabled, and the seccomp profile \
             of the container"
        }
        libc::ENOSYS => "the kernel has none: 5.8 or newer is needed",
        libc::ENOMEM => "no memory may be locked: raise LimitMEMLOCK",
        _ => "unexpected error",
    };
    format!(
        "no io_uring ({}): {why}",
        io::Error::from_raw_os_error(errno)
    )
}

/// Looks at the machine and the directory (which must exist).
pub fn look(dir: &Path) -> io::Result<Found> {
    let dir = dir.canonicalize()?;
    let errno =
        |result: io::Result<()>| result.err().map(|e| e.raw_os_error().unwrap_or(libc::EIO));
    Ok(Found {
        magic: sys::fs_magic(&dir)?,
        io_uring: errno(sys::io_uring_setup()),
        memlock_bytes: sys::memlock()?.0,
        direct_io: errno(try_direct_io(&dir)).filter(|errno| !is_full(*errno)),
        block_device: block_device_fault(Path::new("/sys/dev/block"), dir.metadata()?.dev()),
        dir,
    })
}

/// Whether an error only says that there is no room: a full disk must not keep a node from opening
/// what it holds and delivering it, which is what frees the disk; and it says nothing about direct
/// I/O.
fn is_full(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT)
}

/// Writes and reads back one block past the page cache, in a file that is gone afterwards.
fn try_direct_io(dir: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // An unnamed file; where the file system has none, a named one that is unlinked at once.
    let file = match options
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(dir)
    {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let path = dir.join(format!(".ankusa-probe-{}", std::process::id()));
            options.custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW);
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            file
        }
        Err(error) => return Err(error),
    };
    // An aligned block inside a larger buffer.
    let mut space = vec![0u8; 2 * BLOCK_BYTES];
    let at = space.as_ptr().align_offset(BLOCK_BYTES);
    let block = &mut space[at..at + BLOCK_BYTES];
    block.fill(0x5a);
    file.write_all_at(block, 0)?;
    block.fill(0);
    file.read_exact_at(block, 0)?;
    if block.iter().any(|b| *b != 0x5a) {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    Ok(())
}

/// What the executor reads of the device at the first open, and how; it panics when an entry is
/// absent. `None`: nothing it would stumble over (also when there is no device at all).
fn block_device_fault(sysfs: &Path, dev: u64) -> Option<String> {
    // NOTE: the executor always asks for minor 0 of the major.
    let device = sysfs.join(format!("{}:0", libc::major(dev)));
    match device.canonicalize() {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("{}: {error}", device.display())),
    }
    let queue = device.join("queue");
    for name in [
        "rotational",
        "minimum_io_size",
        "optimal_io_size",
        "logical_block_size",
        "physical_block_size",
        "max_sectors_kb",
        "max_segment_size",
    ] {
        let path = queue.join(name);
        let number = std::fs::read_to_string(&path).ok();
        if number
            .and_then(|n| n.trim_matches('\n').parse::<i64>().ok())
            .is_none()
        {
            return Some(format!("{} is absent or not a number", path.display()));
        }
    }
    let path = queue.join("write_cache");
    let cache = std::fs::read_to_string(&path).unwrap_or_default();
    if !matches!(cache.trim_matches('\n'), "write back" | "write through") {
        return Some(format!("{} is absent or unknown", path.display()));
    }
    let path = device.join("slaves");
    std::fs::read_dir(&path)
        .is_err()
        .then(|| format!("{} is absent", path.display()))
}

#[cfg(test)]
mod tests;
