#![allow(clippy::unwrap_used)]

mod files;

use proptest::prelude::*;

use super::*;
use crate::format::FormatError;
use crate::ids::{Lsn, SegmentId, ShardId};
use crate::state::model::{History, Op, ops, replay, snapshot};

const UUID: [u8; 16] = [9; 16];

fn start() -> Start {
    Start {
        store_uuid: UUID,
        shard: ShardId(3),
        number: 17,
        start_lsn: Lsn(0),
        hooks_expected: 0,
        wall_ms: 5,
    }
}

fn uses(history: &History) -> Vec<SegmentUse> {
    let segments = history.state.segments_live().map(|(segment, _)| segment.0);
    (1..=segments.max().unwrap_or(0).max(1000))
        .map(|n| SegmentUse {
            segment: SegmentId(n),
            salt: n * 7,
            slot: n as u32,
            end: n * 100,
            last_lsn: Some(Lsn(n * 5 + 4)),
        })
        .collect()
}

/// Builds a checkpoint while `between` changes the state after every slice.
fn build(
    history: &mut History,
    block_bytes: usize,
    mut between: impl FnMut(&mut History),
) -> (Vec<Vec<u8>>, Builder) {
    let mut builder = Builder::begin(&mut history.state, 0xabc, start());
    let mut blocks = Vec::new();
    let mut buf = vec![0xee; block_bytes];
    loop {
        match builder.fill(&mut history.state, &mut buf, || true) {
            Filled::Yield => between(history),
            Filled::Captured => {
                let segments = uses(history);
                builder.end(&segments, vec![1, 2, 3], Vec::new());
            }
            Filled::Block { bytes } => {
                assert!(bytes.is_multiple_of(4096));
                blocks.push(buf[..bytes].to_vec());
                buf = vec![0xee; block_bytes];
            }
            Filled::Done => return (blocks, builder),
        }
    }
}

fn load_blocks(blocks: &[Vec<u8>]) -> Result<Loaded, FormatError> {
    let mut loader = Loader::new(3);
    for block in blocks {
        loader.block(block)?;
    }
    loader.finish(ShardId(3), UUID)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn checkpoint_taken_while_the_state_changes_and_the_log_after_it_give_the_state(
        before in ops(120),
        during in ops(120),
        per_slice in 0..5usize,
        after in ops(40),
        block_bytes in prop_oneof![Just(4096usize), Just(8192), Just(65536)],
    ) {
        let mut history = History::new();
        for op in &before {
            history.step(op);
        }
        let mut during: std::collections::VecDeque<Op> = during.into();
        let (blocks, builder) = build(&mut history, block_bytes, |history| {
            for op in during.drain(..per_slice.min(during.len())) {
                history.step(&op);
            }
        });
        // It gets its name at the first moment that it may, if there is one.
        let mut named = None;
        for op in after.iter().chain(&[Op::EndGroup, Op::Settle { count: 255 }]) {
            if named.is_none() && history.state.durable() >= builder.end_lsn() {
                named = Some(!builder.is_spoilt(&history.state));
            }
            history.step(op);
        }
        let named = named.unwrap_or(!builder.is_spoilt(&history.state));
        history.settle_all();
        if !named {
            return Ok(());
        }
        let mut loaded = load_blocks(&blocks).unwrap();
        prop_assert_eq!(loaded.end.end_lsn, builder.end_lsn());
        prop_assert!(loaded.start.start_lsn <= loaded.end.end_lsn);
        // It is a sound state by itself: nothing is live and finished at once.
        snapshot(&loaded.state);
        replay(&mut loaded.state, &history.log, loaded.start.start_lsn);
        prop_assert_eq!(&snapshot(&loaded.state), &snapshot(&history.state));
    }

    #[test]
    fn damaged_checkpoint_is_refused_and_never_panics(
        before in ops(60),
        at in any::<prop::sample::Index>(),
        mask in 1..=255u8,
    ) {
        let mut history = History::new();
        for op in &before {
            history.step(op);
        }
        let (mut blocks, _) = build(&mut history, 4096, |_| {});
        let block = at.index(blocks.len());
        let head = block::peek(&blocks[block]).unwrap();
        let byte = at.index(block::BLOCK_HEAD_BYTES + head.payload_bytes as usize);
        blocks[block][byte] ^= mask;
        prop_assert!(load_blocks(&blocks).is_err());
    }
}

#[test]
fn checkpoint_without_its_last_block_is_refused() {
    let mut history = History::new();
    for _ in 0..300 {
        history.step(&Op::Hook {
            sinks: 3,
            archive: false,
            log: false,
            dedupe: true,
        });
    }
    let (mut blocks, _) = build(&mut history, 4096, |_| {});
    assert!(blocks.len() > 5);
    assert!(load_blocks(&blocks).is_ok());
    let last = blocks.pop().unwrap();
    assert!(load_blocks(&blocks).is_err());
    blocks.push(last);
    blocks.swap(2, 3);
    assert!(load_blocks(&blocks).is_err());
    blocks.swap(2, 3);
    blocks.remove(2);
    assert!(load_blocks(&blocks).is_err());
}

#[test]
fn checkpoint_with_a_hook_twice_is_refused() {
    let mut history = History::new();
    for _ in 0..40 {
        history.step(&Op::Hook {
            sinks: 1,
            archive: false,
            log: false,
            dedupe: false,
        });
    }
    history.settle_all();
    let (mut blocks, _) = build(&mut history, 4096, |_| {});
    // The second hook's seq becomes the first one's, under a right checksum.
    let head = block::peek(&blocks[1]).unwrap();
    let entry = layout::HOOK_ENTRY_BYTES + layout::ROW_ENTRY_BYTES;
    let (first, second) = (block::BLOCK_HEAD_BYTES, block::BLOCK_HEAD_BYTES + entry);
    assert_eq!(head.kind, layout::kind::HOOKS);
    blocks[1].copy_within(first..first + 8, second);
    block::seal(&head, &mut blocks[1]);
    let refused = load_blocks(&blocks).err().unwrap();
    assert_eq!(refused.what, "hook twice");
}
