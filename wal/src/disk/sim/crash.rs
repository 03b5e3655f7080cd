//! What may be found after the power was cut: snapshots, the modes of a cut, images.
//!
//! A snapshot is the whole state of the medium at one moment and is cheap (copy on write). From
//! one snapshot any number of images follow, one for each [`CrashMode`]: the modes that catch
//! most mistakes are enumerated, the rest is drawn. An image is legal for a real device with a
//! volatile cache: the stable content plus any subset of unflushed sectors, for overlapping ones
//! any of them, and any subset of unflushed names. Pure.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::fault::SECTOR_BYTES;
use super::medium::{Medium, NameOp, Pages, Pending};
use crate::disk::BLOCK_BYTES;
use crate::sim::SimRng;

/// Size of the pieces that are kept or lost one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// 512 bytes.
    Sector,
    /// 4 KiB.
    Block,
}

impl Grain {
    fn bytes(self) -> u64 {
        match self {
            Grain::Sector => SECTOR_BYTES,
            Grain::Block => BLOCK_BYTES as u64,
        }
    }
}

/// Which unflushed writes are kept. Numbers count the unflushed writes of all files, completed
/// ones in order of completion, then those in flight in order of issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// None.
    None,
    /// All, those in flight too.
    All,
    /// The first `n`.
    Prefix(usize),
    /// The last `n`.
    Suffix(usize),
    /// All but this one.
    AllBut(usize),
    /// Only this one.
    Only(usize),
    /// All before this one, and its first or second half (a block at least stays whole when the
    /// write is two blocks or more, else by sectors).
    Half {
        /// The write.
        write: usize,
        /// The first half, or the second.
        first: bool,
    },
    /// Bit `i` keeps sector `i` of all that is unflushed, in order (at most 64 sectors).
    Mask(u64),
    /// Each piece with this probability.
    Drawn {
        /// Seed of the draw.
        seed: u64,
        /// Kept, of 100.
        percent: u32,
        /// Size of the pieces.
        grain: Grain,
    },
}

/// Which unflushed names are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFate {
    /// None.
    None,
    /// All.
    All,
    /// All but the change with this number.
    AllBut(usize),
    /// Only the change with this number.
    Only(usize),
    /// Each change by itself.
    Drawn(u64),
}

/// Which length a file has that grew without a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenFate {
    /// Long enough for the writes that are kept.
    Follows,
    /// The last flushed length, which cuts kept writes beyond it.
    Stable,
    /// The full length; what is not kept reads as zeros.
    Full,
}

/// One way a cut can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashMode {
    /// Content.
    pub writes: WriteFate,
    /// Names.
    pub names: NameFate,
    /// Lengths.
    pub len: LenFate,
}

impl CrashMode {
    /// Only what was flushed.
    pub const NOTHING: CrashMode = CrashMode {
        writes: WriteFate::None,
        names: NameFate::None,
        len: LenFate::Stable,
    };
    /// Everything, also what was in flight.
    pub const EVERYTHING: CrashMode = CrashMode {
        writes: WriteFate::All,
        names: NameFate::All,
        len: LenFate::Full,
    };

    /// Sectors, names and lengths drawn from `seed`, half of them kept.
    pub fn drawn(seed: u64) -> CrashMode {
        let mut rng = SimRng::stream(seed, 3);
        let len = match rng.below(3) {
            0 => LenFate::Stable,
            1 => LenFate::Full,
            _ => LenFate::Follows,
        };
        let grain = if rng.below(4) == 0 {
            Grain::Block
        } else {
            Grain::Sector
        };
        let writes = WriteFate::Drawn {
            seed: rng.next_u64(),
            percent: 50,
            grain,
        };
        CrashMode {
            writes,
            names: NameFate::Drawn(rng.next_u64()),
            len,
        }
    }
}

/// The state of the medium at one moment.
#[derive(Clone)]
pub struct SimSnapshot {
    pub(super) medium: Medium,
    /// Operations issued before it was taken.
    pub op: u64,
    /// Virtual time at which it was taken.
    pub at_us: u64,
}

impl SimSnapshot {
    fn unflushed(&self) -> Vec<(usize, &Pending)> {
        let mut all: Vec<(usize, &Pending)> = Vec::new();
        for (ino, inode) in self.medium.inodes.iter().enumerate() {
            all.extend(inode.pending.iter().map(|p| (ino, p)));
        }
        all.sort_by_key(|(_, p)| p.order());
        all
    }

    /// Writes not flushed, in flight or completed.
    pub fn unflushed_writes(&self) -> usize {
        self.medium.inodes.iter().map(|i| i.pending.len()).sum()
    }

