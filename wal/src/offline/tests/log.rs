//! A small log, built from the format alone.

use std::net::{Ipv4Addr, SocketAddr};

use crate::disk::BLOCK_BYTES;
use crate::disk::sim::{SimDisk, SimDiskConfig, SimImage};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameHeader, PayloadSum};
use crate::format::record::{encode_extra, extra_len, hook_len, kind, seal};
use crate::format::segment::{Cut, SegmentHeader, store_tag};
use crate::format::{envelope, padded};
use crate::hook::{HookDraft, HookExtra, Verification};
use crate::ids::{HookId, Lsn, SegmentId, Seq, ShardId, SinkNo};
use crate::sim::SimWorld;

pub(super) const UUID: [u8; 16] = [7; 16];
pub(super) const SLOT_BYTES: usize = 16 * BLOCK_BYTES;
/// Groups in each of the three segments.
pub(super) const PER_SEGMENT: u64 = 4;
pub(super) const LAST_LSN: u64 = 3 * PER_SEGMENT;

/// Where a frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) lsn: u64,
    pub(super) offset: u64,
    /// Bytes that carry something.
    pub(super) used: u64,
    /// With padding.
    pub(super) bytes: u64,
}

impl Spot {
    pub(super) fn file(&self) -> String {
        file_of((self.lsn - 1) / PER_SEGMENT)
    }
}

pub(super) fn file_of(segment_index: u64) -> String {
    format!("slot-{segment_index:04}.wal")
}

fn hook(seq: u64, body_bytes: usize) -> Vec<u8> {
    let body = vec![b'x'; body_bytes];
    let extra = HookExtra {
        sinks: &[SinkNo(3)],
        dedupe_hash: None,
        archive: false,
        log: true,
    };
    let draft = HookDraft {
        id: HookId([seq as u8; 16]),
        received_at_ms: 1_000 + seq,
        tenant: b"acme",
        source: b"stripe",
        method: b"POST",
        target: b"/in?x=1",
        headers: &[(&b"content-length"[..], &b"9"[..])],
        content_type: b"text/plain",
        body: &body,
        dedupe_key: None,
        dedupe_ttl_s: 0,
        verification: Verification::Verified,
        client: SocketAddr::from((Ipv4Addr::LOCALHOST, 80)),
        extra,
    };
    let mut out = vec![0; hook_len(&extra, envelope::encoded_len(&draft))];
    let start = 16;
    let extra_bytes = encode_extra(&extra, &mut out[start..start + extra_len(&extra)]);
    envelope::encode(&draft, Seq(seq), &mut out[start + extra_bytes..]);
    seal(kind::HOOK, 0, extra_bytes, &mut out);
    out
}

/// A frame with two hooks: seqs `10 * lsn` and the one after.
pub(super) fn frame(lsn: u64, salt: u64) -> (Vec<u8>, u64) {
    // Every third is larger than a block.
    let body_bytes = if lsn.is_multiple_of(3) { 5_000 } else { 100 };
    let mut sum = PayloadSum::default();
    let mut out = vec![0; FRAME_HEADER_BYTES];
    for seq in [10 * lsn, 10 * lsn + 1] {
        let record = hook(seq, body_bytes);
        sum.add(u32::from_le_bytes(record[..4].try_into().unwrap()));
        out.extend(record);
    }
    let header = FrameHeader {
        salt,
        lsn: Lsn(lsn),
        durable_lsn: Lsn(lsn - 1),
        payload_bytes: (out.len() - FRAME_HEADER_BYTES) as u32,
        records: 2,
        payload_sum: sum.finish(),
        store_tag: store_tag(&UUID, ShardId(1)),
        next_seq: Seq(10 * lsn + 2),
        slots: 3,
    };
    header.encode(&mut out);
    let used = out.len() as u64;
    out.resize(padded(out.len()), 0);
    (out, used)
}

/// Three segments of four groups each. Every group but the last is claimed durable by the next.
pub(super) fn log() -> (SimImage, Vec<Spot>) {
    let mut image = SimImage::default();
    let mut spots = Vec::new();
    let mut cut = Cut::default();
    for index in 0..3 {
        let segment = SegmentId(index + 1);
        let header = SegmentHeader {
            store_uuid: UUID,
            shard: ShardId(1),
            flags: 0,
            segment,
            first_lsn: Lsn(index * PER_SEGMENT + 1),
            salt: 0x5a17 + index,
            cut,
            next_seq: Seq(0),
            made_at_ms: 5,
            slots: 3,
        };
        let mut content = vec![0; BLOCK_BYTES];
        header.encode(&mut content);
        for lsn in index * PER_SEGMENT + 1..=(index + 1) * PER_SEGMENT {
            let (bytes, used) = frame(lsn, header.salt);
            let offset = content.len() as u64;
            spots.push(Spot {
                lsn,
                offset,
                used,
                bytes: bytes.len() as u64,
            });
            content.extend(bytes);
        }
        cut = Cut {
            segment,
            offset: content.len() as u64,
            lsn: Lsn((index + 1) * PER_SEGMENT),
        };
        assert!(content.len() <= SLOT_BYTES);
        content.resize(SLOT_BYTES, 0);
        image.put(&file_of(index), &content);
    }
    (image, spots)
}

/// Runs `work` on a disk with this content and answers its result and the content afterwards.
pub(super) fn on<T>(image: &SimImage, work: impl AsyncFnOnce(&SimDisk) -> T) -> (T, SimImage) {
    let world = SimWorld::new(1);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(1), image);
    let result = world.block_on(work(&disk)).unwrap();
    (result, disk.snapshot().as_seen())
}
