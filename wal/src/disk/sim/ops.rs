//! The operations of a simulated disk: what each does to the medium when it completes.
//!
//! Runs in tests and drills only.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;

use super::device::{FlushEdge, SimBuf, SimDisk, SimFile, Ticket, errno};
use super::fault::{Fate, Fault, OpKind};
use super::medium::{Covered, Ino, Medium};
use crate::disk::{BLOCK_BYTES, DirEntry, Disk, IO_BYTES_MAX, Space};

impl SimDisk {
    /// Bytes of a write that may land: all, fewer when the space ends, an error when none.
    fn fits(&self, ino: Ino, pos: u64, bytes: u64) -> io::Result<u64> {
        let medium = self.0.medium.borrow();
        let len = medium.inodes[ino as usize]
            .cur
            .len
            .next_multiple_of(BLOCK_BYTES as u64);
        let grows = (pos + bytes).saturating_sub(len);
        let free = self
            .0
            .capacity_bytes
            .get()
            .saturating_sub(medium.used_bytes());
        if grows <= free {
            return Ok(bytes);
        }
        let landed = bytes.saturating_sub(grows - free) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        drop(medium);
        self.0.count(|c| c.enospc += 1);
        if landed == 0 {
            Err(errno(libc::ENOSPC))
        } else {
            Ok(landed)
        }
    }

    fn finish_write(
        &self,
        file: &SimFile,
        id: u64,
        pos: u64,
        bytes: u64,
        t: &Ticket,
    ) -> io::Result<u64> {
        let shared = &self.0;
        if shared.in_flight.borrow().iter().any(|other| *other < t.op) {
            shared.count(|c| c.reordered += 1);
        }
        let ino = file.0.ino;
        let late = std::mem::take(&mut shared.medium.borrow_mut().inode(ino).late_error);
        let (landed, fate, error) = match t.fault {
            Some(Fault::Error(code, fate)) => (bytes, Some(fate), Some(code)),
            _ if late => (bytes, Some(Fate::Drawn), Some(libc::EIO)),
            Some(Fault::Short(at)) => {
                let last = (bytes - 1) / 512 * 512;
                (last.min(u64::from(at) / 512 * 512), None, None)
            }
            _ => match self.fits(ino, pos, bytes) {
                Ok(landed) => (landed, None, None),
                Err(_) => (0, None, Some(libc::ENOSPC)),
            },
        };
        let durable = file.0.dsync;
        if durable {
            self.edge(FlushEdge::Before);
        }
        let lost = {
            let mut rng = shared.fate_rng.borrow_mut();
            let mut medium = shared.medium.borrow_mut();
            medium.complete_write(ino, id, landed, fate, durable && error.is_none(), &mut rng)
        };
        shared.count(|c| c.sectors_lost += lost);
        if durable {
            self.edge(FlushEdge::After);
            file.0
                .sync_failed
                .set(file.0.sync_failed.get() || error.is_some());
        }
        match error {
            Some(code) => Err(errno(code)),
            None => Ok(landed),
        }
    }

    fn finish_sync(&self, file: &SimFile, covered: &Covered, t: &Ticket) -> io::Result<()> {
        let shared = &self.0;
        let ino = file.0.ino;
        let late = std::mem::take(&mut shared.medium.borrow_mut().inode(ino).late_error);
        let (fails, error) = match t.fault {
            Some(Fault::Error(code, fate)) => (Some(fate), Some(code)),
            _ if late => (Some(Fate::Drawn), Some(libc::EIO)),
            Some(Fault::Lie) => return Ok(()),
            Some(Fault::Late(Fate::Kept)) => (None, None),
            Some(Fault::Late(fate)) => (Some(fate), None),
            _ => (None, None),
        };
        self.edge(FlushEdge::Before);
        match fails {
            None => shared.medium.borrow_mut().complete_sync(ino, covered),
            Some(fate) => {
                let mut rng = shared.fate_rng.borrow_mut();
                let lost = shared.medium.borrow_mut().fail_sync(ino, fate, &mut rng);
                shared.count(|c| c.sectors_lost += lost);
            }
        }
        if matches!(t.fault, Some(Fault::Late(_))) && error.is_none() {
            shared.medium.borrow_mut().inode(ino).late_error = true;
        }
        self.edge(FlushEdge::After);
        match error {
            Some(code) => {
                file.0.sync_failed.set(true);
                Err(errno(code))
            }
            None => Ok(()),
        }
    }

