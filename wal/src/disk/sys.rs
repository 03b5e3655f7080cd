//! The few plain system calls that the real disks share.
//!
//! They may block (except [`file_len`], which only looks at the inode in memory): side threads,
//! boot and offline tools.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{DirEntry, Space};

/// Refuses what is not a plain file name.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if plain {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }
}

/// The regular files of a directory. Names that are not UTF-8 are none of ours.
pub(super) fn list(path: &Path) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Ok(meta) => meta,
            // Removed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) {
            entries.push(DirEntry {
                name,
                bytes: meta.len(),
            });
        }
    }
    Ok(entries)
}

/// Space of the file system that the descriptor is on.
pub(super) fn space(fd: RawFd) -> io::Result<Space> {
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    #[expect(unsafe_code, reason = "std has no statvfs")]
    // SAFETY: `stat` is large enough, and a bad descriptor is an error, not undefined.
    let rc = unsafe { libc::fstatvfs(fd, stat.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "std has no statvfs")]
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    let unit = stat.f_frsize;
    Ok(Space {
        free_bytes: unit.saturating_mul(stat.f_bavail),
        total_bytes: unit.saturating_mul(stat.f_blocks),
    })
}

/// Length of an open file.
pub(super) fn file_len(fd: RawFd) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    #[expect(
        unsafe_code,
        reason = "the descriptor belongs to a type that std does not know"
    )]
    // SAFETY: `stat` is large enough, and a bad descriptor is an error, not undefined.
    let rc = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(
        unsafe_code,
        reason = "the descriptor belongs to a type that std does not know"
    )]
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// The type of a file system: its magic number.
pub(super) fn fs_magic(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    #[expect(unsafe_code, reason = "std has no statfs")]
    // SAFETY: the path ends in NUL and `stat` is large enough.
    let rc = unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "std has no statfs")]
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    // The field's sign differs between platforms; the number is 32 bits wide.
    Ok(u64::from(stat.f_type as u32))
}

/// Soft and hard limit of locked memory, bytes; `u64::MAX` is none.
pub(super) fn memlock() -> io::Result<(u64, u64)> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    #[expect(unsafe_code, reason = "std has no getrlimit")]
    // SAFETY: `limit` is large enough.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "std has no getrlimit")]
    // SAFETY: the call succeeded, so it filled the structure.
    let limit = unsafe { limit.assume_init() };
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Asks the kernel for an io_uring and gives it back.
pub(super) fn io_uring_setup() -> io::Result<()> {
    // `struct io_uring_params`, 120 bytes, all zero: no flags.
    let mut params = [0u8; 120];
    #[expect(unsafe_code, reason = "libc has no wrapper for io_uring")]
    // SAFETY: the kernel reads and fills 120 bytes at the pointer.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "the descriptor is a bare number")]
    // SAFETY: the descriptor was just made and nothing else holds it.
    unsafe {
        libc::close(fd as RawFd);
    }
    Ok(())
}
