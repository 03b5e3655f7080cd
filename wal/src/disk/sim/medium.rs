//! The medium: files, what of them is stable, and what waits for a flush.
//!
//! Pure data, copy on write by 4 KiB pages, so that a snapshot is cheap. Stamps order everything
//! that happened to the medium. Invariant: `cur` = `stable` + every completed pending write, save
//! for sectors that a failed sync lost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::fault::{Fate, SECTOR_BYTES};
use crate::disk::BLOCK_BYTES;
use crate::sim::SimRng;

const PAGE: u64 = BLOCK_BYTES as u64;

pub(super) type Ino = u32;
type Page = [u8; BLOCK_BYTES];

/// File content: absent pages are zeros.
#[derive(Clone, Default)]
pub(super) struct Pages {
    pages: Vec<Option<Rc<Page>>>,
    pub(super) len: u64,
}

impl Pages {
    pub(super) fn read(&self, pos: u64, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let here = pos + at as u64;
            let (page, within) = ((here / PAGE) as usize, (here % PAGE) as usize);
            let take = (BLOCK_BYTES - within).min(out.len() - at);
            match self.pages.get(page).and_then(Option::as_ref) {
                Some(p) => out[at..at + take].copy_from_slice(&p[within..within + take]),
                None => out[at..at + take].fill(0),
            }
            at += take;
        }
    }

    /// Writes without moving the length.
    pub(super) fn write(&mut self, pos: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let here = pos + at as u64;
            let (page, within) = ((here / PAGE) as usize, (here % PAGE) as usize);
            let take = (BLOCK_BYTES - within).min(data.len() - at);
            if self.pages.len() <= page {
                self.pages.resize(page + 1, None);
            }
            let slot = self.pages[page].get_or_insert_with(|| Rc::new([0; BLOCK_BYTES]));
            Rc::make_mut(slot)[within..within + take].copy_from_slice(&data[at..at + take]);
            at += take;
        }
    }

    /// Takes over a whole page without a copy.
    fn share(&mut self, pos: u64, page: &Rc<Page>) {
        let index = (pos / PAGE) as usize;
        if self.pages.len() <= index {
            self.pages.resize(index + 1, None);
        }
        self.pages[index] = Some(Rc::clone(page));
    }

    fn copy_sector(&mut self, from: &Pages, pos: u64) {
        let mut sector = [0; SECTOR_BYTES as usize];
        from.read(pos, &mut sector);
        self.write(pos, &sector);
    }

    pub(super) fn cut(&mut self, len: u64) {
        self.len = len;
        self.pages.truncate(len.div_ceil(PAGE) as usize);
        let within = (len % PAGE) as usize;
        if within > 0
            && let Some(Some(page)) = self.pages.get_mut((len / PAGE) as usize)
        {
            Rc::make_mut(page)[within..].fill(0);
        }
    }
}

/// A write that is not known to be on the medium.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) pos: u64,
    pub(super) bytes: u64,
    pages: Rc<[Rc<Page>]>,
    /// Parts that are no longer pending: lost, or overwritten by something stable.
    holes: Vec<Range<u64>>,
    pub(super) issued: u64,
    pub(super) completed: Option<u64>,
    /// A sync of the file failed while this was in flight: no later sync covers it.
    doomed: bool,
}

impl Pending {
    pub(super) fn end(&self) -> u64 {
        self.pos + self.bytes
    }

    /// Where it stands among everything unflushed: by completion, then what is in flight.
    pub(super) fn order(&self) -> (u64, u64) {
        (self.completed.unwrap_or(u64::MAX), self.issued)
    }

    /// The starts of its sectors (or blocks) that are still pending.
    pub(super) fn units(&self, unit: u64) -> impl Iterator<Item = u64> + '_ {
        let first = self.pos / unit * unit;
        (first..self.end())
            .step_by(unit as usize)
            .filter(move |at| {
                let (start, end) = ((*at).max(self.pos), (at + unit).min(self.end()));
                !self.holes.iter().any(|h| h.start <= start && end <= h.end)
            })
    }

    fn dig(&mut self, hole: Range<u64>) {
        match self.holes.last_mut() {
            Some(last) if last.end == hole.start => last.end = hole.end,
            _ => self.holes.push(hole),
        }
    }

    /// Applies the part of it that lies in `range`, holes left out.
    pub(super) fn apply(&self, to: &mut Pages, range: Range<u64>) {
        let (start, end) = (range.start.max(self.pos), range.end.min(self.end()));
        let mut at = start;
        while at < end {
            let page = &self.pages[((at - self.pos) / PAGE) as usize];
            let whole = (at - self.pos).is_multiple_of(PAGE) && at + PAGE <= end;
            let page_end = (at - self.pos) / PAGE * PAGE + PAGE + self.pos;
            if whole && self.holes.is_empty() && at.is_multiple_of(PAGE) {
                to.share(at, page);
                at += PAGE;
                continue;
            }
            let stop = page_end.min(end);
            while at < stop {
                let next = (at / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES).min(stop);
                if !self.holes.iter().any(|h| h.start <= at && next <= h.end) {
                    let within = ((at - self.pos) % PAGE) as usize;
                    to.write(at, &page[within..within + (next - at) as usize]);
                }
                at = next;
            }
        }
    }
}

