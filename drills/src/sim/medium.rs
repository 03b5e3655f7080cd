//! Looking at what is on the medium from outside the store.

use ankusa_wal::disk::sim::{CrashMode, SimDisk};

/// Whether something with this id would be found if all power went now and took every byte that
/// was not flushed. Reads every file: costly, to be asked now and then.
pub fn holds(disks: &[SimDisk], id: &[u8; 16]) -> bool {
    disks.iter().any(|disk| {
        let image = disk.snapshot().image(&CrashMode::NOTHING);
        let names = image.names();
        names
            .iter()
            .filter(|name| name.ends_with(".wal"))
            .filter_map(|name| image.read(name))
            .any(|content| contains(&content, id))
    })
}

fn contains(content: &[u8], id: &[u8; 16]) -> bool {
    // The last bytes of an id are random, the first ones are not.
    let mut rest = content;
    while let Some(at) = rest.iter().position(|byte| *byte == id[15]) {
        let end = content.len() - rest.len() + at + 1;
        if end >= 16 && content[end - 16..end] == *id {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}
