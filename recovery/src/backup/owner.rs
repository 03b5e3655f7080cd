//! The owner row of a prefix: which store's backups lie there, and which process writes them.
//!
//! Invariants: a prefix takes backups of one store only, of its newest incarnation only, and from
//! one process at a time. The row is looked at before every write; a process that finds another's
//! name in it writes nothing more, until it is started again. Of two live copies of one store the
//! one that came first stops, and says so.
//!
//! It is a guard against mistakes, not against malice: the row is not signed. Blocking.

use ankusa_wal::home::HexBytes;
use serde::{Deserialize, Serialize};

use super::SendError;
use super::folder::{Folder, read_small};
use super::layout::{self, OWNER, OWNER_BYTES_MAX};

/// The row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Format version of the prefix.
    pub format: u32,
    /// The node.
    pub node: String,
    /// The store's uuid.
    pub store: HexBytes,
    /// Its incarnation.
    pub incarnation: u32,
    /// Random, one for each process that writes.
    pub writer: String,
    /// When it took the prefix, milliseconds since 1970 (for people).
    pub since_ms: u64,
}

/// Reads the row; `None` when there is none.
pub fn read(folder: &dyn Folder) -> Result<Option<Owner>, SendError> {
    let bytes = match read_small(folder, OWNER, OWNER_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SendError::io("reading", OWNER, error)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(owner) => Ok(Some(owner)),
        Err(error) => Err(SendError::Foreign {
            prefix: folder.describe(),
            what: format!("{OWNER} is not an owner row ({error})"),
        }),
    }
}

/// Whether `me` may take the prefix over from `found`.
pub fn may_claim(prefix: &str, found: &Owner, me: &Owner) -> Result<(), SendError> {
    let foreign = |what: String| SendError::Foreign {
        prefix: prefix.into(),
        what,
    };
    if found.format > super::MANIFEST_FORMAT {
        return Err(foreign(format!(
            "it has format {}, of a newer release",
            found.format
        )));
    }
    if found.node != me.node {
        return Err(foreign(format!(
            "it belongs to node {}, and this is node {}",
            found.node, me.node
        )));
    }
    if found.store != me.store {
        return Err(foreign(format!(
            "it holds backups of another store of node {} (uuid {}, this one has {}). Restore that \
             store, or move the prefix away",
            me.node,
            super::hex(&found.store.0),
            super::hex(&me.store.0)
        )));
    }
    if found.incarnation > me.incarnation {
        return Err(SendError::Shared {
            prefix: prefix.into(),
            what: format!(
                "incarnation {} of this store writes there, and this is incarnation {}",
                found.incarnation, me.incarnation
            ),
        });
    }
    Ok(())
}

/// Takes the prefix: writes the row and sees that it stands.
pub fn claim(folder: &dyn Folder, me: &Owner) -> Result<(), SendError> {
    let io = SendError::io;
    let text = serde_json::to_vec_pretty(me).map_err(|e| io("writing", OWNER, e.into()))?;
    let unnamed = layout::unnamed_path("", &me.writer);
    let mut file = folder
        .create(&unnamed)
        .map_err(|e| io("creating", &unnamed, e))?;
    file.write(&text)
        .and_then(|()| file.sync())
        .map_err(|e| io("writing", &unnamed, e))?;
    drop(file);
    folder
        .rename(&unnamed, OWNER)
        .and_then(|()| folder.sync_dir(""))
        .map_err(|e| io("naming", OWNER, e))?;
    check(folder, me)
}

/// Whether the prefix is still ours.
pub fn check(folder: &dyn Folder, me: &Owner) -> Result<(), SendError> {
    let shared = |what: String| SendError::Shared {
        prefix: folder.describe(),
        what,
    };
    match read(folder)? {
        None => Err(SendError::Gone(folder.describe())),
        Some(found) if found.writer == me.writer => Ok(()),
        Some(found) => {
            may_claim(&folder.describe(), &found, me)?;
            Err(shared(format!(
                "another process took it (writer {}): two live copies of one store",
                found.writer
            )))
        }
    }
}
