//! Dedupe generations: the dedupe rows whose hooks' segments may be gone.
//!
//! Owns the files that hold one row per key, appended once in the order in which groups became
//! durable, sealed by size or age, and dropped whole when every row in them has expired.
//! Invariants:
//! - Only rows of durable groups are pushed (the state hands out no others).
//! - [`Generations::flush`] answers with exactly what is synced; a checkpoint lists that.
//! - What a checkpoint does not list is written again from the log after its start, so that an
//!   open may throw it away. A torn tail above the listed bytes means nothing.
//! - After a failed write or sync a file is never written or synced again; its rows go to the
//!   next one.
//! - A row that says "gone" outlives every row that it could be about.
//!
//! It does not look keys up: the table of live keys is the engine's, filled from [`Rows`] and
//! from the log at boot. One task owns a `Generations`; it runs on the shard core in the
//! maintenance queue.

mod layout;
mod read;
#[cfg(test)]
mod tests;

pub use layout::{ROW_BYTES, is_gone};
pub use read::{GenerationDamage, GenerationFault, Rows};

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use crate::checkpoint::GenerationRef;
use crate::checkpoint::block::{BLOCK_HEAD_BYTES, BlockHead, Payload, seal};
use crate::disk::{Disk, DiskBuf};
use crate::host::Host;
use crate::ids::ShardId;
use crate::mutations;
use crate::record::DedupeRow;

use layout::{Head, kind};

/// Rows waiting to be written; above it the oldest goes, counted, which can cost a duplicate.
/// Reached only while writing fails.
pub const QUEUE_ROWS_MAX: usize = 1 << 20;

/// Bytes of one write.
const WRITE_BYTES: usize = 128 << 10;

const SUFFIX: &str = ".dedupe";

/// The name of generation `number`.
pub fn file_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