/// One file.
#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) cur: Pages,
    pub(super) stable: Pages,
    pub(super) pending: Vec<Pending>,
    /// The next write or sync reports EIO.
    pub(super) late_error: bool,
}

/// A change of names: entries taken out and put in, together or not at all.
#[derive(Clone)]
pub(super) struct NameOp {
    pub(super) stamp: u64,
    pub(super) take: Option<Rc<str>>,
    pub(super) put: Option<(Rc<str>, Ino)>,
}

impl NameOp {
    pub(super) fn apply(&self, names: &mut BTreeMap<Rc<str>, Ino>) {
        if let Some(name) = &self.take {
            names.remove(name);
        }
        if let Some((name, ino)) = &self.put {
            names.insert(Rc::clone(name), *ino);
        }
    }
}

/// What a sync will have covered once it completes.
pub(super) struct Covered {
    pub(super) upto: u64,
    pub(super) len: u64,
}

#[derive(Clone, Default)]
pub(super) struct Medium {
    pub(super) inodes: Vec<Inode>,
    pub(super) names: BTreeMap<Rc<str>, Ino>,
    pub(super) stable_names: BTreeMap<Rc<str>, Ino>,
    pub(super) name_ops: Vec<NameOp>,
    stamp: u64,
}

impl Medium {
    pub(super) fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    pub(super) fn inode(&mut self, ino: Ino) -> &mut Inode {
        &mut self.inodes[ino as usize]
    }

    /// Bytes taken by the files that have a name.
    pub(super) fn used_bytes(&self) -> u64 {
        let of = |ino: &Ino| self.inodes[*ino as usize].cur.len.next_multiple_of(PAGE);
        self.names.values().map(of).sum()
    }

    pub(super) fn create(&mut self, name: &str) -> Ino {
        let ino = self.inodes.len() as Ino;
        self.inodes.push(Inode::default());
        self.change_names(None, Some((Rc::from(name), ino)));
        ino
    }

    pub(super) fn change_names(&mut self, take: Option<Rc<str>>, put: Option<(Rc<str>, Ino)>) {
        let op = NameOp {
            stamp: self.stamp(),
            take,
            put,
        };
        op.apply(&mut self.names);
        self.name_ops.push(op);
    }

    /// Makes name changes up to `upto` stable.
    pub(super) fn sync_names(&mut self, upto: u64) {
        let split = self.name_ops.partition_point(|op| op.stamp <= upto);
        for op in self.name_ops.drain(..split) {
            op.apply(&mut self.stable_names);
        }
    }

    /// A write enters the medium's reach. Answers its id and whether it lies over another one in
    /// flight.
    pub(super) fn issue_write(&mut self, ino: Ino, pos: u64, data: &[u8]) -> (u64, bool) {
        let stamp = self.stamp();
        let page = |c: &[u8]| {
            let mut page = [0; BLOCK_BYTES];
            page[..c.len()].copy_from_slice(c);
            Rc::new(page)
        };
        let pages = data.chunks(BLOCK_BYTES).map(page).collect();
        let bytes = data.len() as u64;
        let pending = &mut self.inode(ino).pending;
        let in_flight = |p: &Pending| p.completed.is_none() && p.pos < pos + bytes && pos < p.end();
        let overlaps = pending.iter().any(in_flight);
        pending.push(Pending {
            id: stamp,
            pos,
            bytes,
            pages,
            holes: Vec::new(),
            issued: stamp,
            completed: None,
            doomed: false,
        });
        (stamp, overlaps)
    }

