//! The same contract for the real disks, each in a directory of the real file system; then what
//! is particular to each.
#![allow(clippy::unwrap_used)]

use std::io;
use std::rc::Rc;
use std::sync::mpsc::channel;

use super::blocking::{BlockingDisk, block_on};
use super::glommio::GlommioDisk;
use super::side::{JOBS_MAX, SideThread};
use super::sim::{SimDisk, SimDiskConfig};
use super::{BLOCK_BYTES, DirEntry, Disk, DiskBuf as _, IO_BYTES_MAX};
use crate::sim::SimWorld;

/// A directory on the file system the build is on: the usual temporary one may be in memory.
fn real_dir() -> tempfile::TempDir {
    let base = std::env::current_exe().unwrap();
    tempfile::tempdir_in(base.parent().unwrap()).unwrap()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

async fn contract<D: Disk>(disk: D) {
    assert_eq!(disk.list().await.unwrap(), []);
    assert_eq!(errno(disk.open("a").await), Some(libc::ENOENT));
    let file = disk.create("a").await.unwrap();
    disk.sync_dir().await.unwrap();
    assert_eq!(errno(disk.create("a").await), Some(libc::EEXIST));
    assert_eq!(disk.len(&file).await.unwrap(), 0);

    let mut buf = disk.alloc(3 * BLOCK_BYTES - 1);
    assert_eq!(buf.as_ref().len(), 3 * BLOCK_BYTES, "rounded up");
    for (i, byte) in buf.as_mut().iter_mut().enumerate() {
        *byte = (i / 7) as u8;
    }
    let buf = Rc::new(buf);
    let pos = 2 * BLOCK_BYTES as u64;
    assert_eq!(
        disk.write_at(&file, Rc::clone(&buf), pos).await.unwrap(),
        3 * BLOCK_BYTES
    );
    disk.sync_data(&file).await.unwrap();
    assert_eq!(disk.len(&file).await.unwrap(), 5 * BLOCK_BYTES as u64);

    let (read, filled) = disk.read_at(&file, pos, 3 * BLOCK_BYTES).await.unwrap();
    assert_eq!((filled, read.as_ref()), (3 * BLOCK_BYTES, (*buf).as_ref()));
    let (mut read, filled) = disk.read_at(&file, pos, 8 * BLOCK_BYTES).await.unwrap();
    assert_eq!(filled, 3 * BLOCK_BYTES, "short only at the end of the file");
    read.truncate(2 * BLOCK_BYTES);
    assert_eq!(read.as_ref(), &(*buf).as_ref()[..2 * BLOCK_BYTES]);
    read.as_mut()[0] ^= 1;
    read.truncate(BLOCK_BYTES);
    assert_eq!(read.as_ref()[1], (*buf).as_ref()[1]);
    let (_, filled) = disk
        .read_at(&file, 100 * BLOCK_BYTES as u64, BLOCK_BYTES)
        .await
        .unwrap();
    assert_eq!(filled, 0);

    names(&disk, file).await;
}

async fn names<D: Disk>(disk: &D, file: D::File) {
    disk.rename("a", "b").await.unwrap();
    assert_eq!(errno(disk.rename("a", "c").await), Some(libc::ENOENT));
    assert_eq!(
        disk.len(&file).await.unwrap(),
        5 * BLOCK_BYTES as u64,
        "the file, not its name"
    );
    let entry = DirEntry {
        name: "b".into(),
        bytes: 5 * BLOCK_BYTES as u64,
    };
    assert_eq!(disk.list().await.unwrap(), [entry]);
    let synced = disk.reopen_dsync("b").await.unwrap();
    let mut one = disk.alloc(BLOCK_BYTES);
    one.as_mut().fill(9);
    assert_eq!(
        disk.write_at(&synced, Rc::new(one), 0).await.unwrap(),
        BLOCK_BYTES
    );
    let (read, _) = disk.read_at(&file, 0, BLOCK_BYTES).await.unwrap();
    assert!(read.as_ref().iter().all(|b| *b == 9));
    disk.close(synced).await;
    disk.close(file).await;
    let space = disk.space().await.unwrap();
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
    disk.remove("b").await.unwrap();
    assert_eq!(errno(disk.remove("b").await), Some(libc::ENOENT));
    disk.sync_dir().await.unwrap();
    assert_eq!(disk.list().await.unwrap(), []);
}

fn on_core<T: Send + 'static, F: Future<Output = T> + 'static>(
    work: impl FnOnce() -> F + Send + 'static,
) -> T {
    glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .spawn(|| async move { work().await })
        .unwrap()
        .join()
        .unwrap()
}

#[test]
fn the_simulated_disk_keeps_the_contract() {
    let world = SimWorld::new(1);
    world
        .block_on(contract(SimDisk::new(&world, SimDiskConfig::new(1))))
        .unwrap();
}

#[test]
fn the_blocking_disk_keeps_the_contract() {
    let dir = real_dir();
    block_on(contract(BlockingDisk::open(dir.path()).unwrap()));
}

#[test]
fn the_direct_disk_keeps_the_contract() {
    let dir = real_dir();
    let path = dir.path().to_owned();
    on_core(move || async move { contract(GlommioDisk::open(&path).unwrap()).await });
}

#[test]
fn direct_files_are_direct_synced_when_asked_and_closed() {
    let dir = real_dir();
    let path = dir.path().to_owned();
    on_core(move || async move {
        let disk = GlommioDisk::open(&path).unwrap();
        let plain = disk.create("f").await.unwrap();
        let synced = disk.reopen_dsync("f").await.unwrap();
        let on_file = |needle: &str| -> Vec<i64> {
            let mut flags = Vec::new();
            for fd in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
                let target = std::fs::read_link(fd.path()).unwrap_or_default();
                if target.starts_with(&path) && target.ends_with(needle) {
                    let info = format!("/proc/self/fdinfo/{}", fd.file_name().to_string_lossy());
                    let info = std::fs::read_to_string(info).unwrap();
                    let line = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
                    flags.push(i64::from_str_radix(line.trim(), 8).unwrap());
                }
            }
            flags.sort_unstable();
            flags
        };
        let flags = on_file("f");
        assert_eq!(flags.len(), 2);
        assert!(
            flags.iter().all(|f| f & i64::from(libc::O_DIRECT) != 0),
            "{flags:?}"
        );
        let dsync: Vec<bool> = flags
            .iter()
            .map(|f| f & i64::from(libc::O_DSYNC) != 0)
            .collect();
        assert_eq!(dsync, [false, true]);
        let twin = synced.clone();
        disk.close(synced).await;
        assert_eq!(on_file("f").len(), 2, "a clone still holds it");
        disk.close(twin).await;
        disk.close(plain).await;
        assert!(on_file("f").is_empty());
    });
}

