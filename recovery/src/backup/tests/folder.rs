//! A folder in memory that dies after a chosen operation and forgets what was not synced.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use crate::backup::folder::{Folder, ReadFile, WriteFile};

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Neither names nor content.
    Nothing,
    /// Names, but not their content.
    Names,
    /// All of it.
    All,
}

pub(crate) const CUTS: [Cut; 3] = [Cut::Nothing, Cut::Names, Cut::All];

#[derive(Default)]
struct Inode {
    content: Vec<u8>,
    synced: usize,
}

#[derive(Default)]
struct Inner {
    inodes: RefCell<Vec<Inode>>,
    names: RefCell<BTreeMap<String, usize>>,
    durable: RefCell<BTreeMap<String, usize>>,
    ops: Cell<u64>,
    dies_at: Cell<Option<u64>>,
}

#[derive(Clone, Default)]
pub(crate) struct MemFolder(Rc<Inner>);

impl MemFolder {
    /// The process dies with this operation: it is done or not, and every later one fails.
    pub(crate) fn die_at(&self, op: u64) {
        self.0.dies_at.set(Some(op));
    }

    pub(crate) fn live(&self) {
        self.0.dies_at.set(None);
    }

    pub(crate) fn ops(&self) -> u64 {
        self.0.ops.get()
    }

    fn step(&self) -> io::Result<()> {
        let op = self.0.ops.get();
        self.0.ops.set(op + 1);
        match self.0.dies_at.get() {
            Some(at) if op > at => Err(io::Error::other("dead")),
            _ => Ok(()),
        }
    }

    /// The folder after a power cut, with nobody dying.
    pub(crate) fn after(&self, cut: Cut) -> MemFolder {
        let inodes = self.0.inodes.borrow();
        let names = match cut {
            Cut::Nothing => self.0.durable.borrow().clone(),
            Cut::Names | Cut::All => self.0.names.borrow().clone(),
        };
        let left = MemFolder::default();
        for (name, inode) in names {
            let inode = &inodes[inode];
            let kept = match cut {
                Cut::All => inode.content.len(),
                _ => inode.synced,
            };
            left.put(&name, &inode.content[..kept]);
        }
        left
    }

    /// Puts a file there, durably.
    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        let mut inodes = self.0.inodes.borrow_mut();
        inodes.push(Inode {
            content: content.to_vec(),
            synced: content.len(),
        });
        let at = inodes.len() - 1;
        self.0.names.borrow_mut().insert(path.into(), at);
        self.0.durable.borrow_mut().insert(path.into(), at);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Vec<u8>> {
        let at = *self.0.names.borrow().get(path)?;
        Some(self.0.inodes.borrow()[at].content.clone())
    }

    pub(crate) fn delete(&self, path: &str) {
        self.0.names.borrow_mut().remove(path);
        self.0.durable.borrow_mut().remove(path);
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.0.names.borrow().keys().cloned().collect()
    }

    pub(crate) fn flip(&self, path: &str, at: usize) {
        let mut content = self.get(path).unwrap();
        content[at] ^= 0x40;
        self.put(path, &content);
    }
}

struct MemFile(MemFolder, usize);

impl ReadFile for MemFile {
    fn read_at(&mut self, pos: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.step()?;
        let inodes = self.0.0.inodes.borrow();
        let rest = inodes[self.1].content.get(pos as usize..).unwrap_or(&[]);
        let got = rest.len().min(out.len());
        out[..got].copy_from_slice(&rest[..got]);
        Ok(got)
    }
}

impl WriteFile for MemFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.step()?;
        let mut inodes = self.0.0.inodes.borrow_mut();
        inodes[self.1].content.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.step()?;
        let mut inodes = self.0.0.inodes.borrow_mut();
        let inode = &mut inodes[self.1];
        inode.synced = inode.content.len();
        Ok(())
    }
}

fn dir_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl Folder for MemFolder {
    fn list(&self, dir: &str) -> io::Result<Vec<(String, u64)>> {
        self.step()?;
        let (names, inodes) = (self.0.names.borrow(), self.0.inodes.borrow());
        let here = names.iter().filter(|(path, _)| dir_of(path) == dir);
        let found = here.map(|(path, at)| {
            let name = path.rsplit('/').next().unwrap().to_string();
            (name, inodes[*at].content.len() as u64)
        });
        Ok(found.collect())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        self.step()?;
        let at = self.0.names.borrow().get(path).copied();
        let at = at.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemFile(self.clone(), at)))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        self.step()?;
        let mut inodes = self.0.inodes.borrow_mut();
        inodes.push(Inode::default());
        let at = inodes.len() - 1;
        self.0.names.borrow_mut().insert(path.into(), at);
        Ok(Box::new(MemFile(self.clone(), at)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step()?;
        let mut names = self.0.names.borrow_mut();
        let at = names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.insert(to.into(), at);
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.step()?;
        let gone = self.0.names.borrow_mut().remove(path);
        gone.map(|_| ())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn make_dir(&self, _: &str) -> io::Result<()> {
        self.step()
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.step()?;
        let mut durable = self.0.durable.borrow_mut();
        durable.retain(|path, _| dir_of(path) != dir);
        let names = self.0.names.borrow();
        let here = names.iter().filter(|(path, _)| dir_of(path) == dir);
        durable.extend(here.map(|(path, at)| (path.clone(), *at)));
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}