    /// Sectors not flushed.
    pub fn unflushed_sectors(&self) -> usize {
        let sectors = |p: &Pending| p.units(SECTOR_BYTES).count();
        self.medium
            .inodes
            .iter()
            .flat_map(|i| &i.pending)
            .map(sectors)
            .sum()
    }

    /// Name changes not flushed.
    pub fn unflushed_names(&self) -> usize {
        self.medium.name_ops.len()
    }

    /// The modes worth trying here: with at most 8 unflushed sectors every subset, else none,
    /// all, each prefix and suffix, all but one, only one, halves of each write (at most the
    /// newest 12), and `drawn` draws; each with names lost, kept, and one by one.
    pub fn modes(&self, seed: u64, drawn: usize) -> Vec<CrashMode> {
        let writes = self.unflushed_writes();
        let sectors = self.unflushed_sectors();
        let mut content = vec![WriteFate::None, WriteFate::All];
        if sectors > 0 && sectors <= 8 {
            content.extend((1..(1u64 << sectors) - 1).map(WriteFate::Mask));
        } else {
            for write in writes.saturating_sub(12)..writes {
                content.push(WriteFate::Prefix(write));
                content.push(WriteFate::Suffix(writes - write));
                content.push(WriteFate::AllBut(write));
                content.push(WriteFate::Only(write));
                content.push(WriteFate::Half { write, first: true });
                content.push(WriteFate::Half {
                    write,
                    first: false,
                });
            }
        }
        let len = LenFate::Follows;
        let mut modes = vec![CrashMode::NOTHING, CrashMode::EVERYTHING];
        for writes in content {
            modes.push(CrashMode {
                writes,
                names: NameFate::All,
                len,
            });
            if self.unflushed_names() > 0 {
                modes.push(CrashMode {
                    writes,
                    names: NameFate::None,
                    len,
                });
            }
        }
        for change in 0..self.unflushed_names() {
            for names in [NameFate::AllBut(change), NameFate::Only(change)] {
                modes.push(CrashMode {
                    writes: WriteFate::All,
                    names,
                    len,
                });
            }
        }
        modes.push(CrashMode {
            len: LenFate::Stable,
            ..CrashMode::EVERYTHING
        });
        modes.push(CrashMode {
            len: LenFate::Full,
            ..CrashMode::NOTHING
        });
        let mut rng = SimRng::stream(seed, 4);
        modes.extend((0..drawn).map(|_| CrashMode::drawn(rng.next_u64())));
        modes
    }

    /// What is found after a cut that went like `mode`.
    pub fn image(&self, mode: &CrashMode) -> SimImage {
        let mut files: Vec<Pages> = self
            .medium
            .inodes
            .iter()
            .map(|inode| inode.stable.clone())
            .collect();
        let unflushed = self.unflushed();
        keep_writes(&mut files, &unflushed, mode.writes);
        for (ino, inode) in self.medium.inodes.iter().enumerate() {
            let file = &mut files[ino];
            let len = match mode.len {
                LenFate::Stable => inode.stable.len,
                LenFate::Full => {
                    let ends = inode.pending.iter().map(Pending::end);
                    ends.fold(inode.cur.len.max(inode.stable.len), u64::max)
                }
                LenFate::Follows => file.len.max(inode.stable.len),
            };
            file.cut(len);
        }
        let mut names = self.medium.stable_names.clone();
        for op in kept_names(&self.medium.name_ops, mode.names) {
            op.apply(&mut names);
        }
        let file = |(name, ino): (Rc<str>, u32)| (name.to_string(), files[ino as usize].clone());
        SimImage {
            files: names.into_iter().map(file).collect(),
        }
    }

    /// What a restarted process finds when only the process died: everything, save for writes
    /// still in flight.
    pub fn as_seen(&self) -> SimImage {
        let file = |(name, ino): (&Rc<str>, &u32)| {
            (
                name.to_string(),
                self.medium.inodes[*ino as usize].cur.clone(),
            )
        };
        SimImage {
            files: self.medium.names.iter().map(file).collect(),
        }
    }
}

fn keep(files: &mut [Pages], (ino, write): (usize, &Pending), range: Range<u64>) {
    let file = &mut files[ino];
    write.apply(file, range.clone());
    let end = range.end.min(write.end());
    if range.start < end {
        file.len = file.len.max(end);
    }
}

