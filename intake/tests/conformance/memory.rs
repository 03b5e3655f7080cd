//! The memory adapter under the cases.

use ankusa_intake::memory::{MemoryLog, MemoryOptions, MemoryPublisher};
use ankusa_intake::{IntakeLog, wait_for};
use bytes::Bytes;
use tempfile::TempDir;

use crate::cases::run_all;
use crate::driver::Harness;

struct Memory {
    log: MemoryLog,
    _dir: TempDir,
}

impl Harness for Memory {
    type Publisher = MemoryPublisher;

    fn log(&self) -> &dyn IntakeLog {
        &self.log
    }

    fn publisher(&self, partition: u32, node: &str) -> MemoryPublisher {
        self.log.publisher(partition, node)
    }

    fn append_raw(&self, partition: u32, headers: &[(&str, &[u8])], value: &[u8]) {
        let headers = headers
            .iter()
            .map(|(n, v)| (n.to_string(), v.to_vec()))
            .collect();
        let value = Bytes::copy_from_slice(value);
        wait_for(self.log.append_raw(partition, headers, value)).unwrap();
    }

    fn drop_below(&self, partition: u32, position: u64) {
        wait_for(self.log.drop_below(partition, position)).unwrap();
    }

    fn recreate(&self) {
        wait_for(self.log.recreate()).unwrap();
    }
}

#[test]
fn the_memory_adapter_passes_every_case() {
    run_all(|_| {
        let dir = tempfile::tempdir().unwrap();
        let log = MemoryLog::open(MemoryOptions {
            dir: dir.path().join("log"),
            partitions: 8,
            sync: true,
            retention_bytes: None,
        })
        .unwrap();
        Memory { log, _dir: dir }
    });
}
