//! What the drill asks of the host: loop devices, file systems, mounts, and that all of it is
//! taken back, also after a failure, SIGINT or SIGTERM.
//!
//! Each guard undoes one step when it is dropped; declare them so that the order is right: first
//! the file system, then the loop device, then what backs it. Needs root.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A file system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
}

impl FsKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        }
    }

    fn mkfs(self) -> &'static [&'static str] {
        match self {
            FsKind::Ext4 => &[
                "mkfs.ext4",
                "-q",
                "-F",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                "-J",
                "size=16",
            ],
            FsKind::Xfs => &["mkfs.xfs", "-q", "-f", "-K"],
        }
    }

    fn package(self) -> &'static str {
        match self {
            FsKind::Ext4 => "e2fsprogs",
            FsKind::Xfs => "xfsprogs",
        }
    }

    fn options(self) -> &'static str {
        match self {
            FsKind::Ext4 => "errors=remount-ro",
            FsKind::Xfs => "nouuid",
        }
    }
}

/// Set by SIGINT and SIGTERM.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches the two signals from now on.
    pub fn install() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Interrupt(flag))
    }

    /// An error once a signal came: every wait asks, so that the guards run.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// Says what the host lacks for this drill; empty when it lacks nothing.
pub fn missing(kinds: &[FsKind]) -> Vec<String> {
    let mut missing = Vec::new();
    #[expect(unsafe_code, reason = "std does not say which user this is")]
    // SAFETY: geteuid takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    if user != 0 {
        missing.push("root (mounts and loop devices)".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            missing.push(format!("{device} (kernel modules fuse and loop)"));
        }
    }
    if !Path::new("/dev/shm").is_dir() {
        missing.push("/dev/shm".to_owned());
    }
    let commands = kinds.iter().map(|kind| (kind.mkfs()[0], kind.package()));
    for (command, package) in commands.chain([("losetup", "mount")]) {
        let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(command).exists());
        if !found {
            missing.push(format!("{command} (package {package})"));
        }
    }
    missing
}

fn run(command: &[&str], more: &[&Path]) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(command[0])
        .args(&command[1..])
        .args(more)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .with_context(|| command[0].to_owned())?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            command.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes an empty file system.
pub fn make_fs(kind: FsKind, device: &LoopDevice) -> Result<()> {
    run(kind.mkfs(), &[&device.path]).map(|_| ())
}

/// A loop device; detached when dropped.
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Puts a loop device on `file`. `direct`: past the page cache, so that the backing file sees
    /// each write and each flush of the device.
    pub fn attach(file: &Path, direct: bool) -> Result<LoopDevice> {
        let direct = if direct {
            "--direct-io=on"
        } else {
            "--direct-io=off"
        };
        let path = run(&["losetup", direct, "--find", "--show"], &[file])?;
        Ok(LoopDevice { path: path.into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(&["losetup", "--detach"], &[&self.path]) {
            eprintln!("power-fuse: {error:#}");
        }
    }
}

/// A mounted file system; unmounted when dropped.
pub struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    /// Mounts `device` at `dir`, which is made.
    pub fn mount(kind: FsKind, device: &LoopDevice, dir: &Path) -> Result<Mounted> {
        fs::create_dir_all(dir)?;
        let source = c_path(&device.path)?;
        let target = c_path(dir)?;
        let (fs, options) = (CString::new(kind.name())?, CString::new(kind.options())?);
        // Times alone must not make the journal busy: the faults are for the log's own writes.
        let flags = libc::MS_NOATIME | libc::MS_LAZYTIME | libc::MS_NOSUID | libc::MS_NODEV;
        #[expect(unsafe_code, reason = "std mounts nothing")]
        // SAFETY: four strings that outlive the call, ended by NUL.
        let result = unsafe {
            libc::mount(
                source.as_ptr(),
                target.as_ptr(),
                fs.as_ptr(),
                flags,
                options.as_ptr().cast(),
            )
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            bail!(
                "mounting {} as {}: {error}",
                device.path.display(),
                kind.name()
            );
        }
        let _ = fs::remove_dir(dir.join("lost+found"));
        Ok(Mounted { dir: dir.into() })
    }

    /// Where.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Ok(dir) = c_path(&self.dir) else {
            return;
        };
        for attempt in 0..100 {
            // The last attempt lets the kernel unmount it as soon as nobody uses it.
            let flags = if attempt == 99 { libc::MNT_DETACH } else { 0 };
            #[expect(unsafe_code, reason = "std unmounts nothing")]
            // SAFETY: a string that outlives the call, ended by NUL.
            let result = unsafe { libc::umount2(dir.as_ptr(), flags) };
            if result == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!(
            "power-fuse: {} is still mounted: {}",
            self.dir.display(),
            std::io::Error::last_os_error()
        );
    }
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
