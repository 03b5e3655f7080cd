//! Streams the rows of listed generations at boot, a block at a time.

use std::io;

use thiserror::Error;

use crate::checkpoint::GenerationRef;
use crate::checkpoint::block;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::format::bytes::Take;
use crate::format::{FormatError, bad};
use crate::record::DedupeRow;

use super::layout::{Head, decode_head, decode_row, is_gone, kind};
use super::{GenerationConfig, file_name};

/// Rows that a checkpoint lists and that are not there: their keys are unknown from here on,
/// which can cost a duplicate of a hook, never a hook.
#[derive(Debug, Error)]
#[error("{file} at offset {offset} of {bytes} listed: {what}")]
pub struct GenerationDamage {
    /// The file.
    pub file: String,
    /// Where the first bad block begins; the rest of the file is passed over.
    pub offset: u64,
    /// Bytes that the checkpoint lists.
    pub bytes: u64,
    /// What is wrong.
    pub what: GenerationFault,
}

/// What is wrong with a generation.
#[derive(Debug, Error)]
pub enum GenerationFault {
    /// It cannot be read, or is not there.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Its content is not what was written.
    #[error("{0}")]
    Format(#[from] FormatError),
}

struct Open<D: Disk> {
    file: D::File,
    pos: u64,
    number: u32,
}

/// The rows of listed generations, oldest first.
pub struct Rows<D: Disk> {
    disk: D,
    config: GenerationConfig,
    /// Yet to be read, newest first; the last one may be open.
    left: Vec<GenerationRef>,
    open: Option<Open<D>>,
}

impl<D: Disk> Rows<D> {
    pub(super) fn new(disk: D, config: GenerationConfig, mut left: Vec<GenerationRef>) -> Rows<D> {
        left.sort_by_key(|g| std::cmp::Reverse(g.number));
        Rows {
            disk,
            config,
            left,
            open: None,
        }
    }

    /// The rows of the next block that have not expired at `now_s`, and those that say a key is
    /// gone, in the order written; `None` at the end. After damage it goes on with the next
    /// generation. A generation that is absent and expired is passed over.
    pub async fn next_block(
        &mut self,
        now_s: u64,
    ) -> Option<Result<Vec<DedupeRow>, GenerationDamage>> {
        loop {
            let is = *self.left.last()?;
            if self.open.is_none() {
                match self.disk.open(&file_name(is.number)).await {
                    Ok(file) => {
                        self.open = Some(Open {
                            file,
                            pos: 0,
                            number: 0,
                        })
                    }
                    Err(_) if is.last_expiry_s <= now_s => {
                        self.left.pop();
                        continue;
                    }
                    Err(error) => return Some(Err(self.damage(is, error.into()).await)),
                }
            }
            let at_end = self.open.as_ref().is_none_or(|o| o.pos >= is.bytes);
            if at_end {
                self.next_file().await;
                continue;
            }
            match self.read(is).await {
                Ok(mut rows) => {
                    rows.retain(|row| is_gone(row) || row.expires_at_s > now_s);
                    if !rows.is_empty() {
                        return Some(Ok(rows));
                    }
                }
                Err(fault) => return Some(Err(self.damage(is, fault).await)),
            }
        }
    }

    async fn read(&mut self, is: GenerationRef) -> Result<Vec<DedupeRow>, GenerationFault> {
        let Some(open) = &mut self.open else {
            return Ok(Vec::new());
        };
        let (buf, filled) = self.disk.read_at(&open.file, open.pos, BLOCK_BYTES).await?;
        let head = block::peek(&buf.as_ref()[..filled])?;
        let (buf, filled) = if head.block_bytes() > BLOCK_BYTES {
            self.disk
                .read_at(&open.file, open.pos, head.block_bytes())
                .await?
        } else {
            (buf, filled)
        };
        let opened = block::open(&buf.as_ref()[..filled], Some(is.salt), open.number)?;
        let (head, payload) = opened;
        open.pos += head.block_bytes() as u64;
        open.number += 1;
        if head.number == 0 {
            let expected = Head {
                shard: self.config.shard,
                store_uuid: self.config.store_uuid,
                number: is.number,
            };
            if head.kind != kind::HEAD || decode_head(payload)? != expected {
                return Err(bad("generation of another store, shard or number").into());
            }
            return Ok(Vec::new());
        }
        if head.kind != kind::ROWS {
            return Err(bad("block kind").into());
        }
        let mut take = Take::new(payload);
        let mut rows = Vec::with_capacity(head.items as usize);
        while take.end().is_err() {
            rows.push(decode_row(&mut take)?);
        }
        Ok(rows)
    }

    async fn damage(&mut self, is: GenerationRef, what: GenerationFault) -> GenerationDamage {
        let offset = self.open.as_ref().map_or(0, |o| o.pos);
        self.next_file().await;
        GenerationDamage {
            file: file_name(is.number),
            offset,
            bytes: is.bytes,
            what,
        }
    }

    async fn next_file(&mut self) {
        self.left.pop();
        if let Some(open) = self.open.take() {
            self.disk.close(open.file).await;
        }
    }
}
