//! The file system and the device behind a directory.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde::Serialize;

/// What a directory stands on.
#[derive(Clone, Debug, Serialize)]
pub struct Storage {
    /// File system type.
    pub file_system: String,
    /// Mount options.
    pub options: String,
    /// Device as mounted.
    pub source: String,
    /// `write back` or `write through`; empty when unknown.
    pub write_cache: String,
    /// The device takes forced-unit-access writes.
    pub fua: bool,
    /// I/O scheduler.
    pub scheduler: String,
    /// Logical and physical sector bytes.
    pub sectors: String,
    /// Spinning disk.
    pub rotational: bool,
    /// Files here open with O_DIRECT.
    pub direct_io: bool,
}

/// The storage behind a directory that exists.
pub fn storage(dir: &Path) -> Option<Storage> {
    let dev = fs::metadata(dir).ok()?.dev();
    let number = format!("{}:{}", libc::major(dev), libc::minor(dev));
    let mounts = super::read("/proc/self/mountinfo");
    let mount = mounts
        .lines()
        .rfind(|line| line.split(' ').nth(2) == Some(&number))?;
    let (before, after) = mount.split_once(" - ")?;
    let mut after = after.split(' ');
    let queue = queue_dir(&number);
    let knob = |name: &str| super::read(queue.join(name)).trim().to_owned();
    Some(Storage {
        file_system: after.next().unwrap_or_default().to_owned(),
        source: after.next().unwrap_or_default().to_owned(),
        options: before.split(' ').nth(5).unwrap_or_default().to_owned(),
        write_cache: knob("write_cache"),
        fua: knob("fua") == "1",
        scheduler: knob("scheduler"),
        sectors: format!(
            "{}/{}",
            knob("logical_block_size"),
            knob("physical_block_size")
        ),
        rotational: knob("rotational") == "1",
        direct_io: direct_io_works(dir),
    })
}

/// The queue directory of a device; of its disk when it is a partition.
fn queue_dir(number: &str) -> std::path::PathBuf {
    let device = Path::new("/sys/dev/block").join(number);
    let own = device.join("queue");
    if own.is_dir() {
        own
    } else {
        device.join("../queue")
    }
}

/// Whether a file in the directory opens with O_DIRECT.
pub fn direct_io_works(dir: &Path) -> bool {
    let path = dir.join(format!(".direct-io-{}", std::process::id()));
    let opened = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .is_ok();
    let _ = fs::remove_file(&path);
    opened
}
