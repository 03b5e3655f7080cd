//! The client's ledger: one CSV line for each request that ended.
//!
//! `seq,id,sha256,status,word,sent_unix_us,latency_us`. An id is empty where the answer had
//! none; status 0 means no answer, and the word says why. A line is written for *every* request,
//! warm-up included: the ledger is evidence, not a measurement.
//!
//! Runs on the load thread; buffered, flushed about once a second and at the end.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The open file.
pub(super) struct Ledger {
    out: BufWriter<File>,
    line: Vec<u8>,
}

/// One line.
pub(super) struct Entry<'a> {
    pub(super) seq: u64,
    pub(super) id: &'a str,
    pub(super) sha256: Option<[u8; 32]>,
    pub(super) status: u16,
    pub(super) word: &'a str,
    pub(super) sent_unix_us: u64,
    pub(super) latency_us: u64,
}

impl Ledger {
    pub(super) fn create(path: &Path) -> io::Result<Ledger> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        out.write_all(b"seq,id,sha256,status,word,sent_unix_us,latency_us\n")?;
        Ok(Ledger {
            out,
            line: Vec::with_capacity(256),
        })
    }

    pub(super) fn write(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.line.clear();
        write!(self.line, "{},{},", entry.seq, entry.id)?;
        if let Some(digest) = entry.sha256 {
            super::sign::append_hex(&mut self.line, &digest);
        }
        writeln!(
            self.line,
            ",{},{},{},{}",
            entry.status, entry.word, entry.sent_unix_us, entry.latency_us
        )?;
        self.out.write_all(&self.line)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
