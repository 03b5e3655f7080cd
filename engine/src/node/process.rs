//! What the kernel knows of the process: memory and descriptors. Blocking, cheap; main thread.

use std::fs;

use crate::metrics::{Metric, Registry};

/// Sets the gauges of the process.
pub fn sample(registry: &Registry) {
    if let Some(bytes) = resident_bytes() {
        registry.node_set(Metric::ProcessResidentMemory, bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        registry.node_set(Metric::ProcessOpenFds, open.count() as u64);
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