#[test]
fn direct_writes_of_every_size_come_back() {
    let dir = real_dir();
    let path = dir.path().to_owned();
    on_core(move || async move {
        let disk = GlommioDisk::open(&path).unwrap();
        let file = disk.create("f").await.unwrap();
        let mut pos = 0;
        for bytes in [
            BLOCK_BYTES,
            3 * BLOCK_BYTES,
            64 << 10,
            256 << 10,
            IO_BYTES_MAX,
        ] {
            let mut buf = disk.alloc(bytes);
            buf.as_mut().fill((bytes / BLOCK_BYTES) as u8);
            let buf = Rc::new(buf);
            assert_eq!(
                disk.write_at(&file, Rc::clone(&buf), pos).await.unwrap(),
                bytes
            );
            let (read, filled) = disk.read_at(&file, pos, bytes).await.unwrap();
            assert!(filled == bytes && read.as_ref() == (*buf).as_ref());
            // What a read returned can be written in turn.
            assert_eq!(
                disk.write_at(&file, Rc::new(read), pos).await.unwrap(),
                bytes
            );
            pos += bytes as u64;
        }
        let too_large = Rc::new(disk.alloc(IO_BYTES_MAX + 1));
        assert_eq!(
            errno(disk.write_at(&file, too_large, 0).await),
            Some(libc::EINVAL)
        );
        let odd = Rc::new(disk.alloc(BLOCK_BYTES));
        assert_eq!(
            errno(disk.write_at(&file, odd, 512).await),
            Some(libc::EINVAL)
        );
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(errno(disk.open(name).await), Some(libc::EINVAL), "{name:?}");
        }
        disk.close(file).await;
    });
}

