//! Checkpoint files: writing one under a temporary name, naming it, reading, pruning.
//!
//! Runs on a shard core in the maintenance queue; reading at boot and offline.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use thiserror::Error;

use crate::disk::{BLOCK_BYTES, Disk, IO_BYTES_MAX};
use crate::error::CheckpointError;
use crate::format::FormatError;
use crate::host::Host;
use crate::ids::{Lsn, ShardId};
use crate::mutations;
use crate::state::State;

use super::block;
use super::build::{Builder, Filled, SegmentUse};
use super::layout::{self, End, GenerationRef, Start, kind};
use super::load::{Loaded, Loader};

/// How many named checkpoints a shard keeps.
pub const CHECKPOINTS_KEPT: usize = 2;

/// Bytes of one block, and of one write.
const WRITE_BYTES: usize = 256 << 10;

const SUFFIX: &str = ".ckpt";
const SUFFIX_UNNAMED: &str = ".ckpt.tmp";

/// The name of checkpoint `number`.
pub fn file_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

fn unnamed_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX_UNNAMED}")
}

/// The number of a named checkpoint, from its file name.
pub fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_ours = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if is_ours {
        u64::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Why a checkpoint could not be read: pass it over for the older one.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Its content is not what was written.
    #[error("{file} at offset {offset}: {source}")]
    Damaged {
        /// The file.
        file: String,
        /// Where the bad block begins.
        offset: u64,
        /// What is wrong.
        source: FormatError,
    },
    /// It cannot be read.
    #[error("reading {file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The error.
        source: io::Error,
    },
}

/// A checkpoint that is written and synced and has no name yet.
pub struct Unnamed {
    number: u64,
    builder: Builder,
    bytes: u64,
}

impl Unnamed {
    /// It may be named once everything up to here is durable.
    pub fn end_lsn(&self) -> Lsn {
        self.builder.end_lsn()
    }

