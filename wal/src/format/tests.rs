//! The format against a fixture, and decoders against anything.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::disk::sim::{SimDisk, SimDiskConfig};
use crate::hook::Verification;
use crate::record::*;
use crate::sim::SimWorld;
use crate::{HookId, LogOffset, Seq, SinkNo, Store, StoreConfig};

/// Version 1, made from `docs/storage.md` by a program that shares no code with this one: header,
/// a frame with a hook, a delivery and a sink's name, and an empty frame.
const V1_SEGMENT: &[u8] = include_bytes!("fixtures/v1-segment.bin");

#[test]
fn a_segment_of_version_1_opens() {
    let world = SimWorld::new(1);
    let mut image = SimDisk::new(&world, SimDiskConfig::new(1))
        .snapshot()
        .as_seen();
    let mut slot = V1_SEGMENT.to_vec();
    slot.resize(64 << 10, 0);
    image.put("slot-0000.wal", &slot);
    let disk = SimDisk::with_image(&world, SimDiskConfig::new(1), &image);
    let config = StoreConfig {
        store_uuid: *b"store-of-a-test!",
        segment_bytes: 64 << 10,
        group_bytes_max: 32 << 10,
        ..StoreConfig::default()
    };
    let opened = world
        .block_on(Store::open(disk, world.host(), config))
        .unwrap();
    let (store, report) = opened.unwrap();
    assert_eq!((report.durable_claimed.0, report.last_lsn.0), (1, 2));
    assert_eq!(report.live_hooks, 1);
    let read = world.block_on(store.read(Seq(5))).unwrap().unwrap();
    let envelope = Envelope::parse(&read).unwrap();
    assert_eq!(envelope.tenant, b"acme");
    assert_eq!(envelope.source, b"github");
    assert_eq!(envelope.target, b"/in?x=1");
    assert_eq!(envelope.content_type, b"application/json");
    assert_eq!(envelope.dedupe_key, Some(&b"key-1"[..]));
    assert_eq!(envelope.dedupe_ttl_s, 3600);
    assert_eq!(envelope.verification, Verification::Verified);
    assert_eq!(envelope.received_at_ms, 1_767_225_600_123);
    assert_eq!(envelope.client, ([127, 0, 0, 1], 4000).into());
    let headers: Vec<_> = envelope.headers().collect();
    assert_eq!(headers, [(&b"x-event"[..], &b"push"[..]), (b"x-n", b"")]);
    assert_eq!(envelope.body, br#"{"a":1}"#);
    let state = store.state();
    assert_eq!(
        state.names().find(b"acme", b"github", b"sink"),
        Some(SinkNo(3))
    );
    let row = state.row_of(Seq(5), SinkNo(9)).unwrap();
    assert_eq!(state.row(row).attempts, 2);
}

#[test]
fn every_kind_of_record_comes_back_as_it_went() {
    let text = |t: &[u8]| Box::<[u8]>::from(t);
    let row = TrailRow {
        no: 4,
        at_ms: 5,
        body: text(b"{}"),
    };
    let records = [
        Record::Delivery(Delivery {
            seq: Seq(1),
            sink: SinkNo(2),
            attempts: 3,
            due_ms: 4,
            state: DeliveryState::Dead,
            reason: 5,
        }),
        Record::Finished {
            first: Seq(1),
            last: Seq(9),
        },
        Record::Dedupe(DedupeRow {
            hash: [1; 16],
            id: HookId([2; 16]),
            seq: Seq(3),
            expires_at_s: 4,
        }),
        Record::DedupeGone {
            hash: [1; 16],
            id: HookId([2; 16]),
        },
        Record::Counters(vec![Counter {
            counter: 1,
            value: u64::MAX,
        }]),
        Record::SinkName(SinkName {
            sink: SinkNo(1),
            tenant: text(b"t"),
            source: text(b""),
            name: text(b"n"),
        }),
        Record::Watermark(Watermark {
            seq: Seq(8),
            exceptions: vec![Seq(2), Seq(3)],
        }),
        Record::Offset(IntakeOffset {
            offset: None,
            hold: Some(LogOffset(7)),
        }),
        Record::NextSeq(Seq(5)),
        Record::Incarnation(Incarnation {
            incarnation: 2,
            first_seq: Seq(6),
        }),
        Record::IntakeIdentity(IntakeIdentity {
            node: text(b"node"),
            partition: 3,
            log: text(b"id"),
        }),
        Record::Resequenced(Resequenced {
            old: Seq(1),
            id: HookId([3; 16]),
            new: Seq(2),
        }),
        Record::Archived(Seq(3)),
        Record::Audit(row.clone()),
        Record::Lifecycle(row),
        Record::AuditTrim(9),
        Record::GivenUp(Seq(77)),
    ];
    for expected in records {
        let mut bytes = vec![0; record::record_len(&expected)];
        record::encode_record(&expected, &mut bytes);
        let (raw, _) = record::read_record(&bytes, 0).unwrap();
        assert_eq!(record::decode_record(raw.kind, raw.body).unwrap(), expected);
        assert_eq!(raw.len, bytes.len());
    }
}

proptest! {
    #[test]
    fn decoders_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..20) {
        let _ = SegmentHeader::decode(&bytes);
        let _ = FrameHeader::decode(&bytes);
        let _ = Envelope::parse(&bytes);
        let _ = record::decode_record(kind, &bytes);
        let _ = record::read_record(&bytes, 0);
        let _ = record::decode_extra(&bytes, &mut Vec::new());
    }
}
