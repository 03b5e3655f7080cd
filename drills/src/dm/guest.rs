//! The drill in a guest: a kernel of Debian under QEMU, with a first file system made here that
//! has this program, the node, a shell, and the tools of the file systems, and the drill's own
//! command on two virtual disks.
//!
//! The kernel package is downloaded and unpacked, never installed. Emulated, unless
//! `ANKUSA_DRILLS_QEMU_ACCEL` names another accelerator (`kvm`): that the device is there does
//! not mean that a stock kernel boots with it. The end is told by a line on the serial port,
//! since QEMU's own exit code is 0 after a panic too.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::pack::Archive;
use super::{DEVICE_BYTES, DmPlan, LOG_BYTES};
use crate::power::host::{Interrupt, Needs, run as run_command};

/// The package that names the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The modules that the guest needs, without those that they need themselves.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "crc32c_generic",
    "xfs",
    "loop",
    "dm-flakey",
    "dm-log-writes",
];
/// Commands of the guest, beside the shell's own.
const COMMANDS: &[&str] = &["mkfs.ext4", "mkfs.xfs", "dmsetup", "losetup", "blockdev"];
/// The line that ends a run.
const END: &str = "GUEST-END rc=";

/// Builds the guest, runs the drill in it, and prints what it says.
pub fn run(plan: &DmPlan) -> Result<bool> {
    let needs = Needs {
        devices: Vec::new(),
        commands: vec![
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("busybox", "busybox-static"),
            ("dmsetup", "dmsetup"),
            ("depmod", "kmod"),
            ("mkfs.ext4", "e2fsprogs"),
            ("mkfs.xfs", "xfsprogs"),
            ("losetup", "mount"),
            ("dpkg-deb", "dpkg"),
            ("strip", "binutils"),
        ],
    };
    needs.check(plan.install)?;
    let interrupt = Interrupt::install()?;
    let started = Instant::now();
    let kernel = Kernel::get(&plan.cache)?;
    let dir = tempfile::Builder::new().prefix("drill-guest-").tempdir()?;
    let initrd = dir.path().join("initrd");
    fs::write(&initrd, first_file_system(plan, &kernel, dir.path())?)?;
    for (name, bytes) in [("disk", DEVICE_BYTES), ("log", LOG_BYTES)] {
        File::create(dir.path().join(name))?.set_len(bytes)?;
    }
    println!(
        "power-dm: guest with Linux {}, made in {:.1?}",
        kernel.version,
        started.elapsed()
    );
    let code = boot(plan, &kernel, dir.path(), &interrupt)?;
    println!("power-dm: the guest took {:.1?} in all", started.elapsed());
    Ok(code == 0)
}

struct Kernel {
    version: String,
    image: PathBuf,
    root: PathBuf,
}

impl Kernel {
    /// Unpacked in `cache`, or downloaded there.
    fn get(cache: &Path) -> Result<Kernel> {
        fs::create_dir_all(cache)?;
        if let Some(kernel) = Kernel::unpacked(cache) {
            return Ok(kernel);
        }
        // The name has the version in it, and moves with each update of the distribution.
        let ask = || run_command(&["apt-cache", "depends", KERNEL], &[]);
        let depends = match ask() {
            Ok(depends) => depends,
            // No lists of packages yet.
            Err(_) => run_command(&["apt-get", "update", "-q"], &[]).and_then(|_| ask())?,
        };
        let package = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .with_context(|| format!("{KERNEL} names no kernel"))?;
        println!("power-dm: downloading {package}");
        let status = Command::new("apt-get")
            .args(["download", "-q", package])
            .current_dir(cache)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("apt-get download {package} failed");
        }
        let deb = fs::read_dir(cache)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "deb"))
            .context("no package was downloaded")?;
        let half = cache.join("half");
        let _ = fs::remove_dir_all(&half);
        run_command(&["dpkg-deb", "-x"], &[&deb, &half])?;
        let version = only_name(&half.join("lib/modules"))?;
        let base = half.to_str().context("a path")?;
        run_command(&["depmod", "-b", base, &version], &[])?;
        fs::rename(&half, cache.join("kernel"))?;
        fs::remove_file(deb)?;
        Kernel::unpacked(cache).context("the package has no kernel")
    }

    fn unpacked(cache: &Path) -> Option<Kernel> {
        let root = cache.join("kernel");
        let version = only_name(&root.join("lib/modules")).ok()?;
        let image = root.join(format!("boot/vmlinuz-{version}"));
        image.exists().then_some(Kernel {
            version,
            image,
            root,
        })
    }

    /// The modules wanted and what they need, in the order of loading.
    fn modules(&self) -> Result<Vec<PathBuf>> {
        let dir = self.root.join("lib/modules").join(&self.version);
        let text = fs::read_to_string(dir.join("modules.dep"))?;
        let stem = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or(path);
            name.split('.').next().unwrap_or(name).replace('-', "_")
        };
        let (mut known, mut order) = (BTreeSet::new(), Vec::new());
        for wanted in MODULES {
            // One that the kernel has built in has no line.
            let line = text.lines().find_map(|line| {
                let (path, needs) = line.split_once(':')?;
                (stem(path) == wanted.replace('-', "_")).then_some((path, needs))
            });
            let Some((path, needs)) = line else { continue };
            // What is needed first is named last.
            for path in needs.split_whitespace().rev().chain([path]) {
                if known.insert(path) {
                    order.push(dir.join(path));
                }
            }
        }
        Ok(order)
    }
}

