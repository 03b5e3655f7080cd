//! The machine a result was got on: it goes beside every figure.
//!
//! Reads `/proc` and `/sys`; what cannot be read is left empty, never guessed. Also says what
//! makes a result weak: a debug build, a memory file system, shared cores, a busy machine.
//!
//! Runs before and after a bench, on its main thread.

mod busy;
mod storage;

use std::fs;
use std::path::Path;

use serde::Serialize;

pub use busy::{BusyMark, busy_mark};
pub use storage::{Storage, direct_io_works, storage};

/// Facts of the host.
#[derive(Clone, Debug, Serialize)]
pub struct HostFacts {
    /// Version of this program.
    pub version: &'static str,
    /// `release` or `debug`.
    pub build: &'static str,
    /// Seconds since the Unix epoch.
    pub at_unix_s: u64,
    /// Processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: Vec<usize>,
    /// Processor runs under a hypervisor.
    pub virtual_machine: bool,
    /// Kernel release.
    pub kernel: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Load averages before the bench.
    pub load_average: String,
    /// Share of processor time that was idle in the moment before the bench.
    pub idle_before: f64,
    /// The file system and device of the data.
    pub storage: Option<Storage>,
}

/// Gathers the facts; `data` is a directory on the disk that will be measured.
pub fn gather(data: Option<&Path>) -> HostFacts {
    let cpuinfo = read("/proc/cpuinfo");
    let mark = busy_mark();
    std::thread::sleep(std::time::Duration::from_millis(500));
    HostFacts {
        version: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
        at_unix_s: crate::sys::unix_us() / 1_000_000,
        cpu: field(&cpuinfo, "model name"),
        cores: crate::sys::usable_cores().unwrap_or_default(),
        virtual_machine: field(&cpuinfo, "flags")
            .split(' ')
            .any(|flag| flag == "hypervisor"),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        memory_bytes: field(&read("/proc/meminfo"), "MemTotal")
            .split(' ')
            .next()
            .and_then(|kb| kb.parse::<u64>().ok())
            .map_or(0, |kb| kb * 1024),
        load_average: read("/proc/loadavg")
            .split(' ')
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
        idle_before: mark.idle_since(),
        storage: data.and_then(storage),
    }
}

impl HostFacts {
    /// What makes figures from this host and build weak, as sentences.
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.build == "debug" {
            out.push("debug build: figures mean nothing; build with --release".to_owned());
        }
        if self.cores.len() < 2 {
            out.push("one core only: load and server share it".to_owned());
        }
        if self.idle_before < 0.9 {
            out.push(format!(
                "busy machine: {:.0} % idle before the bench",
                self.idle_before * 100.0
            ));
        }
        if let Some(storage) = &self.storage {
            if matches!(
                storage.file_system.as_str(),
                "tmpfs" | "ramfs" | "overlay" | "fuse" | "nfs" | "nfs4" | "virtiofs"
            ) {
                out.push(format!(
                    "the data is on {}: syncs do not reach a disk as they would",
                    storage.file_system
                ));
            }
            if !storage.direct_io {
                out.push("no direct I/O on this file system".to_owned());
            }
        }
        out
    }
}

/// The whole of a small file, or nothing.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}
