//! What a live hook weighs, counted by an allocator. Tests only.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::table::NewHook;
use super::*;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes held by this thread.
struct Counting;

fn count(bytes: isize) {
    // A thread that is ending has no counter any more.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

#[expect(
    unsafe_code,
    reason = "an allocator is the one thing that sees every allocation"
)]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(state: &mut State, n: u64, sinks: &[SinkNo], is_dead: bool) {
    let id = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    state.insert_hook(&NewHook {
        seq: Seq(n),
        id: HookId(id.to_be_bytes()),
        location: Location {
            segment: SegmentId(n >> 16),
            offset: 4096,
            len: 700,
            lsn: Lsn(0),
        },
        sinks,
        holds: Holds::NONE,
    });
    if is_dead {
        for row in state.rows(state.slot_of_seq(Seq(n)).unwrap()) {
            let dead = RowState::Dead {
                at_s: n as u32,
                reason: 2,
            };
            state.set_row(row, 3, dead);
        }
    }
}

/// The most bytes per hook while the table grows from `from` to `to` hooks, looked at often
/// enough to see every load.
fn worst(sinks: usize, is_dead: bool, from: u64, to: u64) -> f64 {
    let sinks: Vec<SinkNo> = (0..sinks as u16).map(SinkNo).collect();
    let before = HELD.get();
    let mut state = State::new(11);
    let mut worst = 0f64;
    for n in 0..to {
        add(&mut state, n, &sinks, is_dead);
        if n >= from && n % 64 == 0 {
            let held = (HELD.get() - before) as f64;
            worst = worst.max(held / (n + 1) as f64);
        }
    }
    let held = HELD.get() - before;
    let said = state.memory_bytes() as f64;
    // It also says what it keeps inline, and guesses at the trees.
    assert!(
        (said / held as f64 - 1.0).abs() < 0.02,
        "says {said}, holds {held}"
    );
    drop(state);
    assert_eq!(HELD.get(), before, "everything was given back");
    worst
}

#[test]
fn hook_with_one_sink_weighs_at_most_92_bytes_and_12_for_each_further_one() {
    // Loads repeat with each doubling, so that one doubling shows the worst.
    let one = worst(1, false, 60_000, 300_000);
    assert!(one <= 92.0, "one sink: {one}");
    for sinks in [2, 3, 5] {
        let more = worst(sinks, false, 60_000, 130_000);
        let limit = 92.0 + 12.0 * (sinks - 1) as f64;
        assert!(more <= limit, "{sinks} sinks: {more}");
    }
    let dead = worst(1, true, 60_000, 130_000);
    assert!(dead <= 92.0, "dead letter: {dead}");
    println!("worst bytes per hook: one sink {one:.1}, dead letter {dead:.1}");
}

#[test]
fn finished_hooks_cost_a_bit_among_stragglers_and_nothing_once_whole() {
    let mut state = State::new(11);
    for n in 0..400_000 {
        add(&mut state, n, &[SinkNo(0)], false);
        // One in ten waits for a sink that is down.
        if n % 10 != 0 {
            state.finish_seq(Seq(n));
        }
    }
    let finished = state.finished().memory_bytes() as f64 / 40_000.0;
    assert!(finished < 2.0, "{finished} bytes per straggler");
    for n in (0..400_000).step_by(10) {
        state.finish_seq(Seq(n));
    }
    assert_eq!(state.finished().parts(), 2, "one run and its end");
    assert!(
        state.memory_bytes() < 400_000,
        "{} bytes left",
        state.memory_bytes()
    );
}