    async fn name_op<T: 'static>(
        &self,
        kind: OpKind,
        name: &str,
        change: impl FnOnce(&SimDisk, &mut Medium) -> io::Result<T> + 'static,
    ) -> io::Result<T> {
        let effect = move |disk: &SimDisk, t: &Ticket| {
            if let Some(Fault::Error(code, _)) = t.fault {
                return Err(errno(code));
            }
            let mut medium = disk.0.medium.borrow_mut();
            change(disk, &mut medium).map(|value| (0, value))
        };
        self.run(kind, (Rc::from(name), 0, 0), |_| {}, effect).await
    }

    fn find(medium: &Medium, name: &str) -> io::Result<Ino> {
        medium
            .names
            .get(name)
            .copied()
            .ok_or_else(|| errno(libc::ENOENT))
    }
}

fn check_aligned(pos: u64, bytes: usize) -> io::Result<()> {
    let aligned = pos.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES);
    if aligned && bytes > 0 && bytes <= IO_BYTES_MAX {
        Ok(())
    } else {
        Err(errno(libc::EINVAL))
    }
}

impl Disk for SimDisk {
    type File = SimFile;
    type Buf = SimBuf;

    fn alloc(&self, bytes: usize) -> SimBuf {
        // Not zeros: what is left in a buffer must not look like padding by chance.
        SimBuf(vec![0xa5; bytes.next_multiple_of(BLOCK_BYTES)])
    }

    async fn list(&self) -> io::Result<Vec<DirEntry>> {
        self.name_op(OpKind::List, "", |_, medium| {
            let entry = |(name, ino): (&Rc<str>, &Ino)| DirEntry {
                name: name.to_string(),
                bytes: medium.inodes[*ino as usize].cur.len,
            };
            Ok(medium.names.iter().map(entry).collect())
        })
        .await
    }

    async fn open(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let found = self
            .name_op(OpKind::Open, name, move |_, m| SimDisk::find(m, &key))
            .await;
        found.map(|ino| self.handle(ino, name, false))
    }

    async fn create(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let made = self.name_op(OpKind::Create, name, move |_, medium| {
            if medium.names.contains_key(key.as_str()) {
                return Err(errno(libc::EEXIST));
            }
            Ok(medium.create(&key))
        });
        made.await.map(|ino| self.handle(ino, name, false))
    }

    async fn len(&self, file: &SimFile) -> io::Result<u64> {
        let ino = file.0.ino;
        self.name_op(OpKind::Len, &file.0.name, move |_, m| {
            Ok(m.inode(ino).cur.len)
        })
        .await
    }

    async fn write_at(&self, file: &SimFile, buf: Rc<SimBuf>, pos: u64) -> io::Result<usize> {
        let bytes = buf.0.len();
        check_aligned(pos, bytes)?;
        if file.0.sync_failed.get() {
            self.0.count(|c| c.writes_after_failure += 1);
        }
        let id = Rc::new(Cell::new(0));
        let issue = {
            let (disk, id, ino) = (self.clone(), Rc::clone(&id), file.0.ino);
            move |medium: &mut Medium| {
                let (stamp, overlaps) = medium.issue_write(ino, pos, &buf.0);
                id.set(stamp);
                disk.0
                    .count(|c| c.overlapping_writes += u64::from(overlaps));
            }
        };
        let target = file.clone();
        let effect = move |disk: &SimDisk, t: &Ticket| {
            let landed = disk.finish_write(&target, id.get(), pos, bytes as u64, t)?;
            Ok((landed, landed as usize))
        };
        self.run(
            OpKind::Write,
            (Rc::clone(&file.0.name), pos, bytes),
            issue,
            effect,
        )
        .await
    }

