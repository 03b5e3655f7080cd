//! Device-mapper targets, through `dmsetup`: a device that can drop or fail writes, and one that
//! writes down everything. Each is taken back when dropped.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::power::host::run;

/// Whether the kernel here has the targets; loads their modules where it can.
pub fn has_targets() -> bool {
    for module in ["dm-mod", "dm-flakey", "dm-log-writes"] {
        let _ = std::process::Command::new("modprobe").arg(module).output();
    }
    run(&["dmsetup", "targets"], &[]).is_ok_and(|targets| {
        ["flakey", "log-writes"].iter().all(|wanted| {
            let mut names = targets.lines().filter_map(|line| line.split(' ').next());
            names.any(|name| name == *wanted)
        })
    })
}

/// Sectors of a block device.
pub fn sectors(device: &Path) -> Result<u64> {
    let text = device.to_str().context("a device's name")?;
    Ok(run(&["blockdev", "--getsz", text], &[])?.parse()?)
}

/// Most sectors that are used of a device: 1 GiB.
const SECTORS_MAX: u64 = 2 << 20;

/// Sectors that the drill uses of a block device.
pub fn sectors_used(device: &Path) -> Result<u64> {
    Ok(sectors(device)?.min(SECTORS_MAX))
}

/// A mapped device.
pub struct Target {
    name: String,
    path: PathBuf,
}

impl Target {
    fn create(name: &str, table: &str) -> Result<Target> {
        run(&["dmsetup", "create", name, "--table", table], &[])?;
        let target = Target {
            name: name.to_owned(),
            path: Path::new("/dev/mapper").join(name),
        };
        // Where no udev makes the nodes.
        if !target.path.exists() {
            run(&["dmsetup", "mknodes", name], &[])?;
        }
        if !target.path.exists() {
            bail!("{} did not appear", target.path.display());
        }
        Ok(target)
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for attempt in 0..50 {
            match run(&["dmsetup", "remove", &self.name], &[]) {
                Ok(_) => return,
                Err(error) if attempt == 49 => eprintln!("drill: {error:#}"),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
            }
        }
    }
}

/// What a flakey device does with writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Takes them.
    Taken,
    /// Says that they are done, and drops them.
    Dropped,
    /// Fails them.
    Failed,
}

/// A device whose writes can be dropped or failed from one moment on.
pub struct Flakey {
    target: Target,
    device: String,
    sectors: u64,
}

impl Flakey {
    /// Over `device`.
    pub fn over(device: &Path) -> Result<Flakey> {
        let sectors = sectors_used(device)?;
        let device = device.display().to_string();
        let table = table(&device, sectors, Writes::Taken);
        Ok(Flakey {
            target: Target::create("ankusa-drill-flakey", &table)?,
            device,
            sectors,
        })
    }

    /// Changes what becomes of writes. What is in flight ends first; the file system is not asked
    /// to write out anything.
    pub fn set(&self, writes: Writes) -> Result<()> {
        let name = self.target.name.as_str();
        let table = table(&self.device, self.sectors, writes);
        run(&["dmsetup", "suspend", "--nolockfs", name], &[])?;
        let loaded = run(&["dmsetup", "load", name, "--table", &table], &[]);
        run(&["dmsetup", "resume", name], &[])?;
        loaded.map(|_| ())
    }

    /// The device.
    pub fn path(&self) -> &Path {
        self.target.path()
    }
}

fn table(device: &str, sectors: u64, writes: Writes) -> String {
    match writes {
        Writes::Taken => format!("0 {sectors} flakey {device} 0 180 0"),
        Writes::Dropped => format!("0 {sectors} flakey {device} 0 0 180 1 drop_writes"),
        Writes::Failed => format!("0 {sectors} flakey {device} 0 0 180 1 error_writes"),
    }
}

/// A device that logs every write, flush and mark to a second one.
pub struct LogWrites(Target);

impl LogWrites {
    /// Over `device`, logging to `log`.
    pub fn over(device: &Path, log: &Path) -> Result<LogWrites> {
        let table = format!(
            "0 {} log-writes {} {}",
            sectors_used(device)?,
            device.display(),
            log.display()
        );
        Ok(LogWrites(Target::create("ankusa-drill-log", &table)?))
    }

    /// Puts a mark behind everything that is logged by now.
    pub fn mark(&self, text: &str) -> Result<()> {
        run(
            &["dmsetup", "message", &self.0.name, "0", "mark", text],
            &[],
        )
        .map(|_| ())
    }

    /// The device.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