/// The number of a generation, from its file name.
pub fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_ours = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if is_ours {
        u64::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// When a generation is sealed.
#[derive(Clone, Copy, Debug)]
pub struct GenerationConfig {
    /// The shard.
    pub shard: ShardId,
    /// The store.
    pub store_uuid: [u8; 16],
    /// Sealed at this size.
    pub bytes_max: u64,
    /// Sealed at this age.
    pub age_ms_max: u64,
}

impl GenerationConfig {
    /// 32 MiB (760,000 rows) or six hours.
    pub fn new(shard: ShardId, store_uuid: [u8; 16]) -> GenerationConfig {
        GenerationConfig {
            shard,
            store_uuid,
            bytes_max: 32 << 20,
            age_ms_max: 6 * 3600 * 1000,
        }
    }
}

/// The rows of these generations, oldest first, without taking them over: for readers of a store
/// at rest.
pub(crate) fn rows_of<D: Disk>(
    disk: &D,
    config: GenerationConfig,
    listed: &[GenerationRef],
) -> Rows<D> {
    Rows::new(disk.clone(), config, listed.to_vec())
}

struct Current<D: Disk> {
    file: D::File,
    is: GenerationRef,
    /// Bytes written, synced or not.
    written: u64,
    blocks: u32,
    born_ms: u64,
}

/// The generations of one shard.
pub struct Generations<D: Disk> {
    disk: D,
    config: GenerationConfig,
    sealed: Vec<GenerationRef>,
    current: Option<Current<D>>,
    next_number: u64,
    /// Rows not known to be synced.
    queue: VecDeque<DedupeRow>,
    rows_dropped: u64,
}

impl<D: Disk> Generations<D> {
    /// Takes over what a checkpoint lists and removes every other generation file: the log after
    /// the checkpoint's start still has their rows.
    pub async fn open(
        disk: D,
        config: GenerationConfig,
        listed: &[GenerationRef],
    ) -> io::Result<Generations<D>> {
        let mut next_number = 1;
        for entry in disk.list().await? {
            let Some(number) = parse_name(&entry.name) else {
                continue;
            };
            next_number = next_number.max(number + 1);
            if !listed.iter().any(|g| g.number == number) {
                disk.remove(&entry.name).await?;
            }
        }
        let after_listed = listed.iter().map(|g| g.number + 1).max().unwrap_or(1);
        Ok(Generations {
            disk,
            config,
            sealed: listed.to_vec(),
            current: None,
            next_number: next_number.max(after_listed),
            queue: VecDeque::new(),
            rows_dropped: 0,
        })
    }

    /// The rows of the listed generations, oldest generation first.
    pub fn rows(&self) -> Rows<D> {
        Rows::new(self.disk.clone(), self.config, self.sealed.clone())
    }

    /// Takes rows of durable groups, in their order. Not synced before the next flush.
    pub fn push(&mut self, rows: impl IntoIterator<Item = DedupeRow>) {
        self.queue.extend(rows);
        while self.queue.len() > QUEUE_ROWS_MAX {
            // A "gone" row is kept: without it a retry would be answered with a hook that is
            // not there.
            let Some(oldest) = self.queue.iter().position(|row| !is_gone(row)) else {
                return;
            };
            self.queue.remove(oldest);
            self.rows_dropped += 1;
        }
    }

    /// Rows waiting to be written.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Rows given up because the queue was full.
    pub fn rows_dropped(&self) -> u64 {
        self.rows_dropped
    }

    /// What is synced, rising.
    pub fn listing(&self) -> Vec<GenerationRef> {
        let current = self.current.as_ref().map(|c| c.is).filter(|g| g.bytes > 0);
        self.sealed.iter().copied().chain(current).collect()
    }

    /// Writes and syncs every row pushed so far and answers with what is synced then. After an
    /// error the rows wait for the next call, which takes a new file.
    ///
    /// # Cancel safety
    /// Dropped, the rows are still queued, and the file under way is not used again.
    pub async fn flush(&mut self, host: &dyn Host) -> io::Result<Vec<GenerationRef>> {
        if !self.queue.is_empty() {
            // IMPORTANT: taken out for the duration: a file on which anything failed, or whose
            // flush was dropped half way, does not come back as the current one.
            let current = match self.current.take() {
                Some(current) => current,
                None => self.begin(host).await?,
            };
            self.sealed_if_useful(current.is);
            let is = current.is;
            let current = self.append(host, current).await?;
            self.sealed.retain(|g| g.number != is.number);
            // Given back: at 48 bytes a row it would weigh as much as the keys of a minute.
            self.queue = VecDeque::new();
            let is_full = current.written >= self.config.bytes_max
                || host.wall_ms().saturating_sub(current.born_ms) >= self.config.age_ms_max;
            if is_full {
                self.sealed.push(current.is);
                self.disk.close(current.file).await;
            } else {
                self.current = Some(current);
            }
        }
        Ok(self.listing())
    }

    /// Removes every sealed generation whose last row has expired at `now_s`; returns how many.
    pub async fn drop_expired(&mut self, now_s: u64) -> io::Result<usize> {
        let mut dropped = 0;
        while let Some(at) = self.sealed.iter().position(|g| g.last_expiry_s <= now_s) {
            self.disk.remove(&file_name(self.sealed[at].number)).await?;
            self.sealed.remove(at);
            dropped += 1;
        }
        Ok(dropped)
    }

    /// While its file is being written to, what it held before counts as sealed.
    fn sealed_if_useful(&mut self, before: GenerationRef) {
        if before.bytes > 0 {
            self.sealed.push(before);
        }
    }

    async fn begin(&mut self, host: &dyn Host) -> io::Result<Current<D>> {
        let number = self.next_number;
        self.next_number += 1;
        let name = file_name(number);
        let file = self.disk.create(&name).await?;
        mutations::point("generation.created");
        let is = GenerationRef {
            number,
            salt: host.random(),
            bytes: 0,
            last_expiry_s: 0,
        };
        let born_ms = host.wall_ms();
        Ok(Current {
            file,
            is,
            written: 0,
            blocks: 0,
            born_ms,
        })
    }

    async fn append(&mut self, host: &dyn Host, mut current: Current<D>) -> io::Result<Current<D>> {
        match self.append_blocks(host, &mut current).await {
            Ok(()) => Ok(current),
            Err(error) => {
                self.disk.close(current.file).await;
                Err(error)
            }
        }
    }

    async fn append_blocks(&mut self, host: &dyn Host, current: &mut Current<D>) -> io::Result<()> {
        let is_new = current.blocks == 0;
        if is_new {
            let head = Head {
                shard: self.config.shard,
                store_uuid: self.config.store_uuid,
                number: current.is.number,
            };
            let mut buf = self.disk.alloc(layout::HEAD_BLOCK_BYTES);
            let mut payload = Payload::new(buf.as_mut(), 0);
            if let Some(mut put) = payload.take(layout::HEAD_BYTES) {
                layout::encode_head(&head, &mut put);
            }
            let payload_bytes = payload.at();
            self.write_block(current, buf, kind::HEAD, 1, payload_bytes)
                .await?;
        }
        let mut last_expiry_s = current.is.last_expiry_s;
        let outlive = self.sealed.iter().map(|g| g.last_expiry_s).max();
        let outlive = outlive.unwrap_or(0);
        let mut from = 0;
        while from < self.queue.len() {
            let mut buf = self.disk.alloc(WRITE_BYTES);
            let mut payload = Payload::new(buf.as_mut(), 0);
            let first = from;
            for row in self.queue.range(first..) {
                let Some(mut put) = payload.take(ROW_BYTES) else {
                    break;
                };
                layout::encode_row(row, &mut put);
                let expiry = if is_gone(row) {
                    outlive
                } else {
                    row.expires_at_s
                };
                last_expiry_s = last_expiry_s.max(expiry);
                from += 1;
            }
            let payload_bytes = payload.at();
            self.write_block(
                current,
                buf,
                kind::ROWS,
                (from - first) as u32,
                payload_bytes,
            )
            .await?;
            if host.must_yield() {
                host.yield_now().await;
            }
        }
        mutations::point("generation.written");
        self.disk.sync_data(&current.file).await?;
        mutations::point("generation.synced");
        if is_new {
            // IMPORTANT: the name must be as durable as the rows before a checkpoint lists it.
            self.disk.sync_dir().await?;
        }
        current.is.bytes = current.written;
        current.is.last_expiry_s = last_expiry_s;
        Ok(())
    }

    async fn write_block(
        &self,
        current: &mut Current<D>,
        mut buf: D::Buf,
        kind: u8,
        items: u32,
        payload_bytes: u32,
    ) -> io::Result<()> {
        let head = BlockHead {
            salt: current.is.salt,
            number: current.blocks,
            kind,
            items,
            payload_bytes,
        };
        debug_assert!(head.block_bytes() > BLOCK_HEAD_BYTES);
        let bytes = seal(&head, buf.as_mut());
        buf.truncate(bytes);
        let written = self
            .disk
            .write_at(&current.file, Rc::new(buf), current.written)
            .await?;
        if written < bytes {
            return Err(io::ErrorKind::WriteZero.into());
        }
        current.written += bytes as u64;
        current.blocks += 1;
        Ok(())
    }
}
