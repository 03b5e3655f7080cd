//! Facts about the log's queue, its thread and the limit per place.
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::limited::Site;
use super::writer::{self, QUEUE_LINES_MAX};

const PATIENCE: Duration = Duration::from_secs(60);

fn note(count: u64) -> String {
    format!("dropped {count}\n")
}

/// An output that takes a line only when it is allowed one.
struct Gate {
    allow: Receiver<()>,
    lines: Sender<String>,
}

impl Write for Gate {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // When the other end is gone everything may pass.
        _ = self.allow.recv();
        _ = self.lines.send(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn gate() -> (Gate, Sender<()>, Receiver<String>) {
    let ((allow, allowed), (lines, seen)) = (channel(), channel());
    (
        Gate {
            allow: allowed,
            lines,
        },
        allow,
        seen,
    )
}

#[test]
fn lines_come_out_whole_and_in_order() {
    let (out, allow, seen) = gate();
    drop(allow);
    let (lines, thread) = writer::start(out, note).unwrap();
    for n in 0..100 {
        lines.put(format!("line {n}\n").as_bytes());
    }
    thread.close(PATIENCE);
    let all: Vec<String> = seen.try_iter().collect();
    assert_eq!(all.len(), 100);
    assert_eq!(all[99], "line 99\n");
}

#[test]
fn stuck_output_stalls_nobody_and_the_loss_is_counted_and_said() {
    let (out, allow, seen) = gate();
    let (lines, thread) = writer::start(out, note).unwrap();
    let total = 3 * QUEUE_LINES_MAX as u64;
    for _ in 0..total {
        lines.put(b"x\n");
    }
    // The thread may have taken one out of the queue and hang in its write.
    let dropped = lines.dropped_count();
    assert!(dropped >= total - QUEUE_LINES_MAX as u64 - 1, "{dropped}");
    drop(allow);
    thread.close(PATIENCE);
    let all: Vec<String> = seen.try_iter().collect();
    assert_eq!(
        all.iter().filter(|line| *line == "x\n").count() as u64,
        total - dropped
    );
    assert_eq!(all.last().unwrap(), &format!("dropped {dropped}\n"));
}

#[test]
fn bytes_are_bounded_too() {
    let (out, allow, _seen) = gate();
    let (lines, thread) = writer::start(out, note).unwrap();
    let large = vec![b'x'; 1 << 20];
    for _ in 0..20 {
        lines.put(&large);
    }
    assert!(lines.dropped_count() >= 20 - 9);
    drop(allow);
    thread.close(PATIENCE);
}

#[test]
fn close_of_a_stuck_output_is_bounded() {
    let (out, _allow, _seen) = gate();
    let (lines, thread) = writer::start(out, note).unwrap();
    lines.put(b"x\n");
    thread.close(Duration::from_millis(1));
}

#[test]
fn broken_output_is_counted() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (lines, thread) = writer::start(Broken, note).unwrap();
    lines.put(b"x\n");
    while lines.dropped_count() < 1 {
        std::thread::yield_now();
    }
    thread.close(PATIENCE);
}

#[test]
fn place_speaks_once_per_interval_and_says_how_often_it_was_silent() {
    let (site, interval) = (Site::new(), Duration::from_secs(10));
    assert_eq!(site.admit_at(0, interval), Some(None));
    for now_ms in [0, 1, 5_000, 9_999] {
        assert_eq!(site.admit_at(now_ms, interval), None);
    }
    assert_eq!(site.admit_at(10_000, interval), Some(Some(4)));
    assert_eq!(site.admit_at(10_001, interval), None);
    assert_eq!(site.admit_at(30_000, interval), Some(Some(1)));
    assert_eq!(site.admit_at(60_000, interval), Some(None));
}

#[test]
fn limited_log_compiles_with_fields_and_message() {
    for n in 0..3u64 {
        crate::log_limited!(warn, Duration::from_secs(60), n, "said once");
        crate::log_limited!(error, Duration::from_secs(60), seq = %n, "said {}", "once");
    }
}
