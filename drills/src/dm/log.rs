//! The log that dm-log-writes leaves behind, read into a history.
//!
//! Little-endian. Sector 0: magic, version, entries, bytes of a sector. Each entry is one sector
//! (sector, sectors, flags, bytes that follow inside it) and then its data; a mark has its text in
//! the entry's own sector. A write reaches the log when a flush covers it, so the order is: writes,
//! then the flush that made them stable.

use std::io::{self, Read};

use anyhow::{Context, Result, bail};

use crate::power::device::{Epoch, History, Marks, Write};
use crate::power::pages::Pages;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// What precedes the number of acked hooks in a mark.
pub const ACKED: &str = "acked-";

/// Reads a log. The history begins with an empty device of `bytes` at the first entry; everything
/// before the first mark is its base.
pub fn read(log: &mut impl Read, bytes: u64) -> Result<History> {
    let mut head = [0; 512];
    log.read_exact(&mut head)?;
    let word = |sector: &[u8], at: usize| -> u64 {
        sector[at * 8..at * 8 + 8]
            .try_into()
            .map_or(0, u64::from_le_bytes)
    };
    if (word(&head, 0), word(&head, 1)) != (MAGIC, VERSION) {
        bail!("this is not a log of dm-log-writes");
    }
    let entries = word(&head, 2);
    let sector_bytes = (word(&head, 3) & 0xffff_ffff) as usize;
    if !(512..=4096).contains(&sector_bytes) {
        bail!("sectors of {sector_bytes} bytes");
    }
    io::copy(&mut log.take(sector_bytes as u64 - 512), &mut io::sink())?;
    let mut builder = Builder::new(bytes);
    let mut sector = vec![0; sector_bytes];
    for entry in 0..entries {
        log.read_exact(&mut sector)
            .with_context(|| format!("entry {entry} of {entries}"))?;
        let (at, count) = (word(&sector, 0), word(&sector, 1));
        let (flags, length) = (word(&sector, 2), word(&sector, 3));
        if flags & MARK != 0 {
            let text = sector.get(32..32 + length as usize).unwrap_or_default();
            builder.mark(&String::from_utf8_lossy(text));
            continue;
        }
        // The flush comes before the data of its own request.
        if flags & FLUSH != 0 {
            builder.flush(None);
        }
        if flags & DISCARD != 0 || count == 0 {
            continue;
        }
        let mut data = vec![0; count as usize * sector_bytes];
        log.read_exact(&mut data)
            .with_context(|| format!("data of entry {entry} of {entries}"))?;
        let number = builder.write(at * sector_bytes as u64, data);
        if flags & FUA != 0 {
            builder.flush(Some(number));
        }
    }
    builder.flush(None);
    Ok(builder.history)
}

struct Builder {
    history: History,
    /// Numbers of the writes that nothing has covered.
    pending: Vec<u64>,
    arrived: Vec<Write>,
    acked: Option<usize>,
    next: u64,
}

impl Builder {
    fn new(bytes: u64) -> Builder {
        Builder {
            history: History {
                base: Pages::new(bytes),
                epochs: Vec::new(),
            },
            pending: Vec::new(),
            arrived: Vec::new(),
            acked: None,
            next: 1,
        }
    }

    fn mark(&mut self, text: &str) {
        let text = text.trim_end_matches(['\0', '\n']);
        if let Some(acked) = text.strip_prefix(ACKED).and_then(|n| n.parse().ok()) {
            self.acked = Some(acked);
        }
    }

    fn write(&mut self, offset: u64, data: Vec<u8>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pending.push(number);
        self.arrived.push(Write {
            number,
            offset,
            data,
            is_complete: true,
        });
        number
    }

    /// A flush makes everything stable that is complete, a FUA only its own write.
    fn flush(&mut self, only: Option<u64>) {
        let covered = match only {
            Some(number) => {
                self.pending.retain(|n| *n != number);
                vec![number]
            }
            None => std::mem::take(&mut self.pending),
        };
        let writes = std::mem::take(&mut self.arrived);
        let Some(acked) = self.acked else {
            // The making of the file system and the boot: no point of interest.
            for write in writes {
                self.history.base.write(write.offset, &write.data);
            }
            return;
        };
        self.history.epochs.push(Epoch {
            writes,
            covered,
            marks: Marks {
                acked,
                delivered: 0,
            },
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sector(words: [u64; 4], text: &str) -> Vec<u8> {
        let mut out = vec![0; 512];
        for (i, word) in words.iter().enumerate() {
            out[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        out[32..32 + text.len()].copy_from_slice(text.as_bytes());
        out
    }

    fn log(entries: &[(u64, u64, &str, u8)]) -> Vec<u8> {
        let mut out = sector([MAGIC, VERSION, entries.len() as u64, 512], "");
        for (at, flags, text, byte) in entries {
            let has_data = flags & (MARK | DISCARD) == 0 && *byte != 0;
            let words = [*at, u64::from(has_data), *flags, text.len() as u64];
            out.extend(sector(words, text));
            if has_data {
                out.extend([*byte; 512]);
            }
        }
        out
    }

    #[test]
    fn a_log_is_cut_at_its_flushes_and_marks_hold_until_the_next() {
        let bytes = log(&[
            (0, 0, "", 1),
            (0, FLUSH, "", 0),
            (0, MARK, "acked-3", 0),
            (1, 0, "", 2),
            (0, FLUSH, "", 0),
            (2, 0, "", 3),
            (0, MARK, "acked-5", 0),
            (3, FLUSH | FUA, "", 4),
        ]);
        let history = read(&mut bytes.as_slice(), 1 << 20).unwrap();
        let mut first = [0];
        history.base.read(0, &mut first);
        assert_eq!(first, [1], "before the first mark is the base");
        let epochs: Vec<_> = history
            .epochs
            .iter()
            .map(|e| (e.writes.len(), e.covered.clone(), e.marks.acked))
            .collect();
        let expected = [
            (1, vec![2], 3),
            (1, vec![3], 5),
            // The write with FUA, which covers itself alone; then the end of the log.
            (1, vec![4], 5),
            (0, vec![], 5),
        ];
        assert_eq!(epochs, expected);
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(read(&mut [0u8; 512].as_slice(), 1 << 20).is_err());
        let cut = &log(&[(0, 0, "", 1)])[..700];
        assert!(read(&mut &cut[..], 1 << 20).is_err());
    }
}