fn keep_writes(files: &mut [Pages], unflushed: &[(usize, &Pending)], fate: WriteFate) {
    let count = unflushed.len();
    match fate {
        WriteFate::Mask(mask) => {
            let sectors = unflushed
                .iter()
                .flat_map(|w| w.1.units(SECTOR_BYTES).map(move |at| (*w, at)));
            for (_, (write, at)) in sectors
                .take(64)
                .enumerate()
                .filter(|(i, _)| mask >> i & 1 == 1)
            {
                keep(files, write, at..at + SECTOR_BYTES);
            }
        }
        WriteFate::Drawn {
            seed,
            percent,
            grain,
        } => {
            let mut rng = SimRng::stream(seed, 5);
            let mut order: Vec<usize> = (0..count).collect();
            // Overlapping ones land in any order.
            for i in (1..count).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            for write in order.into_iter().map(|i| unflushed[i]) {
                let units: Vec<u64> = write.1.units(grain.bytes()).collect();
                for at in units {
                    if rng.below(100) < u64::from(percent) {
                        keep(files, write, at..at + grain.bytes());
                    }
                }
            }
        }
        _ => {
            for (i, write) in unflushed.iter().enumerate() {
                if let Some(range) = kept_range(fate, i, count, write.1) {
                    keep(files, *write, range);
                }
            }
        }
    }
}

/// The part of the `i`th of `count` unflushed writes that is kept.
fn kept_range(fate: WriteFate, i: usize, count: usize, write: &Pending) -> Option<Range<u64>> {
    let whole = write.pos..write.end();
    match fate {
        WriteFate::None | WriteFate::Mask(_) | WriteFate::Drawn { .. } => None,
        WriteFate::All => Some(whole),
        WriteFate::Prefix(n) => (i < n).then_some(whole),
        WriteFate::Suffix(n) => (i + n >= count).then_some(whole),
        WriteFate::AllBut(n) => (i != n).then_some(whole),
        WriteFate::Only(n) => (i == n).then_some(whole),
        WriteFate::Half { write: n, .. } if i < n => Some(whole),
        WriteFate::Half { write: n, first } if i == n => {
            let grain = if write.bytes >= 2 * BLOCK_BYTES as u64 {
                BLOCK_BYTES as u64
            } else {
                SECTOR_BYTES
            };
            let middle = write.pos + (write.bytes / 2).next_multiple_of(grain);
            Some(if first {
                write.pos..middle
            } else {
                middle..write.end()
            })
        }
        WriteFate::Half { .. } => None,
    }
}

fn kept_names(ops: &[NameOp], fate: NameFate) -> Vec<&NameOp> {
    let mut rng = SimRng::stream(
        if let NameFate::Drawn(seed) = fate {
            seed
        } else {
            0
        },
        6,
    );
    let mut kept = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let keep = match fate {
            NameFate::None => false,
            NameFate::All => true,
            NameFate::AllBut(n) => i != n,
            NameFate::Only(n) => i == n,
            NameFate::Drawn(_) => rng.coin(),
        };
        if keep {
            kept.push(op);
        }
    }
    kept
}

/// The content of a directory, at rest: what a disk starts from, and what a test may damage.
#[derive(Clone, Default)]
pub struct SimImage {
    pub(super) files: BTreeMap<String, Pages>,
}

impl SimImage {
    /// The names, in order.
    pub fn names(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    /// The content of a file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.files.get(name)?;
        let mut out = vec![0; file.len as usize];
        file.read(0, &mut out);
        Some(out)
    }

    /// Puts a file, replacing one of that name.
    pub fn put(&mut self, name: &str, content: &[u8]) {
        let mut file = Pages::default();
        file.write(0, content);
        file.len = content.len() as u64;
        self.files.insert(name.to_owned(), file);
    }

    /// Overwrites bytes of a file; it grows when they end behind its end. False: no such file.
    pub fn overwrite(&mut self, name: &str, pos: u64, bytes: &[u8]) -> bool {
        let Some(file) = self.files.get_mut(name) else {
            return false;
        };
        file.write(pos, bytes);
        file.len = file.len.max(pos + bytes.len() as u64);
        true
    }

    /// Flips the bits of `mask` in one byte. False: no such byte.
    pub fn flip(&mut self, name: &str, pos: u64, mask: u8) -> bool {
        let Some(file) = self.files.get_mut(name).filter(|f| pos < f.len) else {
            return false;
        };
        let mut byte = [0];
        file.read(pos, &mut byte);
        file.write(pos, &[byte[0] ^ mask]);
        true
    }

    /// Cuts a file to a length (or grows it with zeros). False: no such file.
    pub fn truncate(&mut self, name: &str, len: u64) -> bool {
        let Some(file) = self.files.get_mut(name) else {
            return false;
        };
        file.cut(len);
        true
    }

    /// Takes a file away. False: no such file.
    pub fn remove(&mut self, name: &str) -> bool {
        self.files.remove(name).is_some()
    }

    /// Renames a file. False: no such file.
    pub fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(file) = self.files.remove(from) else {
            return false;
        };
        self.files.insert(to.to_owned(), file);
        true
    }

    /// True when names and contents are the same.
    pub fn same_as(&self, other: &SimImage) -> bool {
        self.names() == other.names() && self.files.keys().all(|n| self.read(n) == other.read(n))
    }
}
