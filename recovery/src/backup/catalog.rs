//! Reading what a prefix holds: the manifests, and whether their objects are what was sent.
//!
//! Reads only. Blocking; side thread or offline.

use std::io;

use aws_lc_rs::digest;
use thiserror::Error;

use super::folder::{Folder, read_small};
use super::layout::{self, MANIFEST_BYTES_MAX, MANIFESTS, PIECE_BYTES};
use super::manifest::{Manifest, ManifestError, Part, SigningKey, hex};

/// Why a backup cannot be used.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// There is none.
    #[error("no_backup: {prefix}: {what}")]
    None {
        /// Where.
        prefix: String,
        /// What is there instead.
        what: String,
    },
    /// Its manifest is not believed.
    #[error("{}: backup {number}: {source}", source.word())]
    Manifest {
        /// The backup.
        number: u64,
        /// Why.
        source: ManifestError,
    },
    /// It is another node's.
    #[error("foreign_backup: backup {number} is of node {theirs}, and this is node {ours}")]
    Foreign {
        /// The backup.
        number: u64,
        /// Its node.
        theirs: String,
        /// This node.
        ours: String,
    },
    /// An object is not what was sent.
    #[error(
        "damaged_backup: {object}: {what}. Remove it, and the next backup sends it again if the store still has it"
    )]
    Damaged {
        /// The object.
        object: String,
        /// What is wrong.
        what: String,
    },
    /// It cannot be read.
    #[error("reading {path}: {source}")]
    Io {
        /// What.
        path: String,
        /// The error.
        source: io::Error,
    },
}

impl CatalogError {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            CatalogError::None { .. } => "no_backup",
            CatalogError::Manifest { source, .. } => source.word(),
            CatalogError::Foreign { .. } => "foreign_backup",
            CatalogError::Damaged { .. } => "damaged_backup",
            CatalogError::Io { .. } => "io",
        }
    }
}

/// How far a long read is: bytes done, of bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A backup of a prefix, good or not.
#[derive(Debug)]
pub struct Listed {
    /// Its number.
    pub number: u64,
    /// The manifest, when its signature fits.
    pub manifest: Result<Manifest, CatalogError>,
}

/// The numbers of the manifests, newest first.
pub(super) fn numbers(folder: &dyn Folder) -> io::Result<Vec<u64>> {
    let listed = folder.list(MANIFESTS)?;
    let mut numbers: Vec<u64> = listed
        .iter()
        .filter_map(|(name, _)| layout::manifest_number(name))
        .collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

pub(super) fn bytes(folder: &dyn Folder, number: u64) -> io::Result<Vec<u8>> {
    read_small(folder, &layout::manifest_path(number), MANIFEST_BYTES_MAX)
}

/// One manifest, whose signature fits and whose number is its own.
pub fn read(folder: &dyn Folder, key: &SigningKey, number: u64) -> Result<Manifest, CatalogError> {
    let bytes = bytes(folder, number).map_err(|source| CatalogError::Io {
        path: layout::manifest_path(number),
        source,
    })?;
    let manifest = Manifest::verify(&bytes, key);
    let manifest = manifest.map_err(|source| CatalogError::Manifest { number, source })?;
    if manifest.number != number {
        // An older one under a newer name.
        return Err(CatalogError::Manifest {
            number,
            source: ManifestError::Malformed(format!(
                "it says that it is backup {}",
                manifest.number
            )),
        });
    }
    Ok(manifest)
}

/// Every backup, newest first.
pub fn list(folder: &dyn Folder, key: &SigningKey) -> Result<Vec<Listed>, CatalogError> {
    let numbers = numbers(folder).map_err(|source| CatalogError::Io {
        path: MANIFESTS.into(),
        source,
    })?;
    let listed = numbers.into_iter().map(|number| Listed {
        number,
        manifest: read(folder, key, number),
    });
    Ok(listed.collect())
}

/// The backup asked for, or the newest one: which is refused when it is damaged, not passed over.
pub fn pick(
    folder: &dyn Folder,
    key: &SigningKey,
    asked: Option<u64>,
) -> Result<Manifest, CatalogError> {
    let found = numbers(folder).map_err(|source| CatalogError::Io {
        path: MANIFESTS.into(),
        source,
    })?;
    let none = |what: String| CatalogError::None {
        prefix: folder.describe(),
        what,
    };
    match asked {
        Some(number) if !found.contains(&number) => Err(none(format!(
            "there is no backup {number}; there are {found:?}"
        ))),
        Some(number) => read(folder, key, number),
        None => match found.first() {
            Some(newest) => read(folder, key, *newest),
            None => Err(none("there is no manifest".into())),
        },
    }
}

/// Reads every object of a backup and compares lengths and hashes.
pub fn check_objects(
    folder: &dyn Folder,
    manifest: &Manifest,
    progress: Progress<'_>,
) -> Result<(), CatalogError> {
    let (mut done, of) = (0, manifest.bytes());
    for part in manifest.parts() {
        stream(folder, part, &mut |bytes| {
            done += bytes.len() as u64;
            progress(done, of);
            Ok(())
        })?;
    }
    Ok(())
}

/// Reads an object to its end, piece by piece. An error when it is not what was sent, which shows
/// only at its end.
pub fn stream(
    folder: &dyn Folder,
    part: &Part,
    take: &mut dyn FnMut(&[u8]) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let damaged = |what: String| CatalogError::Damaged {
        object: part.object.clone(),
        what,
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => damaged("it is absent".into()),
        _ => CatalogError::Io {
            path: part.object.clone(),
            source,
        },
    };
    let mut file = folder.open(&part.object).map_err(failed)?;
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; PIECE_BYTES];
    let mut pos = 0;
    loop {
        let got = file.read_at(pos, &mut buffer).map_err(failed)?;
        if got == 0 {
            break;
        }
        pos += got as u64;
        if pos > part.bytes {
            break;
        }
        hash.update(&buffer[..got]);
        take(&buffer[..got])?;
    }
    if pos != part.bytes {
        return Err(damaged(format!(
            "it has not the {} bytes that were sent",
            part.bytes
        )));
    }
    let found = hex(hash.finish().as_ref());
    if found != part.sha256 {
        return Err(damaged(format!(
            "its hash is {found}, and {} was sent",
            part.sha256
        )));
    }
    Ok(())
}
