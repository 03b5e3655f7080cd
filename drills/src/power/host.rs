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
    /// Those that a setting names: one, or `both`.
    pub fn named(name: &str) -> &'static [FsKind] {
        match name {
            "ext4" => &[FsKind::Ext4],
            "xfs" => &[FsKind::Xfs],
            _ => &[FsKind::Ext4, FsKind::Xfs],
        }
    }

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

/// What a drill asks of the host beyond root.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Device files, and the kernel modules that give them.
    pub devices: Vec<(&'static str, &'static str)>,
    /// Commands, and the packages of Debian that have them.
    pub commands: Vec<(&'static str, &'static str)>,
}

/// Checks that the host has FUSE, loop devices and the tools of the file systems.
pub fn require(kinds: &[FsKind], install: bool) -> Result<()> {
    let mut needs = Needs::file_systems(kinds);
    needs.devices.push(("/dev/fuse", "fuse"));
    needs.check(install)
}

impl Needs {
    /// Loop devices and the tools of the file systems.
    pub fn file_systems(kinds: &[FsKind]) -> Needs {
        let tools = kinds.iter().map(|kind| (kind.mkfs()[0], kind.package()));
        Needs {
            devices: vec![("/dev/loop-control", "loop")],
            commands: tools.chain([("losetup", "mount")]).collect(),
        }
    }

    /// An error that says what the host lacks; with `install`, missing packages are installed
    /// first.
    pub fn check(&self, install: bool) -> Result<()> {
        let mut missing = Vec::new();
        if !is_root() {
            missing.push("root (mounts and loop devices)".to_owned());
        }
        for (device, module) in &self.devices {
            if !Path::new(device).exists() {
                let _ = Command::new("modprobe").arg(module).output();
            }
            if !Path::new(device).exists() {
                missing.push(format!("{device} (kernel module {module})"));
            }
        }
        if !Path::new("/dev/shm").is_dir() {
            missing.push("/dev/shm".to_owned());
        }
        let lacking = |(command, _): &&(&str, &str)| !has_command(command);
        let packages: Vec<&str> = self.commands.iter().filter(lacking).map(|c| c.1).collect();
        if install && missing.is_empty() && !packages.is_empty() {
            apt_install(&packages)?;
        }
        for (command, package) in self.commands.iter().filter(lacking) {
            missing.push(format!("{command} (package {package}; --install gets it)"));
        }
        if missing.is_empty() {
            return Ok(());
        }
        bail!("this host lacks: {}", missing.join(", "))
    }
}

/// Whether this process may mount.
pub fn is_root() -> bool {
    #[expect(unsafe_code, reason = "std does not say which user this is")]
    // SAFETY: geteuid takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    user == 0
}

/// Whether a command is in one of the usual places.
pub fn has_command(command: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(command).exists())
}

/// Installs packages of Debian.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    println!("installing {}", packages.join(" "));
    run(&["apt-get", "update", "-q"], &[])?;
    let mut command = vec!["apt-get", "install", "-y", "-q", "--no-install-recommends"];
    command.extend(packages);
    run(&command, &[]).map(|_| ())
}

/// Runs a command of the system; answers what it printed.
pub fn run(command: &[&str], more: &[&Path]) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(command[0])
        .args(&command[1..])
        .args(more)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("DEBIAN_FRONTEND", "noninteractive")
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
pub fn make_fs(kind: FsKind, device: &Path) -> Result<()> {
    run(kind.mkfs(), &[device]).map(|_| ())
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

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(&["losetup", "--detach"], &[&self.path]) {
            eprintln!("drill: {error:#}");
        }
    }
}

/// A mounted file system; unmounted when dropped.
pub struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    /// Mounts `device` at `dir`, which is made.
    pub fn mount(kind: FsKind, device: &Path, dir: &Path) -> Result<Mounted> {
        fs::create_dir_all(dir)?;
        let source = c_path(device)?;
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
            bail!("mounting {} as {}: {error}", device.display(), kind.name());
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
            "drill: {} is still mounted: {}",
            self.dir.display(),
            std::io::Error::last_os_error()
        );
    }
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