    /// A write completes with `landed` bytes, of which a failure lost some by `fate`. Answers the
    /// number of sectors lost. `durable`: it was a synced write.
    pub(super) fn complete_write(
        &mut self,
        ino: Ino,
        id: u64,
        landed: u64,
        fate: Option<Fate>,
        durable: bool,
        rng: &mut SimRng,
    ) -> u64 {
        let stamp = self.stamp();
        let inode = self.inode(ino);
        let Some(at) = inode.pending.iter().position(|p| p.id == id) else {
            return 0;
        };
        let write = &mut inode.pending[at];
        write.bytes = landed;
        write.completed = Some(stamp);
        let mut lost = 0;
        if let Some(fate) = fate {
            lost = drop_units(write, fate, rng);
        }
        let whole = write.pos..write.end();
        if landed == 0 || write.units(SECTOR_BYTES).next().is_none() {
            inode.pending.remove(at);
            return lost;
        }
        let write = inode.pending[at].clone();
        write.apply(&mut inode.cur, whole.clone());
        inode.cur.len = inode.cur.len.max(write.end());
        if write.doomed {
            lost += inode.settle(at, Fate::Drawn, rng);
        } else if durable {
            inode.pending.remove(at);
            write.apply(&mut inode.stable, whole.clone());
            inode.stable.len = inode.stable.len.max(write.end());
            inode.supersede(&write, whole);
        }
        lost
    }

    /// What a sync issued now covers.
    pub(super) fn issue_sync(&mut self, ino: Ino) -> Covered {
        let upto = self.stamp();
        Covered {
            upto,
            len: self.inode(ino).cur.len,
        }
    }

    /// A sync succeeds.
    pub(super) fn complete_sync(&mut self, ino: Ino, covered: &Covered) {
        let inode = self.inode(ino);
        let mut order: Vec<usize> = (0..inode.pending.len()).collect();
        order.retain(|i| {
            inode.pending[*i]
                .completed
                .is_some_and(|at| at <= covered.upto)
        });
        order.sort_by_key(|i| inode.pending[*i].order());
        for i in &order {
            let write = &inode.pending[*i];
            write.apply(&mut inode.stable, write.pos..write.end());
        }
        inode.stable.len = inode.stable.len.max(covered.len);
        inode
            .pending
            .retain(|p| p.completed.is_none_or(|at| at > covered.upto));
    }

    /// A sync fails: every unflushed sector of the file is settled now, and what is in flight
    /// when it completes. Answers the number of sectors lost.
    pub(super) fn fail_sync(&mut self, ino: Ino, fate: Fate, rng: &mut SimRng) -> u64 {
        let inode = self.inode(ino);
        let mut lost = 0;
        inode.pending.sort_by_key(Pending::order);
        let mut at = 0;
        while at < inode.pending.len() {
            if inode.pending[at].completed.is_some() {
                lost += inode.settle(at, fate, rng);
            } else {
                inode.pending[at].doomed = true;
                at += 1;
            }
        }
        let grown = inode.cur.len > inode.stable.len;
        if grown && (fate == Fate::Kept || fate == Fate::Drawn && rng.coin()) {
            inode.stable.len = inode.cur.len;
        }
        lost
    }
}

/// Digs holes for the sectors that `fate` loses; answers how many.
fn drop_units(write: &mut Pending, fate: Fate, rng: &mut SimRng) -> u64 {
    let units: Vec<u64> = write.units(SECTOR_BYTES).collect();
    let mut lost = 0;
    for at in units {
        let gone = match fate {
            Fate::Lost => true,
            Fate::Kept => false,
            Fate::Drawn => rng.coin(),
        };
        if gone {
            write.dig(at..at + SECTOR_BYTES);
            lost += 1;
        }
    }
    lost
}

impl Inode {
    /// Settles one pending write for good: kept sectors become stable, lost ones are gone. What
    /// reads see of lost sectors afterwards is drawn: new bytes (a cache) or old ones.
    fn settle(&mut self, at: usize, fate: Fate, rng: &mut SimRng) -> u64 {
        let mut write = self.pending.remove(at);
        let before: Vec<u64> = write.units(SECTOR_BYTES).collect();
        let lost = drop_units(&mut write, fate, rng);
        write.apply(&mut self.stable, write.pos..write.end());
        if lost > 0 && rng.coin() {
            write.apply(&mut self.cur, write.pos..write.end());
            let kept: std::collections::BTreeSet<u64> = write.units(SECTOR_BYTES).collect();
            for sector in before.into_iter().filter(|s| !kept.contains(s)) {
                self.cur.copy_sector(&self.stable, sector);
            }
        }
        lost
    }

    /// Completed pending writes lose what a later stable write covers.
    fn supersede(&mut self, newer: &Pending, range: Range<u64>) {
        for older in &mut self.pending {
            let overlap = older.pos < range.end && range.start < older.end();
            if overlap && older.completed.is_some_and(|at| Some(at) < newer.completed) {
                older.dig(range.start.max(older.pos)..range.end.min(older.end()));
            }
        }
        self.pending
            .retain(|p| p.units(SECTOR_BYTES).next().is_some());
    }
}