    /// What it says it needs.
    pub fn manifest(&self) -> (&Start, &End) {
        self.builder.manifest()
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { doing, source }
}

/// Writes and syncs a checkpoint under a temporary name. `rest` is awaited once the state has
/// been seen whole, with the start LSN: it syncs the dedupe rows of groups up to there and
/// answers with the segments, slots and generations as they are then.
///
/// Never holds the core longer than the host allows, nor the state across an await.
///
/// # Cancel safety
/// Dropped, it leaves a temporary file, which the next call or [`prune`] removes, and a watch in
/// the state that notes finished hooks until the next checkpoint begins.
pub async fn write<D: Disk>(
    disk: &D,
    host: &dyn Host,
    state: &RefCell<State>,
    start: Start,
    rest: impl AsyncFnOnce(
        Lsn,
    )
        -> Result<(Vec<SegmentUse>, Vec<u32>, Vec<GenerationRef>), CheckpointError>,
) -> Result<Unnamed, CheckpointError> {
    let name = unnamed_name(start.number);
    // A left-over of a crash or of a failed attempt.
    let _ = disk.remove(&name).await;
    let file = disk
        .create(&name)
        .await
        .map_err(io_error("creating the checkpoint"))?;
    let salt = host.random();
    let mut builder = Builder::begin(&mut state.borrow_mut(), salt, start);
    let written = write_blocks(disk, host, state, &file, &mut builder, rest).await;
    let synced = match written {
        Ok(bytes) if mutations::is("checkpoint_rename_without_sync") => Ok(bytes),
        Ok(bytes) => {
            mutations::point("checkpoint.written");
            let sync = disk.sync_data(&file).await;
            sync.map(|()| bytes)
                .map_err(io_error("syncing the checkpoint"))
        }
        Err(error) => Err(error),
    };
    disk.close(file).await;
    match synced {
        Ok(bytes) => {
            mutations::point("checkpoint.synced");
            Ok(Unnamed {
                number: start.number,
                builder,
                bytes,
            })
        }
        Err(error) => {
            state.borrow_mut().watch_take();
            let _ = disk.remove(&name).await;
            Err(error)
        }
    }
}

async fn write_blocks<D: Disk>(
    disk: &D,
    host: &dyn Host,
    state: &RefCell<State>,
    file: &D::File,
    builder: &mut Builder,
    rest: impl AsyncFnOnce(
        Lsn,
    )
        -> Result<(Vec<SegmentUse>, Vec<u32>, Vec<GenerationRef>), CheckpointError>,
) -> Result<u64, CheckpointError> {
    let mut rest = Some(rest);
    let mut buf = Rc::new(disk.alloc(WRITE_BYTES));
    let mut pos = 0;
    loop {
        let Some(out) = Rc::get_mut(&mut buf) else {
            // The disk still holds it.
            buf = Rc::new(disk.alloc(WRITE_BYTES));
            continue;
        };
        let filled = {
            let mut state = state.borrow_mut();
            if builder.is_spoilt(&state) {
                return Err(CheckpointError::Fenced);
            }
            builder.fill(&mut state, out.as_mut(), || host.must_yield())
        };
        match filled {
            Filled::Yield => host.yield_now().await,
            Filled::Captured => {
                let Some(rest) = rest.take() else {
                    unreachable!("the state is captured once");
                };
                let (segments, slots, generations) = rest(builder.start_lsn()).await?;
                builder.end(&segments, slots, generations);
            }
            Filled::Block { bytes } => {
                write_block::<D>(disk, file, &mut buf, bytes, pos).await?;
                pos += bytes as u64;
            }
            Filled::Done => return Ok(pos),
        }
    }
}

async fn write_block<D: Disk>(
    disk: &D,
    file: &D::File,
    buf: &mut Rc<D::Buf>,
    bytes: usize,
    pos: u64,
) -> Result<(), CheckpointError> {
    use crate::disk::DiskBuf;
    let doing = "writing the checkpoint";
    if let Some(out) = Rc::get_mut(buf)
        && out.as_ref().len() > bytes
    {
        out.truncate(bytes);
    }
    let written = disk
        .write_at(file, Rc::clone(buf), pos)
        .await
        .map_err(io_error(doing))?;
    if written < bytes {
        return Err(io_error(doing)(io::ErrorKind::WriteZero.into()));
    }
    if buf.as_ref().as_ref().len() < WRITE_BYTES {
        *buf = Rc::new(disk.alloc(WRITE_BYTES));
    }
    Ok(())
}

/// Gives a written checkpoint its name. `durable` is the store's mark now: the caller waited
/// until it covers [`Unnamed::end_lsn`].
///
/// Refused as fenced when the shard was fenced since the checkpoint began: what it saw may have
/// been undone.
pub async fn name<D: Disk>(
    disk: &D,
    state: &RefCell<State>,
    durable: Lsn,
    unnamed: Unnamed,
) -> Result<(Start, End), CheckpointError> {
    if unnamed.builder.is_spoilt(&state.borrow()) {
        discard(disk, unnamed).await;
        return Err(CheckpointError::Fenced);
    }
    assert!(
        durable >= unnamed.end_lsn() || mutations::is("checkpoint_named_early"),
        "a checkpoint is named only once everything it saw is durable"
    );
    // IMPORTANT: synced (by `write`), then renamed, then the directory: a name never leads to
    // bytes that are not on the medium.
    let (from, to) = (unnamed_name(unnamed.number), file_name(unnamed.number));
    disk.rename(&from, &to)
        .await
        .map_err(io_error("naming the checkpoint"))?;
    mutations::point("checkpoint.renamed");
    if let Err(error) = disk.sync_dir().await {
        // Else it would be among the two kept while nobody keeps its segments.
        let _ = disk.remove(&to).await;
        return Err(io_error("syncing the directory")(error));
    }
    let (start, end) = unnamed.builder.manifest();
    Ok((*start, end.clone()))
}

/// Throws a written checkpoint away.
pub async fn discard<D: Disk>(disk: &D, unnamed: Unnamed) {
    // A failure leaves a temporary file, which the next `prune` removes.
    let _ = disk.remove(&unnamed_name(unnamed.number)).await;
}

/// Removes all but the newest [`CHECKPOINTS_KEPT`] checkpoints and every temporary file; returns
/// the numbers kept, newest first. Not while a checkpoint is being written.
pub async fn prune<D: Disk>(disk: &D) -> Result<Vec<u64>, CheckpointError> {
    let doing = "removing old checkpoints";
    let names = disk.list().await.map_err(io_error(doing))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|e| parse_name(&e.name)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let old = numbers.split_off(numbers.len().min(CHECKPOINTS_KEPT));
    let unnamed = names.iter().filter(|e| e.name.ends_with(SUFFIX_UNNAMED));
    let unnamed = unnamed.map(|e| e.name.clone());
    for name in old.into_iter().map(file_name).chain(unnamed) {
        disk.remove(&name).await.map_err(io_error(doing))?;
    }
    Ok(numbers)
}

/// Reads checkpoint `number` whole.
pub async fn load<D: Disk>(
    disk: &D,
    host: &dyn Host,
    number: u64,
    shard: ShardId,
    store_uuid: [u8; 16],
) -> Result<Loaded, LoadError> {
    let name = file_name(number);
    let io = |source| LoadError::Io {
        file: name.clone(),
        source,
    };
    let damaged = |offset, source| LoadError::Damaged {
        file: name.clone(),
        offset,
        source,
    };
    let file = disk.open(&name).await.map_err(io)?;
    let mut loader = Loader::new(host.random());
    let read = each_block(disk, &file, &mut loader).await;
    disk.close(file).await;
    match read {
        Ok(end) => loader
            .finish(shard, store_uuid)
            .map_err(|e| damaged(end, e)),
        Err((_, BlockError::Io(source))) => Err(io(source)),
        Err((offset, BlockError::Format(source))) => Err(damaged(offset, source)),
    }
}

enum BlockError {
    Io(io::Error),
    Format(FormatError),
}

async fn each_block<D: Disk>(
    disk: &D,
    file: &D::File,
    loader: &mut Loader,
) -> Result<u64, (u64, BlockError)> {
    let mut pos = 0;
    loop {
        let (buf, filled) = disk
            .read_at(file, pos, IO_BYTES_MAX)
            .await
            .map_err(|e| (pos, BlockError::Io(e)))?;
        let bytes = &buf.as_ref()[..filled];
        if bytes.is_empty() {
            return Ok(pos);
        }
        let mut at = 0;
        while at < bytes.len() {
            let head = block::peek(&bytes[at..]);
            let head = head.map_err(|e| (pos + at as u64, BlockError::Format(e)))?;
            if at > 0 && at + head.block_bytes() > bytes.len() {
                break;
            }
            let taken = loader.block(&bytes[at..]);
            taken.map_err(|e| (pos + at as u64, BlockError::Format(e)))?;
            at += head.block_bytes();
        }
        pos += at as u64;
    }
}

/// Reads only the first and the last blocks of checkpoint `number`, verified: what it needs.
/// Says nothing of the blocks between.
pub async fn read_manifest<D: Disk>(disk: &D, number: u64) -> Result<(Start, End), LoadError> {
    let name = file_name(number);
    let io = |source| LoadError::Io {
        file: name.clone(),
        source,
    };
    let file = disk.open(&name).await.map_err(io)?;
    let read = manifest_of(disk, &file).await;
    disk.close(file).await;
    read.map_err(|(offset, error)| match error {
        BlockError::Io(source) => io(source),
        BlockError::Format(source) => LoadError::Damaged {
            file: name.clone(),
            offset,
            source,
        },
    })
}

async fn manifest_of<D: Disk>(disk: &D, file: &D::File) -> Result<(Start, End), (u64, BlockError)> {
    let (mut pos, mut number, mut salt) = (0u64, 0u32, None);
    let mut start = None;
    let mut end = Vec::new();
    loop {
        let read = disk.read_at(file, pos, BLOCK_BYTES).await;
        let (buf, filled) = read.map_err(|e| (pos, BlockError::Io(e)))?;
        if filled == 0 {
            break;
        }
        let format = |e| (pos, BlockError::Format(e));
        let head = block::peek(&buf.as_ref()[..filled]).map_err(format)?;
        if head.kind == kind::START || head.kind == kind::END {
            let read = disk.read_at(file, pos, head.block_bytes()).await;
            let (buf, filled) = read.map_err(|e| (pos, BlockError::Io(e)))?;
            let opened = block::open(&buf.as_ref()[..filled], salt, number);
            let (head, payload) = opened.map_err(format)?;
            salt = Some(head.salt);
            if head.kind == kind::END {
                end.extend_from_slice(payload);
            } else {
                start = Some(layout::decode_start(payload).map_err(format)?);
            }
        }
        number += 1;
        pos += head.block_bytes() as u64;
    }
    let format = |e| (pos, BlockError::Format(e));
    let start = start.ok_or(format(crate::format::bad("empty")))?;
    Ok((start, layout::decode_end(&end).map_err(format)?))
}
