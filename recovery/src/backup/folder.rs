//! The seam to where backups lie: a few operations on files below one prefix.
//!
//! Paths are relative to the prefix, with `/`. A name is durable only after [`Folder::sync_dir`]
//! of its directory, content only after [`WriteFile::sync`]. Sides: [`LocalFolder`], and in tests
//! one that loses what was not synced. Blocking; runs on a side thread or offline, never on a
//! reactor core.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is read.
pub trait ReadFile {
    /// Reads at `pos`; short only at the end.
    fn read_at(&mut self, pos: u64, out: &mut [u8]) -> io::Result<usize>;
}

/// A file that is written, from its start on.
pub trait WriteFile {
    /// Appends.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// What was written is on the medium.
    fn sync(&mut self) -> io::Result<()>;
}

/// Files below one prefix.
pub trait Folder {
    /// The files of a directory and their lengths, in no order; none when it is absent.
    fn list(&self, dir: &str) -> io::Result<Vec<(String, u64)>>;
    /// Opens a file.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>>;
    /// Creates a file, empty, or empties it.
    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>>;
    /// Renames, replacing the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Creates a directory where there is none.
    fn make_dir(&self, dir: &str) -> io::Result<()>;
    /// The names of a directory are on the medium. The prefix itself: `""`.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// For people.
    fn describe(&self) -> String;
}

/// Reads a small file whole; one larger than `bytes_max` is an error.
pub fn read_small(folder: &dyn Folder, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut file = folder.open(path)?;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let got = file.read_at(bytes.len() as u64, &mut buffer)?;
        if got == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&buffer[..got]);
        if bytes.len() > bytes_max {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
    }
}

/// A directory of this host, or one mounted into it.
#[derive(Clone, Debug)]
pub struct LocalFolder {
    root: PathBuf,
}

impl LocalFolder {
    /// The prefix `node` below `root`. Creates nothing.
    pub fn new(root: &Path, node: &str) -> LocalFolder {
        LocalFolder {
            root: root.join(node),
        }
    }

    /// The prefixes below `root` that hold an owner row.
    pub fn nodes(root: &Path) -> io::Result<Vec<String>> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.path().join(super::layout::OWNER).is_file() {
                nodes.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        nodes.sort();
        Ok(nodes)
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        }
    }
}

struct LocalFile(File);

impl ReadFile for LocalFile {
    fn read_at(&mut self, pos: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.0.read_at(&mut out[filled..], pos + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl WriteFile for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl Folder for LocalFolder {
    fn list(&self, dir: &str) -> io::Result<Vec<(String, u64)>> {
        let entries = match fs::read_dir(self.at(dir)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.push((name, metadata.len()));
            }
        }
        Ok(found)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(LocalFile(File::open(self.at(path))?)))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        Ok(Box::new(LocalFile(options.open(self.at(path))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let path = self.at(dir);
        if path.is_dir() {
            return Ok(());
        }
        let mut builder = DirBuilder::new();
        builder
            .recursive(dir.is_empty())
            .mode(0o700)
            .create(&path)?;
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        File::open(self.at(dir))?.sync_all()
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}
