//! Attempts against files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use futures_lite::future::{block_on, poll_once, zip};
use serde_json::Value;

use super::*;

fn sink(writers: &FileWriters, path: &Path) -> FileSink {
    let writer = writers.writer(path).unwrap();
    FileSink::new(writer, ForwardRule::all(), Rc::new(EagerHost::default()))
}

fn deliver(sink: &FileSink, body: &[u8]) -> Outcome {
    let envelope = HookSpec {
        body,
        ..HookSpec::default()
    }
    .envelope();
    block_on(sink.deliver(&delivery(&envelope)))
}

fn sizes(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    let size = |line: &str| {
        serde_json::from_str::<Value>(line)
            .ok()
            .and_then(|v| v["size"].as_u64())
    };
    text.lines().filter_map(size).collect()
}

#[test]
fn each_hook_is_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.ndjson");
    let sink = sink(&FileWriters::default(), &path);
    for len in [0, 1, 70_000] {
        assert_eq!(deliver(&sink, &vec![b'\n'; len]), Outcome::Delivered);
    }
    assert_eq!(sizes(&path), [0, 1, 70_000]);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn cores_share_the_writer_of_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.ndjson");
    let writers = FileWriters::default();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (writers, path) = (writers.clone(), path.clone());
            std::thread::spawn(move || {
                let sink = sink(&writers, &path);
                for _ in 0..50 {
                    assert_eq!(deliver(&sink, &[7; 5000]), Outcome::Delivered);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(sizes(&path), vec![5000; 200]);
}

#[test]
fn torn_line_is_closed_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.ndjson");
    std::fs::write(&path, "{\"v\":1,\"size\":9}\n{\"v\":1,\"si").unwrap();
    let sink = sink(&FileWriters::default(), &path);
    assert_eq!(deliver(&sink, b"abc"), Outcome::Delivered);
    assert_eq!(sizes(&path), [9, 3]);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
}

#[test]
fn rotated_file_is_left_and_its_path_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("out.ndjson"), dir.path().join("out.1"));
    let sink = sink(&FileWriters::default(), &path);
    assert_eq!(deliver(&sink, b"a"), Outcome::Delivered);
    std::fs::rename(&path, &old).unwrap();
    assert_eq!(deliver(&sink, b"bc"), Outcome::Delivered);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(deliver(&sink, b"def"), Outcome::Delivered);
    assert_eq!(sizes(&old), [1]);
    assert_eq!(sizes(&path), [3]);
}

#[test]
fn failure_is_retried_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing").join("out.ndjson");
    let sink = sink(&FileWriters::default(), &path);
    assert_eq!(deliver(&sink, b"a"), Outcome::retry(Cause::File));
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert_eq!(deliver(&sink, b"a"), Outcome::Delivered);
    assert_eq!(sizes(&path), [1]);
}

#[test]
fn only_regular_files_are_written() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), Path::new("/dev/null")] {
        let sink = sink(&FileWriters::default(), path);
        assert_eq!(
            deliver(&sink, b"a"),
            Outcome::retry(Cause::File),
            "{}",
            path.display()
        );
    }
}

#[test]
fn waiting_lines_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.ndjson");
    let sink = sink(&FileWriters::default(), &path);
    let envelope = HookSpec::default().envelope();
    let (one, two) = (delivery(&envelope), delivery(&envelope));
    // Both futures are one task: neither waits for the other's line.
    let both = zip(sink.deliver(&one), sink.deliver(&two));
    assert_eq!(block_on(both), (Outcome::Delivered, Outcome::Delivered));
    assert_eq!(sizes(&path), [2, 2]);
}

#[test]
fn full_queue_means_not_made() {
    // A writer without its thread: nothing leaves the queue.
    let writer = Arc::new(file::FileWriter::stalled());
    let sink = FileSink::new(writer, ForwardRule::all(), Rc::new(EagerHost::default()));
    let envelope = HookSpec {
        body: &vec![0; 3_000_000],
        ..HookSpec::default()
    }
    .envelope();
    let delivery = delivery(&envelope);
    let mut queued_count = 0;
    let outcome = loop {
        // A line that was queued stays there when its attempt is given up.
        let mut attempt = Box::pin(sink.deliver(&delivery));
        match block_on(poll_once(&mut attempt)) {
            None => queued_count += 1,
            Some(outcome) => break outcome,
        }
    };
    assert!(
        matches!(
            outcome,
            Outcome::NotMade {
                cause: Cause::Busy,
                ..
            }
        ),
        "{outcome:?}"
    );
    // Lines of 4 MB against 64 MiB.
    assert_eq!(queued_count, FILE_QUEUE_BYTES_MAX / 4_000_000);
}