#[test]
fn a_read_only_disk_changes_nothing() {
    let dir = real_dir();
    std::fs::write(dir.path().join("f"), vec![1; BLOCK_BYTES]).unwrap();
    let disk = BlockingDisk::open_read_only(dir.path()).unwrap();
    block_on(async {
        let file = disk.open("f").await.unwrap();
        let buf = Rc::new(disk.alloc(BLOCK_BYTES));
        assert_eq!(errno(disk.write_at(&file, buf, 0).await), Some(libc::EROFS));
        assert_eq!(errno(disk.create("g").await), Some(libc::EROFS));
        assert_eq!(errno(disk.rename("f", "g").await), Some(libc::EROFS));
        assert_eq!(errno(disk.remove("f").await), Some(libc::EROFS));
        disk.close(file).await;
    });
}

#[test]
fn a_panicking_job_is_an_error_and_the_thread_goes_on() {
    let side = SideThread::start("test").unwrap();
    futures_lite::future::block_on(async {
        let result: io::Result<()> = side.run(|| panic!("on purpose")).await;
        assert!(result.unwrap_err().to_string().contains("panicked"));
        assert_eq!(side.run(|| Ok(5)).await.unwrap(), 5);
        let failed: io::Result<()> = side
            .run(|| Err(io::Error::from_raw_os_error(libc::EIO)))
            .await;
        assert_eq!(errno(failed), Some(libc::EIO));
    });
}

#[test]
fn jobs_beyond_the_bound_are_refused_and_the_others_still_answered() {
    let side = SideThread::start("test").unwrap();
    let (release, held) = channel::<()>();
    let first = side.run(move || held.recv().map_err(io::Error::other));
    let mut waiting: Vec<_> = (0..JOBS_MAX + 2).map(|i| side.run(move || Ok(i))).collect();
    futures_lite::future::block_on(async {
        let refused = waiting.pop().unwrap().await;
        assert_eq!(errno(refused), Some(libc::EBUSY));
        release.send(()).unwrap();
        first.await.unwrap();
        assert_eq!(waiting.remove(0).await.unwrap(), 0);
    });
}

/// Set in a child process only: the limit it puts on itself would hit every other test.
const LIMITED: &str = "ANKUSA_TEST_FILE_LIMIT";

#[test]
fn short_writes_are_told_and_errors_keep_their_errno() {
    if std::env::var_os(LIMITED).is_some() {
        return write_into_a_limit();
    }
    let dir = real_dir();
    let name = "disk::tests::short_writes_are_told_and_errors_keep_their_errno";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(LIMITED, dir.path())
        .output()
        .unwrap();
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr)
    );
    assert!(dir.path().join("f").exists(), "the child did its work");
}

fn write_into_a_limit() {
    let limit = libc::rlimit {
        rlim_cur: 3 * BLOCK_BYTES as u64,
        rlim_max: 3 * BLOCK_BYTES as u64,
    };
    #[expect(
        unsafe_code,
        reason = "std has neither call; this process runs nothing else"
    )]
    // SAFETY: the limit is a valid structure; the signal is ignored, no handler is installed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let path = std::path::PathBuf::from(std::env::var_os(LIMITED).unwrap());
    on_core(move || async move {
        let disk = GlommioDisk::open(&path).unwrap();
        let file = disk.create("f").await.unwrap();
        let buf = Rc::new(disk.alloc(4 * BLOCK_BYTES));
        let wrote = disk.write_at(&file, buf, 0).await.unwrap();
        assert_eq!(wrote, 3 * BLOCK_BYTES, "up to the limit");
        let buf = Rc::new(disk.alloc(BLOCK_BYTES));
        let error = disk.write_at(&file, buf, 3 * BLOCK_BYTES as u64).await;
        assert_eq!(errno(error), Some(libc::EFBIG));
        disk.close(file).await;
    });
}