    async fn read_at(&self, file: &SimFile, pos: u64, bytes: usize) -> io::Result<(SimBuf, usize)> {
        check_aligned(pos, bytes)?;
        let ino = file.0.ino;
        let mut buf = self.alloc(bytes);
        let effect = move |disk: &SimDisk, t: &Ticket| {
            if let Some(Fault::Error(code, _)) = t.fault {
                return Err(errno(code));
            }
            let medium = disk.0.medium.borrow();
            let cur = &medium.inodes[ino as usize].cur;
            let filled = cur.len.saturating_sub(pos).min(bytes as u64) as usize;
            cur.read(pos, &mut buf.0[..filled]);
            if let Some(Fault::FlipRead(bit)) = t.fault
                && filled > 0
            {
                let bit = bit as usize % (filled * 8);
                buf.0[bit / 8] ^= 1 << (bit % 8);
            }
            Ok((filled as u64, (buf, filled)))
        };
        self.run(
            OpKind::Read,
            (Rc::clone(&file.0.name), pos, bytes),
            |_| {},
            effect,
        )
        .await
    }

    async fn sync_data(&self, file: &SimFile) -> io::Result<()> {
        if file.0.sync_failed.get() {
            self.0.count(|c| c.syncs_after_failure += 1);
        }
        let covered = Rc::new(Cell::new(None));
        let issue = {
            let (covered, ino) = (Rc::clone(&covered), file.0.ino);
            move |medium: &mut Medium| covered.set(Some(medium.issue_sync(ino)))
        };
        let target = file.clone();
        let effect = move |disk: &SimDisk, t: &Ticket| {
            let covered = covered.take().ok_or_else(|| errno(libc::EIO))?;
            disk.finish_sync(&target, &covered, t).map(|()| (0, ()))
        };
        self.run(
            OpKind::SyncData,
            (Rc::clone(&file.0.name), 0, 0),
            issue,
            effect,
        )
        .await
    }

    async fn reopen_dsync(&self, name: &str) -> io::Result<SimFile> {
        let key = name.to_owned();
        let found = self
            .name_op(OpKind::ReopenDsync, name, move |_, m| {
                SimDisk::find(m, &key)
            })
            .await;
        found.map(|ino| self.handle(ino, name, true))
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (old, new) = (from.to_owned(), to.to_owned());
        self.name_op(OpKind::Rename, from, move |_, medium| {
            let ino = SimDisk::find(medium, &old)?;
            medium.change_names(Some(Rc::from(old)), Some((Rc::from(new), ino)));
            Ok(())
        })
        .await
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        let key = name.to_owned();
        self.name_op(OpKind::Remove, name, move |_, medium| {
            SimDisk::find(medium, &key)?;
            medium.change_names(Some(Rc::from(key)), None);
            Ok(())
        })
        .await
    }

    async fn sync_dir(&self) -> io::Result<()> {
        let upto = Rc::new(Cell::new(0));
        let issue = {
            let upto = Rc::clone(&upto);
            move |medium: &mut Medium| upto.set(medium.stamp())
        };
        let effect = move |disk: &SimDisk, t: &Ticket| {
            match t.fault {
                // NOTE: a failed directory sync leaves the names as they were: lost or kept
                // at the cut, each by itself.
                Some(Fault::Error(code, _)) => return Err(errno(code)),
                Some(Fault::Lie) => return Ok((0, ())),
                _ => {}
            }
            disk.edge(FlushEdge::Before);
            disk.0.medium.borrow_mut().sync_names(upto.get());
            disk.edge(FlushEdge::After);
            Ok((0, ()))
        };
        self.run(OpKind::SyncDir, (Rc::from(""), 0, 0), issue, effect)
            .await
    }

    async fn space(&self) -> io::Result<Space> {
        self.name_op(OpKind::Space, "", |disk, medium| {
            let total_bytes = disk.0.capacity_bytes.get();
            Ok(Space {
                free_bytes: total_bytes.saturating_sub(medium.used_bytes()),
                total_bytes,
            })
        })
        .await
    }

    fn close(&self, file: SimFile) -> impl Future<Output = ()> {
        file.0.closed.set(true);
        drop(file);
        std::future::ready(())
    }
}