fn only_name(dir: &Path) -> Result<String> {
    let entry = fs::read_dir(dir)?.next().context("an empty directory")??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

fn first_file_system(plan: &DmPlan, kernel: &Kernel, dir: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for path in ["proc", "sys", "dev", "tmp", "run", "etc"] {
        archive.directory(path);
    }
    archive.file("bin/busybox", &fs::read(found("busybox")?)?);
    archive.link("bin/sh", "busybox");
    let mut libraries = BTreeSet::new();
    for name in COMMANDS {
        let path = found(name)?.canonicalize()?;
        libraries.extend(libraries_of(&path)?);
        archive.file(&format!("sbin/{name}"), &fs::read(path)?);
    }
    for (name, path) in [
        ("ankusa", plan.binary.canonicalize()?),
        ("ankusa-drills", std::env::current_exe()?),
    ] {
        libraries.extend(libraries_of(&path)?);
        // Without what only a debugger reads: the guest has little memory.
        let slim = dir.join(name);
        let to = slim.to_str().context("a path")?;
        run_command(&["strip", "-o", to], &[&path])?;
        archive.file(&format!("bin/{name}"), &fs::read(&slim)?);
    }
    for path in &libraries {
        archive.file(path.to_str().context("a path")?, &fs::read(path)?);
    }
    if let Ok(text) = fs::read("/etc/mke2fs.conf") {
        archive.file("etc/mke2fs.conf", &text);
    }
    let mut load = String::new();
    for (number, path) in kernel.modules()?.iter().enumerate() {
        let ext = path.extension().unwrap_or_default().to_string_lossy();
        let name = format!("modules/{number}.{ext}");
        archive.file(&name, &fs::read(path)?);
        load.push_str(&match ext.as_ref() {
            "xz" => format!("xz -dc /{name} > /tmp/m.ko && insmod /tmp/m.ko\n"),
            _ => format!("insmod /{name}\n"),
        });
    }
    archive.file("init", script(plan, &load).as_bytes());
    Ok(archive.finish())
}

fn script(plan: &DmPlan, load: &str) -> String {
    let mut command = format!(
        "ankusa-drills power-dm --binary /bin/ankusa --device /dev/vda --log-device /dev/vdb \
         --yes --fs {} --cuts {} --acked {} --logged {} --subsets {} --seed {}",
        plan.fs, plan.cuts, plan.acked, plan.logged, plan.subsets, plan.seed
    );
    if plan.without_control {
        command.push_str(" --without-control");
    }
    format!(
        "#!/bin/sh\n\
         /bin/busybox mkdir -p /usr/bin /usr/sbin\n\
         /bin/busybox --install -s /usr/bin\n\
         export PATH=/sbin:/bin:/usr/bin:/usr/sbin DM_DISABLE_UDEV=1 TMPDIR=/tmp\n\
         mount -t proc none /proc\n\
         mount -t sysfs none /sys\n\
         mount -t devtmpfs none /dev\n\
         mkdir -p /dev/shm\n\
         mount -t tmpfs none /dev/shm\n\
         mount -t tmpfs none /tmp\n\
         {load}\
         ifconfig lo 127.0.0.1 up\n\
         ulimit -n 4096\n\
         echo GUEST-BEGIN\n\
         {command} 2>&1\n\
         echo {END}$?\n\
         sync\n\
         poweroff -f\n"
    )
}

fn found(command: &str) -> Result<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(command))
        .find(|path| path.exists())
        .with_context(|| format!("no {command}"))
}

/// The shared libraries of a program, its loader included.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let text = run_command(&["ldd"], &[program])?;
    let paths = text.lines().filter_map(|line| {
        let words = line.split_whitespace();
        words.into_iter().find(|word| word.starts_with('/'))
    });
    Ok(paths.map(PathBuf::from).collect())
}

/// A guest, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn boot(plan: &DmPlan, kernel: &Kernel, dir: &Path, interrupt: &Interrupt) -> Result<i32> {
    let accel = std::env::var("ANKUSA_DRILLS_QEMU_ACCEL");
    let accel = accel.unwrap_or_else(|_| "tcg,thread=multi".to_owned());
    let disk = |name: &str| {
        let file = dir.join(name);
        // A write-back cache for the guest, no flush of the host's.
        format!(
            "file={},format=raw,if=none,id={name},cache=unsafe",
            file.display()
        )
    };
    let mut command = Command::new("qemu-system-x86_64");
    command
        // Without an instruction for random numbers the guest waits for entropy, which it has not.
        .args([
            "-machine",
            "q35",
            "-accel",
            &accel,
            "-cpu",
            "qemu64,+rdrand",
        ])
        .args(["-smp", "2", "-m", "2G", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(dir.join("initrd"))
        .args([
            "-append",
            "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr random.trust_cpu=on",
        ]);
    for name in ["disk", "log"] {
        command.args(["-drive", &disk(name)]);
        command.args(["-device", &format!("virtio-blk-pci,drive={name}")]);
    }
    let mut guest = Running(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("qemu-system-x86_64")?,
    );
    let serial = guest.0.stdout.take().context("the serial port")?;
    let (lines, said) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(serial);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    let end = Instant::now() + Duration::from_secs(plan.guest_timeout);
    loop {
        interrupt.check()?;
        match said.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                println!("guest: {line}");
                if let Some(code) = line.trim().strip_prefix(END) {
                    return code.parse().context("the guest's code");
                }
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                bail!("the guest did not end within {} s", plan.guest_timeout);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the guest ended without a word"),
        }
    }
}
