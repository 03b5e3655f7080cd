//! Measures a checkpoint of many live hooks: inserting them, writing it in slices, loading it.
//!
//! `cargo run --release -p ankusa-wal --example checkpoint_load -- [HOOKS] [DIR]`: 1,000,000
//! hooks with one sink, in a directory of its own under the system's temporary one. It writes
//! with plain calls, so that the figures are those of the state and the codec, not of a disk.

#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ankusa_wal::checkpoint::{self, SegmentUse, Start};
use ankusa_wal::disk::blocking::{BlockingDisk, block_on};
use ankusa_wal::host::LocalFuture;
use ankusa_wal::{
    HookExtra, HookFacts, HookId, Host, Location, Lsn, SegmentId, Seq, ShardId, SinkNo, State,
    TaskClass,
};

const STORE: [u8; 16] = [7; 16];
const HOOKS_PER_SEGMENT: u64 = 100_000;

/// A host with a 1 ms slice that notes the longest one.
struct Slices {
    began: Cell<Instant>,
    longest: Cell<Duration>,
    count: Cell<u64>,
}

impl Slices {
    fn end(&self) {
        self.longest
            .set(self.longest.get().max(self.began.get().elapsed()));
        self.count.set(self.count.get() + 1);
        self.began.set(Instant::now());
    }
}

impl Host for Slices {
    fn wall_ms(&self) -> u64 {
        0
    }

    fn mono_us(&self) -> u64 {
        0
    }

    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(ready(()))
    }

    fn spawn(&self, _: TaskClass, _: LocalFuture<()>) {}

    fn must_yield(&self) -> bool {
        self.began.get().elapsed() >= Duration::from_micros(500)
    }

    fn yield_now(&self) -> LocalFuture<()> {
        self.end();
        Box::pin(ready(()))
    }

    fn random(&self) -> u64 {
        0x5eed
    }
}

fn fill(state: &mut State, hooks: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 1..=hooks {
        let id = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let facts = HookFacts {
            id: HookId(id.to_be_bytes()),
            seq: Seq(n),
            received_at_ms: 0,
            dedupe_ttl_s: 0,
            relocated: false,
        };
        let extra = HookExtra {
            sinks: &[SinkNo(0)],
            ..HookExtra::default()
        };
        let at = Location {
            segment: SegmentId(1 + n / HOOKS_PER_SEGMENT),
            offset: 4096 + n % HOOKS_PER_SEGMENT * 700,
            len: 700,
            lsn: Lsn(0),
        };
        let began = Instant::now();
        state.apply_hook(&facts, &extra, at);
        longest = longest.max(began.elapsed());
    }
    longest
}

/// Time this thread was on a core: on a busy machine the figure that means something.
fn on_core() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let hooks: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let dir = args.next().map_or_else(
        || std::env::temp_dir().join(format!("checkpoint-load-{}", std::process::id())),
        PathBuf::from,
    );
    if cfg!(debug_assertions) {
        println!("WARNING: a debug build; the figures mean nothing");
    }
    std::fs::create_dir_all(&dir)?;
    let disk = BlockingDisk::open(&dir)?;

    let (began, used) = (Instant::now(), on_core());
    let mut state = State::new(1);
    let longest = fill(&mut state, hooks);
    let used = on_core() - used;
    println!(
        "insert  {hooks} hooks in {:.2?}, {used:.2?} on a core ({:.0} ns each, longest {longest:.0?}), {:.1} bytes each",
        began.elapsed(),
        used.as_nanos() as f64 / hooks as f64,
        state.memory_bytes() as f64 / hooks as f64
    );

    let host = Slices {
        began: Cell::new(Instant::now()),
        longest: Cell::new(Duration::ZERO),
        count: Cell::new(0),
    };
    let state = RefCell::new(state);
    let start = Start {
        store_uuid: STORE,
        shard: ShardId(0),
        number: 1,
        start_lsn: Lsn(0),
        hooks_expected: 0,
        wall_ms: 0,
    };
    let segments: Vec<SegmentUse> = (1..=1 + hooks / HOOKS_PER_SEGMENT)
        .map(|n| SegmentUse {
            segment: SegmentId(n),
            salt: n,
            slot: n as u32,
            end: 0,
            last_lsn: Some(Lsn(0)),
        })
        .collect();
    let began = Instant::now();
    let unnamed = block_on(checkpoint::write(&disk, &host, &state, start, async |_| {
        Ok((segments, Vec::new(), Vec::new()))
    }))?;
    let bytes = unnamed.bytes();
    block_on(checkpoint::name(&disk, &state, Lsn(0), unnamed))?;
    println!(
        "write   {:.1} MB in {:.2?}, synced; {} slices of 0.5 ms asked, the longest {:.0?} with its I/O",
        bytes as f64 / 1e6,
        began.elapsed(),
        host.count.get(),
        host.longest.get()
    );
    drop(state);

    let (began, used) = (Instant::now(), on_core());
    let loaded = block_on(checkpoint::load(&disk, &host, 1, ShardId(0), STORE))?;
    println!(
        "load    {} hooks in {:.2?}, {:.2?} on a core",
        loaded.state.live_hooks(),
        began.elapsed(),
        on_core() - used
    );
    assert_eq!(loaded.state.live_hooks(), hooks);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
