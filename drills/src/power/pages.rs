//! The content of a device in memory: sparse pages that a copy shares until one side writes.
//!
//! Pure. A page that was never written reads as zeros and takes no memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Pages of a chunk.
const CHUNK_PAGES: usize = 256;

type Page = Option<Arc<[u8; PAGE_BYTES]>>;

/// The content of a device. A copy costs a pointer for each chunk.
#[derive(Clone)]
pub struct Pages {
    chunks: Vec<Arc<Vec<Page>>>,
    pages: usize,
}

impl Pages {
    /// A device full of zeros.
    pub fn new(bytes: u64) -> Pages {
        let pages = (bytes as usize).div_ceil(PAGE_BYTES);
        let empty = Arc::new(vec![None; CHUNK_PAGES]);
        Pages {
            chunks: vec![empty; pages.div_ceil(CHUNK_PAGES)],
            pages,
        }
    }

    fn page(&self, page: usize) -> Option<&[u8; PAGE_BYTES]> {
        let chunk = self.chunks.get(page / CHUNK_PAGES)?;
        chunk[page % CHUNK_PAGES].as_deref()
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        (self.pages * PAGE_BYTES) as u64
    }

    /// Reads; behind the end are zeros.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let (page, from) = place(offset + at as u64);
            let bytes = (PAGE_BYTES - from).min(out.len() - at);
            match self.page(page) {
                Some(data) => out[at..at + bytes].copy_from_slice(&data[from..from + bytes]),
                None => out[at..at + bytes].fill(0),
            }
            at += bytes;
        }
    }

    /// Writes; what lies behind the end is dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let (page, from) = place(offset + at as u64);
            let bytes = (PAGE_BYTES - from).min(data.len() - at);
            if page >= self.pages {
                return;
            }
            let chunk = Arc::make_mut(&mut self.chunks[page / CHUNK_PAGES]);
            let slot = &mut chunk[page % CHUNK_PAGES];
            let to = slot.get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(to)[from..from + bytes].copy_from_slice(&data[at..at + bytes]);
            at += bytes;
        }
    }

    /// Makes `file` hold this content. Pages that neither hold data here nor are named by `dirty`
    /// are taken to be holes of the file already.
    pub fn store(&self, file: &File, dirty: &mut Vec<bool>) -> io::Result<()> {
        dirty.resize(self.pages, false);
        file.set_len(self.bytes())?;
        for (page, is_dirty) in dirty.iter_mut().enumerate() {
            let data = self.page(page);
            let at = (page * PAGE_BYTES) as u64;
            match data {
                Some(data) => file.write_all_at(&data[..], at)?,
                None if *is_dirty => file.write_all_at(&[0; PAGE_BYTES], at)?,
                None => {}
            }
            *is_dirty = data.is_some();
        }
        Ok(())
    }
}

fn place(offset: u64) -> (usize, usize) {
    (
        (offset / PAGE_BYTES as u64) as usize,
        (offset % PAGE_BYTES as u64) as usize,
    )
}
