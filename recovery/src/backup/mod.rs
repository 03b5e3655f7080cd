//! Backups of a store: what lies below a node's prefix, how it gets there, how it is read.
//!
//! Reading order: [`layout`] (names), [`manifest`] (one backup, signed), [`owner`] (whose prefix),
//! [`folder`] and [`source`] (the seams), [`prefix`], [`send`], [`catalog`] (reading), [`disk`] (a backup as a
//! shard's directory). It does not know when a backup is due nor which thread it is on; what it
//! does is blocking and belongs on a side thread or offline.

pub mod layout;

pub mod manifest;

pub mod owner;

pub mod folder;

pub mod source;

pub mod frames;

pub mod prefix;

pub mod send;

mod prune;

pub mod catalog;

pub mod disk;

#[cfg(test)]
mod tests;

pub use catalog::{CatalogError, Listed, Progress, check_objects};
pub use disk::BackupDisk;
pub use folder::{Folder, LocalFolder};
pub use manifest::{MANIFEST_FORMAT, Manifest, ManifestError, ShardEntry, SigningKey, hex};
pub use owner::Owner;
pub use prefix::Prefix;
pub use send::{Meter, Run, SendError, Sent};
pub use source::{ShardDir, ShardFiles};
